import asyncio
from collections.abc import Iterator

import pytest
from django.core.exceptions import ImproperlyConfigured
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bonobot.core.problems import NotFound
from bonobot.core.telemetry import tracing
from tests.traces import PARENT, TRACE, collect_spans


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    with collect_spans() as exporter:
        yield exporter


def test_without_a_collector_no_spans_are_created() -> None:
    params = {"name": "x"}
    assert tracing.start_span("a") is tracing.start_span(
        "b", kind="server", carrier={"traceparent": PARENT}
    )
    with tracing.start_span("a") as span:
        assert span is None
        assert tracing.inject_trace_context(params) is params


def test_the_clients_trace_context_is_the_parent_and_is_forwarded(
    spans: InMemorySpanExporter,
) -> None:
    carrier = {"traceparent": PARENT, "x": 1}
    with (
        tracing.start_span("tools/call", kind="server", carrier=carrier),
        tracing.start_span("upstream", kind="client", a__b="c", left_out=""),
    ):
        params = tracing.inject_trace_context(
            {"name": "x", "_meta": {"traceparent": "theirs", "kept": 1}}
        )
    inner, outer = spans.get_finished_spans()
    assert f"{outer.context.trace_id:032x}" == f"{inner.context.trace_id:032x}" == TRACE
    assert params["_meta"]["kept"] == 1
    assert params["_meta"]["traceparent"] == f"00-{TRACE}-{inner.context.span_id:016x}-01"
    assert dict(inner.attributes or {}) == {"a.b": "c"}


@pytest.mark.parametrize("carrier", [{}, {"traceparent": 7}, {"traceparent": "00-1"}])
def test_an_invalid_trace_context_starts_a_new_trace(
    carrier: dict[str, object], spans: InMemorySpanExporter
) -> None:
    with tracing.start_span("a", carrier=carrier):
        pass
    (span,) = spans.get_finished_spans()
    assert span.parent is None


def test_an_exception_is_recorded_by_its_code_and_not_by_its_text(
    spans: InMemorySpanExporter,
) -> None:
    with pytest.raises(NotFound), tracing.start_span("a"):
        raise NotFound("the secret text", code="unknown_tool")
    with pytest.raises(asyncio.CancelledError), tracing.start_span("b"):
        raise asyncio.CancelledError
    first, second = spans.get_finished_spans()
    assert (first.attributes or {})["error.type"] == "unknown_tool"
    assert (second.attributes or {})["error.type"] == "CancelledError"
    assert not first.events
    assert "secret" not in first.to_json()


def test_without_the_sdk_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ImproperlyConfigured, match=r"bonobot\[otel\]"):
        tracing.start_tracing("http://127.0.0.1:1/v1/traces", "1")
