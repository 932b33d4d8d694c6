"""`bonobot notifications`."""

from bonobot.notifications.models import Notification
from tests import factories
from tests.command_line import acme, bonobot

__all__ = ["acme", "bonobot"]


def test_empty_lists_explain_what_to_do(bonobot):
    assert "channels" in bonobot("notifications", "list").out
    assert "notifications add" in bonobot("notifications", "channels").out


def test_notifications_and_channels_are_listed(bonobot, acme):
    notification = factories.create_notification(acme)
    [row] = bonobot("notifications", "list", "--json").json
    assert (row["id"], row["state"]) == (str(notification.pk), "waiting")
    assert bonobot("notifications", "list", "--state", "failed", "--json").json == []
    [channel] = bonobot("notifications", "channels", "--json").json
    assert channel["destination"] == "https://hooks.example.com/…"


def test_a_test_notification_that_isnt_delivered_fails(bonobot, acme, monkeypatch):
    factories.create_notification(acme)
    monkeypatch.setattr("bonobot.notifications.webhooks.send_requests", fail_to_send)
    result = bonobot("notifications", "test", "Pager", "--json")
    assert (result.status, result.json["state"]) == (1, "failed")
    assert bonobot("notifications", "test", "nobody", "--json").error["code"] == "not_found"


async def fail_to_send(posts):
    return ["Nobody answers." for _ in posts]


def test_a_notification_is_retried(bonobot, acme):
    notification = factories.create_notification(acme)
    Notification.objects.update(state="failed")
    assert (
        bonobot("notifications", "retry", str(notification.pk), "--json").json["state"] == "waiting"
    )


def test_a_channel_is_created_updated_and_deleted(bonobot):
    url = ("--url", "https://hooks.example.com/secret-path")
    created = bonobot(
        "notifications", "add", "Pager", *url, "--event", "server_down", "--json"
    ).json
    assert (created["destination"], created["events"]) == (
        "https://hooks.example.com/…",
        ["server_down"],
    )
    assert created["secret"]
    changed = bonobot("notifications", "set", "Pager", "--no-enabled", "--json").json
    assert (changed["enabled"], changed["events"]) == (False, ["server_down"])
    assert "secret" not in changed
    assert bonobot("notifications", "remove", "Pager").status == 0
    assert bonobot("notifications", "channels", "--json").json == []
