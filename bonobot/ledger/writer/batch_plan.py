"""Decide a batch of items. No I/O.

The writer locks and reads the rows of a batch, this module decides item by item, and the writer
stores the plan. A refused item doesn't change the state that the next item sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from bonobot.core import rate_limiter
from bonobot.core.records import record
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.ledger import budgets
from bonobot.ledger.admission import (
    ApprovalRefused,
    BudgetExhausted,
    BudgetReserved,
    CallerFlowLabels,
    FlowNeedsApproval,
    RateLimited,
    Refusal,
    StaleSnapshot,
    StoredApproval,
    is_blocked,
    propagate_labels,
    validate_approval,
)
from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.audit.hash_chain import ChainTip
from bonobot.ledger.budgets import BudgetBalance
from bonobot.ledger.types import Admission, AdmissionResult, Opening, Settlement
from bonobot.ledger.writer.repeated_refusals import RefusalWindow

Answer = AdmissionResult | UUID | bool | Refusal


@record()
class OpenItem:
    """The first entry of a row; without an admission it is a refusal or an event."""

    call_id: UUID
    organization_id: UUID
    text: str
    columns: tuple[Any, ...]
    admission: Admission | None = None


@record()
class CloseItem:
    """The closing entry of a row."""

    call_id: UUID
    organization_id: UUID
    text: str
    columns: tuple[Any, ...]
    actuals: tuple[tuple[str, int, int], ...] = ()


Item = OpenItem | CloseItem


def build_open_item(
    opening: Opening,
    at: datetime,
    *,
    outcome: str = entry_encoding.OPEN_OUTCOME,
    admission: Admission | None = None,
    generation: int | None = None,
) -> OpenItem:
    """Return the opening item of a row; raises ValueError if its details aren't JSON."""
    reserves = admission.reservations if admission else ()
    facts = entry_encoding.build_opening_facts(
        opening, at, outcome=outcome, reserves=reserves, generation=generation
    )
    columns = entry_encoding.build_columns(entry_encoding.OPENING_COLUMNS, facts)
    text = to_canonical_json(facts)
    return OpenItem(
        opening.call_id,
        organization_id=opening.organization_id,
        text=text,
        columns=columns,
        admission=admission,
    )


def build_close_item(settlement: Settlement, at: datetime) -> CloseItem:
    """Return the closing item of a call; raises ValueError if its details aren't JSON."""
    facts = entry_encoding.build_closing_facts(settlement, at)
    columns = entry_encoding.build_columns(entry_encoding.CLOSING_COLUMNS, facts)
    call_id, organization_id = settlement.call_id, settlement.organization_id
    return CloseItem(
        call_id,
        organization_id=organization_id,
        text=to_canonical_json(facts),
        columns=columns,
        actuals=settlement.actuals,
    )


def build_repeat_item(window: RefusalWindow) -> CloseItem:
    """Return the item that closes the first of equal refusals with the number of repeats."""
    facts = entry_encoding.build_repeat_facts(window.row_id, window.repeats, window.last_at)
    columns = entry_encoding.build_columns(entry_encoding.CLOSING_COLUMNS, facts)
    return CloseItem(window.row_id, window.organization_id, to_canonical_json(facts), columns)


@record()
class BatchRowKeys:
    """The keys of the rows that a batch uses, in locking order."""

    organizations: tuple[UUID, ...]
    cells: tuple[tuple[str, UUID], ...]
    rates: tuple[str, ...]
    closing_calls: tuple[UUID, ...]
    flows: tuple[tuple[str, UUID], ...] = ()
    approvals: tuple[UUID, ...] = ()


@dataclass(slots=True)
class BatchState:
    """The state of these rows: tips by organization; cells, rates (theoretical arrival times in
    microseconds) and flows by key; organizations of open calls by call id; approvals by id."""

    tips: dict[UUID, ChainTip]
    cells: dict[str, BudgetBalance]
    rates: dict[str, int]
    open_calls: dict[UUID, UUID]
    now: int
    flows: dict[str, CallerFlowLabels] = field(default_factory=dict)
    approvals: dict[UUID, StoredApproval] = field(default_factory=dict)


@record()
class SealedItem:
    """An item with its position and digest in the chain."""

    item: Item
    seq: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoreTaint:
    """Labels that a call added to a store, at a time like `BatchState.now`."""

    key: str
    organization_id: UUID
    labels: int
    call_id: UUID
    session_id: UUID | None
    at: int


@dataclass(slots=True)
class BatchPlan:
    """The rows to store, and the answers in the order of the items."""

    state: BatchState
    taints: list[StoreTaint] = field(default_factory=list)
    opened: list[SealedItem] = field(default_factory=list)
    closed: list[SealedItem] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


def collect_row_keys(items: Iterable[Item]) -> BatchRowKeys:
    organizations: set[UUID] = set()
    cells: dict[str, UUID] = {}
    rate_keys: set[str] = set()
    closing: list[UUID] = []
    flow_cells: dict[str, UUID] = {}
    approval_ids: set[UUID] = set()
    for item in items:
        organization_id = item.organization_id
        organizations.add(organization_id)
        if isinstance(item, CloseItem):
            closing.append(item.call_id)
            for key, _, _ in item.actuals:
                cells[key] = organization_id
        elif (admission := item.admission) is not None:
            for reservation in admission.reservations:
                cells[reservation.key] = organization_id
            for charge in admission.charges:
                rate_keys.add(charge.key)
            for flow in admission.flows:
                flow_cells[flow.key] = organization_id
            for store in admission.stores:
                flow_cells[store.key] = organization_id
            if admission.approval:
                approval_ids.add(admission.approval.id)
    return BatchRowKeys(
        tuple(sorted(organizations)),
        cells=tuple(sorted(cells.items())),
        rates=tuple(sorted(rate_keys)),
        closing_calls=tuple(closing),
        flows=tuple(sorted(flow_cells.items())),
        approvals=tuple(sorted(approval_ids)),
    )


def decide_batch(state: BatchState, items: Iterable[Item]) -> BatchPlan:
    """Return the plan for the items, in order; doesn't change `state`."""
    plan = BatchPlan(
        BatchState(
            dict(state.tips),
            cells=dict(state.cells),
            rates=dict(state.rates),
            open_calls=dict(state.open_calls),
            now=state.now,
            flows=dict(state.flows),
            approvals=dict(state.approvals),
        )
    )
    for item in items:
        answer = (
            _decide_close_item(plan, item)
            if isinstance(item, CloseItem)
            else _decide_open_item(plan, item)
        )
        plan.answers.append(answer)
    return plan


def _decide_open_item(plan: BatchPlan, item: OpenItem) -> Answer:
    admission = item.admission
    if admission is None:
        _seal_item(plan, item)
        return item.call_id
    refusal = _admit_call(plan, admission)
    if refusal is not None:
        return refusal
    tip = _seal_item(plan, item)
    plan.state.open_calls[item.call_id] = item.organization_id
    return AdmissionResult(item.call_id, tip.seq, tip.generation)


def _decide_close_item(plan: BatchPlan, item: CloseItem) -> bool:
    state = plan.state
    if state.open_calls.get(item.call_id) != item.organization_id:
        return False
    del state.open_calls[item.call_id]
    for key, reserved, actual in item.actuals:
        state.cells[key] = budgets.settle_reservation(
            state.cells[key], reserved=reserved, actual=actual
        )
    _seal_item(plan, item)
    return True


def _seal_item(plan: BatchPlan, item: Item) -> ChainTip:
    tip = plan.state.tips[item.organization_id].extend(item.text)
    plan.state.tips[item.organization_id] = tip
    sealed_items = plan.closed if isinstance(item, CloseItem) else plan.opened
    sealed_items.append(SealedItem(item, tip.seq, tip.digest))
    return tip


def _admit_call(plan: BatchPlan, admission: Admission) -> Refusal | None:
    """Charge, reserve and use the approval of an admission, or return a refusal."""
    state = plan.state
    generation = state.tips[admission.opening.organization_id].generation
    if admission.generation not in (None, generation):
        return StaleSnapshot(generation)
    if refusal := _find_refusal(state, admission):
        return refusal
    new_rates: dict[str, int] = {}
    for charge in admission.charges:
        tat = new_rates.get(charge.key, state.rates[charge.key])
        interval = rate_limiter.compute_interval(charge.per_minute)
        verdict = rate_limiter.admit_request(tat, state.now, interval, charge.burst, charge.cost)
        if not verdict.allowed:
            return RateLimited(charge, wait_us=verdict.retry_after)
        new_rates[charge.key] = verdict.tat
    new_balances = _reserve_budgets(state, admission)
    if isinstance(new_balances, Refusal):
        return new_balances
    state.rates |= new_rates
    state.cells |= new_balances
    _propagate_labels(plan, admission)
    if approval := admission.approval:
        spent_approval = replace(state.approvals[approval.id], spent_by=admission.opening.call_id)
        state.approvals[approval.id] = spent_approval
    return None


def _reserve_budgets(state: BatchState, admission: Admission) -> dict[str, BudgetBalance] | Refusal:
    """Return the new balances, or the refusal: that of an exhausted budget if there is one."""
    new_balances: dict[str, BudgetBalance] = {}
    refusal: Refusal | None = None
    for reservation in admission.reservations:
        before = state.cells[reservation.key]
        balance = new_balances.get(reservation.key, before)
        new_balance = budgets.reserve_amount(
            balance, limit=reservation.limit, amount=reservation.amount
        )
        if new_balance is not None:
            new_balances[reservation.key] = new_balance
            continue
        # What the admission itself has reserved doesn't become available.
        required = balance.reserved - before.reserved + reservation.amount
        if before.spent + required > (reservation.limit or 0):
            return BudgetExhausted(reservation, balance)
        refusal = refusal or BudgetReserved(reservation, balance)
    return refusal or new_balances


def _propagate_labels(plan: BatchPlan, admission: Admission) -> None:
    """Propagate labels between the caller and the stores of an admitted call."""
    state, opening = plan.state, admission.opening
    changed_cells = propagate_labels(state.flows, admission.flows, admission.stores, state.now)
    for store in admission.stores:
        before, after = state.flows[store.key], changed_cells.get(store.key)
        if after is not None and after.labels != before.labels:
            plan.taints.append(
                StoreTaint(
                    key=store.key,
                    organization_id=opening.organization_id,
                    labels=after.labels & ~before.labels,
                    call_id=opening.call_id,
                    session_id=opening.session_id,
                    at=state.now,
                )
            )
    state.flows |= changed_cells


def _find_refusal(state: BatchState, admission: Admission) -> Refusal | None:
    """Return the refusal if the approval is invalid or, without one, flow labels block the call."""
    if approval := admission.approval:
        organization_id = admission.opening.organization_id
        stored_approval = state.approvals.get(approval.id)
        verdict = validate_approval(stored_approval, approval, organization_id, state.now)
        return ApprovalRefused(verdict) if verdict else None
    for flow in admission.flows:
        if is_blocked(state.flows[flow.key], flow, state.now):
            return FlowNeedsApproval(flow)
    return None
