"""Prices of calls to servers. No I/O."""

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
