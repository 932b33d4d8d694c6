"""Costs of calls to servers. No I/O.

Amounts are in the units of ledger cells: `calls`, `milliseconds` and `microusd` (micro-dollars).
"""

from dataclasses import dataclass

MILLISECONDS_PER_SECOND = 1000


@dataclass(frozen=True, slots=True)
class CallPrice:
    """The price of a server in micro-dollars: per call and per second of running time."""

    per_call: int = 0
    per_second: int = 0

    @property
    def is_free(self) -> bool:
        """Whether calls cost nothing."""
        return not self.per_call and not self.per_second


FREE = CallPrice()


def calculate_cost(price: CallPrice, duration_ms: int) -> int:
    """Return the cost of a call in micro-dollars, rounded up."""
    return price.per_call + -(-price.per_second * duration_ms // MILLISECONDS_PER_SECOND)


def estimate_amounts(price: CallPrice, deadline_ms: int) -> dict[str, int]:
    """Return the maximum amounts of a call, to reserve before it."""
    amounts = {"calls": 1, "milliseconds": deadline_ms}
    return amounts if price.is_free else amounts | {"microusd": calculate_cost(price, deadline_ms)}


def calculate_amounts(
    price: CallPrice, *, deadline_ms: int, duration_ms: int, was_sent: bool, is_outcome_known: bool
) -> dict[str, int]:
    """Return the actual amounts of a call: zero if unsent, the maximum if its outcome is unknown.

    The time is limited to the deadline, because starting a server isn't charged, so a settlement
    never exceeds the reservation.
    """
    if not was_sent:
        return {"calls": 0, "milliseconds": 0, "microusd": 0}
    billed_ms = min(duration_ms, deadline_ms) if is_outcome_known else deadline_ms
    return {"calls": 1, "milliseconds": billed_ms, "microusd": calculate_cost(price, billed_ms)}
