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

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Max

from bonobot.core.i18n.messages import format_message
from bonobot.ledger.audit import entry_encoding, retention
from bonobot.ledger.audit.chain_reader import (
    HIGHEST,
    LOWEST,
    load_rows_at,
    load_rows_from,
    load_tip,
)
from bonobot.ledger.audit.hash_chain import (
    MOST_FAULTS,
    ChainFault,
    ChainTip,
    ChainVerifier,
    StoredEntry,
)
from bonobot.ledger.audit.signed_checkpoints import SignedCheckpoint, get_signer
from bonobot.ledger.models import AuditRow, Verification

KIND = "verified"
STEP = 10_000
# A refusal is closed within a minute if it was repeated, otherwise never.
WINDOW = timedelta(hours=1)
_OUTCOME, _OPENED_AT = (
    entry_encoding.NAMES.index("outcome"),
    entry_encoding.NAMES.index("opened_at"),
)


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
    behind: int = LOWEST - 1
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

    def report(self) -> VerificationReport:
        """Return the report of a finished verification."""
        return VerificationReport(
            self.ok, self.rows, self.faults, self.seq, self.digest, self.since
        )


def start_verification(organization_id: UUID) -> VerificationProgress:
    """Return the initial progress of a full verification."""
    since, digest = retention.find_chain_start(organization_id)
    faults = tuple(_verify_checkpoint(organization_id))
    return VerificationProgress(organization_id, since, since, digest, faults=faults)


def load_progress(organization_id: UUID) -> VerificationProgress | None:
    """Return the progress of the last verification, or None.

    If it isn't signed by this installation, return an initial progress with that fault.
    """
    found = Verification.objects.filter(pk=organization_id).first()
    if found is None:
        return None
    statement = found.statement
    told = {"kind": KIND, "organization_id": str(organization_id)}
    genuine = isinstance(statement, dict) and get_signer().holds(statement)
    if not genuine or any(statement.get(name) != value for name, value in told.items()):
        fault = ChainFault(
            "standing", 0, "", format_message("where it stood wasn't signed by this installation")
        )
        start = start_verification(organization_id)
        return replace(start, faults=(*start.faults, fault))
    return _read(organization_id, statement)


def verify_step(
    organization_id: UUID,
    *,
    rows: int = STEP,
    anchors: Iterable[SignedCheckpoint] = (),
    afresh: bool = False,
) -> VerificationProgress:
    """Verify up to `rows` more rows, save the progress and return it.

    Continues after the last step; `restart` begins a full verification.
    """
    standing = None if afresh else load_progress(organization_id)
    if standing is None or standing.seq < retention.find_chain_start(organization_id)[0]:
        standing = _reset_progress(organization_id, standing)
    standing = advance(standing, load_tip(organization_id), rows=rows, anchors=anchors)
    statement = get_signer().sign(_build_statement(standing))
    Verification.objects.update_or_create(pk=organization_id, defaults={"statement": statement})
    return standing


def verify(organization_id: UUID, anchors: Iterable[SignedCheckpoint] = ()) -> VerificationReport:
    """Verify every entry, digest and copied column of an organization's chain.

    `checkpoints` are exported ends of the chain. The progress isn't saved.
    """
    tip, known = load_tip(organization_id), list(anchors)
    standing = start_verification(organization_id)
    while not standing.done:
        standing = advance(standing, tip, rows=STEP, anchors=known)
    return standing.report()


def verify_exported(rows: Iterable[StoredEntry]) -> VerificationReport:
    """Verify exported rows from the first to the last one."""
    inspector = ChainVerifier(ChainTip(HIGHEST), start=None)
    for row in rows:
        inspector.feed(row)
    last = inspector.settle()
    faults = tuple(inspector.faults)
    return VerificationReport(not faults, inspector.rows, faults, last.seq, last.digest)


def advance(
    standing: VerificationProgress,
    tip: ChainTip,
    *,
    rows: int = STEP,
    anchors: Iterable[SignedCheckpoint] = (),
) -> VerificationProgress:
    """Return the progress after up to `rows` more rows, at most up to the tip."""
    known = {one.seq: one.digest for one in anchors if one.seq > standing.seq}
    if standing.seq > tip.seq:
        known[standing.seq] = standing.digest  # it was verified as part of the chain
    inspector = ChainVerifier(tip, ChainTip(standing.seq, standing.digest), known)
    open_rows = _OpenRows(standing)
    for row in load_rows_at(standing.organization_id, standing.waiting):
        inspector.feed_closing(row)
        open_rows.see(row)
    behind, read = standing.behind, 0
    for row in load_rows_from(standing.organization_id, behind + 1, up_to=tip.seq, most=rows):
        inspector.feed(row)
        open_rows.see(row)
        behind, read = row.seq, read + 1
    done = read < rows
    if done:
        inspector.finish()
    faults = [*standing.faults, *open_rows.gone(), *inspector.faults]
    if done:
        faults += _verify_head_position(standing.organization_id, inspector.highest)
    last = inspector.last
    return replace(
        standing,
        seq=last.seq,
        digest=last.digest,
        behind=behind,
        rows=standing.rows + read,
        waiting=open_rows.after(last.seq),
        faults=tuple(dict.fromkeys(faults))[:MOST_FAULTS],
        end=tip.seq,
        done=done,
        at=entry_encoding.format_timestamp(datetime.now(UTC)),
    )


@dataclass(slots=True)
class _OpenRows:
    """The rows that may have an entry after the last verified one."""

    standing: VerificationProgress
    found: dict[int, int | None] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    since: str = field(
        default_factory=lambda: entry_encoding.format_timestamp(datetime.now(UTC) - WINDOW)
    )

    def see(self, row: StoredEntry) -> None:
        """Remember a row that is closed or may be closed later."""
        self.seen.add(row.seq)
        outcome, opened_at = row.columns[_OUTCOME], row.columns[_OPENED_AT]
        lately = outcome == AuditRow.Outcome.REFUSED and str(opened_at) > self.since
        if row.closed_seq is not None or outcome == AuditRow.Outcome.OPEN or lately:
            self.found[row.seq] = row.closed_seq

    def after(self, seq: int) -> tuple[int, ...]:
        """Return the positions of rows that are open, or closed after a position."""
        return tuple(place for place, end in self.found.items() if end is None or end > seq)

    def gone(self) -> list[ChainFault]:
        """Return a fault for each open row that no longer exists."""
        lost = [seq for seq in self.standing.waiting if seq not in self.seen]
        pruned = retention.find_chain_start(self.standing.organization_id)[0] if lost else 0
        detail = format_message("the row was there when it was verified")
        return [ChainFault("missing", seq, "", detail) for seq in lost if seq > pruned]


def _reset_progress(
    organization_id: UUID, standing: VerificationProgress | None
) -> VerificationProgress:
    """Return an initial progress that keeps the previous rows and faults."""
    start = start_verification(organization_id)
    if standing is None:
        return start
    faults = (*standing.faults, *start.faults)
    return replace(start, rows=standing.rows, faults=faults[:MOST_FAULTS])


def _build_statement(standing: VerificationProgress) -> dict[str, Any]:
    return {**asdict(standing), "kind": KIND, "organization_id": str(standing.organization_id)}


def _read(organization_id: UUID, statement: dict[str, Any]) -> VerificationProgress:
    told = {
        name: value
        for name, value in statement.items()
        if name not in ("kind", "key", "signature", "organization_id")
    }
    told["faults"] = tuple(ChainFault(**one) for one in told["faults"])
    told["waiting"] = tuple(told["waiting"])
    return VerificationProgress(organization_id, **told)


def _verify_checkpoint(organization_id: UUID) -> Iterator[ChainFault]:
    found = retention.find_latest_checkpoint(organization_id)
    if found is not None and not retention.is_genuine(found):
        yield ChainFault(
            "checkpoint",
            found.seq,
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
            format_message("entries lie beyond the head's position {seq}", seq=tip.seq),
        )
