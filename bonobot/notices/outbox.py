"""The outbox: who delivers a notice, when it is tried again, and when nobody tries any more.

A claim moves `next_attempt_at` on by a conditional UPDATE, so that one process delivers; when it
dies, the notice is due again after the lease, under the same id.
"""

from datetime import timedelta

from django.db.models import F
from django.utils import timezone

from bonobot.ledger.changes import change
from bonobot.lib.problems import Conflict
from bonobot.notices.models import Channel, Notice
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action

LEASE = timedelta(minutes=5)
PAUSES = (1, 5, 15, 60, 180, 360, 720)
MOST_ATTEMPTS = len(PAUSES) + 1
AT_ONCE = 50
KEPT = timedelta(days=30)


def pause(attempts: int) -> timedelta | None:
    """Return how long to wait after this many failed attempts; None when it is given up."""
    return timedelta(minutes=PAUSES[attempts - 1]) if attempts <= len(PAUSES) else None


def claim_due(limit: int = AT_ONCE) -> list[Notice]:
    """Return due notices that are now ours to deliver, with their channels."""
    rows = Notice.objects.due().select_related("channel", "organization")
    return [notice for notice in rows.order_by("next_attempt_at")[:limit] if claim(notice)]


def claim(notice: Notice) -> bool:
    """Take a waiting notice; tell whether it is ours."""
    mine = Notice.objects.filter(
        pk=notice.pk, state=Notice.State.WAITING, next_attempt_at=notice.next_attempt_at
    )
    until = timezone.now() + LEASE
    if not mine.update(next_attempt_at=until, attempts=F("attempts") + 1):
        return False
    notice.next_attempt_at, notice.attempts = until, notice.attempts + 1
    return True


def settle(notice: Notice, error: str) -> None:
    """Write what came of an attempt (blank: delivered), unless somebody else has it by now."""
    held = Notice.objects.filter(
        pk=notice.pk, state=Notice.State.WAITING, next_attempt_at=notice.next_attempt_at
    )
    now = timezone.now()
    wait = pause(notice.attempts)
    if not error:
        held.update(state=Notice.State.SENT, sent_at=now, next_attempt_at=None, error="")
    elif wait is None or notice.event == "test":
        held.update(state=Notice.State.FAILED, next_attempt_at=None, error=error)
    else:
        held.update(next_attempt_at=now + wait, error=error)
    notice.refresh_from_db()


def retry(principal: Principal, notice: Notice) -> None:
    """Have a notice that was given up, or waits for its next attempt, tried at once."""
    principal.require(Action.MANAGE_NOTICES)
    with change(
        organization_id=notice.organization_id,
        actor=principal.actor,
        action="notice_retried",
        resource_type="notice",
        resource_id=str(notice.pk),
        resource_name=str(notice),
        governed=False,
    ):
        ended = (Notice.State.SENT, Notice.State.WITHDRAWN)
        again = Notice.objects.filter(pk=notice.pk).exclude(state__in=ended)
        if not again.update(state=Notice.State.WAITING, attempts=0, next_attempt_at=timezone.now()):
            raise Conflict(
                "This notice was sent already, or withdrawn.",
                code="nothing_to_retry",
                remedy="Only what waits or was given up is tried again.",
            )
    notice.refresh_from_db()


def withdraw(channel: Channel) -> None:
    """Forget what waits for a channel that was switched off."""
    waiting = channel.notices.filter(state=Notice.State.WAITING)
    waiting.update(state=Notice.State.WITHDRAWN, next_attempt_at=None)


def prune() -> int:
    """Delete what ended more than thirty days ago; return how many rows."""
    old = Notice.objects.exclude(state=Notice.State.WAITING)
    return int(old.filter(created_at__lt=timezone.now() - KEPT).delete()[0])
