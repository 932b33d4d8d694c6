"""What a call takes from the rate limits of its token, agent, server and session. No I/O."""

from functools import lru_cache
from uuid import UUID

from bonobot.ledger.types import RateCharge, build_rate_prefix

# A third of a minute's calls may come at once, for parallel calls of one turn.
BURST_SHARE = 3
MIN_BURST = 10


@lru_cache(maxsize=4096)
def build_charge(
    organization_id: UUID, scope: str, scope_id: UUID | str, per_minute: int
) -> RateCharge:
    return RateCharge(
        f"{build_rate_prefix(organization_id)}{scope}:{scope_id}",
        per_minute,
        _calculate_burst(per_minute),
    )


def build_global_charge(per_minute: int) -> RateCharge:
    """Return a call's charge on the rate limit shared by all organizations."""
    return RateCharge("rate:all:global:all", per_minute, _calculate_burst(per_minute))


def _calculate_burst(per_minute: int) -> int:
    return max(min(MIN_BURST, per_minute), per_minute // BURST_SHARE)
