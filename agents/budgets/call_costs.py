"""What a call of a server costs. Pure.

Amounts are as the ledger's cells count: calls, micro-dollars, and milliseconds for `seconds`.
"""

from dataclasses import dataclass

MILLISECONDS = 1000


@dataclass(frozen=True, slots=True)
class CallPrice:
    """What a paid server takes, in micro-dollars: for a call, and for each second that it runs."""

    call: int = 0
    second: int = 0

    @property
    def free(self) -> bool:
        """Tell whether calls cost nothing."""
        return not self.call and not self.second


FREE = CallPrice()


def calculate_cost(price: CallPrice, duration_ms: int) -> int:
    """Return what a call of this length costs in micro-dollars, rounded up."""
    return price.call + -(-price.second * duration_ms // MILLISECONDS)


def estimate_amounts(price: CallPrice, deadline_ms: int) -> dict[str, int]:
    """Return what a call may take at most, to set aside before it."""
    amounts = {"calls": 1, "seconds": deadline_ms}
    return amounts if price.free else amounts | {"microusd": calculate_cost(price, deadline_ms)}


def calculate_amounts(
    price: CallPrice, *, deadline_ms: int, duration_ms: int, sent: bool, known: bool
) -> dict[str, int]:
    """Return what a call took: nothing where it was never sent, all where nobody knows.

    Starting a server and looking for it are not the call's time: it is never more than the
    deadline, so a settlement never takes more than what was set aside.
    """
    if not sent:
        return {"calls": 0, "seconds": 0, "microusd": 0}
    ran = min(duration_ms, deadline_ms) if known else deadline_ms
    return {"calls": 1, "seconds": ran, "microusd": calculate_cost(price, ran)}
