"""Archiving: old rows are written to a file before they leave the database, or they stay."""

import os
from datetime import datetime
from pathlib import Path
from uuid import UUID

from bonobot.ledger import exporting, retention
from bonobot.ledger.actors import Actor
from bonobot.ledger.models import AuditRow
from bonobot.ledger.retention import Pruned

SUFFIX = ".part"


def prune(organization_id: UUID, *, before: datetime, actor: Actor, file: Path) -> Pruned:
    """Write the rows that can leave as JSON Lines, then remove exactly these.

    The file has its name once it is whole and on the disk. Raises OSError, and FileExistsError
    rather than replace one; then nothing has left.
    """
    planned = retention.plan(organization_id, before=before)
    if not planned.rows:
        return planned
    _write(organization_id, planned.seq, file)
    return retention.prune(
        organization_id, before=before, actor=actor, up_to=planned.seq, archive=file.name
    )


def prune_into(organization_id: UUID, *, before: datetime, actor: Actor, folder: Path) -> Pruned:
    """Do as `prune` does, with a file of its own for each time, named by organization and place."""
    start = retention.start(organization_id)[0]
    stamp = before.strftime("%Y%m%dT%H%M%S")
    file = folder / f"{organization_id}-from-{start + 1}-before-{stamp}.jsonl"
    return prune(organization_id, before=before, actor=actor, file=file)


def _write(organization_id: UUID, up_to: int, file: Path) -> None:
    if file.exists():
        raise FileExistsError(f"{file} is there already")
    rows = AuditRow.objects.filter(organization_id=organization_id, seq__lte=up_to)
    growing = file.with_name(file.name + SUFFIX)
    growing.touch(mode=0o600)
    with growing.open("w", encoding="utf-8") as written:
        for page in exporting.pages(rows, "jsonl"):
            written.write(page)
        written.flush()
        os.fsync(written.fileno())
    growing.rename(file)
