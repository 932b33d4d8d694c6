"""Claim, deliver, retry, give up.

A claim moves `next_attempt_at` on by a conditional UPDATE, so that one process delivers; when it
dies, the notice is due again after the lease, under the same id.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

from django.db.models import F
from django.utils import timezone

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.sealed_values import UnreadableSecret
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.notifications import email as notification_email
from bonobot.notifications import webhooks
from bonobot.notifications.models import Channel, Notice
from bonobot.notifications.notify import NotificationSubject, build_notification

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
    with record_change(
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


def cancel_waiting_notifications(channel: Channel) -> None:
    """Forget what waits for a channel that was switched off."""
    waiting = channel.notices.filter(state=Notice.State.WAITING)
    waiting.update(state=Notice.State.WITHDRAWN, next_attempt_at=None)


def prune() -> int:
    """Delete what ended more than thirty days ago; return how many rows."""
    old = Notice.objects.exclude(state=Notice.State.WAITING)
    return int(old.filter(created_at__lt=timezone.now() - KEPT).delete()[0])


def send_due_notifications() -> int:
    """Deliver what is due and nobody else delivers; return how many were tried."""
    mine = claim_due()
    if mine:
        send_notifications(mine)
    return len(mine)


def send_notifications(notices: Sequence[Notice]) -> None:
    """Try each of these claimed notices once; webhooks first, since they wait for each other."""
    by_mail = [one for one in notices if one.channel.kind == Channel.Kind.EMAIL]
    _send_webhooks([one for one in notices if one.channel.kind == Channel.Kind.WEBHOOK])
    if by_mail:
        for notice, error in notification_email.send_all(by_mail):
            settle(notice, error)


def _send_webhooks(notices: Sequence[Notice]) -> None:
    ready = []
    for notice in notices:
        try:
            ready.append((notice, webhooks.post_of(notice)))
        except UnreadableSecret as problem:
            settle(notice, f"{problem} ({problem.code})")
    if ready:
        errors = get_runtime().call(webhooks.send_all, [post for _notice, post in ready])
        for (notice, _post), error in zip(ready, errors, strict=True):
            settle(notice, error)


def send_test(principal: Principal, channel: Channel) -> Notice:
    """Send a test notice through a channel now, even one that is off; return what became of it."""
    principal.require(Action.MANAGE_NOTICES)
    subject = NotificationSubject("notice_channel", str(channel.pk), channel.name)
    text = format_message(
        "{who} tested this channel. Notices of your organization arrive here.", who=principal.label
    )
    notice = build_notification(channel, "test", subject, text, topic=f"test:{uuid4()}")
    notice.save()
    if claim(notice):
        send_notifications([notice])
    return notice
