"""Signed checkpoints of chain ends, kept outside the database.

An attacker who can rewrite all rows and the head can forge a chain or cut off its end. Checkpoints
that were exported before reveal that: `audit verify` compares them with the rows.
"""

import json
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings

from bonobot.core.crypto.key_files import ensure_private_folder
from bonobot.core.crypto.signatures import Statement, StatementSigner
from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.models import Head

LOGGER = "bonobot.ledger.queries"  # a name that log collectors know, no module
KIND = "head"
LOG_PREFIX = f"{LOGGER}: "
LOG_FIELD = f"{KIND}="

logger = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """The signed end of an organization's chain at a time."""

    organization_id: UUID
    seq: int
    digest: str
    at: str


def get_signer() -> StatementSigner:
    return StatementSigner(settings.BONOBOT_AUDIT_KEYS)


def get_checkpoint_folder() -> Path:
    """Return the folder of checkpoints: JSON Lines, a file per month."""
    return Path(settings.BONOBOT_AUDIT_HEADS)


def sign_chain_ends(organization_id: UUID | None = None) -> list[dict[str, Any]]:
    rows = Head.objects.filter(seq__gt=0).order_by("organization_id")
    if organization_id is not None:
        rows = rows.filter(pk=organization_id)
    sign = get_signer().sign
    at = entry_encoding.format_timestamp(datetime.now(UTC))
    return [
        sign(
            {
                "kind": KIND,
                "organization_id": str(row.organization_id),
                "seq": row.seq,
                "digest": row.digest,
                "at": at,
            }
        )
        for row in rows
    ]


def export_checkpoints() -> int:
    """Export the ends of the chains that changed since the last export; return how many.

    Each is also logged (`bonobot.ledger.queries`) for external log collectors, as extra values,
    because signatures in log messages are masked.
    """
    last_positions = _read_last_positions()
    new_statements = [
        statement
        for statement in sign_chain_ends()
        if last_positions.get(statement["organization_id"], 0) < statement["seq"]
    ]
    if new_statements:
        lines = [json.dumps(statement, sort_keys=True) for statement in new_statements]
        with _get_current_file().open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        for statement in new_statements:
            logger.info("signed the end of a chain", extra={KIND: statement})
    return len(new_statements)


def parse_checkpoints(organization_id: UUID, lines: Iterable[str]) -> Iterator[SignedCheckpoint]:
    """Yield an organization's checkpoints from exported lines or log lines.

    Raises ValueError for a forged checkpoint or an invalid line.
    """
    is_signed = get_signer().is_valid
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        statement = _read_statement(line, line_number)
        if statement.get("organization_id") != str(organization_id):
            continue
        if statement.get("kind") != KIND or not is_signed(statement):
            raise ValueError(f"Line {line_number} was not signed by a key of this installation.")
        yield SignedCheckpoint(
            organization_id, statement["seq"], statement["digest"], statement["at"]
        )


def read_checkpoint_lines() -> Iterator[str]:
    """Yield the lines of all checkpoint files of this host, oldest first."""
    for path in sorted(get_checkpoint_folder().glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            yield from file


def _read_statement(line: str, line_number: int) -> Statement:
    """Return the statement of a line; empty for other log lines."""
    _, log_prefix, text = line.partition(LOG_PREFIX)
    if log_prefix:
        _, log_field, line = text.partition(LOG_FIELD)
        return _parse_statement(line, line_number) if log_field else {}
    entry = _parse_statement(line, line_number)
    if "logger" not in entry:
        return entry
    statement = entry.get(KIND) if entry["logger"] == LOGGER else None
    return statement if isinstance(statement, dict) else {}


def _parse_statement(line: str, line_number: int) -> Statement:
    try:
        statement = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"Line {line_number} isn't JSON.") from error
    if not isinstance(statement, dict):
        raise ValueError(f"Line {line_number} isn't a JSON object.")
    return statement


def _get_current_file() -> Path:
    return ensure_private_folder(get_checkpoint_folder()) / f"{datetime.now(UTC):%Y-%m}.jsonl"


def _read_last_positions() -> dict[str, int]:
    """Return the last position of each chain that this host exported this month."""
    path = _get_current_file()
    positions: dict[str, int] = {}
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                if '"seq"' in line and line.endswith("\n"):
                    statement = json.loads(line)
                    positions[statement["organization_id"]] = statement["seq"]
    return positions
