"""The outbox: one process delivers, failures are tried again, and some are given up visibly."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.notifications import delivery
from bonobot.notifications.models import Notification
from bonobot.notifications.notify import NotificationSubject, build_notification
from bonobot.notifications.services import NotificationChannelSpec, save_channel
from bonobot.notifications.tasks import prune_notices
from tests import factories


@pytest.fixture
def notice(boss):
    spec = NotificationChannelSpec("Pager", "webhook", url="https://hooks.example.com/x")
    made = build_notification(
        save_channel(boss, spec)[0],
        "server_up",
        NotificationSubject("s", "1", "web"),
        "Up.",
        topic="t",
    )
    made.save()
    return made


def test_a_due_notification_is_claimed_once(notice):
    assert delivery.claim_due_notifications() == [notice]
    assert delivery.claim_due_notifications() == []
    assert not delivery.claim_notification(notice)


def test_a_claim_of_a_dead_process_is_due_again(notice):
    delivery.claim_due_notifications()
    Notification.objects.update(next_attempt_at=timezone.now())
    [again] = delivery.claim_due_notifications()
    assert (again, again.attempts) == (notice, 2)


def test_notifications_of_a_disabled_channel_arent_due(boss, notice):
    spec = NotificationChannelSpec("Pager", "webhook", enabled=False)
    save_channel(boss, spec, notice.channel)
    notice.refresh_from_db()
    assert notice.state == Notification.State.WITHDRAWN


def test_a_failed_delivery_is_retried_with_backoff_and_then_given_up(notice):
    waits = []
    for _ in range(delivery.MAX_ATTEMPTS):
        Notification.objects.update(next_attempt_at=timezone.now())
        [mine] = delivery.claim_due_notifications()
        delivery.settle_notification(mine, "Nobody answers.")
        waits.append(mine.next_attempt_at)
    assert waits[-1] is None
    assert waits[:-1] == sorted(waits[:-1])
    assert (mine.state, mine.error) == (Notification.State.FAILED, "Nobody answers.")
    assert delivery.claim_due_notifications() == []


def test_a_late_outcome_of_an_expired_lease_changes_nothing(notice):
    [mine] = delivery.claim_due_notifications()
    Notification.objects.update(next_attempt_at=timezone.now())
    [theirs] = delivery.claim_due_notifications()
    delivery.settle_notification(mine, "too late")
    delivery.settle_notification(theirs, "")
    notice.refresh_from_db()
    assert (notice.state, notice.error) == (Notification.State.SENT, "")


def test_a_failed_notification_is_retried_on_request(boss, notice):
    Notification.objects.update(state=Notification.State.FAILED, attempts=8, next_attempt_at=None)
    delivery.retry_notification(boss, notice)
    assert delivery.claim_due_notifications() == [notice]


def test_a_sent_notification_isnt_retried(boss, notice):
    Notification.objects.update(state=Notification.State.SENT)
    with pytest.raises(Problem) as raised:
        delivery.retry_notification(boss, notice)
    assert raised.value.code == "nothing_to_retry"


def test_an_auditor_cant_retry(acme, notice):
    with pytest.raises(Problem) as raised:
        delivery.retry_notification(factories.create_member(acme, Role.AUDITOR), notice)
    assert raised.value.code == "forbidden"


def test_old_notifications_are_deleted_unless_pending(notice):
    Notification.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert prune_notices() == 0
    Notification.objects.update(state=Notification.State.SENT)
    assert prune_notices() == 1
