"""One process watches each server and refreshes its definitions after notifications."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.utils import timezone

from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.policy_generations import load_policy_generation
from mcp_servers import refresh_definitions
from mcp_servers.api.serializers import build_spec
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import ChangeSubscription, Server
from mcp_servers.services import delete_server, set_server_enabled, update_server
from mcp_servers.subscriptions import leases, list_changed
from mcp_servers.subscriptions.change_notification_status import load_change_notification_status
from mcp_servers.subscriptions.list_changed import ListChangedListener
from tests import factories
from tests.mcp_servers.client.event_recorder import CHANGED, acknowledgement, end, frame, stream
from tests.mcp_servers.raw_list_changed_server import discoveries, state
from tests.servers import raw_http_server
from tests.wait import eventually

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_delays")]


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def start_watcher():
    """Return a function that creates a process's watcher, which updates when `tick` is called."""
    watchers = []

    def start():
        watcher = get_runtime().call(_create_listener)
        watchers.append(watcher)
        return watcher

    yield start
    for watcher in watchers:
        get_runtime().call(watcher.stop)


async def _create_listener():
    return ListChangedListener()


def tick(*watchers):
    for watcher in watchers:
        get_runtime().call(watcher.update_streams)


HELD_OPEN = stream(acknowledgement, hold=True)


# --- notifications


def test_a_change_notified_by_a_real_server_is_pending_review(acme, changing_url, start_watcher):
    server = factories.approve_server(
        acme, factories.create_http_server(acme, changing_url, "changing")
    )
    tick(watcher := start_watcher())
    eventually(lambda: state(server) == "listening")
    eventually(lambda: discoveries(server) == 2, what="the refresh when the stream opened")
    call = get_connection_pool().send_request
    endpoint = list_changed._load_configuration(server.pk)[0]
    # Other tests use the same server, so the description must be unique.
    arguments = {"name": "alter", "arguments": {"description": f"Return text {uuid4()}."}}
    get_runtime().call(call, endpoint, "tools/call", arguments, holder="server:test")
    echo = server.definitions.get(name="echo")
    eventually(lambda: echo.refresh_from_db() or echo.state == "changed")
    assert (
        load_change_notification_status(Server.objects.get(pk=server.pk)).last_notice_at is not None
    )
    get_runtime().call(watcher.stop)
    assert ChangeSubscription.objects.get(server=server).holder is None
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def test_a_flood_of_notifications_causes_one_read_at_a_time(serve, start_watcher, monkeypatch):
    monkeypatch.setattr(refresh_definitions, "INTERVAL", timedelta(seconds=30))

    async def flood(request):
        yield raw_http_server.STREAM + acknowledgement(request)
        while True:
            yield frame(request, CHANGED)

    flooding, server = serve(flood, "flooding")
    calm, other = serve(HELD_OPEN, "calm")
    tick(start_watcher())
    eventually(lambda: state(server) == state(other) == "listening")
    eventually(lambda: discoveries(server) == 2 and discoveries(other) == 2)
    eventually(lambda: ChangeSubscription.objects.get(server=server).notified_at)
    assert flooding.count_requests("tools/list") == calm.count_requests("tools/list") == 2
    assert ChangeSubscription.objects.filter(server=server, stale_at__isnull=False).exists()


def test_a_lost_stream_is_reopened_and_missed_changes_are_read(serve, start_watcher):
    serving, server = serve(stream(acknowledgement))
    tick(start_watcher())
    eventually(lambda: serving.count_requests("subscriptions/listen") >= 3)
    serving.tools = ["one", "two"]
    serving.listen = HELD_OPEN
    eventually(lambda: server.definitions.filter(name="two").exists())
    eventually(lambda: state(server) == "listening")


def test_a_server_that_never_acknowledges_is_shown_as_lost(serve, start_watcher, settings):
    settings.BONOBOT_CONNECT_S = settings.BONOBOT_READ_S = 0.1
    _, server = serve(stream(hold=True))
    tick(start_watcher())
    eventually(lambda: state(server) == "lost")
    assert load_change_notification_status(Server.objects.get(pk=server.pk)).code == "call_timeout"


def test_a_normal_end_is_shown_as_such(serve, start_watcher):
    _, server = serve(stream(acknowledgement, end))
    tick(start_watcher())
    eventually(lambda: ChangeSubscription.objects.filter(server=server, code="ended").exists())


def test_a_server_that_refuses_isnt_watched_until_its_next_discovery(serve, start_watcher):
    serving, server = serve(lambda request: raw_http_server.error(request, -32601, status=404))
    tick(watcher := start_watcher())
    eventually(lambda: state(server) == "refused")
    tick(watcher)
    assert serving.count_requests("subscriptions/listen") == 1
    serving.listen = HELD_OPEN
    factories.approve_server(server.organization, server)
    tick(watcher)
    eventually(lambda: state(server) == "listening")


# --- closing streams


def test_a_stream_closes_with_its_server(administrator, serve, start_watcher):
    serving, server = serve(HELD_OPEN)
    tick(watcher := start_watcher())
    eventually(lambda: state(server) == "listening")
    set_server_enabled(administrator, server, enabled=False)
    tick(watcher)
    eventually(lambda: serving.http.gone == 1)
    assert state(server) == "disabled"
    set_server_enabled(administrator, server, enabled=True)
    tick(watcher)
    eventually(lambda: state(server) == "listening")
    delete_server(administrator, server)
    tick(watcher)
    eventually(lambda: serving.http.gone == 2)


def test_a_closed_stream_isnt_reopened_to_a_disabled_server(administrator, serve, start_watcher):
    serving, server = serve(HELD_OPEN)
    tick(watcher := start_watcher())
    eventually(lambda: state(server) == "listening")
    set_server_enabled(administrator, server, enabled=False)
    eventually(lambda: watcher._streams[server.pk].task.done())
    assert serving.count_requests("subscriptions/listen") == 1


def test_a_stream_is_reopened_when_its_server_is_reconfigured(administrator, serve, start_watcher):
    serving, server = serve(HELD_OPEN)
    tick(watcher := start_watcher())
    eventually(lambda: state(server) == "listening")
    update_server(administrator, server, build_spec({"description": "Other words."}, server))
    tick(watcher)
    assert serving.http.gone == 0
    header = {"url": serving.http.url, "headers": {"X-Key": "secret"}}
    update_server(administrator, server, build_spec({"endpoint_config": header}, server))
    tick(watcher)
    eventually(lambda: serving.http.gone == 1)


def test_the_number_of_watched_servers_is_limited(serve, start_watcher, settings):
    settings.BONOBOT_WATCHED_SERVERS = 1
    servers = [serve(HELD_OPEN, name)[1] for name in ("a", "b")]
    tick(start_watcher())
    eventually(lambda: state(servers[0]) == "listening")
    assert ChangeSubscription.objects.get(server=servers[1]).holder is None


# --- leases


def test_two_processes_share_one_lease(serve, start_watcher):
    serving, server = serve(HELD_OPEN)
    first, second = start_watcher(), start_watcher()
    tick(first, second)
    eventually(lambda: state(server) == "listening")
    tick(first, second)
    assert serving.count_requests("subscriptions/listen") == 1
    assert ChangeSubscription.objects.get(server=server).holder == first.id


def test_a_holder_without_heartbeats_is_replaced_and_writes_nothing(serve, start_watcher):
    serving, server = serve(HELD_OPEN)
    first, second = start_watcher(), start_watcher()
    tick(first)
    eventually(lambda: state(server) == "listening")
    ChangeSubscription.objects.update(heartbeat_at=timezone.now() - 2 * leases.LEASE)
    assert state(server) == "unwatched"
    tick(second)
    eventually(lambda: serving.count_requests("subscriptions/listen") == 2)
    assert not leases.mark_stream_opened(first.id, server.pk)
    leases.mark_stream_lost(first.id, server.pk, Problem("late", code="late"))
    leases.mark_stream_refused(first.id, server.pk, Problem("late", code="late"))
    row = ChangeSubscription.objects.get(server=server)
    assert (row.holder, row.code, row.refused_at) == (second.id, "", None)
    tick(first)
    eventually(lambda: serving.http.gone == 1)


@pytest.mark.worker
def test_the_servers_of_a_killed_worker_are_watched_by_another(
    acme, changing_url, start_worker, start_watcher
):
    server = factories.approve_server(
        acme, factories.create_http_server(acme, changing_url, "changing")
    )
    worker = start_worker()
    eventually(lambda: state(server) == "listening", within=20)
    tick(watcher := start_watcher())
    worker.kill()
    assert ChangeSubscription.objects.get(server=server).holder != watcher.id
    ChangeSubscription.objects.update(heartbeat_at=timezone.now() - 2 * leases.LEASE)
    tick(watcher)
    eventually(lambda: ChangeSubscription.objects.get(server=server).holder == watcher.id)
    eventually(lambda: state(server) == "listening")
    get_runtime().call(get_connection_pool().forget_server, server.pk)


# --- the watcher itself


def test_a_disabled_watcher_does_nothing(settings, start_watcher):
    settings.BONOBOT_WATCHED_SERVERS = 0
    watcher = start_watcher()
    get_runtime().call(watcher.start)
    assert watcher._ticker is None


def test_watching_keeps_the_policy_generation(serve, start_watcher):
    _, server = serve(HELD_OPEN)
    before = load_policy_generation(server.organization_id)
    tick(start_watcher())
    eventually(lambda: state(server) == "listening" and discoveries(server) == 2)
    assert load_policy_generation(server.organization_id) == before


def test_a_watcher_survives_an_unavailable_database(start_watcher, monkeypatch):
    ticks = []

    async def broken(self):
        ticks.append(1)
        raise OperationalError("away")

    monkeypatch.setattr(list_changed, "TICK_S", 0.01)
    monkeypatch.setattr(ListChangedListener, "update_streams", broken)
    get_runtime().call(start_watcher().start)
    eventually(lambda: len(ticks) > 2)


def test_an_internal_error_is_shown_and_retried(serve, start_watcher, monkeypatch):
    async def broken(*_, **__):
        raise ZeroDivisionError

    _, server = serve(HELD_OPEN)
    with monkeypatch.context() as patch:
        patch.setattr(get_connection_pool(), "listen", broken)
        tick(start_watcher())
        eventually(
            lambda: ChangeSubscription.objects.filter(server=server, code="internal_error").exists()
        )
    eventually(lambda: state(server) == "listening")
