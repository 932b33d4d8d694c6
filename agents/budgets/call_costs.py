"""Costs of calls to servers. No I/O.

Amounts are in the units of ledger cells: calls, micro-dollars, and milliseconds for `seconds`.
"""

from dataclasses import dataclass

MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class CallPrice:
    """The price of a server in micro-dollars: per call and per second of running time."""

    call: int = 0
    second: int = 0

    @property
    def free(self) -> bool:
        """Whether calls cost nothing."""
        return not self.call and not self.second


FREE = CallPrice()


def calculate_cost(price: CallPrice, duration_ms: int) -> int:
    """Return the cost of a call in micro-dollars, rounded up."""
    return price.call + -(-price.second * duration_ms // MILLISECONDS)


def estimate_amounts(price: CallPrice, deadline_ms: int) -> dict[str, int]:
    """Return the maximum amounts of a call, to reserve before it."""
    amounts = {"calls": 1, "seconds": deadline_ms}
    return amounts if price.free else amounts | {"microusd": calculate_cost(price, deadline_ms)}


def calculate_amounts(
    price: CallPrice, *, deadline_ms: int, duration_ms: int, sent: bool, known: bool
) -> dict[str, int]:
    """Return the actual amounts of a call: zero if unsent, the maximum if its outcome is unknown.

    The time is limited to the deadline, because starting a server isn't charged, so a settlement
    never exceeds the reservation.
    """
    if not sent:
        return {"calls": 0, "seconds": 0, "microusd": 0}
    ran = min(duration_ms, deadline_ms) if known else deadline_ms
    return {"calls": 1, "seconds": ran, "microusd": calculate_cost(price, ran)}
