"""Count audit entries into rollups and summaries.

Entries are added to rollups and summaries in the same transaction. A call that needed approval is
counted by its own entry, not by the request's. Days that were counted without summaries (by older
releases) are summed from the rollups later, a day at a time, latest first. Reports read summaries
of complete days, and rollups for other days.

A day is summed within the database in one transaction. It doesn't block counting: if entries were
counted meanwhile, it is rolled back and repeated with the row of `Counted` locked, so counting has
to wait; calls never do. Only one worker sums an organization's days at a time.

On SQLite, where writers block each other, a day is read without a transaction into a temporary
table (`StagingTable`) and written in short transactions, each of which checks that nothing was
counted meanwhile. An incomplete day is never read.

The cursor follows the chain by the position of a row's opening entry: positions are assigned under
the lock of the head, so all rows up to a known position are committed. Rows without an outcome are
stored in `Uncounted` and looked up by id until they have one. A batch is read, then written in one
transaction that first moves the cursor, so concurrent or killed workers count nothing twice.
Repeats of a refusal that are written more than `REFUSAL_WINDOW_RETENTION` later aren't counted;
`rebuild_rollups` counts them.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

from django.db import connection, transaction
from django.db.models import F, Min, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from bonobot.ledger.models import (
    TOOK,
    AuditRow,
    Checkpoint,
    Head,
    Rollup,
    RollupCursor,
    Summary,
    UncountedEntry,
)
from bonobot.ledger.types import is_approval_request
from bonobot.ledger.usage.aggregation import (
    COUNT_FIELDS,
    COUNTED_EVENT_TYPES,
    DIMENSIONS,
    GRAINS,
    NAME_COLUMNS,
    OPEN,
    REFUSED,
    RollupKey,
    RollupSum,
    SummaryKey,
    UsageDimension,
    UsageEntry,
    UsageLine,
    fold_entries,
    hash_rollup_key,
    summarize_rollups,
    truncate_time,
)

STAGING_BATCH_SIZE = 250
_TABLE = "temp.piecemeal"


class StagingTable:
    """A temporary table with rows to be written to another table in short transactions.

    `check` runs at the start of each transaction and raises to abort.
    """

    def __init__(self, table: str, columns: str, check: Callable[[], None]) -> None:
        self._table, self._columns, self._check = table, columns, check

    def __enter__(self) -> Self:
        self._drop()
        with connection.cursor() as cursor:
            # Only our own names, here and below.
            like = f"SELECT {self._columns} FROM {self._table} WHERE 0"  # noqa: S608
            cursor.execute(f"CREATE TEMP TABLE piecemeal AS {like}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drop()

    def gather(self, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
        """Insert the results of queries for these columns."""
        for query, values in statements:
            with connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO {_TABLE} ({self._columns}) {query}", values)

    def replace(self, old: QuerySet[Any]) -> None:
        """Replace old rows of the target table with the gathered rows."""
        while self._delete_batch(old):
            pass
        inserted = 0
        while count := self._insert_batch(inserted):
            inserted += count

    def _delete_batch(self, old: QuerySet[Any]) -> int:
        with transaction.atomic():
            self._check()
            keys = list(old.order_by().values_list("pk", flat=True)[:STAGING_BATCH_SIZE])
            rows = old.model._base_manager.filter(pk__in=keys)
            return rows._raw_delete(rows.db) if keys else 0

    def _insert_batch(self, after_row: int) -> int:
        with transaction.atomic(), connection.cursor() as cursor:
            self._check()
            cursor.execute(
                f"INSERT INTO {self._table} ({self._columns}) SELECT {self._columns}"  # noqa: S608
                f" FROM {_TABLE} WHERE rowid > %s AND rowid <= %s",
                [after_row, after_row + STAGING_BATCH_SIZE],
            )
            return int(cursor.rowcount)

    def _drop(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {_TABLE}")


# `summed_since` of an organization whose summaries are complete.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
HOURLY_SUMMARIES_KEPT = timedelta(days=10)
INSERT_BATCH_SIZE = 500
MAX_RUN_S = 20.0  # per run of the task

_KEY_COLUMNS = ("organization_id", "dimension", "grain", "begins", "subject")
_SUBJECT_COLUMNS = ("event_type", "code", "rule", "agent_id", "server_id", "tool_name", "model")
_SUM_COLUMNS = (*COUNT_FIELDS, *TOOK)
_COLUMNS = (*_KEY_COLUMNS, *_SUBJECT_COLUMNS, *NAME_COLUMNS.values(), *_SUM_COLUMNS)
_FIELDS: dict[str, Any] = {name: Summary._meta.get_field(name) for name in _COLUMNS}
_QUOTED = ", ".join(f'"{name}"' for name in _COLUMNS)
_GROWN = ", ".join(
    [f'"{name}" = ledger_summary."{name}" + excluded."{name}"' for name in _SUM_COLUMNS]
    + [f"{name} = excluded.{name}" for name in NAME_COLUMNS.values()]
)
# Built from the names of our own columns; values are always parameters.
_ADD = (
    f"INSERT INTO ledger_summary ({_QUOTED}) VALUES {{rows}}"  # noqa: S608
    f" ON CONFLICT ({', '.join(_KEY_COLUMNS)}) DO UPDATE SET {_GROWN}"
)
_ROW = f"({', '.join(['%s'] * len(_COLUMNS))})"
_CALL = "event_type = 'call'"
_COUNT_CONDITIONS = {
    "calls": _CALL,
    "ok": f"{_CALL} AND outcome = 'ok'",
    "errors": f"{_CALL} AND outcome = 'error'",
    "unknown": f"{_CALL} AND outcome = 'unknown'",
    "refused": f"{_CALL} AND outcome = 'refused'",
    "turns": "event_type = 'model' AND outcome <> 'refused'",
}


def get_complete_since(cursor: RollupCursor) -> datetime | None:
    """Return the day from which an organization's summaries are complete, or None."""
    return cursor.summed_since if cursor.summed_version == cursor.version else None


def add_to_summaries(sums: Mapping[RollupKey, RollupSum], since: datetime | None) -> None:
    """Add totals to the summaries of complete days; the caller must hold the cursor's lock."""
    if since is None:
        return
    summaries = summarize_rollups(sums, lambda rollup_key: rollup_key.begins >= since)
    # Sorted, so that rows are always locked in the same order.
    rows = [
        _build_summary_row(*item)
        for item in sorted(summaries, key=lambda item: _build_summary_key(item[0]))
    ]
    with connection.cursor() as cursor:
        for start in range(0, len(rows), INSERT_BATCH_SIZE):
            batch = rows[start : start + INSERT_BATCH_SIZE]
            statement = _ADD.format(rows=", ".join([_ROW] * len(batch)))
            cursor.execute(statement, [value for row in batch for value in row])


def sum_missing_days(seconds: float = MAX_RUN_S) -> int:
    """Sum missing days of all organizations for up to `seconds`; return how many."""
    deadline, days = time.monotonic() + seconds, 0
    behind = Q(summed_since__isnull=True) | Q(summed_since__gt=EPOCH)
    rows = RollupCursor.objects.filter(behind | ~Q(summed_version=F("version")))
    for organization_id in list(rows.values_list("pk", flat=True)):
        while time.monotonic() < deadline and sum_next_day(organization_id):
            days += 1
    return days


def sum_next_day(organization_id: UUID) -> bool:
    """Sum the latest day that isn't summed yet; False if there is none."""
    for holding in (False, True):
        try:
            if connection.vendor == "sqlite" and not holding:
                return _sum_day_in_batches(organization_id)
            with transaction.atomic():
                return _sum_day_at_once(organization_id, holding=holding)
        except _CursorMoved:
            continue
    return False  # unreachable: nothing can be counted while the row is locked


class _CursorMoved(Exception):
    """Entries were counted while a day was summed."""


def _sum_day_at_once(organization_id: UUID, *, holding: bool) -> bool:
    if not _try_lock(organization_id):
        return False
    cursors = RollupCursor.objects.filter(pk=organization_id)
    if holding:
        cursors.update(version=F("version"))  # only to lock the row
    cursor = cursors.first()
    since = get_complete_since(cursor) if cursor else None
    if cursor is None or (since is not None and since <= EPOCH):
        return False
    day = _find_latest_day(organization_id, before=since)
    if day is not None:
        _rebuild_day_summaries(organization_id, day)
    unmoved_cursors = cursors.filter(version=cursor.version)
    if not unmoved_cursors.update(summed_since=day or EPOCH, summed_version=cursor.version):
        raise _CursorMoved
    return day is not None


def _sum_day_in_batches(organization_id: UUID) -> bool:
    cursors = RollupCursor.objects.filter(pk=organization_id)
    # A new version, so that a worker that started earlier aborts.
    with transaction.atomic():
        cursor = cursors.first()
        since = get_complete_since(cursor) if cursor else None
        if cursor is None or (since is not None and since <= EPOCH):
            return False
        version = cursor.version + 1
        summed_version = cursor.summed_version if since is None else version
        cursors.update(version=version, summed_version=summed_version)

    def check() -> None:
        if not cursors.filter(version=version).exists():
            raise _CursorMoved

    day = _find_latest_day(organization_id, before=since)
    if day is not None:
        with StagingTable("ledger_summary", _QUOTED, check) as staging:
            staging.gather(_build_queries(organization_id, day))
            staging.replace(_query_day_summaries(organization_id, day))
    if not cursors.filter(version=version).update(
        summed_since=day or EPOCH, summed_version=version
    ):
        raise _CursorMoved
    return day is not None


def _try_lock(organization_id: UUID) -> bool:
    """Lock the summing of this organization's days until the transaction ends; False if locked."""
    if connection.vendor == "sqlite":
        return True  # SQLite has only one writer
    with connection.cursor() as cursor:
        statement = "SELECT pg_try_advisory_xact_lock(hashtextextended('ledger.summing:' || %s, 0))"
        cursor.execute(statement, [str(organization_id)])
        return bool(cursor.fetchone()[0])


def delete_old_summaries() -> int:
    """Delete hourly summaries that are too old for reports by hour; return how many."""
    before = timezone.now() - HOURLY_SUMMARIES_KEPT
    old = Summary.objects.filter(grain=Rollup.Grain.HOUR, begins__lt=before)
    return old._raw_delete(old.db)


def _find_latest_day(organization_id: UUID, *, before: datetime | None) -> datetime | None:
    days = Rollup.objects.filter(organization_id=organization_id, grain=Rollup.Grain.DAY)
    earlier_days = days.filter(begins__lt=before) if before else days
    return earlier_days.order_by("-begins").values_list("begins", flat=True).first()


def _rebuild_day_summaries(organization_id: UUID, day: datetime) -> None:
    old = _query_day_summaries(organization_id, day)
    old._raw_delete(old.db)
    with connection.cursor() as cursor:
        for query, values in _build_queries(organization_id, day):
            cursor.execute(f"INSERT INTO ledger_summary ({_QUOTED}) {query}", values)


def _query_day_summaries(organization_id: UUID, day: datetime) -> QuerySet[Summary]:
    """Return a day's summaries; filters all leading columns of the index."""
    names = [dimension.name for dimension in DIMENSIONS]
    rows = Summary.objects.filter(organization_id=organization_id, dimension__in=names)
    return rows.filter(grain__in=GRAINS, begins__gte=day, begins__lt=day + DAY)


def _build_queries(organization_id: UUID, day: datetime) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the queries for a day's summaries with their values."""
    has_hours = day >= truncate_time(timezone.now(), "day") - HOURLY_SUMMARIES_KEPT
    bounds = [
        _prepare_value(name, value) for name, value in (("begins", day), ("begins", day + DAY))
    ]
    for grain in GRAINS if has_hours else ("day",):
        values = [_prepare_value("organization_id", organization_id), grain, *bounds]
        for dimension in DIMENSIONS:
            yield _build_sum_query(dimension), values


def _build_sum_query(dimension: UsageDimension) -> str:
    expressions = dict.fromkeys((*_SUBJECT_COLUMNS, *NAME_COLUMNS.values()), "''")
    expressions |= {"agent_id": "NULL", "server_id": "NULL"}
    expressions |= {name: f'"{name}"' for name in dimension.columns}
    expressions |= {name: f"MAX({name})" for name in dimension.names}
    expressions |= {"dimension": f"'{dimension.name}'", "subject": _build_subject_sql(dimension)}
    expressions |= {name: name for name in ("organization_id", "grain", "begins")}
    expressions |= {name: _build_sum_sql(name) for name in COUNT_FIELDS}
    expressions |= {
        name: _build_sum_sql("calls", condition) for name, condition in _COUNT_CONDITIONS.items()
    }
    expressions |= {name: _build_sum_sql(name, _COUNT_CONDITIONS["ok"]) for name in TOOK}
    filters = "".join(f" AND {name} = '{value}'" for name, value in dimension.filters.items())
    grouping = ", ".join(f'"{name}"' for name in ("organization_id", "grain", "begins"))
    columns = ", ".join(f'"{name}"' for name in dimension.columns)
    return (
        "SELECT "  # noqa: S608  # our own names alone
        + ", ".join(expressions[name] for name in _COLUMNS)
        + " FROM ledger_rollup WHERE organization_id = %s AND grain = %s"
        + f" AND begins >= %s AND begins < %s{filters} GROUP BY {grouping}, {columns}"
    )


def _build_sum_sql(column: str, condition: str = "") -> str:
    """Return the SQL of a sum, exact below 2**53."""
    filtered = f" FILTER (WHERE {condition})" if condition else ""
    if connection.vendor == "sqlite":
        return f"COALESCE(SUM({column}){filtered}, 0)"
    # PostgreSQL sums 64-bit integers as decimals, which takes several times as long.
    return f"COALESCE(SUM({column}::float8){filtered}, 0)::bigint"


def _build_subject_sql(dimension: UsageDimension) -> str:
    """Return the SQL of `hash_subject`."""
    sqlite = connection.vendor == "sqlite"
    parts = []
    for name in dimension.columns:
        if name not in NAME_COLUMNS:
            parts.append(f'"{name}"')
        elif sqlite:
            parts.append(f"COALESCE({name}, '')")
        else:
            parts.append(f"REPLACE(COALESCE({name}::text, ''), '-', '')")
    text = " || ':' || ".join(parts)
    if sqlite:
        return f"SUBSTR(SHA256({text}), 1, 32)"
    return f"ENCODE(SUBSTRING(SHA256(CONVERT_TO({text}, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid"


def _build_summary_key(summary_key: SummaryKey) -> tuple[str, str, datetime, UUID]:
    return summary_key.dimension.name, summary_key.grain, summary_key.begins, summary_key.subject


def _build_summary_row(summary_key: SummaryKey, line: UsageLine) -> Sequence[Any]:
    columns = summary_key.dimension.columns
    values: dict[str, Any] = {
        "organization_id": summary_key.kind.organization_id,
        "dimension": summary_key.dimension.name,
        "grain": summary_key.grain,
        "begins": summary_key.begins,
        "subject": summary_key.subject,
        **dict.fromkeys((*_SUBJECT_COLUMNS, *NAME_COLUMNS.values()), ""),
        "agent_id": None,
        "server_id": None,
        **{name: getattr(summary_key.kind, name) for name in columns},
        **{name: getattr(line, name) for name in (*summary_key.dimension.names, *COUNT_FIELDS)},
        **dict(zip(TOOK, line.duration_counts, strict=True)),
    }
    return [_prepare_value(name, values[name]) for name in _COLUMNS]


def _prepare_value(name: str, value: Any) -> Any:
    """Return a value in the database's format."""
    return _FIELDS[name].get_db_prep_value(value, connection)


BATCH_SIZE = 2_000
LATE_BATCH_SIZE = 1_000
MAX_ROUNDS = 200  # per organization and run of the task
REFUSAL_WINDOW_RETENTION = timedelta(minutes=10)
HOURLY_ROLLUPS_KEPT = timedelta(days=60)
ENTRY_COLUMNS = (*UsageEntry._fields[:-1], "repeats", "id", "seq", "closed_seq")
SUM_FIELDS = ("calls", "duration_ms", "input_tokens", "output_tokens", "cost_microusd")


class AuditBatch(NamedTuple):
    """A batch of audit rows to count, and the new state of the cursor."""

    cursor: RollupCursor
    seq: int
    head: int
    entries: list[UsageEntry]
    waiting: list[UncountedEntry]
    done_ids: list[UUID]  # waiting rows that are closed now
    has_more: bool


def count_all_organizations() -> int:
    """Count new entries of all organizations, some batches of each; return how many ended."""
    heads = dict(Head.objects.values_list("organization_id", "seq"))
    counted_heads = dict(RollupCursor.objects.values_list("organization_id", "head"))
    changed_ids = [
        changed_id for changed_id, seq in heads.items() if seq != counted_heads.get(changed_id)
    ]
    return sum(
        count_organization(organization_id, rounds=MAX_ROUNDS) for organization_id in changed_ids
    )


def count_organization(organization_id: UUID, *, rounds: int | None = None) -> int:
    """Count new entries of an organization, in up to `rounds` batches; return how many ended."""
    total = 0
    while rounds is None or rounds > 0:
        batch = _load_batch(organization_id)
        if not _write_batch(batch):
            break  # another worker is counting
        total += len(batch.entries)
        if not batch.has_more:
            break
        rounds = None if rounds is None else rounds - 1
    return total


def load_uncounted_entries(organization_id: UUID) -> tuple[list[UsageEntry], bool]:
    """Return the entries that ended since the last count, and whether there are more (2 queries).

    Entries counted between reading these and the rollups appear twice.
    """
    cursor_seq = RollupCursor.objects.filter(pk=organization_id).values("seq")
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    new = rows.filter(seq__gt=Coalesce(Subquery(cursor_seq), 0)).values_list(*ENTRY_COLUMNS)[
        :BATCH_SIZE
    ]
    late_rows = _query_late_rows(organization_id)
    entries = list(
        _build_usage_entries(None, chain(new, late_rows), {row[-3] for row in late_rows})
    )
    return entries, len(new) == BATCH_SIZE or len(late_rows) == LATE_BATCH_SIZE


def find_first_uncounted(organization_id: UUID) -> int | None:
    """Return the position of the first row that isn't fully counted and can't be pruned yet."""
    cursor = RollupCursor.objects.filter(pk=organization_id).values_list("seq", flat=True).first()
    rows = AuditRow.objects.filter(organization_id=organization_id, seq__gt=cursor or 0)
    uncounted_entries = UncountedEntry.objects.filter(organization_id=organization_id)
    positions = [
        queryset.order_by().aggregate(seq=Min("seq"))["seq"]
        for queryset in (rows, uncounted_entries)
    ]
    return min((seq for seq in positions if seq is not None), default=None)


def rebuild_rollups(organization_id: UUID) -> int:
    """Count the existing rows again; days whose rows were pruned are kept.

    The day of the oldest row is kept, too, if some of its rows may have been pruned.
    """
    since = _find_first_whole_day(organization_id)
    with transaction.atomic():
        RollupCursor.objects.get_or_create(organization_id=organization_id)
        RollupCursor.objects.filter(pk=organization_id).update(
            seq=0, head=0, since=since, version=F("version") + 1, summed_since=None
        )
        old = Rollup.objects.filter(organization_id=organization_id)
        (old.filter(begins__gte=since) if since else old).delete()
        UncountedEntry.objects.filter(organization_id=organization_id).delete()
    return count_organization(organization_id)


def delete_old_rollups() -> int:
    """Delete hourly rollups that are too old for reports by hour; return how many."""
    before = timezone.now() - HOURLY_ROLLUPS_KEPT
    return Rollup.objects.filter(grain=Rollup.Grain.HOUR, begins__lt=before).delete()[0]


def _find_first_whole_day(organization_id: UUID) -> datetime | None:
    if not Checkpoint.objects.filter(organization_id=organization_id).exists():
        return None
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    oldest = rows.values_list("opened_at", flat=True).first() or timezone.now()
    return truncate_time(oldest, "day") + timedelta(days=1)


def _load_batch(organization_id: UUID) -> AuditBatch:
    cursor = RollupCursor.objects.filter(pk=organization_id).first() or RollupCursor(
        organization_id=organization_id, version=-1
    )
    head = Head.objects.filter(pk=organization_id).values_list("seq", flat=True).first() or 0
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    new = list(rows.filter(seq__gt=cursor.seq).values_list(*ENTRY_COLUMNS)[:BATCH_SIZE])
    late_ids = list(_query_late_rows(organization_id)) if cursor.version >= 0 else []
    has_more = len(new) == BATCH_SIZE or len(late_ids) == LATE_BATCH_SIZE
    return AuditBatch(
        cursor=cursor,
        seq=new[-1][-2] if new else cursor.seq,
        # -1: there are more rows, so the next run must not skip this organization.
        head=-1 if has_more else head,
        entries=list(
            _build_usage_entries(cursor.since, chain(new, late_ids), {row[-3] for row in late_ids})
        ),
        waiting=list(_build_uncounted_entries(organization_id, cursor.since, new)),
        done_ids=[row[-3] for row in late_ids],
        has_more=has_more,
    )


def _query_late_rows(organization_id: UUID) -> QuerySet[Any, Any]:
    """Return the rows that were closed after they were first read."""
    uncounted_entries = UncountedEntry.objects.filter(organization_id=organization_id)
    closed_rows = AuditRow.objects.filter(
        closed_seq__isnull=False, pk__in=uncounted_entries.values("pk")
    )
    return closed_rows.order_by().values_list(*ENTRY_COLUMNS)[:LATE_BATCH_SIZE]


def _build_usage_entries(
    since: datetime | None, rows: Iterable[Any], late: set[UUID]
) -> Iterator[UsageEntry]:
    """Yield the entries to count: ended calls, refusals, and repeats of refusals."""
    for *facts, repeats, row_id, _seq, closed_seq in rows:
        row = UsageEntry._make((*facts, 1 + repeats))
        if not _is_countable(row, since) or row.outcome == OPEN:
            continue
        if row.outcome == REFUSED and row_id in late and closed_seq and repeats:
            row = row._replace(times=repeats)  # the first one is already counted
        yield row


def _build_uncounted_entries(
    organization_id: UUID, since: datetime | None, rows: Iterable[Any]
) -> Iterator[UncountedEntry]:
    for *facts, _repeats, row_id, seq, closed_seq in rows:
        row = UsageEntry._make((*facts, 1))
        # Calls that were canceled before they ran are complete with their only entry.
        may_change = row.outcome in (OPEN, REFUSED) and closed_seq is None
        if may_change and _is_countable(row, since):
            yield UncountedEntry(
                id=row_id,
                organization_id=organization_id,
                seq=seq,
                opened_at=row.opened_at,
                refused=row.outcome == REFUSED,
            )


def _is_countable(row: UsageEntry, since: datetime | None) -> bool:
    if is_approval_request(row.outcome, row.code):
        return False
    return row.event_type in COUNTED_EVENT_TYPES and (since is None or row.opened_at >= since)


def _write_batch(batch: AuditBatch) -> bool:
    """Write a batch; False if another worker has counted meanwhile."""
    cursor = batch.cursor
    with transaction.atomic():
        if cursor.version < 0:
            RollupCursor.objects.get_or_create(organization_id=cursor.pk)
            cursor.version, cursor.summed_version = 0, 0
            cursor.summed_since = EPOCH
        is_moved = RollupCursor.objects.filter(pk=cursor.pk, version=cursor.version).update(
            seq=batch.seq,
            head=batch.head,
            version=cursor.version + 1,
            summed_version=cursor.version + 1,
            summed_since=(summed_since := get_complete_since(cursor)),
        )
        if not is_moved:
            return False
        sums = fold_entries(batch.entries)
        _add_to_rollups(sums)
        add_to_summaries(sums, summed_since)
        UncountedEntry.objects.bulk_create(batch.waiting, batch_size=BATCH_SIZE)
        is_expired = Q(refused=True, opened_at__lt=timezone.now() - REFUSAL_WINDOW_RETENTION)
        uncounted = UncountedEntry.objects.filter(organization_id=cursor.pk)
        uncounted.filter(
            Q(pk__in=batch.done_ids) | (is_expired if not batch.has_more else Q(pk=None))
        ).delete()
    return True


def _add_to_rollups(sums: dict[RollupKey, RollupSum]) -> None:
    """Add totals to the rollups; the moved cursor locks out other workers."""
    keys_by_hash = {hash_rollup_key(rollup_key): rollup_key for rollup_key in sums}
    existing_rollups = {row.key: row for row in _load_rollups(list(keys_by_hash))}
    rows = []
    for key, rollup_key in keys_by_hash.items():
        row = existing_rollups.get(key) or _build_rollup(key, rollup_key)
        _add_to_rollup(row, sums[rollup_key])
        rows.append(row)
    Rollup.objects.bulk_create(
        rows,
        batch_size=LATE_BATCH_SIZE,
        update_conflicts=True,
        unique_fields=["key"],
        update_fields=[*SUM_FIELDS, *TOOK, "agent_name", "server_name", "last_at"],
    )


def _load_rollups(keys: Sequence[str]) -> Iterator[Rollup]:
    for start in range(0, len(keys), LATE_BATCH_SIZE):
        yield from Rollup.objects.filter(pk__in=keys[start : start + LATE_BATCH_SIZE])


def _build_rollup(key: str, rollup_key: RollupKey) -> Rollup:
    zeros = dict.fromkeys((*SUM_FIELDS, *TOOK), 0)
    return Rollup(
        key=key,
        grain=rollup_key.grain,
        begins=rollup_key.begins,
        **rollup_key.kind._asdict(),
        **zeros,
    )


def _add_to_rollup(row: Rollup, total: RollupSum) -> None:
    for name in SUM_FIELDS:
        setattr(row, name, getattr(row, name) + getattr(total, name))
    for name, increment in zip(TOOK, total.duration_counts, strict=True):
        setattr(row, name, getattr(row, name) + increment)
    row.agent_name, row.server_name = total.agent_name, total.server_name
    row.last_at = max(filter(None, (row.last_at, total.last_at)), default=None)
