"""Channels and the outbox over REST."""

import pytest

from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from bonobot.notifications.models import Notification, NotificationChannel
from tests import factories, rest

HOOK = {"name": "Pager", "kind": "webhook", "url": "https://hooks.example.com/geheim"}


@pytest.fixture
def owner(acme):
    return rest.as_role(acme, Role.OWNER)


def test_a_generated_secret_is_returned_once(owner):
    response = owner.post("notification-channels", HOOK)
    assert response.status == 201
    assert NotificationChannel.objects.get().secret.open() == response.json["secret"]
    detail = owner.get(f"notification-channels/{response.json['id']}")
    assert "secret" not in detail.json
    assert (detail.json["url"], detail.json["destination"]) == (MASK, "https://hooks.example.com/…")
    assert "geheim" not in detail.text + owner.get("notification-channels").text


def test_a_channel_has_its_destination_under_the_earlier_name_as_well(owner):
    channel = owner.post("notification-channels", HOOK).json
    assert channel["goes_to"] == channel["destination"] == "https://hooks.example.com/…"


def test_omitted_fields_are_unchanged(owner):
    channel_id = owner.post("notification-channels", HOOK | {"events": ["server_down"]}).json["id"]
    changed = owner.patch(
        f"notification-channels/{channel_id}", {"minimum_severity": "critical", "url": MASK}
    )
    assert (changed.json["events"], changed.json["minimum_severity"]) == (
        ["server_down"],
        "critical",
    )
    assert changed.json["secret"] == ""
    assert NotificationChannel.objects.get().url.open() == HOOK["url"]


def test_an_invalid_value_is_reported_with_its_field(owner):
    response = owner.post("notification-channels", HOOK | {"url": "http://10.0.0.1/"})
    assert (response.status, response.code, response.json["field"]) == (
        400,
        "private_address",
        "url",
    )


def test_a_test_notification_returns_its_outcome(acme, owner, webhook, hook):
    response = owner.post(f"notification-channels/{webhook.pk}/test")
    assert (response.status, response.json["state"]) == (200, "sent")
    hook.status = 503
    failed = owner.post(f"notification-channels/{webhook.pk}/test")
    assert (failed.status, failed.json["state"]) == (200, "failed")
    assert "503" in failed.json["error"]


def test_an_auditor_can_only_view_notifications(acme):
    notification = factories.create_notification(acme)
    auditor = rest.as_role(acme, Role.AUDITOR)
    [row] = auditor.get("notifications?state=waiting&event=server_down").json["results"]
    assert row["id"] == str(notification.pk)
    assert auditor.get("notifications?state=sent").json["results"] == []
    assert auditor.post(f"notifications/{notification.pk}/retry").status == 403
    assert auditor.delete(f"notification-channels/{notification.channel_id}").status == 403


def test_an_owner_retries_and_deletes(acme, owner):
    notification = factories.create_notification(acme)
    Notification.objects.update(state="failed", attempts=8)
    response = owner.post(f"notifications/{notification.pk}/retry")
    assert (response.json["state"], response.json["attempts"]) == ("waiting", 0)
    Notification.objects.update(state="sent")
    assert owner.post(f"notifications/{notification.pk}/retry").code == "nothing_to_retry"
    assert owner.delete(f"notification-channels/{notification.channel_id}").status == 204
    assert not Notification.objects.exists()
