"""Verify an organization's chain, at once or in steps.

Verification takes no locks and reads in pages: written entries never change, so entries up to the
head that was read first can be verified while calls continue. No entries may exist beyond the head
that is read last. A pruned chain is verified from its signed checkpoint, and exported checkpoints
must still match.

`verify_step` verifies a limited number of rows and saves its progress in a statement, signed with
audit keys that aren't in the database: the last digest, rows that may still be closed, and faults.
A manipulated statement is itself a fault and restarts the verification. After the end was reached,
the next step verifies new entries only; a row altered after it was verified is detected by the
next full verification.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Func, Max, QuerySet, TextField

from bonobot.core.i18n.messages import format_message
from bonobot.ledger.audit import entry_encoding, prune_chain
from bonobot.ledger.audit.hash_chain import (
    MAX_FAULTS,
    ChainFault,
    ChainTip,
    ChainVerifier,
    StoredEntry,
)
from bonobot.ledger.audit.signed_checkpoints import SignedCheckpoint, get_signer
from bonobot.ledger.models import AuditRow, Head, Verification

STATEMENT_KIND = "verified"
STEP_ROWS = 10_000
# A refusal is closed within a minute if it was repeated, otherwise never.
REFUSAL_WINDOW = timedelta(hours=1)
_OUTCOME, _OPENED_AT = (
    entry_encoding.COLUMN_NAMES.index("outcome"),
    entry_encoding.COLUMN_NAMES.index("opened_at"),
)


PAGE_SIZE = 1_000
MIN_SEQ, MAX_SEQ = -(2**63), 2**63 - 1
SEALED_COLUMNS = ("id", "seq", "digest", "opened", "closed_seq", "closed_digest", "closed")
_COLUMN_KINDS = {column.name: column.kind for column in entry_encoding.COLUMNS}


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


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of a verification: rows read, end of the chain, and faults.

    `start` is the position of the checkpoint before the first row; 0 if nothing was pruned.
    """

    ok: bool
    rows: int
    faults: tuple[ChainFault, ...]
    seq: int
    digest: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class VerificationProgress:
    """The progress of a verification; `seq` and `digest` are those of the last verified entry.

    `since` is its start: 0 or the position of a checkpoint. `behind` is the position of the last
    row, `waiting` those of rows that may still be closed, `end` that of the chain's end, and `done`
    says whether it was reached.
    """

    organization_id: UUID
    since: int
    seq: int
    digest: str
    behind: int = MIN_SEQ - 1
    rows: int = 0
    waiting: tuple[int, ...] = ()
    faults: tuple[ChainFault, ...] = ()
    end: int = 0
    done: bool = False
    at: str = ""

    @property
    def ok(self) -> bool:
        """Whether no fault was found so far."""
        return not self.faults

    @property
    def share(self) -> float:
        """The verified share of the chain, from 0 to 1."""
        length = self.end - self.since
        return 1.0 if self.done or length <= 0 else max(0.0, (self.seq - self.since) / length)

    def build_report(self) -> VerificationReport:
        return VerificationReport(
            self.ok,
            rows=self.rows,
            faults=self.faults,
            seq=self.seq,
            digest=self.digest,
            start=self.since,
        )


def start_verification(organization_id: UUID) -> VerificationProgress:
    """Return the initial progress of a full verification."""
    since, digest = prune_chain.find_chain_start(organization_id)
    faults = tuple(_verify_checkpoint(organization_id))
    return VerificationProgress(organization_id, since, since, digest, faults=faults)


def load_progress(organization_id: UUID) -> VerificationProgress | None:
    """Return the progress of the last verification, or None.

    If it isn't signed by this installation, return an initial progress with that fault.
    """
    row = Verification.objects.filter(pk=organization_id).first()
    if row is None:
        return None
    statement = row.statement
    expected = {"kind": STATEMENT_KIND, "organization_id": str(organization_id)}
    is_genuine = isinstance(statement, dict) and get_signer().is_valid(statement)
    if not is_genuine or any(statement.get(name) != value for name, value in expected.items()):
        fault = ChainFault(
            "standing",
            0,
            "",
            format_message("the verification state wasn't signed by this installation"),
        )
        start = start_verification(organization_id)
        return replace(start, faults=(*start.faults, fault))
    return _parse_progress(organization_id, statement)


def verify_step(
    organization_id: UUID,
    *,
    rows: int = STEP_ROWS,
    checkpoints: Iterable[SignedCheckpoint] = (),
    restart: bool = False,
) -> VerificationProgress:
    """Verify up to `rows` more rows, save the progress and return it.

    Continues after the last step; `restart` begins a full verification.
    """
    progress = None if restart else load_progress(organization_id)
    if progress is None or progress.seq < prune_chain.find_chain_start(organization_id)[0]:
        progress = _reset_progress(organization_id, progress)
    progress = advance_verification(
        progress, load_tip(organization_id), rows=rows, checkpoints=checkpoints
    )
    statement = get_signer().sign(_build_statement(progress))
    Verification.objects.update_or_create(pk=organization_id, defaults={"statement": statement})
    return progress


def verify_exported(rows: Iterable[StoredEntry]) -> VerificationReport:
    """Verify exported rows from the first to the last one."""
    verifier = ChainVerifier(ChainTip(MAX_SEQ), start=None)
    for row in rows:
        verifier.verify_row(row)
    last_entry = verifier.verify_remaining()
    faults = tuple(verifier.faults)
    return VerificationReport(
        not faults, rows=verifier.rows, faults=faults, seq=last_entry.seq, digest=last_entry.digest
    )


def advance_verification(
    progress: VerificationProgress,
    tip: ChainTip,
    *,
    rows: int = STEP_ROWS,
    checkpoints: Iterable[SignedCheckpoint] = (),
) -> VerificationProgress:
    """Return the progress after up to `rows` more rows, at most up to the tip."""
    known_digests = {
        checkpoint.seq: checkpoint.digest
        for checkpoint in checkpoints
        if checkpoint.seq > progress.seq
    }
    if progress.seq > tip.seq:
        known_digests[progress.seq] = progress.digest  # it was verified as part of the chain
    verifier = ChainVerifier(tip, ChainTip(progress.seq, progress.digest), known_digests)
    open_rows = _OpenRows(progress)
    for row in load_rows_at(progress.organization_id, progress.waiting):
        verifier.verify_closing(row)
        open_rows.add_row(row)
    last_row_seq, rows_read = progress.behind, 0
    for row in load_rows_from(
        progress.organization_id, last_row_seq + 1, up_to=tip.seq, max_rows=rows
    ):
        verifier.verify_row(row)
        open_rows.add_row(row)
        last_row_seq, rows_read = row.seq, rows_read + 1
    done = rows_read < rows
    if done:
        verifier.verify_end()
    faults = [*progress.faults, *open_rows.list_missing_faults(), *verifier.faults]
    if done:
        faults += _verify_head_position(progress.organization_id, verifier.highest_seq)
    last_entry = verifier.last_entry
    return replace(
        progress,
        seq=last_entry.seq,
        digest=last_entry.digest,
        behind=last_row_seq,
        rows=progress.rows + rows_read,
        waiting=open_rows.list_open_after(last_entry.seq),
        faults=tuple(dict.fromkeys(faults))[:MAX_FAULTS],
        end=tip.seq,
        done=done,
        at=entry_encoding.format_timestamp(datetime.now(UTC)),
    )


@dataclass(slots=True)
class _OpenRows:
    """The rows that may have an entry after the last verified one."""

    progress: VerificationProgress
    closing_positions: dict[int, int | None] = field(default_factory=dict)
    seen_positions: set[int] = field(default_factory=set)
    refused_since: str = field(
        default_factory=lambda: entry_encoding.format_timestamp(datetime.now(UTC) - REFUSAL_WINDOW)
    )

    def add_row(self, row: StoredEntry) -> None:
        """Remember a row that is closed or may be closed later."""
        self.seen_positions.add(row.seq)
        outcome, opened_at = row.columns[_OUTCOME], row.columns[_OPENED_AT]
        is_recent_refusal = (
            outcome == AuditRow.Outcome.REFUSED and str(opened_at) > self.refused_since
        )
        if row.closed_seq is not None or outcome == AuditRow.Outcome.OPEN or is_recent_refusal:
            self.closing_positions[row.seq] = row.closed_seq

    def list_open_after(self, seq: int) -> tuple[int, ...]:
        """Return the positions of rows that are open, or closed after a position."""
        return tuple(
            position
            for position, closed_seq in self.closing_positions.items()
            if closed_seq is None or closed_seq > seq
        )

    def list_missing_faults(self) -> list[ChainFault]:
        """Return a fault for each open row that no longer exists."""
        missing = [seq for seq in self.progress.waiting if seq not in self.seen_positions]
        pruned_up_to = (
            prune_chain.find_chain_start(self.progress.organization_id)[0] if missing else 0
        )
        detail = format_message("the entry existed during the last verification")
        return [ChainFault("missing", seq, "", detail) for seq in missing if seq > pruned_up_to]


def _reset_progress(
    organization_id: UUID, progress: VerificationProgress | None
) -> VerificationProgress:
    """Return an initial progress that keeps the previous rows and faults."""
    start = start_verification(organization_id)
    if progress is None:
        return start
    faults = (*progress.faults, *start.faults)
    return replace(start, rows=progress.rows, faults=faults[:MAX_FAULTS])


def _build_statement(progress: VerificationProgress) -> dict[str, Any]:
    return {
        **asdict(progress),
        "kind": STATEMENT_KIND,
        "organization_id": str(progress.organization_id),
    }


def _parse_progress(organization_id: UUID, statement: dict[str, Any]) -> VerificationProgress:
    fields = {
        name: value
        for name, value in statement.items()
        if name not in ("kind", "key", "signature", "organization_id")
    }
    fields["faults"] = tuple(ChainFault(**fault) for fault in fields["faults"])
    fields["waiting"] = tuple(fields["waiting"])
    return VerificationProgress(organization_id, **fields)


def _verify_checkpoint(organization_id: UUID) -> Iterator[ChainFault]:
    checkpoint = prune_chain.find_latest_checkpoint(organization_id)
    if checkpoint is not None and not prune_chain.is_genuine(checkpoint):
        yield ChainFault(
            "checkpoint",
            checkpoint.seq,
            "",
            format_message("the checkpoint wasn't signed by this installation"),
        )


def _verify_head_position(organization_id: UUID, highest: int) -> Iterator[ChainFault]:
    rows = AuditRow.objects.filter(organization_id=organization_id)
    last = rows.aggregate(seq=Max("seq"))["seq"] or 0
    highest = max(highest, last)
    # Rows and head are committed together, so rows seen before must be within this head.
    tip = load_tip(organization_id)
    if highest > tip.seq:
        yield ChainFault(
            "beyond",
            highest,
            "",
            format_message(
                "entries exist after the stored end of the hash chain at position {seq}",
                seq=tip.seq,
            ),
        )
