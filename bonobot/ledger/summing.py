"""Summing: rollups become summaries of one dimension each (see `dimensions`).

What is counted is added to the summaries in the transaction that adds it to the rollups. What was
counted before there were summaries, or by a worker of a release that has none, is summed from the
rollups, a day at a time from the latest back; reports read summaries of days that are whole, and
rollups for others.

A day is summed within the database, in one transaction; a step that is broken off changes nothing.
Whoever counts doesn't wait for it: it ends by asking whether anybody has counted meanwhile, and is
taken back where that is so. Then it is done again with the row of `Counted` held, for which whoever
counts waits; calls never do. Of several workers one sums, the others leave it to that one.

On SQLite, where all would wait, a day is read without a transaction and written in short ones
(`piecemeal`), each of which asks the same; what they leave of a day that isn't whole is never read.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from bonobot.ledger import piecemeal
from bonobot.ledger.dimensions import COUNTS, DIMENSIONS, NAMES, Dimension, Line, Spot, summarize
from bonobot.ledger.models import TOOK, Counted, Rollup, Summary
from bonobot.ledger.rollups import GRAINS, Place, Sum, beginning

# Nothing was counted before: an organization whose summaries are whole is summed since then.
ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOURS_KEPT = timedelta(days=10)
AT_ONCE = 500
LONGEST_S = 20.0  # of one run of the task

_KEY = ("organization_id", "dimension", "grain", "begins", "subject")
_SAYS = ("event_type", "code", "rule", "agent_id", "server_id", "tool_name", "model")
_SUMS = (*COUNTS, *TOOK)
_COLUMNS = (*_KEY, *_SAYS, *NAMES.values(), *_SUMS)
_FIELDS: dict[str, Any] = {name: Summary._meta.get_field(name) for name in _COLUMNS}
_QUOTED = ", ".join(f'"{name}"' for name in _COLUMNS)
_GROWN = ", ".join(
    [f'"{name}" = ledger_summary."{name}" + excluded."{name}"' for name in _SUMS]
    + [f"{name} = excluded.{name}" for name in NAMES.values()]
)
# Built from the names of our own columns; values are always parameters.
_ADD = (
    f"INSERT INTO ledger_summary ({_QUOTED}) VALUES {{rows}}"  # noqa: S608
    f" ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {_GROWN}"
)
_ROW = f"({', '.join(['%s'] * len(_COLUMNS))})"
_CALL = "event_type = 'call'"
_COUNTED = {
    "calls": _CALL,
    "ok": f"{_CALL} AND outcome = 'ok'",
    "errors": f"{_CALL} AND outcome IN ('error', 'unknown')",
    "refused": f"{_CALL} AND outcome = 'refused'",
    "turns": "event_type = 'model' AND outcome <> 'refused'",
}


def whole_since(cursor: Counted) -> datetime | None:
    """Return from which day on an organization's summaries can be relied on; None: not at all."""
    return cursor.summed_since if cursor.summed_version == cursor.version else None


def add(sums: Mapping[Place, Sum], since: datetime | None) -> None:
    """Add what was counted of the days that are summed already; the caller holds the cursor."""
    if since is None:
        return
    found = summarize(sums, lambda place: place.begins >= since)
    # In one order, as all who lock several rows do.
    rows = [_row(*one) for one in sorted(found, key=lambda one: _place(one[0]))]
    with connection.cursor() as cursor:
        for first in range(0, len(rows), AT_ONCE):
            some = rows[first : first + AT_ONCE]
            statement = _ADD.format(rows=", ".join([_ROW] * len(some)))
            cursor.execute(statement, [value for row in some for value in row])


def catch_up(seconds: float = LONGEST_S) -> int:
    """Sum days of organizations whose summaries aren't whole, for so long; return how many."""
    ends, days = time.monotonic() + seconds, 0
    behind = Q(summed_since__isnull=True) | Q(summed_since__gt=ALWAYS)
    rows = Counted.objects.filter(behind | ~Q(summed_version=F("version")))
    for organization_id in list(rows.values_list("pk", flat=True)):
        while time.monotonic() < ends and step(organization_id):
            days += 1
    return days


def step(organization_id: UUID) -> bool:
    """Sum the latest day that isn't summed yet; False where there is none."""
    for holding in (False, True):
        try:
            if connection.vendor == "sqlite" and not holding:
                return _step_piecemeal(organization_id)
            with transaction.atomic():
                return _step(organization_id, holding=holding)
        except _Moved:
            continue
    return False  # nobody can have counted while the row was held


class _Moved(Exception):
    """Somebody has counted while a day was summed."""


def _step(organization_id: UUID, *, holding: bool) -> bool:
    if not _alone(organization_id):
        return False
    own = Counted.objects.filter(pk=organization_id)
    if holding:
        own.update(version=F("version"))  # it takes the lock; nothing was counted
    cursor = own.first()
    since = whole_since(cursor) if cursor else None
    if cursor is None or (since is not None and since <= ALWAYS):
        return False
    day = _latest(organization_id, before=since)
    if day is not None:
        _sum(organization_id, day)
    unmoved = own.filter(version=cursor.version)
    if not unmoved.update(summed_since=day or ALWAYS, summed_version=cursor.version):
        raise _Moved
    return day is not None


def _step_piecemeal(organization_id: UUID) -> bool:
    own = Counted.objects.filter(pk=organization_id)
    # Whoever sums a day has a version of its own: another one who began before finds it moved.
    with transaction.atomic():
        cursor = own.first()
        since = whole_since(cursor) if cursor else None
        if cursor is None or (since is not None and since <= ALWAYS):
            return False
        version = cursor.version + 1
        summed = cursor.summed_version if since is None else version
        own.update(version=version, summed_version=summed)

    def check() -> None:
        if not own.filter(version=version).exists():
            raise _Moved

    day = _latest(organization_id, before=since)
    if day is not None:
        with piecemeal.Aside("ledger_summary", _QUOTED, check) as aside:
            aside.gather(_queries(organization_id, day))
            aside.replace(_of_day(organization_id, day))
    if not own.filter(version=version).update(summed_since=day or ALWAYS, summed_version=version):
        raise _Moved
    return day is not None


def _alone(organization_id: UUID) -> bool:
    """Tell whether nobody else sums days of this organization, until the transaction ends."""
    if connection.vendor == "sqlite":
        return True  # whoever writes is alone
    with connection.cursor() as cursor:
        claim = "SELECT pg_try_advisory_xact_lock(hashtextextended('ledger.summing:' || %s, 0))"
        cursor.execute(claim, [str(organization_id)])
        return bool(cursor.fetchone()[0])


def forget() -> int:
    """Remove the summaries of hours that no report is by any more; those of days stay."""
    before = timezone.now() - HOURS_KEPT
    old = Summary.objects.filter(grain=Rollup.Grain.HOUR, begins__lt=before)
    return old._raw_delete(old.db)


def _latest(organization_id: UUID, *, before: datetime | None) -> datetime | None:
    days = Rollup.objects.filter(organization_id=organization_id, grain=Rollup.Grain.DAY)
    earlier = days.filter(begins__lt=before) if before else days
    return earlier.order_by("-begins").values_list("begins", flat=True).first()


def _sum(organization_id: UUID, day: datetime) -> None:
    """Write a day's summaries anew."""
    old = _of_day(organization_id, day)
    old._raw_delete(old.db)
    with connection.cursor() as cursor:
        for query, values in _queries(organization_id, day):
            cursor.execute(f"INSERT INTO ledger_summary ({_QUOTED}) {query}", values)


def _of_day(organization_id: UUID, day: datetime) -> QuerySet[Summary]:
    """Return a day's summaries; with all that an index begins with, or each row is looked at."""
    names = [one.name for one in DIMENSIONS]
    rows = Summary.objects.filter(organization_id=organization_id, dimension__in=names)
    return rows.filter(grain__in=GRAINS, begins__gte=day, begins__lt=day + DAY)


def _queries(organization_id: UUID, day: datetime) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield queries for a day's summaries, each with its values."""
    kept = day >= beginning(timezone.now(), "day") - HOURS_KEPT
    prepared = [_prepared(name, value) for name, value in (("begins", day), ("begins", day + DAY))]
    for grain in GRAINS if kept else ("day",):
        where = [_prepared("organization_id", organization_id), grain, *prepared]
        for dimension in DIMENSIONS:
            yield _summing(dimension), where


def _summing(dimension: Dimension) -> str:
    """Return the query that sums rollups by a dimension."""
    told = dict.fromkeys((*_SAYS, *NAMES.values()), "''")
    told |= {"agent_id": "NULL", "server_id": "NULL"}
    told |= {name: f'"{name}"' for name in dimension.columns}
    told |= {name: f"MAX({name})" for name in dimension.names}
    told |= {"dimension": f"'{dimension.name}'", "subject": _subject(dimension)}
    told |= {name: name for name in ("organization_id", "grain", "begins")}
    told |= {name: _sum_of(name) for name in COUNTS}
    told |= {name: _sum_of("calls", which) for name, which in _COUNTED.items()}
    told |= {name: _sum_of(name, _COUNTED["ok"]) for name in TOOK}
    of = "".join(f" AND {name} = '{value}'" for name, value in dimension.of.items())
    by = ", ".join(f'"{name}"' for name in ("organization_id", "grain", "begins"))
    columns = ", ".join(f'"{name}"' for name in dimension.columns)
    return (
        "SELECT "  # noqa: S608  # our own names alone
        + ", ".join(told[name] for name in _COLUMNS)
        + " FROM ledger_rollup WHERE organization_id = %s AND grain = %s"
        + f" AND begins >= %s AND begins < %s{of} GROUP BY {by}, {columns}"
    )


def _sum_of(column: str, which: str = "") -> str:
    """Return the SQL of a sum, exact below 2**53."""
    filtered = f" FILTER (WHERE {which})" if which else ""
    if connection.vendor == "sqlite":
        return f"COALESCE(SUM({column}){filtered}, 0)"
    # PostgreSQL adds whole numbers of 64 bits as decimals, which takes several times as long.
    return f"COALESCE(SUM({column}::float8){filtered}, 0)::bigint"


def _subject(dimension: Dimension) -> str:
    """Return the SQL of `dimensions.subject_of`."""
    sqlite = connection.vendor == "sqlite"
    parts = []
    for name in dimension.columns:
        if name not in NAMES:
            parts.append(f'"{name}"')
        elif sqlite:
            parts.append(f"COALESCE({name}, '')")
        else:
            parts.append(f"REPLACE(COALESCE({name}::text, ''), '-', '')")
    text = " || ':' || ".join(parts)
    if sqlite:
        return f"SUBSTR(SHA256({text}), 1, 32)"
    return f"ENCODE(SUBSTRING(SHA256(CONVERT_TO({text}, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid"


def _place(spot: Spot) -> tuple[str, str, datetime, UUID]:
    return spot.dimension.name, spot.grain, spot.begins, spot.subject


def _row(spot: Spot, line: Line) -> Sequence[Any]:
    own = spot.dimension.columns
    values: dict[str, Any] = {
        "organization_id": spot.kind.organization_id,
        "dimension": spot.dimension.name,
        "grain": spot.grain,
        "begins": spot.begins,
        "subject": spot.subject,
        **dict.fromkeys((*_SAYS, *NAMES.values()), ""),
        "agent_id": None,
        "server_id": None,
        **{name: getattr(spot.kind, name) for name in own},
        **{name: getattr(line, name) for name in (*spot.dimension.names, *COUNTS)},
        **dict(zip(TOOK, line.took, strict=True)),
    }
    return [_prepared(name, values[name]) for name in _COLUMNS]


def _prepared(name: str, value: Any) -> Any:
    """Return a value as the database takes it."""
    return _FIELDS[name].get_db_prep_value(value, connection)
