"""Channels and the outbox in the admin."""

import pytest

from bonobot.accounts.roles import Role
from bonobot.notifications.models import Notification, NotificationChannel
from tests import admin_client, factories

HOOK = {"name": "Pager", "kind": "webhook", "url": "https://hooks.example.com/geheim"}
FORM = HOOK | {"minimum_severity": "info", "enabled": "on"}


@pytest.fixture
def admin(acme):
    return admin_client.sign_in(acme, Role.OWNER)


def test_empty_lists_explain_what_to_do_first(admin):
    assert "No notification channels" in admin.get("notices_notificationchannel_changelist")
    assert "No notifications yet" in admin.get("notices_notification_changelist")


def test_a_generated_secret_is_shown_once(admin):
    page = admin.post("notices_notificationchannel_add", **FORM)
    channel = NotificationChannel.objects.get()
    assert channel.secret.open() in page
    second_page = admin.get("notices_notificationchannel_change", channel.pk)
    assert channel.secret.open() not in second_page
    assert "geheim" not in second_page


def test_an_update_keeps_masked_values(admin):
    admin.post("notices_notificationchannel_add", **FORM)
    channel = NotificationChannel.objects.get()
    fields = FORM | {"name": "Night", "url": "********", "events": ["server_down"]}
    admin.post("notices_notificationchannel_change", channel.pk, **fields)
    channel.refresh_from_db()
    assert (channel.name, channel.events) == ("Night", ["server_down"])
    assert channel.url.open() == HOOK["url"]


def test_invalid_values_are_reported_at_their_field(admin):
    page = admin.post("notices_notificationchannel_add", **(FORM | {"url": "http://127.0.0.1/"}))
    assert "private_address" in page
    assert not NotificationChannel.objects.exists()


def test_a_test_notification_shows_its_outcome(acme, admin, webhook, hook):
    page = admin.post("notices_notificationchannel_test", webhook.pk)
    assert "receiver accepted the test notification" in page
    hook.status = 500
    assert "answered 500" in admin.post("notices_notificationchannel_test", webhook.pk)
    assert "failed" in admin.get("notices_notificationchannel_change", webhook.pk)


def test_a_failed_notification_can_be_resent(acme, admin):
    notification = factories.create_notification(acme)
    Notification.objects.update(state="failed", error="Nobody answers.", attempts=8)
    assert "Nobody answers." in admin.get("notices_notification_change", notification.pk)
    admin.post("notices_notification_retry", notification.pk)
    notification.refresh_from_db()
    assert (notification.state, notification.attempts) == ("waiting", 0)
    fields = {"action": "retry_chosen", "_selected_action": str(notification.pk)}
    Notification.objects.update(state="failed")
    admin.post("notices_notification_changelist", **fields)
    assert Notification.objects.get().state == "waiting"


def test_an_auditor_can_view_and_has_no_buttons(acme):
    notification = factories.create_notification(acme)
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    page = auditor.get("notices_notificationchannel_change", notification.channel_id)
    assert "test notification" not in page
    assert admin_client.list_form_fields(page) == []
    assert "Resend" not in auditor.get("notices_notification_change", notification.pk)
    auditor.post("notices_notificationchannel_test", notification.channel_id, status=403)
    assert Notification.objects.count() == 1
    Notification.objects.all().delete()
    page = auditor.get("notices_notificationchannel_change", notification.channel_id)
    assert "No notifications yet." in page
    assert "test notification" not in page


def test_a_channel_is_deleted_by_the_service(acme, admin):
    notification = factories.create_notification(acme)
    admin.post("notices_notificationchannel_delete", notification.channel_id, post="yes")
    assert not NotificationChannel.objects.exists()
