"""Hand calls over between processes, through database rows.

Each step is a conditional UPDATE, so only one process performs it. The Redis bus wakes both sides
quickly; without it they poll.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.utils import timezone

from agents.models import CallHandoff
from bonobot.core.db.transactions import delete_in_order, update_in_order
from bonobot.core.message_bus import wake_listeners

HELD, ASKED, TAKEN = CallHandoff.State.HELD, CallHandoff.State.ASKED, CallHandoff.State.TAKEN
ANSWERED, LEFT = CallHandoff.State.ANSWERED, CallHandoff.State.LEFT
# The bus channel that holders of calls listen on.
HOLDERS_CHANNEL = "held-calls"
# Older rows belong to processes that crashed.
ABANDONED_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class HandoffStatus:
    """The state of a handoff: whether it has a result, the result, and the last heartbeat."""

    is_answered: bool
    result: str
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class HandoffRequests:
    """What other processes request of held calls: continue with answers, or end."""

    claimed: list[tuple[str, str]]
    abandoned: list[str]


def build_channel(call_id: str) -> str:
    """Return the bus channel for callers that wait for a call."""
    return f"held-call:{call_id}"


def create_handoff(organization_id: UUID, call_id: str) -> None:
    """Make a call available to other processes; deletes abandoned rows."""
    now = timezone.now()
    delete_in_order(CallHandoff.objects.filter(heartbeat_at__lt=now - ABANDONED_AFTER))
    CallHandoff.objects.create(pk=call_id, organization_id=organization_id, heartbeat_at=now)


def update_heartbeats(call_ids: Collection[str]) -> None:
    """Update the heartbeats of held calls (one query)."""
    update_in_order(CallHandoff.objects.filter(pk__in=call_ids), heartbeat_at=timezone.now())


def claim_requests(call_ids: Collection[str]) -> HandoffRequests:
    """Claim the requests for held calls (one query, plus one per claimed call)."""
    rows = CallHandoff.objects.filter(pk__in=call_ids, state__in=(ASKED, LEFT))
    requests = list(rows.values_list("pk", "state", "responses"))
    return HandoffRequests(
        claimed=[
            (str(pk), answers)
            for pk, state, answers in requests
            if state == ASKED
            and CallHandoff.objects.filter(pk=pk, state=ASKED).update(state=TAKEN, responses="")
        ],
        abandoned=[str(pk) for pk, state, _ in requests if state == LEFT],
    )


def save_result(call_id: str, result: str) -> None:
    """Save the result of a claimed call and wake its caller."""
    CallHandoff.objects.filter(pk=call_id, state=TAKEN).update(state=ANSWERED, result=result)
    wake_listeners(build_channel(call_id))


def delete_handoff(call_id: str) -> None:
    """Delete the row of a finished call and wake callers that wait for it."""
    CallHandoff.objects.filter(pk=call_id).exclude(state__in=(TAKEN, ANSWERED)).delete()
    wake_listeners(build_channel(call_id))


def send_answers(organization_id: UUID, call_id: str, answers: str) -> bool:
    """Save answers for the holder; False if the call isn't held or another caller is first."""
    handoffs = CallHandoff.objects.filter(pk=call_id, organization_id=organization_id)
    updated_count = handoffs.filter(state__in=(HELD, ANSWERED)).update(
        state=ASKED, responses=answers, result=""
    )
    wake_listeners(HOLDERS_CHANNEL)
    return updated_count > 0


def find_status(call_id: str) -> HandoffStatus | None:
    """Return the state of a handoff, or None if it is over (one query)."""
    row = CallHandoff.objects.filter(pk=call_id).first()
    return HandoffStatus(row.state == ANSWERED, row.result, row.heartbeat_at) if row else None


def abandon_call(call_id: str) -> bool:
    """Mark the call as abandoned, so that its holder ends it; False if it has a result."""
    handoffs = CallHandoff.objects.filter(pk=call_id, state__in=(ASKED, TAKEN))
    updated_count = handoffs.update(state=LEFT)
    wake_listeners(HOLDERS_CHANNEL)
    return updated_count > 0


def mark_received(call_id: str, *, is_over: bool) -> None:
    """Mark the result as received; deletes the row if the call is over."""
    row = CallHandoff.objects.filter(pk=call_id, state=ANSWERED)
    if is_over:
        row.delete()
    else:
        row.update(state=HELD, result="")
