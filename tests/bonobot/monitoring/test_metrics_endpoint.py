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
OURS = re.compile(r"\bbonobot_[a-z_]+")


@pytest.fixture
def open_to_all(settings: Settings) -> str:
    settings.BONOBOT_METRICS_TOKEN = "a-long-token"
    return "Bearer a-long-token"


@pytest.fixture
def beat() -> Iterator[CollectorRegistry]:
    """A registry as beat has it beside the counters."""
    registry = CollectorRegistry()
    registry.register(metrics_endpoint.RowMetricsCollector())
    return registry


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Return the samples by their name and the values of their labels, in the order of these."""
    families = text_string_to_metric_families(text.decode("utf-8"))
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def value(*key: str) -> float:
    return samples(generate_latest(counted.registry)).get(key, 0.0)


def test_metrics_are_closed_by_default(settings: Settings) -> None:
    assert metrics_endpoint.build_response("Bearer x", "127.0.0.1")[0] == 404
    settings.BONOBOT_METRICS_TOKEN = "a-long-token"
    assert metrics_endpoint.build_response("", "127.0.0.1")[0] == 401
    assert metrics_endpoint.build_response("Bearer a-long-toke", "127.0.0.1")[0] == 401
    assert metrics_endpoint.build_response("Bearer a-long-token", "203.0.113.9")[0] == 200


def test_allowed_networks_need_no_token(settings: Settings) -> None:
    settings.BONOBOT_METRICS_NETWORKS = (ip_network("10.0.0.0/8"),)
    assert metrics_endpoint.build_response("", "10.1.2.3")[0] == 200
    assert [metrics_endpoint.build_response("", one)[0] for one in ("203.0.113.9", "", "::1")] == [
        401
    ] * 3


@pytest.mark.django_db(transaction=True)
def test_web_and_probes_return_the_same_metrics(open_to_all: str) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    headers = [(b"authorization", open_to_all.encode())]
    scope = {"type": "http", "path": "/metrics", "headers": headers, "client": ("127.0.0.1", 1)}
    get_runtime().call(asgi.application, scope, receive, send)
    assert sent[0]["status"] == 200
    status, _, body = ProbeServer(lambda: 0.0).handle_request(
        "/metrics", {"Authorization": open_to_all}
    )
    assert status == 200
    assert {name for name, *_ in samples(sent[1]["body"])} == {name for name, *_ in samples(body)}


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
        value("bonobot_calls_total", "call_timeout", "call", "error"),
        value("bonobot_refusals_total", "denied_by_rule", "call"),
        value("bonobot_call_seconds_count", "call"),
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
        value("bonobot_calls_total", "call_timeout", "call", "error"),
        value("bonobot_refusals_total", "denied_by_rule", "call"),
        value("bonobot_call_seconds_count", "call"),
    ]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 1]


def test_metric_labels_are_bounded_for_any_server_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "_codes", set())
    monkeypatch.setattr(counted, "MAX_CODES", 3)
    given = ["a", "b", "Ünïcode", "x" * 49, "c", "d", "a", ""]
    assert [counted.bound_label_value(code) for code in given] == [
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
    before = value("bonobot_http_requests_total", "api", "418")
    passed: list[Any] = []

    async def send(message: Any) -> None:
        passed.append(message)

    get_runtime().call(
        asgi.wrap_send_with_metrics("api", send), {"type": "http.response.start", "status": 418}
    )
    assert value("bonobot_http_requests_total", "api", "418") - before == 1
    assert len(passed) == 1


def test_the_scheduler_exports_metrics_of_the_rows(
    db: None, beat: CollectorRegistry, django_assert_max_num_queries: Any
) -> None:
    organization = Organization.objects.create(name="Acme", slug="acme")
    endpoint = ModelEndpoint.objects.create(organization=organization, name="m", model="m")
    agent = Agent.objects.create(
        organization=organization, name="A", slug="a", model_endpoint=endpoint
    )
    who = {"started_by_kind": "user", "started_by_id": "1", "started_by": "x"}
    for status in ("queued", "running", "done"):
        Session.objects.create(organization=organization, agent=agent, status=status, **who)
    RunnerRow.objects.create(host="a", pid=1, heartbeat_at=timezone.now())
    RunnerRow.objects.create(host="b", pid=2, heartbeat_at=timezone.now() - timedelta(hours=1))
    Budget.objects.create(organization=organization, unit="calls", limit=10)
    with django_assert_max_num_queries(20):
        found = samples(generate_latest(beat))
    assert found["bonobot_rows_readable",] == 1
    assert found["bonobot_waiting", "sessions"] == 1
    assert found["bonobot_sessions", "running"] == 1
    assert ("bonobot_sessions", "done") not in found
    assert found["bonobot_runners", "alive"] == found["bonobot_runners", "lapsed"] == 1
    assert found["bonobot_leases", "session", "lapsed"] == 1
    assert found["bonobot_budgets", "below"] == 1
    with django_assert_max_num_queries(0):
        generate_latest(beat)


def test_an_unavailable_database_is_a_metric(
    beat: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> Iterator[Any]:
        raise OperationalError("away")

    monkeypatch.setattr(metrics_endpoint, "collect_row_metrics", away)
    assert samples(generate_latest(beat)) == {("bonobot_rows_readable",): 0.0}


def exported() -> set[str]:
    """Return every name that a query may use."""
    found = {family.name for family in metrics_endpoint.list_families()}
    for family in counted.registry.collect():
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        parts = ("_bucket", "_sum", "_count") if family.type == "histogram" else ("",)
        found |= {f"{name}{part}" for part in parts}
    return found


def test_alerts_and_dashboards_use_exactly_the_exported_metrics() -> None:
    rules = (DEPLOY / "prometheus" / "alerts.yaml").read_text(encoding="utf-8")
    dashboard = (DEPLOY / "grafana" / "bonobot.json").read_text(encoding="utf-8")
    targets = [
        target["expr"] for panel in json.loads(dashboard)["panels"] for target in panel["targets"]
    ]
    asked = set(OURS.findall(" ".join([rules, *targets])))
    assert asked <= exported()
    ours = {re.sub("_(bucket|sum|count)$", "", name) for name in exported() if OURS.match(name)}
    drawn = {re.sub("_(bucket|sum|count)$", "", name) for name in asked}
    assert ours - drawn == {"bonobot_build_info"}


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
        ended = subprocess.run(
            ["promtool", *command],
            capture_output=True,
            check=False,
            cwd=DEPLOY / "prometheus",
            text=True,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_metrics_are_documented() -> None:
    told = set(OURS.findall((ROOT / "docs" / "operate.md").read_text(encoding="utf-8")))
    ours = {re.sub("_(bucket|sum|count)$", "", name) for name in exported() if OURS.match(name)}
    assert ours - {"bonobot_build_info"} <= told
