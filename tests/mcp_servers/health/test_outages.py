"""Outages of servers: state changes, notifications, and pages."""

from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.types import Actor
from bonobot.ledger.usage import build_rollups
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from bonobot.notifications.models import Notification
from mcp_servers.client.list_definitions import RawDefinition, ServerDeclarations
from mcp_servers.discovery import save_declarations
from mcp_servers.health.check_delays import compute_check_delay
from mcp_servers.health.outages import (
    list_recent_outages,
    list_unmonitored_periods,
    list_unmonitored_spans,
)
from mcp_servers.health.server_status import (
    build_connection_status,
    record_contact,
    record_failure,
)
from mcp_servers.health.uptime import compute_downtime
from mcp_servers.health.uptime_windows import load_uptime_windows
from mcp_servers.models import HealthCheck, Outage, Server, UnmonitoredPeriod
from mcp_servers.services import set_server_enabled
from mcp_servers.tasks import prune_health_history
from tests import admin_client, factories, large_organization, rest

pytestmark = pytest.mark.django_db
UNREACHABLE = Problem("Nobody listens.", code="server_unreachable", remedy="Start it.")
REAUTH = Problem("It said 401.", code="needs_reauth", remedy="Enter a new token.")


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def server(acme):
    return admin_client.create_web_server(acme)


@pytest.fixture
def pager(acme):
    spec = NotificationChannelSpec("Pager", "webhook", url="https://hooks.example.com/x")
    return save_channel(factories.build_administrator(acme), spec)[0]


def fail(server, times=1, problem=UNREACHABLE):
    for _ in range(times):
        record_failure(server.pk, HealthCheck.Kind.HEALTH, problem)


def succeed(server, latency_ms=10):
    record_contact(Server.objects.get(pk=server.pk), HealthCheck.Kind.HEALTH, latency_ms)


def list_events():
    return list(Notification.objects.order_by("created_at").values_list("event", flat=True))


def test_an_outage_lasts_from_the_first_failure_to_the_first_success(server):
    fail(server, 3)
    outage = Outage.objects.get()
    assert (outage.failures, outage.code, outage.ended_at) == (3, "server_unreachable", None)
    succeed(server)
    outage.refresh_from_db()
    assert outage.ended_at is not None
    fail(server)
    assert Outage.objects.count() == 2


def test_a_disabled_server_has_no_outage(acme, server):
    fail(server)
    set_server_enabled(factories.build_administrator(acme), server, enabled=False)
    assert not Outage.objects.filter(ended_at=None).exists()
    fail(server)
    assert Outage.objects.count() == 1


def test_people_are_notified_once_after_three_failures(server, pager):
    fail(server, 2)
    assert list_events() == []
    fail(server, 3)
    assert list_events() == ["server_down"]
    notification = Notification.objects.get()
    assert "Nobody listens. Start it." in notification.text
    assert str(server.pk) in notification.link


def test_people_who_were_notified_are_notified_of_the_end(server, pager):
    fail(server, 3)
    Notification.objects.update(state=Notification.State.SENT, attempts=1)
    succeed(server)
    assert list_events() == ["server_down", "server_up"]


def test_a_short_failure_isnt_notified(server, pager):
    fail(server, 2)
    succeed(server)
    assert list_events() == []


def test_a_flapping_server_is_notified_once_per_quarter_hour(server, pager):
    with time_machine.travel(timezone.now(), tick=False) as clock:
        for _ in range(5):
            fail(server, 3)
            Notification.objects.due().update(state=Notification.State.SENT, attempts=1)
            clock.shift(timedelta(minutes=1))
            succeed(server)
            Notification.objects.due().update(state=Notification.State.SENT, attempts=1)
            clock.shift(timedelta(minutes=1))
        assert Notification.objects.filter(state=Notification.State.SENT).count() == 2
        fail(server, 3)
        clock.shift(timedelta(minutes=20))
        assert [notification.event for notification in Notification.objects.due()] == [
            "server_down"
        ]


def test_missing_credentials_are_notified_immediately_with_a_remedy(server, pager):
    fail(server, problem=REAUTH)
    fail(server, problem=REAUTH)
    assert list_events() == ["needs_reauth"]
    assert "Enter a new token." in Notification.objects.get().text


def build_declarations(*names):
    items = [
        RawDefinition("tool", name, {"name": name, "inputSchema": {"type": "object"}})
        for name in names
    ]
    return ServerDeclarations(
        era="modern",
        protocol_version="2026-07-28",
        server_info={},
        capabilities={},
        instructions="",
        discovery={},
        items=tuple(items),
        complete=frozenset({"tool"}),
        latency_ms=5,
    )


def discover(server, *names):
    actor = Actor(kind="system", id="t", label="t")
    save_declarations(
        server.pk, build_declarations(*names), {}, actor=actor, kind=HealthCheck.Kind.DISCOVERY
    )


def test_definitions_to_review_are_notified_once_per_discovery(server, pager):
    discover(server, "add", "subtract")
    assert list_events() == ["definitions_waiting"]
    assert "add, subtract" in Notification.objects.get().text
    discover(server, "add", "subtract")
    assert list_events() == ["definitions_waiting"]
    discover(server, "add", "subtract", "divide")
    assert len(list_events()) == 2


def test_automatically_approved_definitions_arent_notified(server, pager):
    Server.objects.filter(pk=server.pk).update(approval="always")
    discover(server, "add")
    assert list_events() == []


def test_windows_count_time_calls_and_latencies(server, django_assert_num_queries):
    now = timezone.now()
    long_ago = now - timedelta(days=60)
    Server.objects.filter(pk=server.pk).update(created_at=long_ago, checked_at=now)
    for latency in range(1, 101):
        succeed(server, latency)
    Outage.objects.create(
        organization_id=server.organization_id,
        server=server,
        code="server_unreachable",
        began_at=now - timedelta(hours=36),
        ended_at=now - timedelta(hours=18),
    )
    server.refresh_from_db()
    with django_assert_num_queries(8):
        day, week, month = load_uptime_windows(server, list_recent_outages(server, now), now)
    assert (day.p50, day.p95, day.checks, day.failures) == (50, 95, 100, 0)
    assert day.uptime == pytest.approx(75)
    assert week.uptime == pytest.approx(100 * (1 - 18 / 168))
    assert (day.outages, month.outages) == (1, 1)


def test_windows_count_aggregated_and_recent_calls(server):
    organization, now = server.organization, timezone.now()
    large_organization.create_calls(
        organization, factories.create_agent(organization), [server], 48
    )  # one an hour
    for _ in range(2):
        day, week, month = load_uptime_windows(server, [], now)
        assert 23 <= day.calls <= 25
        assert (week.calls, month.calls) == (48, 48)
        build_rollups.count_organization(organization.pk)


def test_a_time_without_a_worker_doesnt_count_as_uptime(server):
    begin = timezone.now()
    with time_machine.travel(begin, tick=False) as clock:
        succeed(server)
        clock.shift(timedelta(minutes=1))
        succeed(server)
        clock.shift(timedelta(hours=8))
        assert compute_day_uptime(server) == pytest.approx(100)
        assert compute_unmonitored_time(server) == timedelta(hours=8)
        fail(server)
        clock.shift(timedelta(minutes=3))
        fail(server)
        [gap] = UnmonitoredPeriod.objects.all()
        assert gap.ended_at - gap.began_at == timedelta(hours=8)
        # One minute up and three minutes down are known; the night is unmonitored.
        assert compute_day_uptime(server) == pytest.approx(25, abs=0.1)


def test_a_disabled_server_has_no_further_uptime(acme, server):
    with time_machine.travel(timezone.now(), tick=False) as clock:
        succeed(server)
        clock.shift(timedelta(minutes=5))
        succeed(server)
        set_server_enabled(factories.build_administrator(acme), server, enabled=False)
        clock.shift(timedelta(hours=5))
        assert compute_unmonitored_time(server) == timedelta(hours=5)
        page = admin_client.sign_in(acme, Role.AUDITOR).get("mcp_servers_server_changelist")
        assert page.count("not checked") == 23
        server.refresh_from_db()
        set_server_enabled(factories.build_administrator(acme), server, enabled=True)
        succeed(server)
        assert compute_unmonitored_time(server) == timedelta(hours=5)


def test_checks_in_time_leave_no_gap(server):
    with time_machine.travel(timezone.now(), tick=False) as clock:
        for failures in range(8):
            fail(server)
            server.refresh_from_db()
            clock.shift(compute_check_delay(server, failures + 1) + timedelta(seconds=30))
        succeed(server)
    assert not UnmonitoredPeriod.objects.exists()


def compute_day_uptime(server):
    server.refresh_from_db()
    return load_uptime_windows(server, list_recent_outages(server, timezone.now()), timezone.now())[
        0
    ].uptime


def compute_unmonitored_time(server):
    server.refresh_from_db()
    now = timezone.now()
    spans = list_unmonitored_spans(server, now, list_unmonitored_periods(server, now))
    return compute_downtime(spans, now - timedelta(days=1), now)


def test_a_server_that_wasnt_checked_has_no_uptime(server):
    now = timezone.now()
    assert [window.uptime for window in load_uptime_windows(server, [], now)] == [None, None, None]
    assert [window.p95 for window in load_uptime_windows(server, [], now)] == [None, None, None]


def test_a_server_that_never_connected_has_no_uptime_and_no_disconnection(acme, server):
    Server.objects.update(created_at=timezone.now() - timedelta(hours=1))
    fail(server, 2)
    server.refresh_from_db()
    outages = list(Outage.objects.all())
    windows = load_uptime_windows(server, outages, timezone.now() + timedelta(minutes=1))
    assert [window.uptime for window in windows] == [0, 0, 0]
    assert build_connection_status(server, outages).disconnected_at is None
    succeed(server)
    server.refresh_from_db()
    windows = load_uptime_windows(server, list(Outage.objects.all()), timezone.now())
    assert windows[0].uptime > 0


def test_old_outages_are_deleted_and_open_ones_kept(server):
    fail(server)
    long_ago = timezone.now() - timedelta(days=40)
    Outage.objects.update(began_at=long_ago)
    HealthCheck.objects.all().delete()
    assert prune_health_history() == 0
    Outage.objects.update(ended_at=long_ago)
    assert prune_health_history() == 1


def test_the_history_page_shows_outages_and_their_cause(acme, server):
    browser = admin_client.sign_in(acme, Role.AUDITOR)
    assert "Not checked yet." in browser.get("mcp_servers_server_health", server.pk)
    succeed(server, 20)
    succeed(server, 40)
    fail(server, 2)
    page = browser.get("mcp_servers_server_health", server.pk)
    assert "Nobody listens." in page
    assert "ongoing" in page
    assert "<polyline" in page
    assert "bb-timeline" in browser.get("mcp_servers_server_changelist")


def test_history_and_uptime_over_rest(acme, server):
    client = rest.as_role(acme, Role.AUDITOR)
    succeed(server)
    fail(server, 2)
    first = client.get(f"mcp-servers/{server.pk}/history?limit=2")
    assert [row["code"] for row in first.json["results"]] == ["server_unreachable"] * 2
    [last] = client.get(first.json["next"]).json["results"]
    assert (last["ok"], last["latency_ms"]) == (True, 10)
    assert len(client.get(f"mcp-servers/{server.pk}/history?ok=false").json["results"]) == 2
    data = client.get(f"mcp-servers/{server.pk}/uptime").json
    assert [row["name"] for row in data["windows"]] == ["24h", "7d", "30d"]
    assert data["connection"]["error_code"] == "server_unreachable"
    assert data["outages"][0]["ended_at"] is None
