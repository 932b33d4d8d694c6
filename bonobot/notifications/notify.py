"""Create notifications in the event's transaction.

Costs one query if no channel wants the event. Another process delivers them.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from uuid import UUID

from django.db.models import Max
from django.utils import timezone
from django.utils.functional import Promise

from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.notifications.events import EVENTS
from bonobot.notifications.models import Notification, NotificationChannel

MAX_NAME_LENGTH = 200
MAX_TEXT_LENGTH = 2_000
MAX_TOPIC_LENGTH = 200
# The time between two notifications about the same subject, by event. For a server that goes down
# repeatedly, the next notification is delayed by this time, and withdrawn if the outage ends
# before.
REPEAT_INTERVALS = {
    "server_down": timedelta(minutes=15),
    "needs_reauth": timedelta(minutes=15),
}


@dataclass(frozen=True, slots=True)
class NotificationSubject:
    """The subject of a notification: its type in the audit log, id, name and admin page."""

    type: str
    id: str
    name: str
    link: str | Promise = ""


def notify(
    organization_id: UUID,
    event: str,
    subject: NotificationSubject,
    text: str,
    *,
    topic: str,
    only_channels: Collection[UUID] | None = None,
) -> int:
    """Notify every channel that wants the event, once per topic; return how many hadn't been yet.

    `topic` identifies the occasion, such as an outage; `only_channels` limits the channels. Secrets
    in `text` are masked and hidden characters made visible. If a channel was recently notified of
    the same subject, the notification is delayed (`REPEAT_INTERVALS`).
    """
    channels = [
        channel
        for channel in NotificationChannel.objects.for_organization(organization_id).filter(
            enabled=True
        )
        if channel.wants_event(event) and (only_channels is None or channel.pk in only_channels)
    ]
    if channels:
        notified_ids = _load_notified_channels(channels, event, topic)
        channels = [channel for channel in channels if channel.pk not in notified_ids]
    if not channels:
        return 0
    next_allowed_times = _load_next_allowed_times(channels, event, subject)
    rows = [
        build_notification(
            channel, event, subject, text, topic=topic, due_at=next_allowed_times.get(channel.pk)
        )
        for channel in channels
    ]
    # Another process may have notified them just now.
    Notification.objects.bulk_create(rows, ignore_conflicts=True)
    return len(rows)


def notify_recovery(
    organization_id: UUID, subject: NotificationSubject, text: str, *, topic: str
) -> None:
    """Notify the channels that were notified of `topic` that it is over; withdraw unsent ones."""
    notifications = Notification.objects.for_organization(organization_id).filter(
        topic=shorten_topic(topic)
    )
    notifications.unattempted().update(state=Notification.State.WITHDRAWN, next_attempt_at=None)
    kept_notifications = notifications.exclude(state=Notification.State.WITHDRAWN)
    notified_channels = set(kept_notifications.values_list("channel_id", flat=True))
    if notified_channels:
        notify(
            organization_id,
            "server_up",
            subject,
            text,
            topic=topic,
            only_channels=notified_channels,
        )


def list_organizations_to_notify(*events: str) -> set[UUID]:
    """Return the organizations with a channel that wants one of the events (one query)."""
    channels = NotificationChannel.objects.filter(enabled=True)
    return {
        channel.organization_id for channel in channels if any(map(channel.wants_event, events))
    }


def build_notification(
    channel: NotificationChannel,
    event: str,
    subject: NotificationSubject,
    text: str,
    *,
    topic: str,
    due_at: datetime | None = None,
) -> Notification:
    """Return an unsaved notification of one channel, to be sent at `due_at` (default: now)."""
    return Notification(
        organization_id=channel.organization_id,
        channel=channel,
        event=event,
        severity=EVENTS[event].severity.word,
        subject_type=subject.type,
        subject_id=subject.id,
        subject_name=make_visible(make_storable(subject.name), MAX_NAME_LENGTH),
        text=make_visible(
            make_storable(mask_organization_secrets(text, channel.organization_id)), MAX_TEXT_LENGTH
        ),
        link=str(subject.link),
        topic=shorten_topic(topic),
        next_attempt_at=due_at or timezone.now(),
    )


def shorten_topic(topic: str) -> str:
    """Return a topic that fits its column; a digest keeps long ones unique."""
    if len(topic) <= MAX_TOPIC_LENGTH:
        return topic
    digest = sha256(topic.encode()).hexdigest()
    return f"{topic[: MAX_TOPIC_LENGTH - len(digest) - 1]}:{digest}"


def _load_notified_channels(
    channels: Collection[NotificationChannel], event: str, topic: str
) -> set[UUID]:
    notified = Notification.objects.filter(
        channel__in=channels, event=event, topic=shorten_topic(topic)
    )
    return set(notified.values_list("channel_id", flat=True))


def _load_next_allowed_times(
    channels: Collection[NotificationChannel],
    event: str,
    subject: NotificationSubject,
) -> dict[UUID, datetime]:
    """Return when each channel may be notified of this subject again; absent means now."""
    interval = REPEAT_INTERVALS.get(event)
    if interval is None:
        return {}
    recent = Notification.objects.filter(
        channel__in=channels,
        event=event,
        subject_id=subject.id,
        created_at__gt=timezone.now() - interval,
    ).exclude(state=Notification.State.WITHDRAWN)
    latest = recent.order_by().values_list("channel_id").annotate(Max("created_at"))
    return {channel_id: last_created_at + interval for channel_id, last_created_at in latest}
