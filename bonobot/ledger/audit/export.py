"""Export audit entries as JSON Lines or CSV, and parse exported JSON Lines."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from django.db.models import QuerySet

from bonobot.ledger.audit import chain_reader, entry_encoding
from bonobot.ledger.audit.hash_chain import StoredEntry
from bonobot.ledger.models import AuditRow

Form = Literal["jsonl", "csv"]
MEDIA: dict[str, str] = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}
PAGE = 500
HEADING = ("seq", *entry_encoding.NAMES, "details")
# Spreadsheet programs run cells that start with one of these as formulas.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export_pages(rows: QuerySet[AuditRow], form: Form) -> Iterator[str]:
    """Yield an organization's rows as text, page by page, in the order of the chain."""
    if form == "csv":
        yield format_csv([HEADING])
    ordered = rows.order_by("seq")
    after: int | None = None
    while found := chain_reader.read(
        (ordered if after is None else ordered.filter(seq__gt=after))[:PAGE]
    ):
        after = found[-1].seq
        yield (
            format_csv(map(_build_cells, found))
            if form == "csv"
            else "".join(map(_format_line, found))
        )


def read(lines: Iterable[str]) -> Iterator[StoredEntry]:
    """Yield the entries of exported JSON Lines; raises ValueError for an invalid line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = json.loads(line)
            columns = tuple([one["columns"][name] for name in entry_encoding.NAMES])
            yield StoredEntry(
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


def _format_line(row: StoredEntry) -> str:
    columns = dict(zip(entry_encoding.NAMES, row.columns, strict=True))
    facts = {name: getattr(row, name) for name in chain_reader.SEALED} | {"columns": columns}
    return json.dumps(facts, ensure_ascii=False) + "\n"


def _build_cells(row: StoredEntry) -> list[Any]:
    details: dict[str, Any] = {}
    for text in filter(None, (row.opened, row.closed)):
        details |= json.loads(text).get("details", {})
    written = json.dumps(details, ensure_ascii=False)
    return [row.seq, *map(escape_formula, row.columns), escape_formula(written)]


def escape_formula(cell: Any) -> Any:
    """Return a cell that no spreadsheet program runs as a formula."""
    if isinstance(cell, str) and cell.startswith(_FORMULA):
        return f"'{cell}"
    return cell


def format_csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV; untrusted texts must be escaped with `escape_formula` before."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
