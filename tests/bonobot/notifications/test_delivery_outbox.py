"""The outbox: delivered by one process, retried after failures, and finally marked as failed."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.notifications import delivery
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from bonobot.notifications.models import Notification
from bonobot.notifications.notify import NotificationSubject, build_notification
from bonobot.notifications.tasks import prune_notifications
from tests import factories


@pytest.fixture
def notification(administrator):
    spec = NotificationChannelSpec("Pager", "webhook", url="https://hooks.example.com/x")
    row = build_notification(
        save_channel(administrator, spec)[0],
        "server_up",
        NotificationSubject("s", "1", "web"),
        "Up.",
        topic="t",
    )
    row.save()
    return row


def test_a_due_notification_is_claimed_once(notification):
    assert delivery.claim_due_notifications() == [notification]
    assert delivery.claim_due_notifications() == []
    assert not delivery.claim_notification(notification)


def test_a_claim_of_a_dead_process_is_due_again(notification):
    delivery.claim_due_notifications()
    Notification.objects.update(next_attempt_at=timezone.now())
    [again] = delivery.claim_due_notifications()
    assert (again, again.attempts) == (notification, 2)


def test_notifications_of_a_disabled_channel_arent_due(administrator, notification):
    spec = NotificationChannelSpec("Pager", "webhook", enabled=False)
    save_channel(administrator, spec, notification.channel)
    notification.refresh_from_db()
    assert notification.state == Notification.State.WITHDRAWN


def test_a_failed_delivery_is_retried_with_backoff_and_then_given_up(notification):
    waits = []
    for _ in range(delivery.MAX_ATTEMPTS):
        Notification.objects.update(next_attempt_at=timezone.now())
        [claimed] = delivery.claim_due_notifications()
        delivery.settle_notification(claimed, "Nobody answers.")
        waits.append(claimed.next_attempt_at)
    assert waits[-1] is None
    assert waits[:-1] == sorted(waits[:-1])
    assert (claimed.state, claimed.error) == (Notification.State.FAILED, "Nobody answers.")
    assert delivery.claim_due_notifications() == []


def test_a_late_outcome_of_an_expired_lease_changes_nothing(notification):
    [claimed] = delivery.claim_due_notifications()
    Notification.objects.update(next_attempt_at=timezone.now())
    [other_claim] = delivery.claim_due_notifications()
    delivery.settle_notification(claimed, "too late")
    delivery.settle_notification(other_claim, "")
    notification.refresh_from_db()
    assert (notification.state, notification.error) == (Notification.State.SENT, "")


def test_a_failed_notification_is_retried_on_request(administrator, notification):
    Notification.objects.update(state=Notification.State.FAILED, attempts=8, next_attempt_at=None)
    delivery.retry_notification(administrator, notification)
    assert delivery.claim_due_notifications() == [notification]


def test_a_sent_notification_isnt_retried(administrator, notification):
    Notification.objects.update(state=Notification.State.SENT)
    with pytest.raises(Problem) as raised:
        delivery.retry_notification(administrator, notification)
    assert raised.value.code == "nothing_to_retry"


def test_an_auditor_cant_retry(acme, notification):
    with pytest.raises(Problem) as raised:
        delivery.retry_notification(factories.create_member(acme, Role.AUDITOR), notification)
    assert raised.value.code == "forbidden"


def test_old_notifications_are_deleted_unless_pending(notification):
    Notification.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert prune_notifications() == 0
    Notification.objects.update(state=Notification.State.SENT)
    assert prune_notifications() == 1
