"""Retention: old rows leave from the chain's beginning, and a signed checkpoint takes their place.

What is left is verified from the checkpoint on. A row leaves only with both of its seals, so a call
that was opened before and closed behind the cut stays, with all that follows it; and only once it
is counted, so that what it came to stays (`counting`).
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import Max, Min, Q

from bonobot.ledger import counting, sealing, store
from bonobot.ledger.actors import Actor
from bonobot.ledger.anchors import signer
from bonobot.ledger.chain import GENESIS
from bonobot.ledger.changes import record
from bonobot.ledger.databases import Database
from bonobot.ledger.models import AuditRow, Checkpoint

KIND = "checkpoint"
AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Pruned:
    """How many rows left, and the position behind which the chain goes on."""

    rows: int
    seq: int


def prune(organization_id: UUID, *, before: datetime, actor: Actor) -> Pruned:
    """Remove what was opened before a time; recorded in the audit itself.

    Works in steps of 5,000 rows, each with its own checkpoint in the same transaction.
    """
    counting.count(organization_id)
    removed, seq = 0, start(organization_id)[0]
    while step := _step(organization_id, before):
        removed, seq = removed + step.rows, step.seq
    if removed:
        record(
            organization_id=organization_id,
            actor=actor,
            action="audit_pruned",
            resource_type="audit",
            resource_id=str(organization_id),
            details={"before": sealing.stamp(before), "rows": removed, "up_to": seq},
            governed=False,
        )
    return Pruned(removed, seq)


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


def _step(organization_id: UUID, before: datetime) -> Pruned | None:
    with transaction.atomic():
        database = Database(transaction.get_connection())
        # The lock of the chain: nobody closes a row at the cut meanwhile.
        store.lock_heads(database, [organization_id])
        old = AuditRow.objects.filter(organization_id=organization_id)
        cut = _cut(old, before, counting.first_uncounted(organization_id))
        if cut is None:
            return None
        seq, digest = cut
        rows = old.filter(seq__lte=seq).count()
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


def _cut(rows: Any, before: datetime, uncounted: int | None) -> tuple[int, str] | None:
    """Return the last entry that can leave: all before it are whole, old and not too many."""
    young = rows.filter(opened_at__gte=before).aggregate(seq=Min("seq"))["seq"]
    if uncounted is not None:
        young = min(uncounted, young or uncounted)
    oldest = rows.order_by("seq").values_list("seq", flat=True)[:AT_ONCE]
    within = rows.filter(seq__in=list(oldest))
    if young is not None:
        within = within.filter(seq__lt=young)
    ends = within.aggregate(opened=Max("seq"), closed=Max("closed_seq"))
    cut = max(ends["opened"] or 0, ends["closed"] or 0)
    if young is not None:
        cut = min(cut, young - 1)
    while cut:
        open_or_later = Q(closed_seq__gt=cut) | Q(outcome=AuditRow.Outcome.OPEN)
        across = rows.filter(open_or_later, seq__lte=cut).aggregate(seq=Min("seq"))["seq"]
        if across is None:
            break
        cut = across - 1
    last = rows.filter(Q(seq=cut) | Q(closed_seq=cut)).first() if cut else None
    if last is None:
        return None
    return cut, last.digest if last.seq == cut else last.closed_digest


def _facts(organization_id: UUID, seq: int, digest: str, at: object) -> dict[str, Any]:
    return {
        "kind": KIND,
        "organization_id": str(organization_id),
        "seq": seq,
        "digest": digest,
        "at": at,
    }
