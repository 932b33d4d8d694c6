"""How a session stands, as a tool tells it: what came of the last message, and what waits."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Max, Q

from agents import asking, questions
from agents.models import Approval, Question, Session, Step
from agents.sessions.events import RESTING
from bonobot.gateway.bots.tools import given

MOST_CALLS = 200
TEXT: dict[str, Any] = {"type": "string"}
WAITING = given(
    {
        "kind": {"enum": ["approval", "question"]},
        "id": TEXT,
        "text": {**TEXT, "description": "What a person is asked."},
        "url": {**TEXT, "description": "Where a person answers it."},
        "expires_at": {**TEXT, "description": "Then it is a no."},
    }
)
CALL = given(
    {
        "tool": TEXT,
        "state": {"enum": [str(state) for state in Step.State]},
        "code": {**TEXT, "description": "Why it failed; blank where it didn't."},
    }
)
STANDING = given(
    {
        "session_id": TEXT,
        "agent": {**TEXT, "description": "Slug of the agent."},
        "status": {"enum": [str(status) for status in Session.Status]},
        "resting": {
            "type": "boolean",
            "description": "Whether nothing happens by itself: it is over, or waits for a person.",
        },
        "answer": {**TEXT, "description": "The agent's answer; blank until it is done."},
        "calls": {
            "type": "array",
            "items": CALL,
            "description": f"What it called since the last message; the last {MOST_CALLS}.",
        },
        "waits_for": {
            "type": "array",
            "items": WAITING,
            "description": "What a person has to answer before it goes on.",
        },
        "error": {
            **given({"code": TEXT, "detail": TEXT}),
            "description": "Why it failed; both are blank where it didn't.",
        },
    }
)


def stands(session_id: UUID, after_seq: int | None = None) -> dict[str, Any]:
    """Return how a session stands since the step `after_seq`, else its last message (5 queries)."""
    session = Session.objects.select_related("agent").get(pk=session_id)
    if after_seq is None:
        after_seq = last_message(session)
    new = list(session.steps.filter(seq__gt=after_seq).order_by("seq"))
    ends = [step for step in new if step.kind == Step.Kind.END]
    done = session.status == Session.Status.DONE
    return {
        "session_id": str(session.pk),
        "agent": session.agent.slug,
        "status": session.status,
        "resting": session.status in RESTING,
        "answer": ends[-1].payload.get("answer", "") if ends and done else "",
        "calls": [_called(step) for step in new if step.kind == Step.Kind.CALL][-MOST_CALLS:],
        "waits_for": [*_waiting(session.pk)],
        "error": {"code": session.error_code, "detail": session.error_detail},
    }


def last_message(session: Session) -> int:
    """Return the number of the last message that the agent has taken, 0 for none (a query)."""
    said = session.steps.filter(kind=Step.Kind.MESSAGE)
    return said.aggregate(last=Max("seq"))["last"] or 0


def _called(step: Step) -> dict[str, Any]:
    return {
        "tool": step.payload.get("name", ""),
        "state": step.state,
        "code": step.payload.get("code", ""),
    }


def _waiting(session_id: UUID) -> Iterable[dict[str, Any]]:
    """Yield what people are asked for a session, and for those that it began (2 queries)."""
    here = Q(session=session_id) | Q(session__root_id=session_id)
    for call in Approval.objects.waiting().filter(here).order_by("created_at"):
        text = f"Allow {call.label}? {call.reason}"
        yield _asked("approval", call.pk, text, questions.address(call), call.expires_at)
    for one in Question.objects.waiting().filter(here).order_by("created_at"):
        yield _asked("question", one.pk, one.message, asking.address(one), one.expires_at)


def _asked(kind: str, number: UUID, text: str, url: str, expires_at: datetime) -> dict[str, Any]:
    ends = expires_at.isoformat()
    return {"kind": kind, "id": str(number), "text": text, "url": url, "expires_at": ends}
