"""The status of change notifications, in every state that a person can see."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from mcp_servers.models import ChangeSubscription, Server
from mcp_servers.subscriptions import leases
from mcp_servers.subscriptions.change_notification_status import load_change_notification_status
from tests import factories

LIST_CHANGED_CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {},
}
HOLDER = uuid4()


@pytest.fixture
def server(db):
    return factories.create_http_server(factories.create_organization(), "http://127.0.0.1:9/mcp")


def state(server):
    return load_change_notification_status(Server.objects.get(pk=server.pk)).state


def test_only_servers_with_change_notifications_are_claimed(server):
    assert state(server) == "not_told"
    leases.store_change_topics(server, {"tools": {}})
    assert (state(server), ChangeSubscription.objects.count()) == ("not_told", 0)
    assert leases.claim_servers(HOLDER, 10) == []
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    assert ChangeSubscription.objects.get().asks == "prompts tools"
    assert state(server) == "opening"
    assert leases.claim_servers(HOLDER, 10) == [server.pk]
    leases.store_change_topics(server, {})
    assert state(server) == "not_told"
    assert leases.load_leased_servers(HOLDER) == []


def test_no_worker_is_missed_before_one_had_time_to_claim_a_new_server(server):
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    assert state(server) == "opening"
    ChangeSubscription.objects.update(created_at=timezone.now() - timedelta(minutes=1))
    assert state(server) == "unwatched"


def test_a_stdio_server_is_watched_while_it_runs(db):
    server = factories.create_stdio_server(factories.create_organization())
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    assert (state(server), ChangeSubscription.objects.count()) == ("while_running", 0)


def test_a_stream_has_a_state_from_opening_to_refusal(server):
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    leases.claim_servers(HOLDER, 1)
    assert state(server) == "opening"
    assert leases.mark_stream_opened(HOLDER, server.pk)
    assert state(server) == "listening"
    assert load_change_notification_status(Server.objects.get()).since is not None
    leases.mark_stream_lost(
        HOLDER, server.pk, Problem("Gone.", code="server_unreachable", remedy="Look.")
    )
    status = load_change_notification_status(Server.objects.get())
    assert (status.state, status.code, status.detail) == (
        "lost",
        "server_unreachable",
        "Gone. Look.",
    )
    assert status.since is None
    leases.mark_stream_refused(HOLDER, server.pk, Problem("None.", code="not_offered"))
    assert (state(server), leases.claim_servers(HOLDER, 1)) == ("refused", [])
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    assert leases.claim_servers(HOLDER, 1) == [server.pk]


def test_a_holder_with_heartbeats_keeps_its_lease(server):
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    leases.claim_servers(HOLDER, 1)
    ChangeSubscription.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert state(server) == "unwatched"
    leases.renew_change_leases(HOLDER)
    assert leases.claim_servers(uuid4(), 1) == []
    leases.release_change_leases(HOLDER)
    assert leases.claim_servers(uuid4(), 1) == [server.pk]


def test_a_disabled_server_is_released(server):
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    leases.claim_servers(HOLDER, 1)
    Server.objects.update(enabled=False)
    assert leases.load_leased_servers(HOLDER) == []
    assert (state(server), ChangeSubscription.objects.get().holder) == ("disabled", None)


def test_rest_returns_the_state_of_change_notifications(server, client):
    administrator = factories.create_member(server.organization, Role.OWNER)
    client.login(username=administrator.label, password="pw-for-tests")
    leases.store_change_topics(server, LIST_CHANGED_CAPABILITIES)
    leases.claim_servers(HOLDER, 1)
    leases.mark_stream_opened(HOLDER, server.pk)
    data = client.get(f"/api/mcp-servers/{server.pk}").json()["change_notices"]
    assert (data["state"], data["last_notice_at"]) == ("listening", None)
    assert data["since"]
    page = client.get(f"/admin/mcp-servers/{server.pk}/change/").content.decode()
    assert "listening" in page
