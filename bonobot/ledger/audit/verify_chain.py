"""Verify an organization's chain, at once or stepwise.

It takes no lock and reads in pages: entries never change once they are written, so what was sealed
up to the head that was read first can be checked while calls go on. Nothing may lie beyond the
head that is read last. A pruned chain is read from its signed checkpoint on, and what was exported
before (anchors) must still be there.

`step` reads a bounded number of rows and remembers where that ended in a statement that is signed
with the keys of the audit, which the database doesn't have: the digest there, which rows may still
be closed behind it, and what was wrong so far. A statement that was altered or made up is a fault
itself, and the verification begins anew. Once the end was reached, the next step reads what came
since. What lies before isn't read again by that: whoever alters a row after it was verified is
found by the next verification from the beginning.
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
# A refusal's window ends within a minute; then it is closed if it came again, or never.
WINDOW = timedelta(hours=1)
_OUTCOME, _OPENED_AT = (
    entry_encoding.NAMES.index("outcome"),
    entry_encoding.NAMES.index("opened_at"),
)


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """What was found: rows read, entries up to the tip they were checked against, faults.

    `start` is the position of the checkpoint that the rows begin behind; 0: nothing was pruned.
    """

    ok: bool
    rows: int
    faults: tuple[ChainFault, ...]
    seq: int
    digest: str
    start: int = 0


@dataclass(frozen=True, slots=True)
class VerificationProgress:
    """How far a verification has come; `seq` and `digest` are of the last entry it checked.

    `since` is where it began: 0 the beginning, else a checkpoint. `behind` is the row that was
    read last, `waiting` the places of rows that may be closed later, `end` that of the chain when
    it was looked at, `done` whether it was reached.
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
        """Whether nothing was wrong so far."""
        return not self.faults

    @property
    def share(self) -> float:
        """How much of the chain is read, from 0 to 1."""
        length = self.end - self.since
        return 1.0 if self.done or length <= 0 else max(0.0, (self.seq - self.since) / length)

    def report(self) -> VerificationReport:
        """Return it as a report; of a verification that is done."""
        return VerificationReport(
            self.ok, self.rows, self.faults, self.seq, self.digest, self.since
        )


def start_verification(organization_id: UUID) -> VerificationProgress:
    """Return where a verification of the whole chain begins."""
    since, digest = retention.find_chain_start(organization_id)
    faults = tuple(_verify_checkpoint(organization_id))
    return VerificationProgress(organization_id, since, since, digest, faults=faults)


def load_progress(organization_id: UUID) -> VerificationProgress | None:
    """Return where the last verification stands; None where there was none.

    One that isn't signed by this installation stands at the beginning, with that as its fault.
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
    """Verify so many rows further, remember where that is, and return it.

    It goes on where the last step stopped; `afresh` begins with the whole chain again.
    """
    standing = None if afresh else load_progress(organization_id)
    if standing is None or standing.seq < retention.find_chain_start(organization_id)[0]:
        standing = _reset_progress(organization_id, standing)
    standing = advance(standing, load_tip(organization_id), rows=rows, anchors=anchors)
    statement = get_signer().sign(_build_statement(standing))
    Verification.objects.update_or_create(pk=organization_id, defaults={"statement": statement})
    return standing


def verify(organization_id: UUID, anchors: Iterable[SignedCheckpoint] = ()) -> VerificationReport:
    """Check every entry, every link and every copied column of an organization's chain.

    `anchors` are ends of the chain that were exported earlier. Nothing is remembered.
    """
    tip, known = load_tip(organization_id), list(anchors)
    standing = start_verification(organization_id)
    while not standing.done:
        standing = advance(standing, tip, rows=STEP, anchors=known)
    return standing.report()


def verify_exported(rows: Iterable[StoredEntry]) -> VerificationReport:
    """Check exported rows among themselves: from the first one's place to the last one's."""
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
    """Return where a verification stands after so many more rows, at a tip at most."""
    known = {one.seq: one.digest for one in anchors if one.seq > standing.seq}
    if standing.seq > tip.seq:
        known[standing.seq] = standing.digest  # it was the chain's end, or before it
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
    """The rows that may have an entry behind the last one that was checked."""

    standing: VerificationProgress
    found: dict[int, int | None] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    since: str = field(
        default_factory=lambda: entry_encoding.format_timestamp(datetime.now(UTC) - WINDOW)
    )

    def see(self, row: StoredEntry) -> None:
        """Keep a row in mind if it was closed, or may be."""
        self.seen.add(row.seq)
        outcome, opened_at = row.columns[_OUTCOME], row.columns[_OPENED_AT]
        lately = outcome == AuditRow.Outcome.REFUSED and str(opened_at) > self.since
        if row.closed_seq is not None or outcome == AuditRow.Outcome.OPEN or lately:
            self.found[row.seq] = row.closed_seq

    def after(self, seq: int) -> tuple[int, ...]:
        """Return the places of those that aren't done with at a position."""
        return tuple(place for place, end in self.found.items() if end is None or end > seq)

    def gone(self) -> list[ChainFault]:
        """Return a fault for each row that was there and waited, and isn't any more."""
        lost = [seq for seq in self.standing.waiting if seq not in self.seen]
        pruned = retention.find_chain_start(self.standing.organization_id)[0] if lost else 0
        detail = format_message("the row was there when it was verified")
        return [ChainFault("missing", seq, "", detail) for seq in lost if seq > pruned]


def _reset_progress(
    organization_id: UUID, standing: VerificationProgress | None
) -> VerificationProgress:
    """Return the beginning, with what was found so far of rows that have left since."""
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
    # Rows and head are committed together: what was seen before this reading must be within it.
    tip = load_tip(organization_id)
    if highest > tip.seq:
        yield ChainFault(
            "beyond",
            highest,
            "",
            format_message("entries lie beyond the head's position {seq}", seq=tip.seq),
        )
