"""Creating notifications: once, for matching channels, and delayed for a flapping server."""

from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from bonobot.notifications.models import Notification, NotificationChannel
from bonobot.notifications.notify import (
    NotificationSubject,
    list_organizations_to_notify,
    notify,
    notify_recovery,
    shorten_topic,
)
from tests import factories

WEB = NotificationSubject("mcp_server", "1", "web", "/admin/")


@pytest.fixture
def pager(administrator):
    return create_channel(administrator, "Pager")


def create_channel(administrator, name, **fields):
    spec = NotificationChannelSpec(name, "webhook", url="https://hooks.example.com/x", **fields)
    return save_channel(administrator, spec)[0]


def notify_outage(acme, topic="outage:1", subject=WEB):
    return notify(acme.pk, "server_down", subject, "It is away.", topic=topic)


def test_every_matching_channel_gets_a_notification(acme, administrator, pager):
    create_channel(administrator, "Budgets", events=["budget_warning"])
    create_channel(administrator, "Off", enabled=False)
    assert notify_outage(acme) == 1
    notification = Notification.objects.get()
    assert (notification.channel, notification.severity, notification.state) == (
        pager,
        "critical",
        "waiting",
    )


def test_an_event_without_channels_takes_one_query(acme, django_assert_num_queries):
    with django_assert_num_queries(1):
        assert notify_outage(acme) == 0


def test_one_topic_is_notified_once(acme, pager):
    assert [notify_outage(acme), notify_outage(acme)] == [1, 0]
    assert Notification.objects.count() == 1


def test_only_a_new_channel_is_counted_when_a_topic_is_repeated(acme, administrator, pager):
    notify_outage(acme)
    create_channel(administrator, "Second")
    assert notify_outage(acme) == 1
    assert Notification.objects.count() == 2


def test_a_notification_is_rolled_back_with_its_cause(acme, pager):
    with transaction.atomic():
        notify_outage(acme)
        transaction.set_rollback(True)
    assert not Notification.objects.exists()


def test_the_next_outage_of_a_flapping_server_is_delayed(acme, pager):
    notify_outage(acme, "outage:1")
    notify_outage(acme, "outage:2")
    first, second = Notification.objects.order_by("next_attempt_at")
    assert first.next_attempt_at <= timezone.now()
    assert second.next_attempt_at == first.created_at + timedelta(minutes=15)


def test_another_servers_outage_isnt_delayed(acme, pager):
    notify_outage(acme, "outage:1")
    notify_outage(acme, "outage:2", NotificationSubject("mcp_server", "2", "other"))
    assert Notification.objects.due().count() == 2


def test_a_channel_that_got_an_outage_gets_its_end(acme, pager):
    notify_outage(acme)
    Notification.objects.update(state=Notification.State.SENT, attempts=1)
    notify_recovery(acme.pk, WEB, "It is there.", topic="outage:1")
    assert set(Notification.objects.values_list("event", "state")) == {
        ("server_down", "sent"),
        ("server_up", "waiting"),
    }


def test_an_outage_that_ended_before_delivery_isnt_sent(acme, pager):
    notify_outage(acme)
    notify_recovery(acme.pk, WEB, "It is there.", topic="outage:1")
    assert list(Notification.objects.values_list("event", "state")) == [
        ("server_down", "withdrawn")
    ]


def test_a_notification_in_delivery_isnt_withdrawn(acme, pager):
    notify_outage(acme)
    Notification.objects.update(attempts=1)
    notify_recovery(acme.pk, WEB, "It is there.", topic="outage:1")
    assert Notification.objects.filter(state="waiting").count() == 2


def test_hidden_characters_of_servers_are_made_visible(acme, pager):
    notify_outage(
        acme,
        subject=NotificationSubject("mcp_server", "1", "web\u202e\x00\r\nBcc: all@example.com"),
    )
    assert "\u202e" not in Notification.objects.get().subject_name
    assert "\r" not in Notification.objects.get().subject_name


def test_other_organizations_arent_notified(acme, pager):
    other_organization = factories.create_organization("other")
    assert notify_outage(other_organization) == 0
    assert list_organizations_to_notify("server_down", "server_up") == {acme.pk}


def test_a_long_topic_stays_distinct():
    first, second = shorten_topic("x" * 300 + "1"), shorten_topic("x" * 300 + "2")
    assert first != second
    assert max(map(len, (first, second))) <= Notification._meta.get_field("topic").max_length


def test_a_channel_is_deleted_with_its_notifications(acme, pager):
    notify_outage(acme)
    NotificationChannel.objects.all().delete()
    assert not Notification.objects.exists()
