"""Refusals: why a call that was allowed may not run now. Nothing was reserved or charged for it."""

from math import ceil

from bonobot.ledger.budgets import Cell
from bonobot.ledger.entries import Charge, Reserve
from bonobot.lib.problems import Problem

MICROSECONDS = 1_000_000


class Refusal(Problem):
    """The ledger didn't admit the call."""

    code = "not_admitted"
    status = 403
    title = "Not admitted"


class AuditUnavailable(Refusal):
    """The audit couldn't be written in time: no row, no call."""

    code = "audit_unavailable"
    status = 503
    title = "The audit can't be written now"

    def __init__(self, cause: object) -> None:
        super().__init__(
            f"The audit can't be written now: {cause}.",
            remedy="Try again; if it stays so, `bonobot doctor` checks the database.",
            retry_after=1,
        )


class StaleSnapshot(Refusal):
    """The rules changed since they were read; whoever decided reads them and decides again."""

    code = "stale_snapshot"
    status = 409
    title = "The rules changed meanwhile"

    def __init__(self, generation: int) -> None:
        super().__init__(
            "The rules of this organization changed while the call was being decided.",
            remedy="Read the rules again and decide once more.",
            extra={"generation": generation},
        )


class RateLimited(Refusal):
    """A rate limit is used up for now."""

    code = "rate_limited"
    status = 429
    title = "Too many calls"

    def __init__(self, charge: Charge, *, wait_us: int) -> None:
        seconds = max(ceil(wait_us / MICROSECONDS), 1)
        super().__init__(
            f"The limit of {charge.per_minute} a minute, {charge.burst} at once, is reached.",
            rule=charge.key,
            remedy=f"Try again in {seconds} s.",
            retry_after=seconds,
        )


class BudgetExhausted(Refusal):
    """A budget doesn't hold what the call may cost."""

    code = "budget_exhausted"
    status = 403
    title = "The budget is used up"

    def __init__(self, reserve: Reserve, cell: Cell) -> None:
        super().__init__(
            f"The budget of {reserve.limit} doesn't allow {reserve.amount} more: "
            f"{cell.spent} are spent and {cell.reserved} are set aside for running calls.",
            rule=reserve.key,
            remedy="Wait for the next period, or ask who may to raise the budget.",
            extra={
                "limit": reserve.limit,
                "spent": cell.spent,
                "reserved": cell.reserved,
                "asked": reserve.amount,
            },
        )
