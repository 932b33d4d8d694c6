"""Admission of a call: rules for flow labels and one-time approvals, and the refusals. No I/O.

A label is one bit, whose meaning the caller defines. A caller holds a label from the admission of
the call that adds it, so it applies to all later calls on every host.

An approval is bound to a digest of arguments, definition and rules, is used once, and expires.

A refused call is one that policy allows; nothing is reserved or charged for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal
from uuid import UUID

from bonobot.core.i18n.messages import TranslatableMessage as Message
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.records import record
from bonobot.ledger.budgets import (
    OWNER_LABELS,
    BudgetBalance,
    convert_amount,
    describe_budget_key,
    describe_remedy,
    parse_unit,
)
from bonobot.ledger.types import (
    ApprovalReference,
    BudgetReservation,
    FlowLabelEffect,
    RateCharge,
    Store,
)

MICROSECONDS_PER_SECOND = 1_000_000
# A cell whose labels don't change is written at most this often to record its last use.
TOUCH_INTERVAL_US = 600 * MICROSECONDS_PER_SECOND


@record()
class CallerFlowLabels:
    """The labels of a caller or a store, and their last use (microseconds since 1970).

    For a store, that is the last write of a caller with labels.
    """

    labels: int = 0
    last_used_us: int = 0


MIN_RATE_KEY_PARTS = 3
# When to try again after a refusal because of reservations, which can end at any time.
RESERVED_RETRY_S = 1


class Refusal(Problem):
    """The ledger didn't admit the call."""

    code = "not_admitted"
    status = 403
    title = "Call denied"


class AuditUnavailable(Refusal):
    """The audit log couldn't be written in time, so the call may not run."""

    code = "audit_unavailable"
    status = 503
    title = "Audit log not available"

    def __init__(self, cause: object) -> None:
        super().__init__(
            format_message("The audit log can't be written: {cause}.", cause=cause),
            remedy="Try again. If the problem persists, run `bonobot doctor` to check the "
            "database.",
            retry_after=1,
        )


class CallAlreadyStarted(Refusal):
    """Another process that held the same session has already opened this call."""

    code = "call_already_opened"
    status = 409
    title = "Call already started"

    def __init__(self) -> None:
        super().__init__(
            "Another process has already started this call.",
            remedy="Wait for its outcome. The call runs only once.",
        )


class StaleSnapshot(Refusal):
    """The policy changed after the snapshot was read; the call must be decided again."""

    code = "stale_snapshot"
    status = 409
    title = "Rules changed"

    def __init__(self, generation: int) -> None:
        super().__init__(
            "The rules of this organization changed while the call was being decided.",
            remedy="Reload the rules and decide again.",
            extra={"generation": generation},
        )


class RateLimited(Refusal):
    """A rate limit is reached."""

    code = "rate_limited"
    status = 429
    title = "Too many calls"

    def __init__(self, charge: RateCharge, *, wait_us: int) -> None:
        self.wait_s = wait_us / MICROSECONDS_PER_SECOND
        seconds = max(ceil(self.wait_s), 1)
        super().__init__(
            format_message(
                "The {whose} rate limit of {per_minute} calls per minute (burst of "
                "{burst}) is reached.",
                whose=_describe_owner(charge.key),
                per_minute=charge.per_minute,
                burst=charge.burst,
            ),
            rule=charge.key,
            remedy=format_message("Try again in {seconds} s.", seconds=seconds),
            retry_after=seconds,
        )


def compute_held_labels(caller_labels: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> int:
    """Return the labels still held: none after the idle time."""
    if (
        flow.idle_s is not None
        and now - caller_labels.last_used_us > flow.idle_s * MICROSECONDS_PER_SECOND
    ):
        return 0
    return caller_labels.labels


def is_blocked(caller_labels: CallerFlowLabels, flow: FlowLabelEffect, now: int) -> bool:
    """Return whether the caller holds all labels that block this call."""
    return (
        bool(flow.blocking_labels)
        and compute_held_labels(caller_labels, flow, now) & flow.blocking_labels
        == flow.blocking_labels
    )


def add_labels(
    caller_labels: CallerFlowLabels, flow: FlowLabelEffect, now: int, store_labels: int = 0
) -> CallerFlowLabels:
    """Return the labels after the call's admission; the same object if nothing changes."""
    labels = compute_held_labels(caller_labels, flow, now) | flow.added_labels | store_labels
    if labels == caller_labels.labels and (
        not labels or now - caller_labels.last_used_us < TOUCH_INTERVAL_US
    ):
        return caller_labels
    return CallerFlowLabels(labels, now)


def propagate_labels(
    cells: Mapping[str, CallerFlowLabels],
    flows: Sequence[FlowLabelEffect],
    stores: Sequence[Store],
    now: int,
) -> dict[str, CallerFlowLabels]:
    """Return the cells changed by an admitted call.

    Stores that the call writes get the caller's previous labels, and the caller gets the previous
    labels of the stores it reads. Without flows there is no caller that holds labels. A store's
    time increases with each write of a caller with labels, also if the store has these already: a
    person who clears the labels can't have seen that data before.
    """
    if not flows and not stores:
        return {}
    store_labels = caller_labels = 0
    for store in stores:
        store_labels |= cells[store.key].labels if store.reads else 0
    for flow in flows:
        caller_labels |= compute_held_labels(cells[flow.key], flow, now)
    new_cells = {}
    for flow in flows:
        new_cells[flow.key] = add_labels(cells[flow.key], flow, now, store_labels)
    for store in stores:
        before = cells[store.key]
        if store.writes and caller_labels:
            written_us = max(now, before.last_used_us + 1)
            new_cells[store.key] = CallerFlowLabels(before.labels | caller_labels, written_us)
    return {key: cell for key, cell in new_cells.items() if cell is not cells[key]}


Verdict = Literal["", "approval_unknown", "approval_mismatch", "approval_expired", "approval_spent"]


@dataclass(frozen=True, slots=True)
class StoredApproval:
    """A stored approval; it expires at a time in microseconds since 1970."""

    organization_id: UUID
    digest: str
    expires_us: int
    spent_by: UUID | None = None


def validate_approval(
    stored_approval: StoredApproval | None,
    approval: ApprovalReference,
    organization_id: UUID,
    now: int,
) -> Verdict:
    """Return the error code if the approval can't be used, else an empty string."""
    if stored_approval is None or stored_approval.organization_id != organization_id:
        return "approval_unknown"
    if stored_approval.digest != approval.digest:
        return "approval_mismatch"
    if stored_approval.spent_by is not None:
        return "approval_spent"
    return "approval_expired" if now > stored_approval.expires_us else ""


def _describe_owner(key: str) -> str:
    """Return the owner of a rate key `rate:{organization}:{scope}:{scope id}`."""
    scope = key.split(":")[2] if key.count(":") >= MIN_RATE_KEY_PARTS else ""
    return OWNER_LABELS.get(scope or "caller", f"{scope}'s")


def _describe_shortage(reservation: BudgetReservation, balance: BudgetBalance) -> Message:
    limit, unit = reservation.limit or 0, parse_unit(reservation.key)
    budget, spent = describe_budget_key(reservation.key), convert_amount(unit, balance.spent)
    if balance.spent >= limit:
        return format_message(
            "The {budget} is used up: {spent:,} of {limit:,}.",
            budget=budget,
            spent=spent,
            limit=convert_amount(unit, limit),
        )
    return format_message(
        "The {budget} isn't enough: up to {amount:,} may be needed, {spent:,} of {limit:,} are "
        "used, and {reserved:,} are reserved for running calls.",
        budget=budget,
        amount=convert_amount(unit, reservation.amount),
        spent=spent,
        limit=convert_amount(unit, limit),
        reserved=convert_amount(unit, balance.reserved),
    )


class BudgetExhausted(Refusal):
    """A budget doesn't cover the call's maximum cost; `remaining` is what isn't spent of it."""

    code = "budget_exhausted"
    status = 403
    title = "Budget exhausted"

    def __init__(self, reservation: BudgetReservation, balance: BudgetBalance) -> None:
        super().__init__(
            _describe_shortage(reservation, balance),
            rule=reservation.key,
            remedy=describe_remedy(reservation.key),
            extra={
                "limit": reservation.limit,
                "spent": balance.spent,
                "reserved": balance.reserved,
                "asked": reservation.amount,
            },
        )
        self.remaining = max((reservation.limit or 0) - balance.spent, 0)


class BudgetReserved(BudgetExhausted):
    """A budget covers the call once running calls have ended that have reserved a part of it.

    `remaining` is what is left of it now.
    """

    code = "budget_reserved"
    status = 429
    title = "Budget reserved"

    def __init__(self, reservation: BudgetReservation, balance: BudgetBalance) -> None:
        super().__init__(reservation, balance)
        self.remedy = format_message("Try again when the running calls have ended.")
        self.retry_after = RESERVED_RETRY_S
        self.remaining = max(self.remaining - balance.reserved, 0)


class FlowNeedsApproval(Refusal):
    """The labels that the caller holds require an approval for this call."""

    code = "flow_needs_approval"
    status = 403
    title = "Approval required"

    def __init__(self, flow: FlowLabelEffect) -> None:
        super().__init__(
            "The call would have an external effect after private data and untrusted "
            "content were read.",
            rule=flow.key,
            remedy="Contact someone who can approve calls.",
        )


class ApprovalRefused(Refusal):
    """The call's approval can't be used for it."""

    code = "approval_unknown"
    status = 403
    title = "Approval not valid"

    _MESSAGES = {
        "approval_unknown": format_message("The approval doesn't exist."),
        "approval_mismatch": format_message(
            "The approval is for another call. The arguments, the definition, or the rules differ."
        ),
        "approval_expired": format_message("The approval has expired."),
        "approval_spent": format_message("The approval has already been used."),
    }

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(
            self._MESSAGES[verdict], code=verdict, rule="approval", remedy="Request a new approval."
        )
