"""Archive and delete old audit entries, or all rows of an organization.

The remaining chain is verified from a signed checkpoint on. A row is deleted only with both of its
entries, so a call that was opened before the cut and closed after it is kept, with all rows after
it; and only after it was counted into rollups.

Rows are deleted in short steps that lock the chain for some hundredths of a second. Deletion
bypasses the querysets, which refuse to change audit rows.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.apps import apps
from django.db import transaction
from django.db.models import QuerySet

from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.audit import export as audit_export
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.audit.genesis import GENESIS
from bonobot.ledger.audit.signed_checkpoints import get_signer
from bonobot.ledger.models import AuditQuerySet, AuditRow, Checkpoint, RateCell
from bonobot.ledger.types import Actor, build_rate_prefix
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.writer import sql
from bonobot.ledger.writer.sql import LedgerDatabase

STATEMENT_KIND = "checkpoint"
BATCH_SIZE = 1_000
OPEN = AuditRow.Outcome.OPEN


@dataclass(frozen=True, slots=True)
class PruneResult:
    """The number of deleted rows, and the position after which the chain continues."""

    rows: int
    seq: int


class RetentionRow(NamedTuple):
    """The columns that decide whether a row can be deleted."""

    seq: int
    closed_seq: int | None
    opened_at: datetime
    outcome: str


def plan_pruning(organization_id: UUID, *, before: datetime) -> PruneResult:
    """Return what `prune_entries` would delete, without deleting it."""
    rows, (seq, _digest) = 0, find_chain_start(organization_id)
    build_rollups.count_organization(organization_id)
    first_uncounted = build_rollups.find_first_uncounted(organization_id)
    while oldest_rows := _load_oldest_rows(organization_id, after_seq=seq):
        last_seq = find_cut_position(oldest_rows, before, first_uncounted)
        leaving_count = sum(row.seq <= last_seq for row in oldest_rows)
        if not leaving_count:
            break
        rows, seq = rows + leaving_count, last_seq
    return PruneResult(rows, seq)


def prune_entries(
    organization_id: UUID,
    *,
    before: datetime,
    actor: Actor,
    up_to: int | None = None,
    archive: str = "",
) -> PruneResult:
    """Delete rows opened before a time, at most up to a position, and record it.

    Works in steps of 1,000 rows, each with a checkpoint in the same transaction. `archive` is the
    name of the file the rows were archived to.
    """
    build_rollups.count_organization(organization_id)
    removed_count, seq = 0, find_chain_start(organization_id)[0]
    while batch := _prune_batch(organization_id, before, up_to):
        removed_count, seq = removed_count + batch.rows, batch.seq
    if removed_count:
        details = {
            "before": entry_encoding.format_timestamp(before),
            "rows": removed_count,
            "up_to": seq,
        }
        record_finished_change(
            organization_id=organization_id,
            actor=actor,
            action="audit_pruned",
            resource_type="audit",
            resource_id=str(organization_id),
            details=details | ({"archive": archive} if archive else {}),
            governed=False,
        )
    return PruneResult(removed_count, seq)


def find_cut_position(
    rows: Sequence[RetentionRow], before: datetime, first_uncounted: int | None
) -> int:
    """Return the last position of the oldest rows (in order) that can be deleted; 0 if none.

    All rows up to it are closed, old and counted. If there are more rows than a step deletes, the
    last one is kept, because the rows after it aren't known.
    """
    last_seq = max(max(row.seq, row.closed_seq or 0) for row in rows)
    if len(rows) > BATCH_SIZE:
        last_seq = rows[-1].seq - 1
    if first_uncounted is not None:
        last_seq = min(last_seq, first_uncounted - 1)
    for row in rows:
        if row.opened_at >= before or row.outcome == OPEN:
            last_seq = min(last_seq, row.seq - 1)
    # From the end: a row that is closed after the cut is kept, with all rows after it.
    for row in reversed(rows):
        if row.seq <= last_seq < (row.closed_seq or 0):
            last_seq = row.seq - 1
    return last_seq if last_seq >= rows[0].seq else 0


def find_latest_checkpoint(organization_id: UUID) -> Checkpoint | None:
    return Checkpoint.objects.filter(organization_id=organization_id).order_by("-seq").first()


def find_chain_start(organization_id: UUID) -> tuple[int, str]:
    """Return the position and digest after which the chain's rows start."""
    checkpoint = find_latest_checkpoint(organization_id)
    return (checkpoint.seq, checkpoint.digest) if checkpoint else (0, GENESIS)


def is_genuine(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint was signed by this installation and matches its columns."""
    statement = checkpoint.statement
    return get_signer().is_valid(statement) and statement == {
        **_build_statement(
            checkpoint.organization_id, checkpoint.seq, checkpoint.digest, statement.get("at")
        ),
        "key": statement.get("key"),
        "signature": statement.get("signature"),
    }


def _prune_batch(organization_id: UUID, before: datetime, up_to: int | None) -> PruneResult | None:
    first_uncounted = build_rollups.find_first_uncounted(organization_id)
    if up_to is not None:
        first_uncounted = min(up_to + 1, first_uncounted or up_to + 1)
    with transaction.atomic():
        database = LedgerDatabase(transaction.get_connection())
        # Lock the chain, so that no row is closed meanwhile.
        sql.lock_heads(database, [organization_id])
        oldest_rows = _load_oldest_rows(
            organization_id, after_seq=find_chain_start(organization_id)[0]
        )
        seq = find_cut_position(oldest_rows, before, first_uncounted) if oldest_rows else 0
        if not seq:
            return None
        rows = sum(row.seq <= seq for row in oldest_rows)
        digest = _load_digest(
            organization_id,
            [leaving_row for leaving_row in oldest_rows if leaving_row.seq <= seq],
            seq,
        )
        at = entry_encoding.format_timestamp(datetime.now(UTC))
        Checkpoint.objects.create(
            id=uuid4(),
            organization_id=organization_id,
            seq=seq,
            digest=digest,
            statement=get_signer().sign(_build_statement(organization_id, seq, digest, at)),
        )
        sql.delete_rows(database, organization_id, up_to=seq)
        return PruneResult(rows, seq)


def _query_rows(organization_id: UUID) -> AuditQuerySet:
    return AuditRow.objects.filter(organization_id=organization_id).order_by("seq")


def _load_oldest_rows(organization_id: UUID, *, after_seq: int) -> list[RetentionRow]:
    """Return the oldest rows after a position: one more than a step deletes."""
    rows = _query_rows(organization_id).filter(seq__gt=after_seq)
    return [RetentionRow(*row) for row in rows.values_list(*RetentionRow._fields)[: BATCH_SIZE + 1]]


def _load_digest(organization_id: UUID, candidates: Sequence[RetentionRow], seq: int) -> str:
    """Return the digest of the entry at a position, which belongs to one of these rows."""
    row_seq = next(
        candidate.seq for candidate in candidates if seq in (candidate.seq, candidate.closed_seq)
    )
    row = _query_rows(organization_id).get(seq=row_seq)
    return str(row.digest if row.seq == seq else row.closed_digest)


def _build_statement(organization_id: UUID, seq: int, digest: str, at: object) -> dict[str, Any]:
    return {
        "kind": STATEMENT_KIND,
        "organization_id": str(organization_id),
        "seq": seq,
        "digest": digest,
        "at": at,
    }


PARTIAL_SUFFIX = ".part"


def archive_and_prune(
    organization_id: UUID, *, before: datetime, actor: Actor, file: Path
) -> PruneResult:
    """Archive the rows that can be deleted as JSON Lines, then delete exactly these.

    The file gets its name once it is complete and synced to disk. Raises OSError (FileExistsError
    if the file exists); then nothing is deleted.
    """
    pruning_plan = plan_pruning(organization_id, before=before)
    if not pruning_plan.rows:
        return pruning_plan
    _write_archive(organization_id, pruning_plan.seq, file)
    return prune_entries(
        organization_id, before=before, actor=actor, up_to=pruning_plan.seq, archive=file.name
    )


def prune_to_folder(
    organization_id: UUID, *, before: datetime, actor: Actor, folder: Path
) -> PruneResult:
    """Archive to a new file in a folder, named by organization and position, then delete."""
    chain_start = find_chain_start(organization_id)[0]
    stamp = before.strftime("%Y%m%dT%H%M%S")
    file = folder / f"{organization_id}-from-{chain_start + 1}-before-{stamp}.jsonl"
    return archive_and_prune(organization_id, before=before, actor=actor, file=file)


def _write_archive(organization_id: UUID, up_to: int, file: Path) -> None:
    if file.exists():
        raise FileExistsError(f"{file} already exists")
    rows = AuditRow.objects.filter(organization_id=organization_id, seq__lte=up_to)
    partial_file = file.with_name(file.name + PARTIAL_SUFFIX)
    partial_file.touch(mode=0o600)
    with partial_file.open("w", encoding="utf-8") as stream:
        for page in audit_export.export_pages(rows, "jsonl"):
            stream.write(page)
        stream.flush()
        os.fsync(stream.fileno())
    partial_file.rename(file)


def list_organization_rows(organization_id: UUID) -> list[QuerySet[Any]]:
    """Return querysets of all ledger rows of an organization."""
    models = [
        model
        for model in apps.get_app_config("ledger").get_models()
        if any(field.attname == "organization_id" for field in model._meta.fields)
    ]
    querysets: list[QuerySet[Any]] = [
        model._base_manager.filter(organization_id=organization_id) for model in models
    ]
    return [*querysets, RateCell.objects.filter(key__startswith=build_rate_prefix(organization_id))]


def delete_organization_rows(organization_id: UUID) -> int:
    """Delete all ledger rows of an organization; return how many."""
    return sum(rows._raw_delete(rows.db) for rows in list_organization_rows(organization_id))
