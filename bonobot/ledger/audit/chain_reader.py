"""Read stored entries in chain order."""

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from django.db.models import F, Func, QuerySet, TextField

from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.audit.hash_chain import ChainTip, StoredEntry
from bonobot.ledger.models import AuditRow, Head

PAGE_SIZE = 1_000
MIN_SEQ, MAX_SEQ = -(2**63), 2**63 - 1

SEALED_COLUMNS = ("id", "seq", "digest", "opened", "closed_seq", "closed_digest", "closed")


class _IdText(Func):
    """An id in the format of sealed texts."""

    output_field = TextField()
    template = "%(expressions)s::text"

    def as_sqlite(self, compiler: Any, connection: Any, **more: Any) -> Any:
        """Return the SQL for SQLite, which stores ids without hyphens."""
        ends = ((1, 8), (9, 4), (13, 4), (17, 4), (21, -1))
        parts = [f"SUBSTR(%(expressions)s, {first}, {count})" for first, count in ends[:-1]]
        parts.append("SUBSTR(%(expressions)s, 21)")
        return self.as_sql(compiler, connection, template=" || '-' || ".join(parts), **more)


class _TimeText(Func):
    """A time in the format of sealed texts; other values get a different format."""

    output_field = TextField()
    # Without the bounds, a BC year would look like an AD one, and infinity like an empty text.
    template = (
        "CASE WHEN %(expressions)s BETWEEN '0001-01-01 00:00:00Z' AND '9999-12-31 23:59:59.999999Z'"
        " THEN TO_CHAR(%(expressions)s AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
        " ELSE %(expressions)s::text END"
    )

    def as_sqlite(self, compiler: Any, connection: Any, **more: Any) -> Any:
        """Return the SQL for SQLite, which stores text, without microseconds if they are zero."""
        template = (
            "REPLACE(%(expressions)s, ' ', 'T')"
            " || CASE LENGTH(%(expressions)s) WHEN 19 THEN '.000000Z' ELSE 'Z' END"
        )
        return self.as_sql(compiler, connection, template=template, **more)


_TEXT_FUNCTIONS = {"uuid": _IdText, "time": _TimeText}
_COLUMN_KINDS = {column.name: column.kind for column in entry_encoding.COLUMNS}
# Read as text in one query: converting to Python values would cost more than all checks.
_VALUES = [
    _TEXT_FUNCTIONS[_COLUMN_KINDS[name]](F(name))
    if _COLUMN_KINDS.get(name) in _TEXT_FUNCTIONS
    else F(name)
    for name in (*SEALED_COLUMNS, *entry_encoding.COLUMN_NAMES)
]


def load_tip(organization_id: UUID) -> ChainTip:
    head = Head.objects.filter(pk=organization_id).first()
    return ChainTip(head.seq, head.digest, head.generation) if head else ChainTip()


def load_rows_from(
    organization_id: UUID, first_seq: int, *, up_to: int, max_rows: int
) -> Iterator[StoredEntry]:
    """Yield at most `max_rows` rows from one position up to another, in order."""
    rows = AuditRow.objects.filter(organization_id=organization_id, seq__lte=up_to).order_by("seq")
    while max_rows > 0:
        page = load_entries(rows.filter(seq__gte=first_seq)[: min(PAGE_SIZE, max_rows)])
        yield from page
        if not page:
            return
        first_seq, max_rows = page[-1].seq + 1, max_rows - len(page)


def load_rows_at(organization_id: UUID, positions: Sequence[int]) -> Iterator[StoredEntry]:
    """Yield the existing rows at these positions."""
    rows = AuditRow.objects.filter(organization_id=organization_id).order_by("seq")
    for first in range(0, len(positions), PAGE_SIZE):
        yield from load_entries(rows.filter(seq__in=positions[first : first + PAGE_SIZE]))


def load_entries(rows: QuerySet[AuditRow]) -> list[StoredEntry]:
    sealed_count = len(SEALED_COLUMNS)
    records = rows.values_list(*_VALUES)
    return [
        StoredEntry._make((*values[:sealed_count], values[sealed_count:])) for values in records
    ]
