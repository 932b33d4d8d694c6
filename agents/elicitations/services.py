"""Create, answer, withdraw and expire elicitation requests.

A request on an open connection is awaited there. Any other belongs to a pending call: its session
is suspended until the request is answered or expires (reported to the server as `cancel`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from agents.approvals.services import build_requester_fields
from agents.elicitations.forms import ElicitationParams, check_content, fields_of
from agents.models import Exchange, Question, Session
from agents.session_wakeups import wake
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.ledger.audit.admin_changes import ChangeEvent, record_change
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import NotificationSubject, notify

Said = Literal["accept", "decline", "cancel"]
ANSWERS: tuple[Said, ...] = ("accept", "decline", "cancel")
ANSWER = ChangeEvent("elicitation")
SYSTEM = Actor(kind="system", id="questions", label="questions")
BRIEF = 200


@dataclass(frozen=True)
class ElicitationOrigin:
    """The server and call of a request; without a pending call, the server waits for the answer."""

    session_id: UUID
    server_id: UUID
    server_name: str
    own_name: str = ""
    call_id: UUID | None = None
    exchange: Exchange | None = None
    key: str = ""


def build_page_path(question: Question) -> str:
    """Return the path of the request's page in the admin."""
    return reverse("admin:agents_question_change", args=[question.pk])


def build_page_url(question: Question) -> str:
    """Return the absolute URL of the request's page."""
    return f"{settings.BONOBOT_URL}{build_page_path(question)}"


def ask(origin: ElicitationOrigin, asked: ElicitationParams, expires_at: datetime) -> Question:
    """Save an elicitation request, once, and notify people."""
    found = _find_existing_request(origin)
    if found is not None:
        return found
    session = Session.objects.select_related("agent").get(pk=origin.session_id)
    question = Question(
        organization_id=session.organization_id,
        agent=session.agent,
        session=session,
        exchange=origin.exchange,
        round=origin.exchange.round if origin.exchange else 1,
        key=origin.key,
        call_id=origin.call_id,
        server_id=origin.server_id,
        server_name=origin.server_name,
        own_name=origin.own_name[:2048],
        mode=asked.mode,
        message=make_storable(asked.message),
        schema=make_storable(dict(asked.schema or {})),
        url=make_storable(asked.url),
        elicitation_id=make_storable(asked.elicitation_id),
        flags=list(asked.flags),
        **build_requester_fields(session),
        expires_at=expires_at,
    )
    with transaction.atomic():
        question.save(force_insert=True)
        _notify_waiting(question)
    return question


def answer(
    principal: Principal, question: Question, said: str, content: Mapping[str, Any] | None = None
) -> Question:
    """Answer an elicitation request and wake its session.

    Raises `Forbidden` (`not_yours`), `Conflict` (`already_answered`, `question_expired`) or
    `InvalidInput` (invalid content, or content with a stored secret).
    """
    _may_answer(principal, question)
    if said not in ANSWERS:
        raise InvalidInput(
            format_message("There is no answer {said!r}.", said=said),
            field="action",
            remedy=format_message("Use one of: {answers}.", answers=", ".join(ANSWERS)),
        )
    entered = _check_content(question, content or {}) if said == "accept" else {}
    with record_change(
        event=ANSWER,
        organization_id=question.organization_id,
        actor=principal.actor,
        action="question_answered",
        resource_type="question",
        resource_id=str(question.pk),
        resource_name=make_visible(question.message, BRIEF),
        details={"answer": said, "server": question.server_name, "fields": sorted(entered)},
        governed=False,
    ):
        _decide(question, said, principal.label)
        if entered:
            question.content = entered
            question.save(update_fields=["content"])
        wake(question.session_id)
    return question


def may_answer(principal: Principal, question: Question) -> bool:
    """Return whether the principal may answer: the person who started the session.

    If no person did, it is anyone who may run agents and approve calls.
    """
    asked = (question.requested_by_kind, question.requested_by_id)
    if asked == (principal.kind, principal.id):
        return True
    return question.requested_by_kind != "user" and principal.may(Action.APPROVE_CALLS)


def build_result(question: Question) -> dict[str, Any] | None:
    """Return the result for the server; None while a person can still answer."""
    if question.answerable(timezone.now()):
        return None
    if question.state == Question.State.ACCEPTED:
        given = {"content": question.content.open()} if question.mode == "form" else {}
        return {"action": "accept", **given}
    return {"action": "decline" if question.state == Question.State.DECLINED else "cancel"}


def complete_url_elicitation(session_id: UUID, server_id: UUID, elicitation_id: str) -> int:
    """Mark URL elicitations as completed; return how many."""
    found = Question.objects.filter(
        session_id=session_id, server_id=server_id, elicitation_id=elicitation_id, completed_at=None
    )
    return int(found.update(completed_at=timezone.now()))


def withdraw_requests(session_id: UUID) -> int:
    """Withdraw the pending requests of an ended session; return how many."""
    waiting = Question.objects.filter(session_id=session_id, state=Question.State.WAITING)
    return int(waiting.update(state=Question.State.WITHDRAWN, answered_at=timezone.now()))


def take_back(question_id: UUID) -> None:
    """Withdraw a request that the server no longer waits for."""
    waiting = Question.objects.filter(pk=question_id, state=Question.State.WAITING)
    waiting.update(state=Question.State.WITHDRAWN, answered_at=timezone.now())


def forget(question_id: UUID) -> None:
    """Clear the entered content once the server has it."""
    question = Question.objects.get(pk=question_id)
    question.content = {}
    question.save(update_fields=["content"])


def expire_overdue() -> int:
    """Expire overdue requests and wake their sessions; return how many."""
    overdue = list(Question.objects.overdue()[:500])
    for question in overdue:
        with record_change(
            event=ANSWER,
            organization_id=question.organization_id,
            actor=SYSTEM,
            action="question_expired",
            resource_type="question",
            resource_id=str(question.pk),
            resource_name=make_visible(question.message, BRIEF),
            details={"server": question.server_name},
            governed=False,
        ):
            Question.objects.filter(pk=question.pk, state=Question.State.WAITING).update(
                state=Question.State.EXPIRED, answered_at=timezone.now()
            )
            wake(question.session_id)
    return len(overdue)


def _find_existing_request(origin: ElicitationOrigin) -> Question | None:
    if origin.exchange is None:
        return None
    same = Question.objects.filter(
        exchange=origin.exchange, round=origin.exchange.round, key=origin.key
    )
    return same.first()


def _may_answer(principal: Principal, question: Question) -> None:
    principal.require(Action.RUN_AGENTS)
    if not may_answer(principal, question):
        raise Forbidden(
            "The server asks somebody else.",
            code="not_yours",
            rule="question:asked_of",
            remedy=format_message(
                "{requested_by} started the session and is asked.",
                requested_by=question.requested_by,
            ),
        )


def _check_content(question: Question, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content for the server; raises `InvalidInput`."""
    if question.mode == Question.Mode.URL:
        if content:
            raise InvalidInput("There is nothing to enter here.", field="content")
        return {}
    entered = check_content(tuple(fields_of(question.schema)), content)
    for name, value in entered.items():
        text = " ".join(value) if isinstance(value, list) else str(value)
        if mask_organization_secrets(text, question.organization_id) != text:
            raise InvalidInput(
                format_message("`{name}` holds a secret that is stored here.", name=name),
                code="secret_in_answer",
                field=f"content.{name}",
                remedy="Servers must not ask for secrets by a form: decline.",
            )
    return entered


def _decide(question: Question, said: str, by: str) -> None:
    now = timezone.now()
    # The condition lets only one of two concurrent answers succeed.
    mine = Question.objects.filter(
        pk=question.pk, state=Question.State.WAITING, expires_at__gt=now
    ).update(state=said, answered_at=now, answered_by=by, updated_at=now)
    question.refresh_from_db()
    if mine:
        return
    if question.state in (Question.State.WAITING, Question.State.EXPIRED):
        raise Conflict("This question has expired.", code="question_expired")
    raise Conflict(
        format_message("This question was answered already: {state}.", state=question.state),
        code="already_answered",
    )


def _notify_waiting(question: Question) -> None:
    notify(
        question.organization_id,
        "question_waiting",
        NotificationSubject(
            "question", str(question.pk), question.server_name, build_page_path(question)
        ),
        format_message(
            "The server {server} asks {who} something in a session of {agent}. Without an answer "
            "until {until} UTC it is told that nobody answers.",
            server=question.server_name,
            who=question.requested_by,
            agent=question.agent.name,
            until=f"{question.expires_at:%Y-%m-%d %H:%M}",
        ),
        topic=f"question:{question.pk}",
    )
