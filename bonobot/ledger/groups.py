"""Groups: what becomes of everything that waits for the ledger, decided at once.

Pure. The writer reads the rows that a group touches under their locks, this module decides item by
item, and the writer stores what came out. A refused item leaves no trace in the state that the
next item sees.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from bonobot.ledger import budgets, flows, permits, sealing
from bonobot.ledger.budgets import Cell
from bonobot.ledger.chain import Tip
from bonobot.ledger.entries import Admission, Admitted, Opening, Settlement
from bonobot.ledger.floods import Window
from bonobot.ledger.flows import Held
from bonobot.ledger.permits import Granted
from bonobot.ledger.refusals import (
    BudgetExhausted,
    FlowBarred,
    PermitRefused,
    RateLimited,
    Refusal,
    StaleSnapshot,
)
from bonobot.lib import rates

Answer = Admitted | UUID | bool | Refusal


@dataclass(frozen=True, slots=True)
class Open:
    """A row to seal for the first time; without an admission it is a refusal or an event."""

    call_id: UUID
    organization_id: UUID
    text: str
    columns: tuple[Any, ...]
    admission: Admission | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """A row to seal for the second time."""

    call_id: UUID
    organization_id: UUID
    text: str
    columns: tuple[Any, ...]
    actuals: tuple[tuple[str, int, int], ...] = ()


Item = Open | Close


def open_item(
    opening: Opening,
    at: datetime,
    *,
    outcome: str = sealing.OPEN,
    admission: Admission | None = None,
    generation: int | None = None,
) -> Open:
    """Return what opens a row; raise ValueError if its details are no JSON."""
    reserves = admission.reserves if admission else ()
    facts = sealing.opened(opening, at, outcome=outcome, reserves=reserves, generation=generation)
    columns = sealing.columns(sealing.OPENING, facts)
    text = sealing.seal(facts)
    return Open(opening.call_id, opening.organization_id, text, columns, admission)


def close_item(settlement: Settlement, at: datetime) -> Close:
    """Return what closes a call's row; raise ValueError if its details are no JSON."""
    facts = sealing.closed(settlement, at)
    columns = sealing.columns(sealing.CLOSING, facts)
    call_id, organization_id = settlement.call_id, settlement.organization_id
    return Close(call_id, organization_id, sealing.seal(facts), columns, settlement.actuals)


def count_item(window: Window) -> Close:
    """Return what closes the first of a flood of refusals with the count of those after it."""
    facts = sealing.repeated(window.row_id, window.repeats, window.last_at)
    columns = sealing.columns(sealing.CLOSING, facts)
    return Close(window.row_id, window.organization_id, sealing.seal(facts), columns)


@dataclass(frozen=True, slots=True)
class Needs:
    """The rows that a group touches, each kind in the order in which it is locked."""

    organizations: tuple[UUID, ...]
    cells: tuple[tuple[str, UUID], ...]
    rates: tuple[str, ...]
    closing: tuple[UUID, ...]
    flows: tuple[tuple[str, UUID], ...] = ()
    permits: tuple[UUID, ...] = ()


@dataclass(slots=True)
class State:
    """Those rows as they are: tips by organization, cells, rates (theoretical arrival times in
    microseconds) and flows by key, the organizations of rows that are still to be closed by call
    id, permits by id."""

    tips: dict[UUID, Tip]
    cells: dict[str, Cell]
    rates: dict[str, int]
    closable: dict[UUID, UUID]
    now: int
    flows: dict[str, Held] = field(default_factory=dict)
    permits: dict[UUID, Granted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sealed:
    """An item with the place that it got in its chain."""

    item: Item
    seq: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoreTaint:
    """Labels that a store holds from a call on which didn't hold before (`at` as `State.now`)."""

    key: str
    organization_id: UUID
    labels: int
    call_id: UUID
    session_id: UUID | None
    at: int


@dataclass(slots=True)
class Plan:
    """What to store, and the answer to each item in the order of the group."""

    state: State
    taints: list[StoreTaint] = field(default_factory=list)
    opened: list[Sealed] = field(default_factory=list)
    closed: list[Sealed] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)


def needs(items: Iterable[Item]) -> Needs:
    """Return the rows to lock for these items."""
    organizations: set[UUID] = set()
    cells: dict[str, UUID] = {}
    keys: set[str] = set()
    closing: list[UUID] = []
    held: dict[str, UUID] = {}
    granted: set[UUID] = set()
    for item in items:
        organizations.add(item.organization_id)
        if isinstance(item, Close):
            closing.append(item.call_id)
            cells |= {key: item.organization_id for key, _, _ in item.actuals}
        elif item.admission is not None:
            cells |= {reserve.key: item.organization_id for reserve in item.admission.reserves}
            keys |= {charge.key for charge in item.admission.charges}
            held |= {flow.key: item.organization_id for flow in item.admission.flows}
            held |= {store.key: item.organization_id for store in item.admission.stores}
            granted |= {item.admission.permit.id} if item.admission.permit else set()
    return Needs(
        tuple(sorted(organizations)),
        tuple(sorted(cells.items())),
        tuple(sorted(keys)),
        tuple(closing),
        tuple(sorted(held.items())),
        tuple(sorted(granted)),
    )


def decide(state: State, items: Sequence[Item]) -> Plan:
    """Return what becomes of the items, in order; the state that was given stays as it is."""
    plan = Plan(
        State(
            dict(state.tips),
            dict(state.cells),
            dict(state.rates),
            dict(state.closable),
            state.now,
            dict(state.flows),
            dict(state.permits),
        )
    )
    for item in items:
        answer = _close(plan, item) if isinstance(item, Close) else _open(plan, item)
        plan.answers.append(answer)
    return plan


def _open(plan: Plan, item: Open) -> Answer:
    admission = item.admission
    if admission is None:
        _seal(plan, item)
        return item.call_id
    refusal = _admit(plan, admission)
    if refusal is not None:
        return refusal
    tip = _seal(plan, item)
    plan.state.closable[item.call_id] = item.organization_id
    return Admitted(item.call_id, tip.seq, tip.generation)


def _close(plan: Plan, item: Close) -> bool:
    state = plan.state
    if state.closable.get(item.call_id) != item.organization_id:
        return False
    del state.closable[item.call_id]
    for key, reserved, actual in item.actuals:
        state.cells[key] = budgets.settle(state.cells[key], reserved=reserved, actual=actual)
    _seal(plan, item)
    return True


def _seal(plan: Plan, item: Item) -> Tip:
    tip = plan.state.tips[item.organization_id].extend(item.text)
    plan.state.tips[item.organization_id] = tip
    sealed = plan.closed if isinstance(item, Close) else plan.opened
    sealed.append(Sealed(item, tip.seq, tip.digest))
    return tip


def _admit(plan: Plan, admission: Admission) -> Refusal | None:
    """Spend, charge and reserve all that an admission asks for, or nothing; return why not."""
    state = plan.state
    generation = state.tips[admission.opening.organization_id].generation
    if admission.generation not in (None, generation):
        return StaleSnapshot(generation)
    if refusal := _permitted(state, admission):
        return refusal
    charged: dict[str, int] = {}
    for charge in admission.charges:
        tat = charged.get(charge.key, state.rates[charge.key])
        interval = rates.interval(charge.per_minute)
        verdict = rates.admit(tat, state.now, interval, charge.burst, charge.cost)
        if not verdict.allowed:
            return RateLimited(charge, wait_us=verdict.retry_after)
        charged[charge.key] = verdict.tat
    reserved: dict[str, Cell] = {}
    for reserve in admission.reserves:
        before = reserved.get(reserve.key, state.cells[reserve.key])
        after = budgets.reserve(before, limit=reserve.limit, amount=reserve.amount)
        if after is None:
            return BudgetExhausted(reserve, before)
        reserved[reserve.key] = after
    state.rates |= charged
    state.cells |= reserved
    _pass_labels(plan, admission)
    if permit := admission.permit:
        spent = replace(state.permits[permit.id], spent_by=admission.opening.call_id)
        state.permits[permit.id] = spent
    return None


def _pass_labels(plan: Plan, admission: Admission) -> None:
    """Pass labels between the caller and the stores of an admitted call."""
    state, opening = plan.state, admission.opening
    passed = flows.pass_labels(state.flows, admission.flows, admission.stores, state.now)
    for store in admission.stores:
        before, after = state.flows[store.key], passed.get(store.key)
        if after is not None:
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
    state.flows |= passed


def _permitted(state: State, admission: Admission) -> Refusal | None:
    """Return why the permit can't be spent or, without one, which flow bars the call."""
    if permit := admission.permit:
        organization_id = admission.opening.organization_id
        granted = state.permits.get(permit.id)
        verdict = permits.judge(granted, permit, organization_id, state.now)
        return PermitRefused(verdict) if verdict else None
    for flow in admission.flows:
        if flows.barred(state.flows[flow.key], flow, state.now):
            return FlowBarred(flow)
    return None
