"""`bonobot notifications`."""

from bonobot.notifications.models import Notification
from tests import factories
from tests.command_line import acme, bonobot

__all__ = ["acme", "bonobot"]


def test_empty_lists_explain_what_to_do(bonobot):
    assert "channels" in bonobot("notifications", "list").out
    assert "notifications add" in bonobot("notifications", "channels").out


def test_notifications_and_channels_are_listed(bonobot, acme):
    notice = factories.create_notification(acme)
    [listed] = bonobot("notifications", "list", "--json").json
    assert (listed["id"], listed["state"]) == (str(notice.pk), "waiting")
    assert bonobot("notifications", "list", "--state", "failed", "--json").json == []
    [channel] = bonobot("notifications", "channels", "--json").json
    assert channel["goes_to"] == "https://hooks.example.com/…"


def test_a_test_notification_that_isnt_delivered_fails(bonobot, acme, monkeypatch):
    factories.create_notification(acme)
    monkeypatch.setattr("bonobot.notifications.webhooks.send_requests", nowhere)
    ran = bonobot("notifications", "test", "Pager", "--json")
    assert (ran.status, ran.json["state"]) == (1, "failed")
    assert bonobot("notifications", "test", "nobody", "--json").error["code"] == "not_found"


async def nowhere(posts):
    return ["Nobody answers." for _ in posts]


def test_a_notification_is_retried(bonobot, acme):
    notice = factories.create_notification(acme)
    Notification.objects.update(state="failed")
    assert bonobot("notifications", "retry", str(notice.pk), "--json").json["state"] == "waiting"


def test_a_channel_is_created_updated_and_deleted(bonobot):
    url = ("--url", "https://hooks.example.com/secret-path")
    added = bonobot("notifications", "add", "Pager", *url, "--event", "server_down", "--json").json
    assert (added["goes_to"], added["events"]) == ("https://hooks.example.com/…", ["server_down"])
    assert added["secret"]
    changed = bonobot("notifications", "set", "Pager", "--no-enabled", "--json").json
    assert (changed["enabled"], changed["events"]) == (False, ["server_down"])
    assert "secret" not in changed
    assert bonobot("notifications", "remove", "Pager").status == 0
    assert bonobot("notifications", "channels", "--json").json == []
