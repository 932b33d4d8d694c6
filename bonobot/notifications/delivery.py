"""Deliver notifications: claim, send, retry and give up."""

from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

from django.utils import timezone

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.encrypted_fields import UnreadableSecret
from bonobot.core.db.outbox import RETRY_DELAYS_MIN, claim_row, compute_retry_delay
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict
from bonobot.core.runtime import get_runtime
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.notifications import email as notification_email
from bonobot.notifications import webhooks
from bonobot.notifications.models import Notification, NotificationChannel
from bonobot.notifications.notify import NotificationSubject, build_notification

MAX_ATTEMPTS = len(RETRY_DELAYS_MIN) + 1
BATCH_SIZE = 50
RETENTION = timedelta(days=30)
# The functions that build the HTTP requests of the kinds of channels.
REQUEST_BUILDERS = {NotificationChannel.Kind.WEBHOOK.value: webhooks.build_request}


def claim_due_notifications(limit: int = BATCH_SIZE) -> list[Notification]:
    """Claim due notifications; return them with their channels."""
    rows = Notification.objects.due().select_related("channel", "organization")
    return [
        notice for notice in rows.order_by("next_attempt_at")[:limit] if claim_notification(notice)
    ]


def claim_notification(notice: Notification) -> bool:
    """Claim a waiting notification; return whether this process got it."""
    return claim_row(Notification.objects.filter(state=Notification.State.WAITING), notice)


def settle_notification(notice: Notification, error: str) -> None:
    """Save the result of an attempt (`error` blank: delivered) if the claim is still valid."""
    claimed_rows = Notification.objects.filter(
        pk=notice.pk, state=Notification.State.WAITING, next_attempt_at=notice.next_attempt_at
    )
    now = timezone.now()
    retry_delay = compute_retry_delay(notice.attempts)
    if not error:
        claimed_rows.update(
            state=Notification.State.SENT, sent_at=now, next_attempt_at=None, error=""
        )
    elif retry_delay is None or notice.event == "test":
        claimed_rows.update(state=Notification.State.FAILED, next_attempt_at=None, error=error)
    else:
        claimed_rows.update(next_attempt_at=now + retry_delay, error=error)
    notice.refresh_from_db()


def retry_notification(principal: Principal, notice: Notification) -> None:
    """Retry a failed or waiting notification immediately; raises `Conflict` for others."""
    principal.require(Action.MANAGE_NOTICES)
    with record_change(
        **describe_row("notice", notice, str(notice)),
        actor=principal.actor,
        action="notification_retried",
        governed=False,
    ):
        final_states = (Notification.State.SENT, Notification.State.WITHDRAWN)
        retryable = Notification.objects.filter(pk=notice.pk).exclude(state__in=final_states)
        if not retryable.update(
            state=Notification.State.WAITING, attempts=0, next_attempt_at=timezone.now()
        ):
            raise Conflict(
                "This notification was already sent or canceled.",
                code="nothing_to_retry",
                remedy="Only pending or failed notifications can be retried.",
            )
    notice.refresh_from_db()


def cancel_waiting_notifications(channel: NotificationChannel) -> None:
    """Withdraw the waiting notifications of a disabled channel."""
    pending_notifications = channel.notices.filter(state=Notification.State.WAITING)
    pending_notifications.update(state=Notification.State.WITHDRAWN, next_attempt_at=None)


def prune_notifications() -> int:
    """Delete finished notifications older than 30 days; return how many."""
    finished_notifications = Notification.objects.exclude(state=Notification.State.WAITING)
    return int(finished_notifications.filter(created_at__lt=timezone.now() - RETENTION).delete()[0])


def send_due_notifications() -> int:
    """Claim and send due notifications; return how many."""
    claimed_notifications = claim_due_notifications()
    if claimed_notifications:
        send_notifications(claimed_notifications)
    return len(claimed_notifications)


def send_notifications(notices: Sequence[Notification]) -> None:
    """Send claimed notifications once; HTTP requests first, because they are concurrent."""
    by_email: list[Notification] = []
    by_http: list[Notification] = []
    for notice in notices:
        is_email = notice.channel.kind == NotificationChannel.Kind.EMAIL
        (by_email if is_email else by_http).append(notice)
    _send_requests(by_http)
    if by_email:
        for notice, error in notification_email.send_emails(by_email):
            settle_notification(notice, error)


def _send_requests(notices: Sequence[Notification]) -> None:
    requests = []
    for notice in notices:
        try:
            requests.append((notice, REQUEST_BUILDERS[notice.channel.kind](notice)))
        except UnreadableSecret as problem:
            settle_notification(notice, f"{problem} ({problem.code})")
    if requests:
        errors = get_runtime().call(
            webhooks.send_requests, [request for _notice, request in requests]
        )
        for (notice, _request), error in zip(requests, errors, strict=True):
            settle_notification(notice, error)


def send_test_notification(principal: Principal, channel: NotificationChannel) -> Notification:
    """Send a test notification through a channel, even a disabled one; return it."""
    principal.require(Action.MANAGE_NOTICES)
    subject = NotificationSubject("notice_channel", str(channel.pk), channel.name)
    text = format_message(
        "{who} sent a test to this channel. Your organization's notifications arrive here.",
        who=principal.label,
    )
    notice = build_notification(channel, "test", subject, text, topic=f"test:{uuid4()}")
    notice.save()
    if claim_notification(notice):
        send_notifications([notice])
    return notice
