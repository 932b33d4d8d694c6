"""Exporting: audit rows as JSON Lines, which can be verified elsewhere, or as CSV for a table."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from django.db.models import QuerySet

from bonobot.ledger import sealing, stored
from bonobot.ledger.chain import Stored
from bonobot.ledger.models import AuditRow

Form = Literal["jsonl", "csv"]
MEDIA: dict[str, str] = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}
PAGE = 500
HEADING = ("seq", *sealing.NAMES, "details")
# A table program would run a cell that begins with one of these.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def pages(rows: QuerySet[AuditRow], form: Form) -> Iterator[str]:
    """Yield one organization's rows in the order of the chain, page by page, as text in a form."""
    if form == "csv":
        yield comma_separated([HEADING])
    ordered = rows.order_by("seq")
    after: int | None = None
    while found := stored.read(
        (ordered if after is None else ordered.filter(seq__gt=after))[:PAGE]
    ):
        after = found[-1].seq
        yield comma_separated(map(_cells, found)) if form == "csv" else "".join(map(_line, found))


def read(lines: Iterable[str]) -> Iterator[Stored]:
    """Yield the rows of exported JSON Lines; raise ValueError for what is none."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
            columns = tuple([one["columns"][name] for name in sealing.NAMES])
            yield Stored(
                one["id"],
                int(one["seq"]),
                one["digest"],
                one["opened"],
                one["closed_seq"],
                one["closed_digest"],
                one["closed"],
                columns,
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"Line {number} is no exported audit row.") from error


def _line(row: Stored) -> str:
    columns = dict(zip(sealing.NAMES, row.columns, strict=True))
    facts = {name: getattr(row, name) for name in stored.SEALED} | {"columns": columns}
    return json.dumps(facts, ensure_ascii=False) + "\n"


def _cells(row: Stored) -> list[Any]:
    details: dict[str, Any] = {}
    for text in filter(None, (row.opened, row.closed)):
        details |= json.loads(text).get("details", {})
    written = json.dumps(details, ensure_ascii=False)
    return [row.seq, *map(harmless, row.columns), harmless(written)]


def harmless(cell: Any) -> Any:
    """Return a cell that no table program runs."""
    if isinstance(cell, str) and cell.startswith(_FORMULA):
        return f"'{cell}"
    return cell


def comma_separated(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV; strangers' texts must be made `harmless` before."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
