import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
import yaml
from django.db import OperationalError
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from agents.models import Agent, Budget, ModelEndpoint, Session
from agents.models import Runner as RunnerRow
from bonobot import asgi
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import metrics as counted
from bonobot.ledger.types import Actor, Admission, Opening, Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from bonobot.monitoring import metrics_endpoint
from bonobot.monitoring.probe_server import ProbeServer
from tests.parts import ROOT

DEPLOY = ROOT / "deploy"
NAME_PATTERN = re.compile(r"\bbonobot_[a-z_]+")


@pytest.fixture
def authorization(settings: Settings) -> str:
    settings.BONOBOT_METRICS_TOKEN = "a-long-token"
    return "Bearer a-long-token"


@pytest.fixture
def scheduler_registry() -> Iterator[CollectorRegistry]:
    """A registry like that of the scheduler."""
    registry = CollectorRegistry()
    registry.register(metrics_endpoint.RowMetricsCollector())
    return registry


def parse_samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Return the samples by their name and the values of their labels, sorted by label."""
    families = text_string_to_metric_families(text.decode("utf-8"))
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def read_value(*key: str) -> float:
    return parse_samples(generate_latest(counted.registry)).get(key, 0.0)


def test_metrics_are_closed_by_default(settings: Settings) -> None:
    assert metrics_endpoint.build_response("Bearer x", "127.0.0.1")[0] == 404
    settings.BONOBOT_METRICS_TOKEN = "a-long-token"
    assert metrics_endpoint.build_response("", "127.0.0.1")[0] == 401
    assert metrics_endpoint.build_response("Bearer a-long-toke", "127.0.0.1")[0] == 401
    assert metrics_endpoint.build_response("Bearer a-long-token", "203.0.113.9")[0] == 200


def test_allowed_networks_need_no_token(settings: Settings) -> None:
    settings.BONOBOT_METRICS_NETWORKS = (ip_network("10.0.0.0/8"),)
    assert metrics_endpoint.build_response("", "10.1.2.3")[0] == 200
    assert [
        metrics_endpoint.build_response("", address)[0] for address in ("203.0.113.9", "", "::1")
    ] == [401] * 3


@pytest.mark.django_db(transaction=True)
def test_web_and_probes_return_the_same_metrics(authorization: str) -> None:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    headers = [(b"authorization", authorization.encode())]
    scope = {"type": "http", "path": "/metrics", "headers": headers, "client": ("127.0.0.1", 1)}
    get_runtime().call(asgi.application, scope, receive, send)
    assert messages[0]["status"] == 200
    status, _, body = ProbeServer(lambda: 0.0).handle_request(
        "/metrics", {"Authorization": authorization}
    )
    assert status == 200
    assert {name for name, *_ in parse_samples(messages[1]["body"])} == {
        name for name, *_ in parse_samples(body)
    }


@pytest.mark.django_db(transaction=True)
def test_calls_and_denials_are_counted_by_the_writer() -> None:
    organization = Organization.objects.create(name="Acme", slug="acme")
    opening = Opening(
        call_id=uuid.uuid4(),
        organization_id=organization.pk,
        action="tool_call",
        event_type="call",
        resource_type="tool",
        resource_id="x",
        actor=Actor("user", "1", "somebody"),
        decision="allow",
    )
    before = [
        read_value("bonobot_calls_total", "call_timeout", "call", "error"),
        read_value("bonobot_refusals_total", "denied_by_rule", "call"),
        read_value("bonobot_call_seconds_count", "call"),
    ]
    get_writer().admit_call(Admission(opening=opening)).result()
    settlement = Settlement(
        call_id=opening.call_id,
        organization_id=organization.pk,
        outcome="error",
        code="call_timeout",
        duration_ms=1_500,
    )
    get_writer().settle_call(settlement).result()
    denied = replace(opening, call_id=uuid.uuid4(), decision="deny", code="denied_by_rule")
    get_writer().record_refusal(denied).result()
    after = [
        read_value("bonobot_calls_total", "call_timeout", "call", "error"),
        read_value("bonobot_refusals_total", "denied_by_rule", "call"),
        read_value("bonobot_call_seconds_count", "call"),
    ]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]


def test_metric_labels_are_bounded_for_any_server_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "_codes", set())
    monkeypatch.setattr(counted, "MAX_CODES", 3)
    codes = ["a", "b", "Ünïcode", "x" * 49, "c", "d", "a", ""]
    assert [counted.bound_label_value(code) for code in codes] == [
        "a",
        "b",
        "other",
        "other",
        "c",
        "other",
        "a",
        "",
    ]


def test_requests_are_counted_by_area_and_not_by_path() -> None:
    assert [
        asgi.classify_path(path) for path in ("/admin/agents/", "/api/x", "/api", "/zzz/1", "/")
    ] == [*("admin", "api", "api", "other", "other")]
    before = read_value("bonobot_http_requests_total", "api", "418")
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    response = asgi.ResponseSender(send)
    response.area = "api"
    get_runtime().call(response.__call__, {"type": "http.response.start", "status": 418})
    assert read_value("bonobot_http_requests_total", "api", "418") - before == 1
    assert len(messages) == 1


def test_the_scheduler_exports_metrics_of_the_rows(
    db: None, scheduler_registry: CollectorRegistry, django_assert_max_num_queries: Any
) -> None:
    organization = Organization.objects.create(name="Acme", slug="acme")
    endpoint = ModelEndpoint.objects.create(organization=organization, name="m", model="m")
    agent = Agent.objects.create(
        organization=organization, name="A", slug="a", model_endpoint=endpoint
    )
    starter = {"started_by_kind": "user", "started_by_id": "1", "started_by": "x"}
    for status in ("queued", "running", "done"):
        Session.objects.create(organization=organization, agent=agent, status=status, **starter)
    RunnerRow.objects.create(host="a", pid=1, heartbeat_at=timezone.now())
    RunnerRow.objects.create(host="b", pid=2, heartbeat_at=timezone.now() - timedelta(hours=1))
    Budget.objects.create(organization=organization, unit="calls", limit=10)
    with django_assert_max_num_queries(20):
        metrics = parse_samples(generate_latest(scheduler_registry))
    assert metrics["bonobot_rows_readable",] == 1
    assert metrics["bonobot_waiting", "sessions"] == 1
    assert metrics["bonobot_sessions", "running"] == 1
    assert ("bonobot_sessions", "done") not in metrics
    assert metrics["bonobot_runners", "alive"] == metrics["bonobot_runners", "lapsed"] == 1
    assert metrics["bonobot_leases", "session", "lapsed"] == 1
    assert metrics["bonobot_budgets", "below"] == 1
    with django_assert_max_num_queries(0):
        generate_latest(scheduler_registry)


def test_an_unavailable_database_is_a_metric(
    scheduler_registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Iterator[Any]:
        raise OperationalError("away")

    monkeypatch.setattr(metrics_endpoint, "collect_row_metrics", fail)
    assert parse_samples(generate_latest(scheduler_registry)) == {("bonobot_rows_readable",): 0.0}


def list_exported_names() -> set[str]:
    """Return all names that a query can use."""
    names = {family.name for family in metrics_endpoint.list_families()}
    for family in counted.registry.collect():
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        parts = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        names |= {f"{name}{part}" for part in parts}
    return names


def test_alerts_and_dashboards_use_exactly_the_exported_metrics() -> None:
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    dashboard = (DEPLOY / "grafana" / "bonobot.json").read_text(encoding="utf-8")
    targets = [
        target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]
    ]
    used = set(NAME_PATTERN.findall(" ".join([rules, *targets])))
    assert used <= list_exported_names()
    own_names = {
        re.sub("_(bucket|sum|count)$", "", name)
        for name in list_exported_names()
        if NAME_PATTERN.match(name)
    }
    displayed = {re.sub("_(bucket|sum|count)$", "", name) for name in used}
    assert own_names - displayed == {"bonobot_build_info"}


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    text = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    rules = [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    pages = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\w+)$", pages, re.MULTILINE) == [rule["alert"] for rule in rules]
    for rule in rules:
        assert rule["annotations"]["runbook"] == f"docs/runbooks.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


@pytest.mark.promtool
def test_prometheus_accepts_the_rules() -> None:
    for command in (
        ["check", "rules", "alerts.yaml"],
        ["check", "config", "--syntax-only", "scrape.yaml"],
    ):
        result = subprocess.run(
            ["promtool", *command],
            capture_output=True,
            check=False,
            cwd=DEPLOY / "prometheus",
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr


def test_metrics_are_documented() -> None:
    documented = set(
        NAME_PATTERN.findall((ROOT / "docs" / "operate.md").read_text(encoding="utf-8"))
    )
    own_names = {
        re.sub("_(bucket|sum|count)$", "", name)
        for name in list_exported_names()
        if NAME_PATTERN.match(name)
    }
    assert own_names - {"bonobot_build_info"} <= documented
