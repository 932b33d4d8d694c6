"""MCP requests as spans and durations, received by an OTLP endpoint (opentelemetry-proto)."""

import gzip
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
from tests.parts import ROOT
from tests.traces import PARENT, TRACE, collect_spans
from tests.wait import eventually

SDK1 = ROOT / ".venv-sdk1"


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
                if self.headers["Content-Encoding"] == "gzip":
                    body = gzip.decompress(body)
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


@contextmanager
def run_collector(target: str, folder: Path) -> Iterator[str]:
    """Run a collector of PyPI (rotel) that passes everything on to `target`; yield its URL."""
    with socket.socket() as free_socket:
        free_socket.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free_socket.getsockname()[1]}"
    [program] = SDK1.glob("lib/python3*/site-packages/rotel/rotel-agent")
    options = {
        "--otlp-http-endpoint": address,
        "--otlp-grpc-endpoint": "127.0.0.1:0",
        "--exporter": "otlp",
        "--otlp-exporter-endpoint": target,
        "--otlp-exporter-protocol": "http",
        "--pid-file": str(folder / "pid"),
        "--log-file": str(folder / "log"),
    }
    words = [word for pair in options.items() for word in pair]
    with subprocess.Popen(
        [str(program), "start", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as collector:
        try:
            eventually(lambda: can_connect(address), within=15, what="the collector")
            yield f"http://{address}"
        finally:
            collector.terminate()


def can_connect(address: str) -> bool:
    host, _, port = address.partition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 1):
        return True
    return False


@pytest.mark.sdk1
def test_a_collector_of_another_vendor_understands_both_signals(
    receiver: OtlpReceiver, tmp_path: Path
) -> None:
    with run_collector(receiver.url, tmp_path) as url:
        traces = tracing.start_tracing(f"{url}/v1/traces", "1")
        metrics = mcp_operations.start_metrics(f"{url}/v1/metrics", "1")
        try:
            call_tool(content=[])
            with mcp_operations.observe_operation("client", "tools/list", {}):
                pass
        finally:
            traces.shutdown()
            metrics.shutdown()
            tracing.set_tracer_provider(None)
            mcp_operations.set_meter_provider(None)
        eventually(lambda: len(receiver.points) == 2, within=15, what="durations")
        eventually(lambda: "tools/list" in receiver.spans, within=15, what="spans")
    span = receiver.spans["tools/call echo"]
    assert span.trace_id.hex() == TRACE
    assert read_attributes(span)["mcp.method.name"] == "tools/call"
    points = {name: read_attributes(point)["mcp.method.name"] for name, point in receiver.points}
    assert points == {
        "mcp.server.operation.duration": "tools/call",
        "mcp.client.operation.duration": "tools/list",
    }


def test_nothing_is_observed_when_neither_is_configured() -> None:
    assert not tracing.TracingState.is_observing_mcp
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
