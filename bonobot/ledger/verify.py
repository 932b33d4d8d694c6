"""Verify: read an organization's chain from the beginning and say all that is wrong with it.

It takes no lock and reads in pages: entries never change once they are written, so what was sealed
up to the head that was read first can be checked while calls go on. Nothing may lie beyond the
head that is read last. A pruned chain is read from its signed checkpoint on, and what was exported
before (anchors) must still be there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Max

from bonobot.ledger import retention, sealing
from bonobot.ledger.anchors import Anchor
from bonobot.ledger.chain import Fault, Inspector, Stored, Tip
from bonobot.ledger.models import AuditRow, Head

PAGE = 1_000
LOWEST, HIGHEST = -(2**63), 2**63 - 1

SEALED = ("id", "seq", "digest", "opened", "closed_seq", "closed_digest", "closed")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found: rows read, entries up to the tip they were checked against, faults.

    `start` is the position of the checkpoint that the rows begin behind; 0: nothing was pruned.
    """

    ok: bool
    rows: int
    faults: tuple[Fault, ...]
    seq: int
    digest: str
    start: int = 0


def verify(organization_id: UUID, anchors: Iterable[Anchor] = ()) -> Report:
    """Check every entry, every link and every copied column of an organization's chain.

    `anchors` are ends of the chain that were exported earlier.
    """
    tip = _tip(organization_id)
    start = Tip(*retention.start(organization_id))
    inspector = Inspector(tip, start, _positions(anchors))
    for row in _rows(organization_id, up_to=tip.seq):
        inspector.feed(row)
    inspector.finish()
    faults = [
        *_forged(organization_id),
        *inspector.faults,
        *_beyond(organization_id, inspector.highest),
    ]
    return Report(not faults, inspector.rows, tuple(faults), tip.seq, tip.digest, start.seq)


def verify_exported(rows: Iterable[Stored]) -> Report:
    """Check exported rows among themselves: from the first one's place to the last one's."""
    inspector = Inspector(Tip(HIGHEST), start=None)
    for row in rows:
        inspector.feed(row)
    last = inspector.settle()
    faults = tuple(inspector.faults)
    return Report(not faults, inspector.rows, faults, last.seq, last.digest)


def _positions(anchors: Iterable[Anchor]) -> dict[int, str]:
    return {anchor.seq: anchor.digest for anchor in anchors}


def _forged(organization_id: UUID) -> Iterator[Fault]:
    found = retention.checkpoint(organization_id)
    if found is not None and not retention.genuine(found):
        yield Fault(
            "checkpoint", found.seq, "", "the checkpoint wasn't signed by this installation"
        )


def _tip(organization_id: UUID) -> Tip:
    head = Head.objects.filter(pk=organization_id).first()
    return Tip(head.seq, head.digest, head.generation) if head else Tip()


def _rows(organization_id: UUID, *, up_to: int) -> Iterator[Stored]:
    start = LOWEST  # forged positions below one are read too
    rows = AuditRow.objects.filter(organization_id=organization_id, seq__lte=up_to).order_by("seq")
    while page := rows.filter(seq__gte=start).values_list(*SEALED, *sealing.NAMES)[:PAGE]:
        for values in page:
            yield stored(values)
        start = values[1] + 1


def stored(values: tuple[Any, ...]) -> Stored:
    """Return a row out of the values of `SEALED` and `sealing.NAMES`."""
    row_id, seq, digest, opened, closed_seq, closed_digest, closed = values[: len(SEALED)]
    columns = tuple([_plain(one) for one in values[len(SEALED) :]])
    return Stored(str(row_id), seq, digest, opened, closed_seq, closed_digest, closed, columns)


def _plain(value: Any) -> Any:
    """Return a column's value as the sealed text writes it."""
    if isinstance(value, UUID):
        return str(value)
    return sealing.stamp(value) if isinstance(value, datetime) else value


def _beyond(organization_id: UUID, highest: int) -> Iterator[Fault]:
    rows = AuditRow.objects.filter(organization_id=organization_id)
    last = rows.aggregate(seq=Max("seq"))["seq"] or 0
    highest = max(highest, last)
    # Rows and head are committed together: what was seen before this reading must be within it.
    tip = _tip(organization_id)
    if highest > tip.seq:
        yield Fault("beyond", highest, "", f"entries lie beyond the head's position {tip.seq}")
