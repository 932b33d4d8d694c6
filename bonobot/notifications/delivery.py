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
from bonobot.notifications import webhooks
from bonobot.notifications.email import send_emails
from bonobot.notifications.models import Notification, NotificationChannel
from bonobot.notifications.notify import NotificationSubject, build_notification

MAX_ATTEMPTS = len(RETRY_DELAYS_MIN) + 1
BATCH_SIZE = 50
RETENTION = timedelta(days=30)
# The functions that build the HTTP requests of the kinds of channels.
REQUEST_BUILDERS = {NotificationChannel.Kind.WEBHOOK.value: webhooks.build_request}


def claim_due_notifications() -> list[Notification]:
    """Claim due notifications; return them with their channels."""
    rows = Notification.objects.due().select_related("channel", "organization")
    due_notifications = rows.order_by("next_attempt_at")[:BATCH_SIZE]
    return [notification for notification in due_notifications if claim_notification(notification)]


def claim_notification(notification: Notification) -> bool:
    """Claim a waiting notification; return whether this process got it."""
    return claim_row(Notification.objects.filter(state=Notification.State.WAITING), notification)


def settle_notification(notification: Notification, error: str) -> None:
    """Save the result of an attempt (`error` blank: delivered) if the claim is still valid."""
    claimed_rows = Notification.objects.filter(
        pk=notification.pk,
        state=Notification.State.WAITING,
        next_attempt_at=notification.next_attempt_at,
    )
    now = timezone.now()
    retry_delay = compute_retry_delay(notification.attempts)
    if not error:
        claimed_rows.update(
            state=Notification.State.SENT, sent_at=now, next_attempt_at=None, error=""
        )
    elif retry_delay is None or notification.event == "test":
        claimed_rows.update(state=Notification.State.FAILED, next_attempt_at=None, error=error)
    else:
        claimed_rows.update(next_attempt_at=now + retry_delay, error=error)
    notification.refresh_from_db()


def retry_notification(principal: Principal, notification: Notification) -> None:
    """Retry a failed or waiting notification immediately; raises `Conflict` for others."""
    principal.require(Action.MANAGE_NOTICES)
    with record_change(
        **describe_row("notice", notification, str(notification)),
        actor=principal.actor,
        action="notification_retried",
        governed=False,
    ):
        final_states = (Notification.State.SENT, Notification.State.WITHDRAWN)
        retryable = Notification.objects.filter(pk=notification.pk).exclude(state__in=final_states)
        if not retryable.update(
            state=Notification.State.WAITING, attempts=0, next_attempt_at=timezone.now()
        ):
            raise Conflict(
                "This notification was already sent or canceled.",
                code="nothing_to_retry",
                remedy="Only pending or failed notifications can be retried.",
            )
    notification.refresh_from_db()


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


def send_notifications(notifications: Sequence[Notification]) -> None:
    """Send claimed notifications once; HTTP requests first, because they are concurrent."""
    by_email: list[Notification] = []
    by_http: list[Notification] = []
    for notification in notifications:
        is_email = notification.channel.kind == NotificationChannel.Kind.EMAIL
        (by_email if is_email else by_http).append(notification)
    _send_requests(by_http)
    if by_email:
        for notification, error in send_emails(by_email):
            settle_notification(notification, error)


def _send_requests(notifications: Sequence[Notification]) -> None:
    requests = []
    for notification in notifications:
        try:
            request = REQUEST_BUILDERS[notification.channel.kind](notification)
        except UnreadableSecret as problem:
            settle_notification(notification, f"{problem} ({problem.code})")
        else:
            requests.append((notification, request))
    if requests:
        errors = get_runtime().call(
            webhooks.send_requests, [request for _notification, request in requests]
        )
        for (notification, _request), error in zip(requests, errors, strict=True):
            settle_notification(notification, error)


def send_test_notification(principal: Principal, channel: NotificationChannel) -> Notification:
    """Send a test notification through a channel, even a disabled one; return it."""
    principal.require(Action.MANAGE_NOTICES)
    subject = NotificationSubject("notice_channel", str(channel.pk), channel.name)
    text = format_message(
        "{who} sent a test to this channel. Your organization's notifications arrive here.",
        who=principal.label,
    )
    notification = build_notification(channel, "test", subject, text, topic=f"test:{uuid4()}")
    notification.save()
    if claim_notification(notification):
        send_notifications([notification])
    return notification
