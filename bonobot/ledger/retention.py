"""Retention: old rows leave from the chain's beginning, and a signed checkpoint takes their place.

What is left is verified from the checkpoint on. A row leaves only with both of its seals, so a call
that was opened before and closed behind the cut stays, with all that follows it; and only once it
is counted, so that what it came to stays (`counting`).

Rows leave in short steps, each under the lock of the chain for some hundredths of a second: it
reads the oldest rows by the chain's own index, however many there are behind them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.db import transaction

from bonobot.ledger import counting, sealing, store
from bonobot.ledger.actors import Actor
from bonobot.ledger.anchors import signer
from bonobot.ledger.chain import GENESIS
from bonobot.ledger.changes import record
from bonobot.ledger.databases import Database
from bonobot.ledger.models import AuditQuerySet, AuditRow, Checkpoint

KIND = "checkpoint"
AT_ONCE = 1_000
OPEN = AuditRow.Outcome.OPEN


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows left (or would), and the position behind which the chain goes on."""

    rows: int
    seq: int


class Place(NamedTuple):
    """What decides whether a row can leave: where both of its seals are, and when it was opened."""

    seq: int
    closed_seq: int | None
    opened_at: datetime
    outcome: str


def plan(organization_id: UUID, *, before: datetime) -> Pruned:
    """Return what `prune` would remove, and remove nothing."""
    rows, (seq, _digest) = 0, start(organization_id)
    counting.count(organization_id)
    uncounted = counting.first_uncounted(organization_id)
    while places := _oldest(organization_id, behind=seq):
        end = cut(places, before, uncounted)
        leaving = sum(place.seq <= end for place in places)
        if not leaving:
            break
        rows, seq = rows + leaving, end
    return Pruned(rows, seq)


def prune(
    organization_id: UUID,
    *,
    before: datetime,
    actor: Actor,
    up_to: int | None = None,
    archive: str = "",
) -> Pruned:
    """Remove what was opened before a time, to a position at most; recorded in the audit itself.

    Works in steps of 1,000 rows, each with its own checkpoint in the same transaction. `archive`
    names the file that they were written to before.
    """
    counting.count(organization_id)
    removed, seq = 0, start(organization_id)[0]
    while step := _step(organization_id, before, up_to):
        removed, seq = removed + step.rows, step.seq
    if removed:
        details = {"before": sealing.stamp(before), "rows": removed, "up_to": seq}
        record(
            organization_id=organization_id,
            actor=actor,
            action="audit_pruned",
            resource_type="audit",
            resource_id=str(organization_id),
            details=details | ({"archive": archive} if archive else {}),
            governed=False,
        )
    return Pruned(removed, seq)


def cut(places: Sequence[Place], before: datetime, uncounted: int | None) -> int:
    """Return the last position that can leave of the oldest rows, in their order; 0: none.

    All rows up to it are whole and old, and counted; the last of those given stays if there are as
    many as a step takes, since what lies behind it isn't known.
    """
    end = max(max(place.seq, place.closed_seq or 0) for place in places)
    if len(places) > AT_ONCE:
        end = places[-1].seq - 1
    if uncounted is not None:
        end = min(end, uncounted - 1)
    for place in places:
        if place.opened_at >= before or place.outcome == OPEN:
            end = min(end, place.seq - 1)
    # From the back: a row that is closed behind the end stays, and what follows it.
    for place in reversed(places):
        if place.seq <= end < (place.closed_seq or 0):
            end = place.seq - 1
    return end if end >= places[0].seq else 0


def checkpoint(organization_id: UUID) -> Checkpoint | None:
    """Return the latest checkpoint of a chain."""
    return Checkpoint.objects.filter(organization_id=organization_id).order_by("-seq").first()


def start(organization_id: UUID) -> tuple[int, str]:
    """Return the position and digest behind which the chain's rows begin."""
    found = checkpoint(organization_id)
    return (found.seq, found.digest) if found else (0, GENESIS)


def genuine(found: Checkpoint) -> bool:
    """Tell whether a checkpoint was signed here and says what its columns say."""
    statement = found.statement
    return signer().holds(statement) and statement == {
        **_facts(found.organization_id, found.seq, found.digest, statement.get("at")),
        "key": statement.get("key"),
        "signature": statement.get("signature"),
    }


def _step(organization_id: UUID, before: datetime, up_to: int | None) -> Pruned | None:
    uncounted = counting.first_uncounted(organization_id)
    if up_to is not None:
        uncounted = min(up_to + 1, uncounted or up_to + 1)
    with transaction.atomic():
        database = Database(transaction.get_connection())
        # The lock of the chain: nobody closes a row at the cut meanwhile.
        store.lock_heads(database, [organization_id])
        places = _oldest(organization_id, behind=start(organization_id)[0])
        seq = cut(places, before, uncounted) if places else 0
        if not seq:
            return None
        rows = sum(place.seq <= seq for place in places)
        digest = _digest_at(organization_id, [one for one in places if one.seq <= seq], seq)
        at = sealing.stamp(datetime.now(UTC))
        Checkpoint.objects.create(
            id=uuid4(),
            organization_id=organization_id,
            seq=seq,
            digest=digest,
            statement=signer().sign(_facts(organization_id, seq, digest, at)),
        )
        store.remove(database, organization_id, up_to=seq)
        return Pruned(rows, seq)


def _rows(organization_id: UUID) -> AuditQuerySet:
    return AuditRow.objects.filter(organization_id=organization_id).order_by("seq")


def _oldest(organization_id: UUID, *, behind: int) -> list[Place]:
    """Return the oldest rows behind a position: as many as a step takes, and one more."""
    rows = _rows(organization_id).filter(seq__gt=behind)
    return [Place(*row) for row in rows.values_list(*Place._fields)[: AT_ONCE + 1]]


def _digest_at(organization_id: UUID, places: Sequence[Place], seq: int) -> str:
    """Return the digest of the entry at a position, which is one of these rows' seals."""
    own = next(place.seq for place in places if seq in (place.seq, place.closed_seq))
    row = _rows(organization_id).get(seq=own)
    return str(row.digest if row.seq == seq else row.closed_digest)


def _facts(organization_id: UUID, seq: int, digest: str, at: object) -> dict[str, Any]:
    return {
        "kind": KIND,
        "organization_id": str(organization_id),
        "seq": seq,
        "digest": digest,
        "at": at,
    }
