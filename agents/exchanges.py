"""Exchanges: calls that go on after their server asked for input, or made a task of them.

Each leg is a call of its own for the audit and the policy: it is admitted and settled. What a leg
ended with is written before it is settled, so that a call whose process died between two legs goes
on where it stood, in any process.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from agents.governance.unfinished import ROUNDS, BadRequest, Unfinished
from agents.models import Exchange, Question, Session
from agents.questions import closing_time
from agents.requests import Continuation, Request
from bonobot.lib.untrusted import storable

# A task whose server doesn't say how long it keeps it, and the longest that is waited for one.
TASK_TIME = timedelta(hours=24)
LONGEST_TASK = timedelta(days=7)


def note(request: Request, found: Unfinished, *, server_id: UUID, name: str, own: str) -> Exchange:
    """Write what a leg of a session's call ended with.

    Raises `BadRequest` where the server asks again and again.
    """
    before = request.continues
    if before is None:
        exchange = _begun(request, server_id, name, own)
    else:
        exchange = Exchange.objects.get(pk=before.exchange_id)
    if exchange.kind != Exchange.Kind.TASK and found.kind == "task":
        kept = TASK_TIME if found.ttl_ms is None else timedelta(milliseconds=found.ttl_ms)
        exchange.ends_at = timezone.now() + min(kept, LONGEST_TASK)
    asks = {key: one for key, one in found.requests.items() if key not in exchange.answered}
    if asks or found.kind != "task":
        exchange.round += 1
    if exchange.round > ROUNDS:
        raise BadRequest(f"it asks for more than {ROUNDS} times")
    exchange.kind = found.kind
    exchange.requests = storable(asks)
    exchange.request_state = found.state
    exchange.responses = {}
    # What goes on is the session's call, also where a built-in tool of it made this one.
    exchange.call_id = request.parent_id or request.call_id
    parts = dict.fromkeys((exchange.call_id, request.call_id))
    exchange.legs = [*exchange.legs, *map(str, parts)]
    exchange.task_id = found.task_id or exchange.task_id
    exchange.poll_ms = found.poll_ms
    exchange.next_at = None
    exchange.save(force_insert=before is None)
    return exchange


def _begun(request: Request, server_id: UUID, name: str, own: str) -> Exchange:
    assert request.session_id is not None  # noqa: S101 - only a session's call can go on
    session = Session.objects.get(pk=request.session_id)
    return Exchange(
        organization_id=session.organization_id,
        agent_id=session.agent_id,
        session=session,
        server_id=server_id,
        server_name=name,
        own_name=own[:2048],
        method=request.method,
        round=0,
        ends_at=closing_time(session.organization_id),
    )


def continuation(exchange: Exchange) -> Continuation:
    """Return how the next leg goes on: with the answers, and the state as it came."""
    answers: dict[str, Any] = exchange.responses.open() or {}
    more: dict[str, Any] = {}
    if exchange.kind == Exchange.Kind.INPUT:
        more = {"inputResponses": answers} if exchange.requests else {}
        if exchange.request_state is not None:
            more["requestState"] = exchange.request_state
    return Continuation(
        exchange_id=exchange.pk,
        legs=frozenset(UUID(leg) for leg in exchange.legs),
        more=more,
        task_id=exchange.task_id,
        poll_s=exchange.poll_ms / 1000,
        updates=answers if exchange.kind == Exchange.Kind.TASK else {},
        answered=frozenset((*exchange.answered, *answers)),
        ends_at=exchange.ends_at,
    )


def answered(exchange: Exchange, responses: Mapping[str, Any]) -> None:
    """Keep answers of ours until the server gets them: none is made twice."""
    exchange.responses = {**(exchange.responses.open() or {}), **storable(dict(responses))}
    exchange.save(update_fields=["responses", "updated_at"])


def told(exchange_id: UUID, keys: Iterable[str]) -> None:
    """Take note that a task has got answers, which are forgotten here."""
    exchange = Exchange.objects.get(pk=exchange_id)
    exchange.answered = [*exchange.answered, *keys]
    exchange.responses = {}
    exchange.requests = {}
    exchange.save(update_fields=["answered", "responses", "requests", "updated_at"])


def open_one(exchange_id: UUID | str | None = None, call_id: UUID | None = None) -> Exchange | None:
    """Return an exchange that isn't over, by its id or by the last leg that is."""
    wanted = Q(pk=exchange_id) if exchange_id else Q(call_id=call_id)
    return Exchange.objects.filter(wanted, closed_at=None).first()


def close(exchange_id: UUID | str) -> None:
    """Write that the call is over, once; what was entered for it is forgotten."""
    if (exchange := open_one(exchange_id)) is None:
        return
    exchange.closed_at = timezone.now()
    exchange.responses = {}
    exchange.request_state = None
    exchange.save(update_fields=["closed_at", "responses", "request_state", "updated_at"])
    for question in exchange.questions.all():
        question.content = {}
        question.save(update_fields=["content"])


def look_again(exchange: Exchange, at: datetime) -> None:
    """Write when a task is looked at next, with no worker held until then."""
    Exchange.objects.filter(pk=exchange.pk).update(next_at=at)


def open_of(session_id: UUID) -> list[Exchange]:
    """Return a session's calls that aren't over."""
    return list(Exchange.objects.filter(session_id=session_id, closed_at=None))


def holding_back(sessions: Any) -> Any:
    """Keep the sessions that have a reason to rest here: a question, or a task to look at later."""
    asked = Question.objects.filter(state=Question.State.WAITING, exchange__isnull=False)
    later = Exchange.objects.filter(closed_at=None, next_at__gt=timezone.now())
    return sessions.filter(
        Q(pk__in=asked.values("session_id")) | Q(pk__in=later.values("session_id"))
    )
