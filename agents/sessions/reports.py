"""Reports: what came of a session, for scripts (DESIGN section 4)."""

from typing import Any
from uuid import UUID

from agents import asking
from agents.models import Session, Step
from agents.questions import address


def report(session_id: UUID) -> dict[str, Any]:
    """Return status, answer and calls of a session."""
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
        "approvals": [
            {
                "id": str(one.pk),
                "name": one.label,
                "url": address(one),
                "expires_at": one.expires_at,
            }
            for one in session.approvals.waiting()
        ],
        "questions": [
            {"id": str(one.pk), "server": one.server_name, "message": one.message}
            | {"url": asking.address(one), "expires_at": one.expires_at}
            for one in session.questions.waiting()
        ],
        "turns": session.turns,
        "input_tokens": session.input_tokens,
        "output_tokens": session.output_tokens,
        "cost_microusd": session.cost_microusd,
    }


def _call(step: Step) -> dict[str, Any]:
    names = ("name", "arguments", "text", "code", "server", "tool", "duration_ms", "flagged")
    return {"state": step.state} | {name: step.payload.get(name) for name in names}
