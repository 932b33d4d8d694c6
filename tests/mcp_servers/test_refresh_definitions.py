"""Definitions are refreshed when a notification or an error indicates a change."""

from datetime import timedelta

import pytest
from django.utils import timezone

from agents.calls import pipeline
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers import refresh_definitions
from mcp_servers.client.change_notifications import ChangeNotification
from mcp_servers.models import ChangeSubscription, Server
from mcp_servers.refresh_definitions import (
    get_refresher,
    handle_change_notification,
    refresh_abandoned_servers,
)
from mcp_servers.tasks import check_due_servers
from tests import factories
from tests.mcp_servers.raw_list_changed_server import discoveries
from tests.servers import raw_http_server
from tests.wait import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_delays")]


def refuse_calls(code):
    """Return a handler that answers every call with an error."""
    return lambda request: raw_http_server.error(
        request, code, status=400 if code == -32020 else 200
    )


async def deliver_notifications(*notifications):
    for server_id, notification in notifications:
        handle_change_notification(server_id, notification)


@pytest.mark.parametrize(
    ("code", "refreshed", "expected_code"),
    [
        (-32602, True, "upstream_error"),
        (-32020, True, "tool_gone"),  # refreshed before the call is repeated
        (-32603, False, "upstream_error"),
    ],
)
def test_an_unknown_tool_error_refreshes_the_definitions(
    acme, serve, code, refreshed, expected_code
):
    serving, server = serve(refuse_calls(code))
    serving.tools = ["two"]
    request = pipeline.CallRequest(
        principal=factories.build_administrator(acme),
        tool="one",
        arguments={},
        via="rest",
        holder="server:test",
        server_id=server.pk,
    )
    outcome = get_runtime().call(pipeline.make_call, request)
    get_writer().close()
    assert outcome.code == expected_code
    if refreshed:
        eventually(lambda: server.definitions.get(name="one").state == "gone")
        assert server.definitions.get(name="two").state == "pending"
        assert ChangeSubscription.objects.get().notified_at is None
    else:
        assert not ChangeSubscription.objects.filter(stale_at__isnull=False).exists()


def test_a_changed_resource_content_doesnt_refresh_the_definitions(serve):
    _, server = serve(refuse_calls(-32601))
    get_runtime().call(
        deliver_notifications, (server.pk, ChangeNotification("resources", "test://a"))
    )
    assert not ChangeSubscription.objects.filter(stale_at__isnull=False).exists()
    get_runtime().call(deliver_notifications, (server.pk, ChangeNotification("resources")))
    eventually(lambda: discoveries(server) == 2)


def test_notifications_that_arrive_together_cause_one_refresh(serve):
    _, server = serve(refuse_calls(-32601))
    notifications = [
        (server.pk, ChangeNotification("tools", holder=f"session:{n % 2}")) for n in range(100)
    ]
    get_runtime().call(deliver_notifications, *notifications)
    eventually(lambda: server.pk not in get_refresher()._requests)
    assert discoveries(server) == 2
    assert ChangeSubscription.objects.get().stale_at is None


def test_a_call_waits_until_a_notified_change_was_read(serve, monkeypatch):
    _, server = serve(refuse_calls(-32601))

    async def notify_and_wait():
        handle_change_notification(server.pk, ChangeNotification("tools", holder="session:a"))
        await get_refresher().wait_until_refreshed("session:other")
        await get_refresher().wait_until_refreshed("session:a")

    get_runtime().call(notify_and_wait)
    assert discoveries(server) == 2
    ChangeSubscription.objects.update(refresh_after=timezone.now() + timedelta(hours=1))
    get_runtime().call(notify_and_wait)  # not due yet, so calls don't wait for it
    assert discoveries(server) == 2
    monkeypatch.setattr(refresh_definitions, "MAX_WAIT_S", 0.01)

    async def wait_until_timeout():
        get_refresher()._requests[server.pk].settled.clear()
        await get_refresher().wait_until_refreshed("session:a")

    get_runtime().call(wait_until_timeout)
    ChangeSubscription.objects.update(refresh_after=None)
    eventually(lambda: discoveries(server) == 3)
    eventually(lambda: server.pk not in get_refresher()._requests)


def test_the_schedule_refreshes_servers_that_a_dead_process_marked(serve):
    serving, server = serve(refuse_calls(-32601))
    Server.objects.update(next_check_at=timezone.now() + timedelta(hours=1))
    ChangeSubscription.objects.update(stale_at=timezone.now() - timedelta(minutes=1))
    serving.tools = ["one", "two"]
    check_due_servers()
    eventually(lambda: server.definitions.filter(name="two").exists())
    eventually(lambda: ChangeSubscription.objects.get().stale_at is None)


def test_an_unavailable_server_stays_stale_and_a_deleted_one_is_dropped(serve):
    serving, server = serve(refuse_calls(-32601))
    serving.http.respond = lambda request: raw_http_server.response(503)
    get_runtime().call(refresh_abandoned_servers, [server.pk])
    eventually(lambda: server.checks.filter(ok=False).exists())
    eventually(lambda: server.pk not in get_refresher()._requests)
    assert ChangeSubscription.objects.get().stale_at is not None
    pk = server.pk
    server.delete()
    get_runtime().call(refresh_abandoned_servers, [pk])
    eventually(lambda: pk not in get_refresher()._requests)
    assert not ChangeSubscription.objects.exists()
