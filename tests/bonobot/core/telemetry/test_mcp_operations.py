"""MCP requests as spans and durations, received by an OTLP endpoint (opentelemetry-proto)."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from mcp.shared.exceptions import MCPError
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bonobot.core.telemetry import mcp_operations, tracing
from mcp_servers.client.errors import UpstreamError
from tests.traces import PARENT, TRACE, collect_spans


class OtlpReceiver:
    """An OTLP over HTTP endpoint that keeps what it receives."""

    def __init__(self) -> None:
        self.spans: dict[str, Any] = {}
        self.points: list[tuple[str, Any]] = []
        self.bodies = b""
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            """Parses exports of traces and metrics."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.add_export(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Write nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def add_export(self, path: str, body: bytes) -> None:
        """Keep the spans or the measurements of an export."""
        self.bodies += body
        if path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(body)
            scopes = (scope for item in traces.resource_spans for scope in item.scope_spans)
            self.spans |= {span.name: span for scope in scopes for span in scope.spans}
            return
        metrics = ExportMetricsServiceRequest.FromString(body)
        for item in metrics.resource_metrics:
            for scope in item.scope_metrics:
                for metric in scope.metrics:
                    assert metric.unit == "s"
                    self.points += [(metric.name, point) for point in metric.histogram.data_points]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A receiver that traces and metrics are sent to."""
    monkeypatch.setitem(os.environ, "OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    receiver = OtlpReceiver()
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    yield receiver
    receiver.server.shutdown()
    thread.join()
    receiver.server.server_close()


def read_attributes(item: Any) -> dict[str, Any]:
    return {pair.key: pair.value.string_value or pair.value.int_value for pair in item.attributes}


def call_tool(**result: Any) -> None:
    observed = mcp_operations.observe_operation(
        "server",
        "tools/call",
        {"network.transport": "tcp", "left_out": ""},
        span_attributes={"jsonrpc__request__id": "7"},
        carrier={"traceparent": PARENT},
    )
    with observed as operation:
        assert operation is not None
        operation.finish(result, "echo")


def test_a_collector_receives_spans_and_durations_of_both_roles(receiver: OtlpReceiver) -> None:
    traces = tracing.start_tracing(f"{receiver.url}/v1/traces", "1")
    metrics = mcp_operations.start_metrics(f"{receiver.url}/v1/metrics", "1")
    try:
        call_tool(isError=True, content=[{"type": "text", "text": "a secret"}])
        with mcp_operations.observe_operation("client", "tools/list", {}):
            pass
    finally:
        traces.shutdown()
        metrics.shutdown()
        tracing.set_tracer_provider(None)
        mcp_operations.set_meter_provider(None)
    span = receiver.spans["tools/call echo"]
    attributes = {
        "mcp.method.name": "tools/call",
        "network.transport": "tcp",
        "gen_ai.tool.name": "echo",
        "gen_ai.operation.name": "execute_tool",
        "error.type": "tool_error",
    }
    assert span.trace_id.hex() == TRACE
    assert read_attributes(span) == attributes | {"jsonrpc.request.id": "7"}
    assert (span.kind, receiver.spans["tools/list"].kind) == (2, 3)
    points = {name: read_attributes(point) for name, point in receiver.points}
    assert points == {
        "mcp.server.operation.duration": attributes,
        "mcp.client.operation.duration": {"mcp.method.name": "tools/list"},
    }
    bounds = {tuple(point.explicit_bounds) for _, point in receiver.points}
    assert bounds == {mcp_operations.DURATION_BUCKETS}
    assert b"a secret" not in receiver.bodies


def test_nothing_is_observed_when_neither_is_configured() -> None:
    assert not tracing.is_observing_mcp()
    with mcp_operations.observe_operation("server", "a", {}) as operation:
        assert operation is None


@pytest.mark.parametrize(
    ("error", "error_type", "status_code"),
    [
        (MCPError(code=-32602, message="a secret"), "-32602", "-32602"),
        (
            UpstreamError("a secret", code="upstream_error", server="s", rpc_code=-32000),
            "-32000",
            "-32000",
        ),
        (
            UpstreamError("a secret", code="server_unreachable", server="s"),
            "server_unreachable",
            None,
        ),
        (ValueError("a secret"), "ValueError", None),
    ],
)
def test_an_error_is_recorded_by_its_codes_and_the_name_stays_unknown(
    error: Exception, error_type: str, status_code: str | None
) -> None:
    with (
        collect_spans() as spans,
        pytest.raises(type(error)),
        mcp_operations.observe_operation("server", "tools/call", {}),
    ):
        raise error
    (span,) = spans.get_finished_spans()
    assert span.name == "tools/call"
    assert (span.attributes or {})["error.type"] == error_type
    assert (span.attributes or {}).get("rpc.response.status_code") == status_code
    assert "a secret" not in span.to_json()


def test_without_the_sdk_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(ImproperlyConfigured, match=r"BONOBOT_OTLP_METRICS"):
        mcp_operations.start_metrics("http://127.0.0.1:1/v1/metrics", "1")
