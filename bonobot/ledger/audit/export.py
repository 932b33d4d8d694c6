"""Export audit entries as JSON Lines or CSV, and parse exported JSON Lines."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from django.db.models import QuerySet

from bonobot.ledger.audit import entry_encoding, verify_chain
from bonobot.ledger.audit.hash_chain import StoredEntry
from bonobot.ledger.models import AuditRow

ExportFormat = Literal["jsonl", "csv"]
MEDIA_TYPES: dict[str, str] = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}
PAGE_SIZE = 500
CSV_HEADING = ("seq", *entry_encoding.COLUMN_NAMES, "details")
# Spreadsheet programs run cells that start with one of these as formulas.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class ExportedAuditLog:
    """The entries of an organization's audit log that a response contains."""

    organization_id: UUID


def export_pages(rows: QuerySet[AuditRow], export_format: ExportFormat) -> Iterator[str]:
    """Yield an organization's rows as text, page by page, in the order of the chain."""
    if export_format == "csv":
        yield format_csv([CSV_HEADING])
    ordered_rows = rows.order_by("seq")
    last_seq: int | None = None
    while entries := verify_chain.load_entries(
        (ordered_rows if last_seq is None else ordered_rows.filter(seq__gt=last_seq))[:PAGE_SIZE]
    ):
        last_seq = entries[-1].seq
        yield (
            format_csv(map(_build_cells, entries))
            if export_format == "csv"
            else "".join(map(_format_line, entries))
        )


def parse_lines(lines: Iterable[str]) -> Iterator[StoredEntry]:
    """Yield the entries of exported JSON Lines; raises ValueError for an invalid line."""
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            columns = tuple([data["columns"][name] for name in entry_encoding.COLUMN_NAMES])
            yield StoredEntry(
                data["id"],
                seq=int(data["seq"]),
                digest=data["digest"],
                opened=data["opened"],
                closed_seq=data["closed_seq"],
                closed_digest=data["closed_digest"],
                closed=data["closed"],
                columns=columns,
            )
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise ValueError(f"Line {line_number} isn't an exported audit entry.") from error


def _format_line(row: StoredEntry) -> str:
    columns = dict(zip(entry_encoding.COLUMN_NAMES, row.columns, strict=True))
    facts = {name: getattr(row, name) for name in verify_chain.SEALED_COLUMNS} | {
        "columns": columns
    }
    return json.dumps(facts, ensure_ascii=False) + "\n"


def _build_cells(row: StoredEntry) -> list[Any]:
    details: dict[str, Any] = {}
    for text in filter(None, (row.opened, row.closed)):
        details |= json.loads(text).get("details", {})
    serialized = json.dumps(details, ensure_ascii=False)
    return [row.seq, *map(escape_formula, row.columns), escape_formula(serialized)]


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
