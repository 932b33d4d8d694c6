"""A governed call as a span, by OpenTelemetry's GenAI conventions (`execute_tool`)."""

from contextlib import AbstractContextManager

from opentelemetry.trace import Span

from agents.requests import Outcome, Request
from bonobot.lib import tracing


def traced(request: Request) -> AbstractContextManager[Span | None]:
    """Return the span of a call, from the door on."""
    if not tracing.is_on():
        return tracing.NOTHING
    return tracing.span(
        f"execute_tool {request.tool}" if request.method == "tools/call" else request.method,
        gen_ai__operation__name="execute_tool",
        gen_ai__tool__name=request.tool if request.method == "tools/call" else "",
        gen_ai__tool__call__id=str(request.call_id),
        gen_ai__agent__id=str(request.agent_id or ""),
        gen_ai__conversation__id=str(request.session_id or ""),
        mcp__method__name=request.method,
        bonobot__organization__id=str(request.principal.organization_id),
    )


def told(span: Span | None, outcome: Outcome) -> Outcome:
    """Say on the span how the call ended; return the outcome."""
    if span is not None:
        tracing.note(span, bonobot__outcome=outcome.outcome)
        tracing.failed(span, outcome.code if outcome.outcome != "ok" else "")
    return outcome
