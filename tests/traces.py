"""Spans that a test collects."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bonobot.core.telemetry import tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@contextmanager
def collected() -> Iterator[InMemorySpanExporter]:
    """Trace meanwhile, and keep the spans."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracing.set_tracer_provider(provider)
    try:
        yield kept
    finally:
        tracing.set_tracer_provider(None)
