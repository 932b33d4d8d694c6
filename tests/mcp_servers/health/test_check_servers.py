"""Health checks: schedule, stored results, and hanging servers that don't delay others."""

import sys
from datetime import timedelta
from uuid import uuid4

import pytest
import time_machine
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.ledger.policy_generations import load_policy_generation
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.errors import build_closed_error
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.health.check_delays import BACKOFF_LIMIT, compute_check_delay
from mcp_servers.health.check_servers import (
    check_due_servers,
    check_server,
    check_server_safely,
    claim_due_servers,
)
from mcp_servers.health.server_status import record_call_failure, record_failure
from mcp_servers.models import HealthCheck, Outage, Server
from mcp_servers.refresh_definitions import get_discovery_lifetime
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, set_server_enabled
from mcp_servers.subscriptions import leases
from mcp_servers.tasks import check_due_servers as check_due_servers_task
from mcp_servers.tasks import prune_health_history
from tests import factories
from tests.agents.conftest import WORKSHOP
from tests.servers import raw_http_server
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def administrator(transactional_db):
    return factories.build_administrator(factories.create_organization())


@pytest.fixture
def register(administrator):
    servers = []

    def register_server(name, *args):
        server = create_server(
            administrator,
            ServerSpec(
                name=name,
                transport_type="stdio",
                endpoint_config={"command": sys.executable, "args": list(args)},
            ),
        )
        servers.append(server)
        return server

    yield register_server
    for server in servers:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def server(register):
    return register("workshop", str(WORKSHOP), "stdio")


def reload(server):
    server.refresh_from_db()
    return server


def test_a_new_server_is_due_and_claimed_once(server):
    assert claim_due_servers(500) == [server.pk]
    assert claim_due_servers(500) == []


def test_a_disabled_server_is_never_due(administrator, server):
    set_server_enabled(administrator, server, enabled=False)
    assert claim_due_servers(500) == []


def test_the_first_check_discovers_the_server(server):
    get_runtime().call(check_server, server.pk)
    assert reload(server).status == Server.Status.CONNECTED
    assert server.definitions.exists()
    assert HealthCheck.objects.get().kind == HealthCheck.Kind.DISCOVERY


def test_later_checks_only_ping_the_server(server):
    get_runtime().call(check_server, server.pk)
    get_runtime().call(check_server, server.pk)
    assert list(HealthCheck.objects.values_list("kind", flat=True)) == ["health", "discovery"]
    assert reload(server).next_check_at > timezone.now()


def test_a_server_is_discovered_again_after_a_day(server):
    get_runtime().call(check_server, server.pk)
    Server.objects.filter(pk=server.pk).update(discovered_at=timezone.now() - timedelta(hours=25))
    get_runtime().call(check_server, server.pk)
    assert HealthCheck.objects.filter(kind="discovery").count() == 2


def test_a_server_is_discovered_again_when_its_ttl_expires(server):
    get_runtime().call(check_server, server.pk)
    Server.objects.filter(pk=server.pk).update(discovered_at=timezone.now() - timedelta(minutes=2))
    get_runtime().call(check_server, server.pk)
    assert HealthCheck.objects.filter(kind="discovery").count() == 2


def test_a_watched_server_isnt_polled(serve):
    serving, server = serve(lambda request: raw_http_server.error(request, -32601))
    leases.claim_servers(holder := uuid4(), 1)
    leases.mark_stream_opened(holder, server.pk)
    discovery = {**server.discovery, "ttlMs": 0}
    long_ago = timezone.now() - timedelta(hours=23)
    Server.objects.filter(pk=server.pk).update(discovered_at=long_ago, discovery=discovery)
    get_runtime().call(check_server, server.pk)
    assert serving.count_requests("tools/list") == 1
    leases.release_change_leases(holder)
    get_runtime().call(check_server, server.pk)
    assert serving.count_requests("tools/list") == 2


@given(st.integers())
def test_a_ttl_is_limited_to_between_a_minute_and_a_day(ttl_ms):
    lifetime = get_discovery_lifetime({"ttlMs": ttl_ms})
    assert timedelta(minutes=1) <= lifetime <= timedelta(days=1)
    if 60_000 <= ttl_ms <= 86_400_000:
        assert lifetime == timedelta(milliseconds=ttl_ms)


@pytest.mark.parametrize("discovery", [None, {}, {"ttlMs": None}, {"ttlMs": "1"}, {"ttlMs": True}])
def test_a_discovery_without_a_ttl_is_valid_for_a_day(discovery):
    assert get_discovery_lifetime(discovery) == timedelta(days=1)


def test_a_failure_is_stored_and_cleared_by_the_next_success(server):
    get_runtime().call(check_server, server.pk)
    good = server.endpoint_config
    Server.objects.filter(pk=server.pk).update(
        endpoint_config={"command": "/nowhere/at-all", "args": []}
    )
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    get_runtime().call(check_server_safely, server.pk)
    assert reload(server).status == Server.Status.ERROR
    assert server.status_detail
    Server.objects.filter(pk=server.pk).update(endpoint_config=good)
    get_runtime().call(check_server_safely, server.pk)
    assert (reload(server).status, server.failures) == (Server.Status.CONNECTED, 0)


def test_a_hanging_server_doesnt_delay_other_checks(register, settings):
    settings.BONOBOT_START_S = 60
    hanging = register("hanging", "-c", "import time; time.sleep(60)")
    server = register("workshop", str(WORKSHOP), "stdio")

    get_runtime().call(check_due_servers)
    eventually(HealthCheck.objects.filter(server=server).exists, within=20)
    assert reload(hanging).status == Server.Status.CONNECTING
    assert reload(server).status == Server.Status.CONNECTED
    # End its check before the test ends, so that it doesn't write afterwards.
    get_runtime().call(get_connection_pool().forget_server, hanging.pk)
    eventually(HealthCheck.objects.filter(server=hanging).exists, within=20)


@pytest.mark.parametrize(
    ("code", "status"), [("needs_reauth", "needs_reauth"), ("server_unreachable", "error")]
)
def test_the_error_decides_the_status(server, code, status):
    record_failure(server.pk, HealthCheck.Kind.HEALTH, Problem("no", code=code, remedy="Do this."))
    assert (reload(server).status, server.status_code) == (status, code)
    assert server.status_detail == "no Do this."


def test_a_connection_that_bonobot_closed_doesnt_affect_the_status(server):
    get_runtime().call(check_server, server.pk)
    record_call_failure(server.pk, build_closed_error(build_endpoint(server)).with_sent(True))
    assert (reload(server).status, server.status_code) == (Server.Status.CONNECTED, "")
    assert not Outage.objects.exists()


@given(st.integers(min_value=0, max_value=10_000), st.sampled_from(["http", "stdio"]))
def test_the_interval_grows_with_failures_up_to_its_limit(failures, transport):
    server = Server(transport_type=transport)
    assert compute_check_delay(server, failures) <= compute_check_delay(server, failures + 1)
    assert compute_check_delay(server, failures) <= max(
        BACKOFF_LIMIT, compute_check_delay(server, 0)
    )


def test_old_history_is_pruned(server):
    get_runtime().call(check_server, server.pk)
    assert prune_health_history() == 0
    HealthCheck.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert prune_health_history() == 1


def test_a_server_in_error_is_checked_again_within_an_hour(server):
    for _ in range(30):
        record_failure(server.pk, HealthCheck.Kind.HEALTH, Problem("no", code="server_unreachable"))
    assert reload(server).status == Server.Status.ERROR
    assert server.next_check_at <= timezone.now() + BACKOFF_LIMIT
    assert claim_due_servers(500) == []
    with time_machine.travel(timezone.now() + BACKOFF_LIMIT, tick=True):
        check_due_servers_task()
        eventually(lambda: reload(server).status == Server.Status.CONNECTED, within=30)
        assert (server.failures, server.status_code) == (0, "")
        assert server.next_check_at <= timezone.now() + compute_check_delay(server, 0)


def test_an_internal_error_doesnt_stop_other_checks_or_keep_an_old_state(
    register, server, monkeypatch
):
    other = register("other", str(WORKSHOP), "stdio")
    original = get_connection_pool().fetch_declarations

    async def broken(endpoint, **options):
        if endpoint.server_id == other.pk:
            raise RuntimeError("a fault of ours")
        return await original(endpoint, **options)

    monkeypatch.setattr(get_connection_pool(), "fetch_declarations", broken)
    get_runtime().call(check_due_servers)
    eventually(lambda: HealthCheck.objects.count() == 2, within=20)
    assert reload(server).status == Server.Status.CONNECTED
    assert (reload(other).status, other.status_code) == ("error", "internal_error")


def list_connection_entries():
    rows = AuditRow.objects.filter(event_type="connection").order_by("seq")
    return [(row.action, row.outcome, row.code) for row in rows]


def test_each_change_of_a_connection_is_recorded_once(server):
    before = load_policy_generation(server.organization_id)
    for _ in range(2):
        get_runtime().call(check_server, server.pk)
    problem_lost = Problem("It disconnected.", code="server_unreachable")
    for problem in (problem_lost, problem_lost, Problem("No.", code="needs_reauth")):
        record_failure(server.pk, HealthCheck.Kind.HEALTH, problem)
    get_runtime().call(check_server, server.pk)
    assert list_connection_entries() == [
        ("server_connected", "ok", ""),
        ("server_connection_lost", "error", "server_unreachable"),
        ("server_credentials_rejected", "error", "needs_reauth"),
        ("server_connected", "ok", ""),
    ]
    record_failure(server.pk, HealthCheck.Kind.HEALTH, problem_lost)
    after = load_policy_generation(server.organization_id)
    record_failure(server.pk, HealthCheck.Kind.HEALTH, Problem("No.", code="needs_reauth"))
    assert load_policy_generation(server.organization_id) == after > before


def test_a_server_that_never_answered_isnt_reported_as_disconnected(server):
    record_failure(server.pk, HealthCheck.Kind.HEALTH, Problem("Away.", code="server_unreachable"))
    assert list_connection_entries() == [
        ("server_connection_failed", "error", "server_unreachable")
    ]
