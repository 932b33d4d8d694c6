"""OpenTelemetry spans.

Off unless `BONOBOT_TRACES` names a collector; then `span` is one comparison, and nothing of
OpenTelemetry's SDK (the extra `otel`) is loaded. The context comes from a client and goes on to
servers in `_meta` (`traceparent`, `tracestate`; MCP 2026-07-28). Spans carry names, ids, codes and
counts: never arguments, results, messages or an exception's text.

The provider is ours alone: libraries that look for the global one trace nothing.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from django.core.exceptions import ImproperlyConfigured
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Kind = Literal["internal", "server", "client"]
CARRIED = ("traceparent", "tracestate")

_KINDS = {"internal": SpanKind.INTERNAL, "server": SpanKind.SERVER, "client": SpanKind.CLIENT}
_PROPAGATOR = TraceContextTextMapPropagator()
NOTHING: AbstractContextManager[Span | None] = nullcontext()


class _TracingState:
    tracer: Tracer | None = None


def begin(url: str, version: str) -> None:
    """Send spans to a collector (OTLP over HTTP); raises ImproperlyConfigured without the SDK.

    How many are kept and what is sent beside them: `OTEL_TRACES_SAMPLER`,
    `OTEL_EXPORTER_OTLP_HEADERS` and the SDK's other variables.
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
    told = {"service.name": "bonobot", "service.version": version}
    provider = TracerProvider(resource=Resource.create(told))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    set_tracer_provider(provider)


def set_tracer_provider(provider: trace.TracerProvider | None) -> None:
    """Trace by a provider from now on, or no longer."""
    _TracingState.tracer = provider.get_tracer("bonobot") if provider else None


def is_on() -> bool:
    """Tell whether anything is traced, for those who would have to work for their attributes."""
    return _TracingState.tracer is not None


def start_span(
    name: str,
    *,
    kind: Kind = "internal",
    carrier: Mapping[str, Any] | None = None,
    **attributes: Any,
) -> AbstractContextManager[Span | None]:
    """Trace what happens inside; `carrier` is the `_meta` of who asked.

    Members of `attributes` are given with `__` for a dot; those that are None or blank are left
    out. What is raised is told by its `code` alone.
    """
    tracer = _TracingState.tracer
    if tracer is None:
        return NOTHING
    return _open_span(tracer, name, kind, carrier, attributes)


def inject_trace_context(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request with the present context in `_meta`."""
    if _TracingState.tracer is None:
        return params
    context: dict[str, str] = {}
    _PROPAGATOR.inject(context)
    own = params.get("_meta")
    theirs = own if isinstance(own, Mapping) else {}
    return {**params, "_meta": {**theirs, **context}} if context else params


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
        texts = {key: carrier[key] for key in CARRIED if isinstance(carrier.get(key), str)}
        context = _PROPAGATOR.extract(texts)
    told = {key.replace("__", "."): value for key, value in attributes.items() if value}
    with tracer.start_as_current_span(
        name,
        context=context,
        kind=_KINDS[kind],
        attributes=told,
        record_exception=False,
        set_status_on_exception=False,
    ) as begun:
        try:
            yield begun
        except BaseException as error:
            mark_span_failed(begun, str(getattr(error, "code", "") or type(error).__name__))
            raise


def mark_span_failed(begun: Span | None, code: str) -> None:
    """Say that what a span is about failed, and the code of why; a blank code is no failure."""
    if begun is not None and code:
        begun.set_status(Status(StatusCode.ERROR))
        begun.set_attribute("error.type", code)


def note(begun: Span | None, **attributes: Any) -> None:
    """Add what is known in the end."""
    if begun is not None:
        for key, value in attributes.items():
            begun.set_attribute(key.replace("__", "."), value)
