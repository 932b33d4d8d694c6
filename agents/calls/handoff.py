"""Calls handed between processes, by rows.

Every step is a conditional UPDATE, so that each is done by one process. The bus makes it quick;
without it, or where a ring is lost, both ends look by themselves.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.utils import timezone

from agents.models import Handover
from bonobot.core.db.transactions import delete_in_order, update_in_order
from bonobot.core.redis_bus import wake_listeners

HELD, ASKED, TAKEN = Handover.State.HELD, Handover.State.ASKED, Handover.State.TAKEN
ANSWERED, LEFT = Handover.State.ANSWERED, Handover.State.LEFT
# Where holders listen.
HOLDERS = "held-calls"
# Rows of processes that ended without a word.
FORGOTTEN = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class HandoffStatus:
    """How a handover stands: whether it is answered, with what, and the holder's last beat."""

    answered: bool
    found: str
    beaten_at: datetime


@dataclass(frozen=True, slots=True)
class HandoffRequests:
    """What others ask of held calls: to go on with what was said, or to end them."""

    taken: list[tuple[str, str]]
    left: list[str]


def build_channel(call_id: str) -> str:
    """Return where who asks about a call listens."""
    return f"held-call:{call_id}"


def create_handoff(organization_id: UUID, call_id: str) -> None:
    """Have a call found by other processes; forgets what was left behind."""
    now = timezone.now()
    delete_in_order(Handover.objects.filter(beaten_at__lt=now - FORGOTTEN))
    Handover.objects.create(pk=call_id, organization_id=organization_id, beaten_at=now)


def update_heartbeats(calls: Collection[str]) -> None:
    """Say that these calls are still held (a query)."""
    update_in_order(Handover.objects.filter(pk__in=calls), beaten_at=timezone.now())


def take(calls: Collection[str]) -> HandoffRequests:
    """Return what others ask of held calls, to one taker (a query, and one for each taken)."""
    rows = Handover.objects.filter(pk__in=calls, state__in=(ASKED, LEFT))
    found = list(rows.values_list("pk", "state", "said"))
    return HandoffRequests(
        taken=[
            (str(pk), said)
            for pk, state, said in found
            if state == ASKED
            and Handover.objects.filter(pk=pk, state=ASKED).update(state=TAKEN, said="")
        ],
        left=[str(pk) for pk, state, _ in found if state == LEFT],
    )


def answer(call_id: str, found: str) -> None:
    """Say what came of a call that was taken."""
    Handover.objects.filter(pk=call_id, state=TAKEN).update(state=ANSWERED, found=found)
    wake_listeners(build_channel(call_id))


def close(call_id: str) -> None:
    """Have a call found no more that is over; who asked meanwhile is told by its row's end."""
    Handover.objects.filter(pk=call_id).exclude(state__in=(TAKEN, ANSWERED)).delete()
    wake_listeners(build_channel(call_id))


def send_answers(organization_id: UUID, call_id: str, said: str) -> bool:
    """Leave answers for the holder; False where nobody holds the call, or another asks already."""
    mine = Handover.objects.filter(pk=call_id, organization_id=organization_id)
    passed = mine.filter(state__in=(HELD, ANSWERED)).update(state=ASKED, said=said, found="")
    wake_listeners(HOLDERS)
    return passed > 0


def find_status(call_id: str) -> HandoffStatus | None:
    """Return how a handover stands, None where it is over (a query)."""
    row = Handover.objects.filter(pk=call_id).first()
    return HandoffStatus(row.state == ANSWERED, row.found, row.beaten_at) if row else None


def leave(call_id: str) -> bool:
    """Say that nobody waits any more: the holder ends the call. False where it has answered."""
    waiting = Handover.objects.filter(pk=call_id, state__in=(ASKED, TAKEN))
    given_up = waiting.update(state=LEFT)
    wake_listeners(HOLDERS)
    return given_up > 0


def mark_received(call_id: str, *, over: bool) -> None:
    """Take note that the answer has come; the row of a call that is over goes."""
    row = Handover.objects.filter(pk=call_id, state=ANSWERED)
    if over:
        row.delete()
    else:
        row.update(state=HELD, found="")
