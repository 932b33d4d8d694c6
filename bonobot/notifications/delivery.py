"""Deliver notifications: claim, send, retry and give up.

A claim advances `next_attempt_at` by a conditional UPDATE, so that one process delivers. If it
dies, the notification is due again after the lease, with the same id.
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
    """Return the delay after this many failed attempts; None to give up."""
    return timedelta(minutes=PAUSES[attempts - 1]) if attempts <= len(PAUSES) else None


def claim_due(limit: int = AT_ONCE) -> list[Notice]:
    """Claim due notifications; return them with their channels."""
    rows = Notice.objects.due().select_related("channel", "organization")
    return [notice for notice in rows.order_by("next_attempt_at")[:limit] if claim(notice)]


def claim(notice: Notice) -> bool:
    """Claim a waiting notification; return whether this process got it."""
    mine = Notice.objects.filter(
        pk=notice.pk, state=Notice.State.WAITING, next_attempt_at=notice.next_attempt_at
    )
    until = timezone.now() + LEASE
    if not mine.update(next_attempt_at=until, attempts=F("attempts") + 1):
        return False
    notice.next_attempt_at, notice.attempts = until, notice.attempts + 1
    return True


def settle(notice: Notice, error: str) -> None:
    """Save the result of an attempt (`error` blank: delivered) if the claim is still valid."""
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
    """Retry a failed or waiting notification immediately; raises `Conflict` for others."""
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
    """Withdraw the waiting notifications of a disabled channel."""
    waiting = channel.notices.filter(state=Notice.State.WAITING)
    waiting.update(state=Notice.State.WITHDRAWN, next_attempt_at=None)


def prune() -> int:
    """Delete finished notifications older than 30 days; return how many."""
    old = Notice.objects.exclude(state=Notice.State.WAITING)
    return int(old.filter(created_at__lt=timezone.now() - KEPT).delete()[0])


def send_due_notifications() -> int:
    """Claim and send due notifications; return how many."""
    mine = claim_due()
    if mine:
        send_notifications(mine)
    return len(mine)


def send_notifications(notices: Sequence[Notice]) -> None:
    """Send claimed notifications once; webhooks first, because they are sent concurrently."""
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
    """Send a test notification through a channel, even a disabled one; return it."""
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
