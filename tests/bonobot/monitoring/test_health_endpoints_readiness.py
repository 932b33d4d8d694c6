import http.client
import json
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet, MultiFernet
from django.db import OperationalError, connection
from django.test import RequestFactory
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from encrypted_model_fields import fields
from pytest_django import Settings

from agents.models import ModelEndpoint
from agents.models import Runner as RunnerRow
from bonobot import asgi
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.jobs import schedules
from bonobot.jobs.celery_beat import BonobotScheduler
from bonobot.monitoring import database_state, health_endpoints
from bonobot.monitoring.probe_server import ProbeServer

# The runtime's threads close their connections.
committed = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _reset_caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(health_endpoints._KeyProbeResult, "at", 0.0)
    monkeypatch.setattr(health_endpoints, "readiness_cache", health_endpoints.ReadinessCache())
    yield
    health_endpoints._KeyProbeResult.at = 0.0


@pytest.fixture
def complete_installation(db: None) -> None:
    """A scheduler and a worker that run."""
    schedules.sync_schedules(schedules.get_scheduled_entries())
    PeriodicTask.objects.filter(name=schedules.HEARTBEAT).update(last_run_at=timezone.now())
    RunnerRow.objects.create(host="one", pid=1, heartbeat_at=timezone.now())


def get_readiness(query: str = "") -> tuple[int, str, dict[str, str]]:
    response = health_endpoints.answer_readyz(RequestFactory().get(f"/readyz{query}"))
    body = json.loads(response.content)
    return (
        response.status_code,
        body["status"],
        {check["name"]: check["state"] for check in body["checks"]},
    )


def test_a_complete_installation_is_ready(complete_installation: None) -> None:
    names = ("database", "migrations", "keys", "broker", "beat", "worker", "loop")
    assert get_readiness() == (200, "ready", dict.fromkeys(names, "ok"))


def test_a_missing_worker_or_scheduler_degrades_but_keeps_web_ready(db: None) -> None:
    status, summary, states = get_readiness()
    assert (status, summary) == (200, "degraded")
    assert {name for name, state in states.items() if state == "failed"} == {"beat", "worker"}
    assert get_readiness("?all")[:2] == (503, "degraded")


def test_a_worker_without_heartbeats_counts_as_missing(complete_installation: None) -> None:
    RunnerRow.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert get_readiness()[2]["worker"] == "failed"


def test_a_silent_scheduler_is_reported(complete_installation: None) -> None:
    long_ago = timezone.now() - timedelta(hours=1)
    PeriodicTask.objects.filter(name=schedules.HEARTBEAT).update(last_run_at=long_ago)
    assert get_readiness()[2]["beat"] == "failed"


def test_an_unavailable_database_is_unready_and_its_address_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OperationalError("connection to 10.0.0.5 as bonobot refused")

    monkeypatch.setattr(health_endpoints.connection, "cursor", fail)
    response = health_endpoints.answer_readyz(RequestFactory().get("/readyz"))
    assert response.status_code == 503
    assert b"10.0.0.5" not in response.content


def test_missing_migrations_are_unready(
    complete_installation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        database_state, "find_readiness_problem", lambda: "3 migrations aren't applied"
    )
    names = ("database", "migrations", "broker", "loop")
    assert get_readiness() == (
        503,
        "unready",
        dict.fromkeys(names, "ok") | {"migrations": "failed"},
    )


def test_keys_that_cant_decrypt_stored_values_are_unready(
    complete_installation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    organization = Organization.objects.create(name="Acme", slug="acme")
    ModelEndpoint.objects.create(organization=organization, name="x", api_key="sk-123", model="m")
    assert get_readiness()[2]["keys"] == "ok"
    monkeypatch.setattr(fields, "CRYPTER", MultiFernet([Fernet(Fernet.generate_key())]))
    assert get_readiness()[2]["keys"] == "ok", "tried once a minute"
    health_endpoints._KeyProbeResult.at = 0.0
    status, summary, states = get_readiness()
    assert (status, summary, states["keys"]) == (503, "unready", "failed")


def test_a_token_whose_pepper_is_missing_is_reported(
    complete_installation: None, settings: Settings
) -> None:
    from bonobot.accounts.models import Token

    organization = Organization.objects.create(name="Acme", slug="acme")
    Token.objects.create(
        organization=organization, name="x", key="k", pepper_id=7, digest="d", role="member"
    )
    assert list(health_endpoints.list_unreadable_fields()) == ["tokens"]


@committed
def test_readiness_is_answered_before_django(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (health_endpoints.ReadinessPart("worker", "failed", "0 alive"),)
    report = health_endpoints.ReadinessReport(parts, time.monotonic())
    monkeypatch.setattr(health_endpoints, "measure_readiness", lambda: report)
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    for query in (b"", b"all"):
        scope = {"type": "http", "path": "/readyz", "query_string": query, "headers": []}
        get_runtime().call(asgi.application, scope, receive, send)
    assert [event["status"] for event in messages[::2]] == [200, 503]
    assert json.loads(messages[1]["body"])["status"] == "degraded"


@committed
def test_readiness_is_cached_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure() -> health_endpoints.ReadinessReport:
        calls.append(1)
        return health_endpoints.ReadinessReport((), time.monotonic())

    monkeypatch.setattr(health_endpoints, "measure_readiness", measure)
    cache = health_endpoints.ReadinessCache()
    for _ in range(5):
        get_runtime().call(cache.get_report)
    assert calls == [1]


@committed
def test_a_hanging_database_is_reported_and_queried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls = threading.Event(), []

    def hang() -> health_endpoints.ReadinessReport:
        calls.append(1)
        release.wait(20)
        return health_endpoints.ReadinessReport((), time.monotonic())

    monkeypatch.setattr(health_endpoints, "measure_readiness", hang)
    monkeypatch.setattr(health_endpoints, "REPORT_TIMEOUT_S", 0.01)
    cache = health_endpoints.ReadinessCache()
    try:
        assert [get_runtime().call(cache.get_report).status for _ in range(3)] == ["unready"] * 3
        assert calls == [1]
    finally:
        release.set()


def test_readiness_uses_a_fixed_number_of_queries(
    complete_installation: None, django_assert_max_num_queries: Any
) -> None:
    database_state.find_readiness_problem()
    get_readiness()
    with django_assert_max_num_queries(3):  # the database, beat, workers; keys once a minute
        get_readiness()


def send_request(port: int, path: str) -> tuple[int, dict[str, Any]]:
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        link.request("GET", path)
        response = link.getresponse()
        return response.status, json.loads(response.read())
    finally:
        link.close()


def test_worker_and_scheduler_answer_probes_on_the_next_free_port() -> None:
    ages = [0.0]
    first, second = ProbeServer(lambda: ages[0]), ProbeServer(BonobotScheduler.measure_tick_age_s)
    port = first.start("127.0.0.1", 28_430)
    try:
        assert second.start("127.0.0.1", port) > port
        assert send_request(port, "/healthz") == (200, {"status": "ok"})
        assert send_request(port, "/elsewhere")[0] == 404
        ages[0] = 60.0
        assert send_request(port, "/healthz")[0] == 503
    finally:
        first.stop()
        second.stop()


def test_a_worker_with_a_stuck_scheduler_is_stuck() -> None:
    server = ProbeServer(lambda: 0.0)
    assert server.handle_request("/healthz", {})[0] == 200
    server.watch(lambda: 60.0)
    assert server.handle_request("/healthz", {})[0] == 503


def test_a_probe_returns_the_readiness_of_its_process(complete_installation: None) -> None:
    status, _, body = ProbeServer(lambda: 0.0).handle_request("/readyz?all", {})
    assert (status, json.loads(body)["status"]) == (200, "ready")
    assert connection.vendor
