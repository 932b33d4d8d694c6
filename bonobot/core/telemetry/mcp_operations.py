"""MCP requests as OpenTelemetry spans and durations, for both roles.

Follows the semantic conventions for MCP (`open-telemetry/semantic-conventions-genai`, in
development). Off unless `BONOBOT_TRACES` or `BONOBOT_OTLP_METRICS` is set; while off,
`TracingState.is_observing_mcp` is false, and this module isn't used. Arguments, results, URIs of
resources, which may contain arguments, and session ids, which are secrets, are never recorded.
Names that clients send are recorded only after the request succeeded, because other names can be
anything.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from django.core.exceptions import ImproperlyConfigured
from opentelemetry.metrics import Histogram, MeterProvider
from opentelemetry.trace import Span

from bonobot.core.telemetry import tracing

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider

Role = Literal["client", "server"]
# Seconds, as the conventions advise.
DURATION_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TARGET_ATTRIBUTES = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
TOOL_ERROR = "tool_error"


class _MetricsState:
    histograms: Mapping[Role, Histogram] | None = None


class McpOperation:
    """A request that is being observed."""

    def __init__(self, method: str, attributes: Mapping[str, Any]) -> None:
        self.method = method
        self.attributes: dict[str, Any] = {"mcp.method.name": method, **attributes}
        self.span: Span | None = None

    def finish(self, result: Mapping[str, Any], target: Any = None) -> None:
        """Record the known name of the tool or prompt, and whether a tool failed."""
        self.set_target(target)
        if self.method == "tools/call" and result.get("isError") is True:
            self.attributes["error.type"] = TOOL_ERROR

    def set_target(self, target: Any) -> None:
        """Record the name of the tool or prompt, also in the span's name."""
        name = TARGET_ATTRIBUTES.get(self.method)
        if name is None or not isinstance(target, str) or not target:
            return
        self.attributes[name] = target
        if self.method == "tools/call":
            self.attributes["gen_ai.operation.name"] = "execute_tool"
        if self.span is not None:
            self.span.update_name(f"{self.method} {target}")

    def record_error(self, error: BaseException) -> None:
        rpc_code = getattr(error, "rpc_code", None)
        if rpc_code is None:
            rpc_code = getattr(getattr(error, "error", None), "code", None)
        if rpc_code is not None:
            self.attributes["rpc.response.status_code"] = str(rpc_code)
        code = rpc_code or getattr(error, "code", None) or type(error).__name__
        self.attributes["error.type"] = str(code)


def start_metrics(url: str, version: str) -> "SdkMeterProvider":
    """Send durations to a collector (OTLP over HTTP), and return their provider.

    Raises ImproperlyConfigured without the SDK.

    The SDK's variables apply, such as `OTEL_METRIC_EXPORT_INTERVAL`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ImportError:
        raise ImproperlyConfigured(
            "`BONOBOT_OTLP_METRICS` is set, but OpenTelemetry isn't installed: "
            '`pip install "bonobot[otel]"`.'
        ) from None
    resource = Resource.create({"service.name": "bonobot", "service.version": version})
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(endpoint=url))
    provider = SdkMeterProvider([reader], resource)
    set_meter_provider(provider)
    return provider


def set_meter_provider(provider: MeterProvider | None) -> None:
    """Use a provider for durations; None turns metrics off."""
    tracing.set_has_metrics(provider is not None)
    if provider is None:
        _MetricsState.histograms = None
        return
    meter = provider.get_meter("bonobot")
    roles: tuple[Role, ...] = ("client", "server")
    _MetricsState.histograms = {
        role: meter.create_histogram(
            f"mcp.{role}.operation.duration",
            unit="s",
            description="The duration of MCP requests.",
            explicit_bucket_boundaries_advisory=DURATION_BUCKETS,
        )
        for role in roles
    }


def observe_operation(
    role: Role,
    method: str,
    attributes: Mapping[str, Any],
    *,
    span_attributes: Mapping[str, Any] | None = None,
    carrier: Mapping[str, Any] | None = None,
) -> AbstractContextManager[McpOperation | None]:
    """Observe one request as a context manager; `carrier` is the `_meta` of an incoming one.

    `span_attributes` have too many different values for a metric. None and blank values of
    attributes are omitted.
    """
    if not tracing.TracingState.is_observing_mcp:
        return nullcontext()
    return _observe(role, method, attributes, span_attributes or {}, carrier)


@contextmanager
def _observe(
    role: Role,
    method: str,
    attributes: Mapping[str, Any],
    span_attributes: Mapping[str, Any],
    carrier: Mapping[str, Any] | None,
) -> Iterator[McpOperation]:
    operation = McpOperation(method, {key: value for key, value in attributes.items() if value})
    started_at = perf_counter()
    with tracing.start_span(method, kind=role, carrier=carrier, **span_attributes) as span:
        operation.span = span
        try:
            yield operation
        except BaseException as error:
            operation.record_error(error)
            raise
        finally:
            if _MetricsState.histograms is not None:
                duration_s = perf_counter() - started_at
                _MetricsState.histograms[role].record(duration_s, operation.attributes)
            if span is not None:
                span.set_attributes(operation.attributes)
                tracing.mark_span_failed(span, operation.attributes.get("error.type", ""))
