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

LOGGER = "bonobot.ledger.queries"
KIND = "head"
IN_TEXT = f"{LOGGER}: "
MEMBER = f"{KIND}="

logger = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class SignedCheckpoint:
    """The signed end of an organization's chain at a time."""

    organization_id: UUID
    seq: int
    digest: str
    at: str


def get_signer() -> StatementSigner:
    """Return the signer of this installation."""
    return StatementSigner(settings.BONOBOT_AUDIT_KEYS)


def get_checkpoint_folder() -> Path:
    """Return the folder of checkpoints: JSON Lines, a file per month."""
    return Path(settings.BONOBOT_AUDIT_HEADS)


def sign_chain_ends(organization_id: UUID | None = None) -> list[dict[str, Any]]:
    """Return signed statements of the current ends of all chains, or of one."""
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


def export() -> int:
    """Export the ends of the chains that changed since the last export; return how many.

    Each is also logged (`bonobot.ledger.queries`) for external log collectors, as extra values,
    because signatures in log messages are masked.
    """
    known = _read_last_positions()
    moved = [one for one in sign_chain_ends() if known.get(one["organization_id"], 0) < one["seq"]]
    if moved:
        lines = [json.dumps(one, sort_keys=True) for one in moved]
        with _get_current_file().open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        for one in moved:
            logger.info("signed the end of a chain", extra={KIND: one})
    return len(moved)


def parse_checkpoints(organization_id: UUID, lines: Iterable[str]) -> Iterator[SignedCheckpoint]:
    """Yield an organization's checkpoints from exported lines or log lines.

    Raises ValueError for a forged checkpoint or an invalid line.
    """
    holds = get_signer().holds
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        statement = _statement(line, number)
        if statement.get("organization_id") != str(organization_id):
            continue
        if statement.get("kind") != KIND or not holds(statement):
            raise ValueError(f"Line {number} was not signed by a key of this installation.")
        yield SignedCheckpoint(
            organization_id, statement["seq"], statement["digest"], statement["at"]
        )


def read_checkpoint_lines() -> Iterator[str]:
    """Yield the lines of all checkpoint files of this host, oldest first."""
    for path in sorted(get_checkpoint_folder().glob("*.jsonl")):
        with path.open(encoding="utf-8") as file:
            yield from file


def _statement(line: str, number: int) -> Statement:
    """Return the statement of a line; empty for other log lines."""
    _, of_log, text = line.partition(IN_TEXT)
    if of_log:
        _, found, line = text.partition(MEMBER)
        return _parse_statement(line, number) if found else {}
    entry = _parse_statement(line, number)
    if "logger" not in entry:
        return entry
    inner = entry.get(KIND) if entry["logger"] == LOGGER else None
    return inner if isinstance(inner, dict) else {}


def _parse_statement(line: str, number: int) -> Statement:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"Line {number} is no JSON.") from error
    if not isinstance(found, dict):
        raise ValueError(f"Line {number} is no JSON object.")
    return found


def _get_current_file() -> Path:
    return ensure_private_folder(get_checkpoint_folder()) / f"{datetime.now(UTC):%Y-%m}.jsonl"


def _read_last_positions() -> dict[str, int]:
    """Return the last position of each chain that this host exported this month."""
    path = _get_current_file()
    found: dict[str, int] = {}
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                if '"seq"' in line and line.endswith("\n"):
                    one = json.loads(line)
                    found[one["organization_id"]] = one["seq"]
    return found
