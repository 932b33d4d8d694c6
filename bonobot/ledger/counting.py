"""Counting: audit rows become rollups, each once, in batches, beside the calls and never in them.

The cursor walks the chain by the place of a row's opening: places are given under the lock of the
head, so whatever stands at or before a place that was seen is committed. What had no end by then is
remembered (`Uncounted`) and looked up by its id until it has one. A batch is read, then written in
one transaction that first moves the cursor from where it was read: a second worker, or one that was
killed, changes nothing. Repeats of a refusal that are written later than `FLOOD_KEPT` after it
aren't counted; `rebuild` counts them.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import F, Min, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from bonobot.ledger import summing
from bonobot.ledger.models import TOOK, AuditRow, Checkpoint, Counted, Head, Rollup, Uncounted
from bonobot.ledger.rollups import (
    COUNTED,
    OPEN,
    REFUSED,
    Ended,
    Place,
    Sum,
    beginning,
    fold,
    key_of,
)

BATCH = 2_000
LATE_AT_ONCE = 1_000
ROUNDS = 200  # of one organization in one run of the task
FLOOD_KEPT = timedelta(minutes=10)
HOURS_KEPT = timedelta(days=60)
COLUMNS = (*Ended._fields[:-1], "repeats", "id", "seq", "closed_seq")
SUMS = ("calls", "duration_ms", "input_tokens", "output_tokens", "cost_microusd")


class Looked(NamedTuple):
    """What one look at the audit found, and what has to be remembered of it."""

    cursor: Counted
    seq: int
    head: int
    ended: list[Ended]
    waits: list[Uncounted]
    done: list[UUID]  # of what waited
    more: bool


def count_all() -> int:
    """Count what is new in all organizations, some batches of each; return how many rows ended."""
    heads = dict(Head.objects.values_list("organization_id", "seq"))
    seen = dict(Counted.objects.values_list("organization_id", "head"))
    moved = [one for one, seq in heads.items() if seq != seen.get(one)]
    return sum(count(organization_id, rounds=ROUNDS) for organization_id in moved)


def count(organization_id: UUID, *, rounds: int | None = None) -> int:
    """Count what is new in one organization, everything where no rounds are named."""
    total = 0
    while rounds is None or rounds > 0:
        looked = _look(organization_id)
        if not _write(looked):
            break  # another worker does it
        total += len(looked.ended)
        if not looked.more:
            break
        rounds = None if rounds is None else rounds - 1
    return total


def tail(organization_id: UUID) -> tuple[list[Ended], bool]:
    """Return what ended since the last count, and whether there is more of it (2 queries).

    A count that happens while somebody reads this and the rollups shows to them twice.
    """
    seen = Counted.objects.filter(pk=organization_id).values("seq")
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    new = rows.filter(seq__gt=Coalesce(Subquery(seen), 0)).values_list(*COLUMNS)[:BATCH]
    late = _late(organization_id)
    found = list(_ended(None, chain(new, late), {row[-3] for row in late}))
    return found, len(new) == BATCH or len(late) == LATE_AT_ONCE


def first_uncounted(organization_id: UUID) -> int | None:
    """Return the place of the first row that isn't counted to its end; it may not leave yet."""
    cursor = Counted.objects.filter(pk=organization_id).values_list("seq", flat=True).first()
    rows = AuditRow.objects.filter(organization_id=organization_id, seq__gt=cursor or 0)
    waits = Uncounted.objects.filter(organization_id=organization_id)
    places = [found.order_by().aggregate(seq=Min("seq"))["seq"] for found in (rows, waits)]
    return min((seq for seq in places if seq is not None), default=None)


def rebuild(organization_id: UUID) -> int:
    """Count again from the rows that there are; days whose rows have left stay as they were.

    The day in which the oldest row was written stays as well, where some of it may have left.
    """
    since = _first_whole_day(organization_id)
    with transaction.atomic():
        Counted.objects.get_or_create(organization_id=organization_id)
        Counted.objects.filter(pk=organization_id).update(
            seq=0, head=0, since=since, version=F("version") + 1, summed_since=None
        )
        old = Rollup.objects.filter(organization_id=organization_id)
        (old.filter(begins__gte=since) if since else old).delete()
        Uncounted.objects.filter(organization_id=organization_id).delete()
    return count(organization_id)


def forget() -> int:
    """Remove the rollups of hours that nobody looks at by the hour any more; days stay."""
    before = timezone.now() - HOURS_KEPT
    return Rollup.objects.filter(grain=Rollup.Grain.HOUR, begins__lt=before).delete()[0]


def _first_whole_day(organization_id: UUID) -> datetime | None:
    if not Checkpoint.objects.filter(organization_id=organization_id).exists():
        return None
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    oldest = rows.values_list("opened_at", flat=True).first() or timezone.now()
    return beginning(oldest, "day") + timedelta(days=1)


def _look(organization_id: UUID) -> Looked:
    cursor = Counted.objects.filter(pk=organization_id).first() or Counted(
        organization_id=organization_id, version=-1
    )
    head = Head.objects.filter(pk=organization_id).values_list("seq", flat=True).first() or 0
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    new = list(rows.filter(seq__gt=cursor.seq).values_list(*COLUMNS)[:BATCH])
    late = list(_late(organization_id)) if cursor.version >= 0 else []
    more = len(new) == BATCH or len(late) == LATE_AT_ONCE
    return Looked(
        cursor=cursor,
        seq=new[-1][-2] if new else cursor.seq,
        # While there is more, the next run must not take this for the end.
        head=-1 if more else head,
        ended=list(_ended(cursor.since, chain(new, late), {row[-3] for row in late})),
        waits=list(_waits(organization_id, cursor.since, new)),
        done=[row[-3] for row in late],
        more=more,
    )


def _late(organization_id: UUID) -> QuerySet[Any, Any]:
    """Return the rows that have come to their end since they were looked at."""
    waits = Uncounted.objects.filter(organization_id=organization_id)
    closed = AuditRow.objects.filter(closed_seq__isnull=False, pk__in=waits.values("pk"))
    return closed.order_by().values_list(*COLUMNS)[:LATE_AT_ONCE]


def _ended(since: datetime | None, rows: Iterable[Any], late: set[UUID]) -> Iterator[Ended]:
    """Yield what is counted now: ended calls, refusals, and how often those came again."""
    for *facts, repeats, row_id, _seq, closed_seq in rows:
        row = Ended._make((*facts, 1 + repeats))
        if not _counts(row, since) or row.outcome == OPEN:
            continue
        if row.outcome == REFUSED and row_id in late and closed_seq and repeats:
            row = row._replace(times=repeats)  # the first of them was counted as it came
        yield row


def _waits(
    organization_id: UUID, since: datetime | None, rows: Iterable[Any]
) -> Iterator[Uncounted]:
    for *facts, _repeats, row_id, seq, closed_seq in rows:
        row = Ended._make((*facts, 1))
        if _counts(row, since) and closed_seq is None:
            yield Uncounted(
                id=row_id,
                organization_id=organization_id,
                seq=seq,
                opened_at=row.opened_at,
                refused=row.outcome == REFUSED,
            )


def _counts(row: Ended, since: datetime | None) -> bool:
    return row.event_type in COUNTED and (since is None or row.opened_at >= since)


def _write(looked: Looked) -> bool:
    """Write what a look found; False where somebody else has counted meanwhile."""
    cursor = looked.cursor
    with transaction.atomic():
        if cursor.version < 0:
            Counted.objects.get_or_create(organization_id=cursor.pk)
            cursor.version, cursor.summed_version = 0, 0
            cursor.summed_since = summing.ALWAYS
        moved = Counted.objects.filter(pk=cursor.pk, version=cursor.version).update(
            seq=looked.seq,
            head=looked.head,
            version=cursor.version + 1,
            summed_version=cursor.version + 1,
            summed_since=(summed := summing.whole_since(cursor)),
        )
        if not moved:
            return False
        sums = fold(looked.ended)
        _add(sums)
        summing.add(sums, summed)
        Uncounted.objects.bulk_create(looked.waits, batch_size=BATCH)
        over = Q(refused=True, opened_at__lt=timezone.now() - FLOOD_KEPT)
        gone = Uncounted.objects.filter(organization_id=cursor.pk)
        gone.filter(Q(pk__in=looked.done) | (over if not looked.more else Q(pk=None))).delete()
    return True


def _add(sums: dict[Place, Sum]) -> None:
    """Add sums to their rows; the cursor that was moved keeps all others away from them."""
    places = {key_of(place): place for place in sums}
    known = {row.key: row for row in _known(list(places))}
    rows = []
    for key, place in places.items():
        row = known.get(key) or _row(key, place)
        _grow(row, sums[place])
        rows.append(row)
    Rollup.objects.bulk_create(
        rows,
        batch_size=LATE_AT_ONCE,
        update_conflicts=True,
        unique_fields=["key"],
        update_fields=[*SUMS, *TOOK, "agent_name", "server_name", "last_at"],
    )


def _known(keys: Sequence[str]) -> Iterator[Rollup]:
    for first in range(0, len(keys), LATE_AT_ONCE):
        yield from Rollup.objects.filter(pk__in=keys[first : first + LATE_AT_ONCE])


def _row(key: str, place: Place) -> Rollup:
    zeros = dict.fromkeys((*SUMS, *TOOK), 0)
    return Rollup(key=key, grain=place.grain, begins=place.begins, **place.kind._asdict(), **zeros)


def _grow(row: Rollup, by: Sum) -> None:
    for name in SUMS:
        setattr(row, name, getattr(row, name) + getattr(by, name))
    for name, more in zip(TOOK, by.took, strict=True):
        setattr(row, name, getattr(row, name) + more)
    row.agent_name, row.server_name = by.agent_name, by.server_name
    row.last_at = max(filter(None, (row.last_at, by.last_at)), default=None)
