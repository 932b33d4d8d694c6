"""Follow a session from outside: wait until it rests, and tell what came of it."""

from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any
from uuid import UUID

from django.db import close_old_connections

from agents.models import Session, Step

POLL_S = 0.25
RESTING = frozenset(
    {Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED, Session.Status.WAITING}
)


def follow(session_id: UUID, *, timeout_s: float) -> Iterator[Step]:
    """Yield each step once it is finished, until the session rests; raises `TimeoutError`."""
    deadline, seen = monotonic() + timeout_s, 0
    while True:
        resting = Session.objects.values_list("status", flat=True).get(pk=session_id) in RESTING
        steps = Step.objects.filter(session_id=session_id, seq__gt=seen).order_by("seq")
        for step in steps:
            if step.state == Step.State.INTENT and not resting:
                break
            seen = step.seq
            yield step
        if resting:
            return
        if monotonic() > deadline:
            raise TimeoutError
        close_old_connections()
        sleep(POLL_S)


def report(session_id: UUID) -> dict[str, Any]:
    """Return status, answer and calls of a session, as scripts read them (DESIGN section 4)."""
    session = Session.objects.get(pk=session_id)
    steps = list(session.steps.order_by("seq"))
    answers = [
        s.payload["answer"] for s in steps if s.kind == Step.Kind.END and "answer" in s.payload
    ]
    return {
        "id": str(session.pk),
        "status": session.status,
        "answer": answers[-1] if answers and session.status == Session.Status.DONE else "",
        "error": {"code": session.error_code, "detail": session.error_detail}
        if session.error_code
        else None,
        "calls": [_call(step) for step in steps if step.kind == Step.Kind.CALL],
        "notices": [s.payload["text"] for s in steps if s.kind == Step.Kind.NOTICE],
        "turns": session.turns,
        "input_tokens": session.input_tokens,
        "output_tokens": session.output_tokens,
        "cost_microusd": session.cost_microusd,
    }


def _call(step: Step) -> dict[str, Any]:
    names = ("name", "arguments", "text", "code", "server", "tool", "duration_ms")
    return {"state": step.state} | {name: step.payload.get(name) for name in names}
