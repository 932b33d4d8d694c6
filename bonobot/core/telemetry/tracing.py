"""OpenTelemetry spans.

Off unless `BONOBOT_TRACES` names a collector; while off, `start_span` is one comparison and the
OpenTelemetry SDK (the extra `otel`) isn't loaded. The context is received from clients and passed
to servers in `_meta` (`traceparent`, `tracestate`; MCP 2026-07-28). Spans contain names, ids, codes
and counts, never arguments, results, messages or an exception's text.

The provider isn't global, so libraries that use the global one trace nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from django.core.exceptions import ImproperlyConfigured
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Kind = Literal["internal", "server", "client"]
TRACE_CONTEXT_KEYS = ("traceparent", "tracestate")

_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_PROPAGATOR = TraceContextTextMapPropagator()
NO_SPAN: AbstractContextManager[Span | None] = nullcontext()


class TracingState:
    """What is on: `tracer` is set while traces are, `has_metrics` while metrics of MCP are.

    Read for each request, so `is_observing_mcp` (either of them) isn't computed then.
    """

    tracer: Tracer | None = None
    has_metrics = False
    is_observing_mcp = False


def start_tracing(url: str, version: str) -> "TracerProvider":
    """Send spans to a collector (OTLP over HTTP), and return their provider.

    Raises ImproperlyConfigured without the SDK.

    The SDK's variables apply, such as `OTEL_TRACES_SAMPLER` and `OTEL_EXPORTER_OTLP_HEADERS`.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ImproperlyConfigured(
            "`BONOBOT_TRACES` is set, but OpenTelemetry isn't installed: "
            '`pip install "bonobot[otel]"`.'
        ) from None
    resource_attributes = {"service.name": "bonobot", "service.version": version}
    provider = TracerProvider(resource=Resource.create(resource_attributes))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    set_tracer_provider(provider)
    return provider


def set_tracer_provider(provider: trace.TracerProvider | None) -> None:
    """Use a provider for new spans; None turns tracing off."""
    TracingState.tracer = provider.get_tracer("bonobot") if provider else None
    TracingState.is_observing_mcp = provider is not None or TracingState.has_metrics


def set_has_metrics(on: bool) -> None:
    """Set whether metrics of MCP requests are on."""
    TracingState.has_metrics = on
    TracingState.is_observing_mcp = on or TracingState.tracer is not None


def start_span(
    name: str,
    *,
    kind: Kind = "internal",
    carrier: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> AbstractContextManager[Span | None]:
    """Open a span as a context manager; `carrier` is the `_meta` of the incoming request.

    In names of `attributes`, `__` stands for a dot; None and blank values are omitted. Exceptions
    are recorded by their `code` only.
    """
    tracer = TracingState.tracer
    if tracer is None:
        return NO_SPAN
    return _open_span(tracer, name, kind, carrier, attributes)


def inject_trace_context(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request with the current trace context in `_meta`."""
    if TracingState.tracer is None:
        return params
    context: dict[str, str] = {}
    _PROPAGATOR.inject(context)
    meta = params.get("_meta")
    existing_meta = meta if isinstance(meta, Mapping) else {}
    return {**params, "_meta": {**existing_meta, **context}} if context else params


@contextmanager
def _open_span(
    tracer: Tracer,
    name: str,
    kind: Kind,
    carrier: Mapping[str, Any] | None,
    attributes: Mapping[str, Any],
) -> Iterator[Span]:
    context = None
    if carrier is not None:
        trace_context = {
            key: carrier[key] for key in TRACE_CONTEXT_KEYS if isinstance(carrier.get(key), str)
        }
        context = _PROPAGATOR.extract(trace_context)
    span_attributes = {key.replace("__", "."): value for key, value in attributes.items() if value}
    with tracer.start_as_current_span(
        name,
        context=context,
        kind=_KINDS[kind],
        attributes=span_attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except BaseException as error:
            # A JSON-RPC error's code, if there is one.
            code = getattr(error, "rpc_code", None) or getattr(error, "code", "")
            mark_span_failed(span, str(code or type(error).__name__))
            raise


def mark_span_failed(span: Span | None, code: str) -> None:
    """Set a span's status to error with a code; a blank code does nothing."""
    if span is not None and code:
        span.set_status(Status(StatusCode.ERROR))
        span.set_attribute("error.type", code)


def set_span_attributes(span: Span | None, **attributes: Any) -> None:
    if span is not None:
        for key, value in attributes.items():
            span.set_attribute(key.replace("__", "."), value)
