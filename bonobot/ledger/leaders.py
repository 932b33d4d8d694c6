"""Leaders: who has the most calls in a span, without adding up what everybody has.

The busiest of each step (hour or day) are read from an index. Whoever isn't among them in a step
has at most as many calls there as the last of them, so of each it is known how many there are at
least and at most. Where the most that anybody unseen can have is less than the least of those
wanted, the others needn't be looked at: who remains is exact. Where many are equally busy that
doesn't hold, and all have to be added up.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection

from bonobot.ledger.models import Summary

MOST = 20  # so many are looked for at most
LOOKED_AT = 300  # of each step
MOST_STEPS = 200

_FIELDS: dict[str, Any] = {
    name: Summary._meta.get_field(name) for name in ("organization_id", "begins")
}
_BUSIEST = (
    "SELECT * FROM (SELECT begins, subject, calls FROM ledger_summary WHERE organization_id = %s"
    " AND dimension = %s AND grain = %s AND begins = %s ORDER BY calls DESC LIMIT %s) AS step"
)


class Seen(NamedTuple):
    """One of the busiest of a step."""

    begins: datetime
    subject: UUID
    calls: int


def leaders(
    organization_id: UUID, dimension: str, grain: str, steps: Sequence[datetime], *, most: int
) -> list[UUID] | None:
    """Return those among whom the most are; None where that can't be told (one query)."""
    if not 0 < len(steps) <= MOST_STEPS:
        return None
    owner = _FIELDS["organization_id"].get_db_prep_value(organization_id, connection)
    values: list[Any] = []
    for begins in steps:
        moment = _FIELDS["begins"].get_db_prep_value(begins, connection)
        values += [owner, dimension, grain, moment, LOOKED_AT]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join([_BUSIEST] * len(steps)), values)
        found = [Seen(begins, _uuid(subject), calls) for begins, subject, calls in cursor]
    return among(found, most=most, looked_at=LOOKED_AT)


def among(seen: Sequence[Seen], *, most: int, looked_at: int) -> list[UUID] | None:
    """Return those who may be among the most, of the busiest `looked_at` of each step."""
    least: Counter[UUID] = Counter()
    bounds = _bounds(seen, looked_at)
    unseen = sum(bounds.values())
    # What each can have in steps where it isn't among the busiest: all of those but its own.
    missed: Counter[UUID] = Counter()
    for one in seen:
        least[one.subject] += one.calls
        missed[one.subject] += bounds[one.begins]
    ranked = sorted(least.values(), reverse=True)
    wanted = ranked[most - 1] if len(ranked) >= most else 0
    if unseen and unseen >= wanted:
        return None
    return [who for who, calls in least.items() if calls + unseen - missed[who] >= wanted]


def _bounds(seen: Sequence[Seen], looked_at: int) -> Mapping[datetime, int]:
    """Return how many calls somebody unseen can have in each step."""
    many = Counter(one.begins for one in seen)
    bounds = dict.fromkeys(many, 0)
    for one in seen:
        if many[one.begins] >= looked_at:
            bounds[one.begins] = min(bounds[one.begins] or one.calls, one.calls)
    return bounds


def _uuid(value: object) -> UUID:
    return value if isinstance(value, UUID) else UUID(str(value))
