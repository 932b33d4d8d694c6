"""Refusals of calls that policy allows; nothing is reserved or charged for them."""

from math import ceil

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.ledger.admission_rules import Verdict
from bonobot.ledger.budgets import (
    OWNER_LABELS,
    BudgetBalance,
    describe_budget_key,
    format_amount,
    parse_unit,
)
from bonobot.ledger.types import BudgetReservation, FlowLabelEffect, RateCharge

MICROSECONDS_PER_SECOND = 1_000_000
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


def _describe_owner(key: str) -> str:
    """Return the owner of a rate key `rate:{organization}:{scope}:{scope id}`."""
    scope = key.split(":")[2] if key.count(":") >= MIN_RATE_KEY_PARTS else ""
    return OWNER_LABELS.get(scope or "caller", f"{scope}'s")


class BudgetExhausted(Refusal):
    """A budget doesn't cover the call's maximum cost; `remaining` is what isn't spent of it."""

    code = "budget_exhausted"
    status = 403
    title = "Budget exhausted"

    def __init__(self, reservation: BudgetReservation, balance: BudgetBalance) -> None:
        unit = parse_unit(reservation.key)
        super().__init__(
            format_message(
                "The {budget} is {limit}. This call may need {amount}, but {spent} are used "
                "and {reserved} are reserved for running calls.",
                budget=describe_budget_key(reservation.key),
                limit=format_amount(unit, reservation.limit or 0),
                amount=format_amount(unit, reservation.amount),
                spent=format_amount(unit, balance.spent),
                reserved=format_amount(unit, balance.reserved),
            ),
            rule=reservation.key,
            remedy="Wait for the next period, or ask someone with permission to raise the budget.",
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
