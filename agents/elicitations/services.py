"""Create, answer, withdraw and expire elicitation requests.

A request on an open connection is awaited there. Any other belongs to a pending call: its session
is suspended until the request is answered or expires (reported to the server as `cancel`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from agents.approvals.services import build_requester_fields
from agents.elicitations.requested_schemas import ElicitationParams, clean_content, iterate_fields
from agents.flow_labels.session_labels import label_session
from agents.models import ElicitationRequest, PendingCall, Session
from agents.models.page_urls import build_page_path
from agents.wakeups import notify_of_answer, wake_session
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.organization_secrets import mask_organization_secrets
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.ledger.audit.admin_changes import ChangeEvent, describe_row, record_change
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import NotificationSubject, notify

Answer = Literal["accept", "decline", "cancel"]
ANSWERS: tuple[Answer, ...] = ("accept", "decline", "cancel")
ANSWER_EVENT = ChangeEvent("elicitation")
SYSTEM = Actor(kind="system", id="questions", label="questions")
MAX_SUMMARY_LENGTH = 200


@dataclass(frozen=True)
class ElicitationOrigin:
    """The server and call of a request; without a pending call, the server waits for the answer."""

    session_id: UUID
    server_id: UUID
    server_name: str
    own_name: str = ""
    call_id: UUID | None = None
    pending_call: PendingCall | None = None
    key: str = ""


def create_request(
    origin: ElicitationOrigin, params: ElicitationParams, expires_at: datetime
) -> ElicitationRequest:
    """Save an elicitation request, once, and notify people."""
    existing_request = _find_existing_request(origin)
    if existing_request is not None:
        return existing_request
    session = Session.objects.select_related("agent").get(pk=origin.session_id)
    elicitation = ElicitationRequest(
        organization_id=session.organization_id,
        agent=session.agent,
        session=session,
        pending_call=origin.pending_call,
        round=origin.pending_call.round if origin.pending_call else 1,
        key=origin.key,
        call_id=origin.call_id,
        server_id=origin.server_id,
        server_name=origin.server_name,
        own_name=origin.own_name[:2048],
        mode=params.mode,
        message=make_storable(params.message),
        schema=make_storable(dict(params.schema or {})),
        url=make_storable(params.url),
        elicitation_id=make_storable(params.elicitation_id),
        flags=list(params.flags),
        **build_requester_fields(session),
        expires_at=expires_at,
    )
    with transaction.atomic():
        elicitation.save(force_insert=True)
        _notify_waiting(elicitation)
    return elicitation


def answer_request(
    principal: Principal,
    elicitation: ElicitationRequest,
    answer: str,
    content: Mapping[str, Any] | None = None,
) -> ElicitationRequest:
    """Answer an elicitation request and wake its session.

    Raises `Forbidden` (`not_owner`), `Conflict` (`already_answered`,
    `elicitation_request_expired`) or `InvalidInput` (invalid content, or content with a stored
    secret).
    """
    _require_can_answer(principal, elicitation)
    if answer not in ANSWERS:
        raise InvalidInput(
            format_message("{value!r} isn't a valid answer.", value=answer),
            field="action",
            remedy=format_message("Use one of: {values}.", values=", ".join(ANSWERS)),
        )
    cleaned_content = _clean_content(elicitation, content or {}) if answer == "accept" else {}
    if cleaned_content:
        label_session(principal, elicitation.session)  # before the change: see its lock order
    with record_change(
        **describe_row(
            "question", elicitation, make_visible(elicitation.message, MAX_SUMMARY_LENGTH)
        ),
        event=ANSWER_EVENT,
        actor=principal.actor,
        action="elicitation_request_answered",
        details={
            "answer": answer,
            "server": elicitation.server_name,
            "fields": sorted(cleaned_content),
        },
        governed=False,
    ):
        _save_answer(elicitation, answer, principal.label)
        if cleaned_content:
            elicitation.content = cleaned_content
            elicitation.save(update_fields=["content"])
        _wake_session(elicitation.session_id)
    return elicitation


def can_answer(principal: Principal, elicitation: ElicitationRequest) -> bool:
    """Return whether the principal may answer: the person who started the session.

    If no person did, it is anyone who may run agents and approve calls.
    """
    requester = (elicitation.requested_by_kind, elicitation.requested_by_id)
    if requester == (principal.kind, principal.id):
        return True
    return elicitation.requested_by_kind != "user" and principal.may(Action.APPROVE_CALLS)


def build_result(elicitation: ElicitationRequest) -> dict[str, Any] | None:
    """Return the result for the server; None while a person can still answer."""
    if elicitation.is_answerable(timezone.now()):
        return None
    if elicitation.state == ElicitationRequest.State.ACCEPTED:
        form_content = {"content": elicitation.content.open()} if elicitation.mode == "form" else {}
        return {"action": "accept", **form_content}
    return {
        "action": "decline" if elicitation.state == ElicitationRequest.State.DECLINED else "cancel"
    }


def complete_url_elicitation(session_id: UUID, server_id: UUID, elicitation_id: str) -> int:
    """Mark URL elicitations as completed; return how many."""
    open_requests = ElicitationRequest.objects.filter(
        session_id=session_id, server_id=server_id, elicitation_id=elicitation_id, completed_at=None
    )
    return int(open_requests.update(completed_at=timezone.now()))


def withdraw_requests(session_id: UUID) -> int:
    """Withdraw the pending requests of an ended session; return how many."""
    pending_requests = ElicitationRequest.objects.filter(
        session_id=session_id, state=ElicitationRequest.State.WAITING
    )
    return int(
        pending_requests.update(
            state=ElicitationRequest.State.WITHDRAWN, answered_at=timezone.now()
        )
    )


def withdraw_live_requests(session_id: UUID) -> None:
    """Withdraw the pending requests on the connections of a session's dead process."""
    pending_requests = ElicitationRequest.objects.filter(
        session_id=session_id, pending_call=None, state=ElicitationRequest.State.WAITING
    )
    pending_requests.update(state=ElicitationRequest.State.WITHDRAWN, answered_at=timezone.now())


def withdraw_request(request_id: UUID) -> None:
    """Withdraw a request that the server no longer waits for."""
    pending_requests = ElicitationRequest.objects.filter(
        pk=request_id, state=ElicitationRequest.State.WAITING
    )
    pending_requests.update(state=ElicitationRequest.State.WITHDRAWN, answered_at=timezone.now())


def clear_content(request_id: UUID) -> None:
    """Clear the entered content once the server has it."""
    elicitation = ElicitationRequest.objects.get(pk=request_id)
    elicitation.content = {}
    elicitation.save(update_fields=["content"])


def expire_overdue() -> int:
    """Expire overdue requests and wake their sessions; return how many."""
    overdue = list(ElicitationRequest.objects.overdue()[:500])
    for elicitation in overdue:
        with record_change(
            **describe_row(
                "question", elicitation, make_visible(elicitation.message, MAX_SUMMARY_LENGTH)
            ),
            event=ANSWER_EVENT,
            actor=SYSTEM,
            action="elicitation_request_expired",
            details={"server": elicitation.server_name},
            governed=False,
        ):
            ElicitationRequest.objects.expire_pending(elicitation.pk, answered_at=timezone.now())
            _wake_session(elicitation.session_id)
    return len(overdue)


def _wake_session(session_id: UUID) -> None:
    """Wake the session whether it was suspended or its process waits."""
    notify_of_answer(session_id)
    wake_session(session_id)


def _find_existing_request(origin: ElicitationOrigin) -> ElicitationRequest | None:
    if origin.pending_call is None:
        return None
    existing = ElicitationRequest.objects.filter(
        pending_call=origin.pending_call, round=origin.pending_call.round, key=origin.key
    )
    return existing.first()


def _require_can_answer(principal: Principal, elicitation: ElicitationRequest) -> None:
    principal.require(Action.RUN_AGENTS)
    if not can_answer(principal, elicitation):
        raise Forbidden(
            "This request is addressed to someone else.",
            code="not_owner",
            rule="question:asked_of",
            remedy=format_message(
                "The request goes to {requested_by}, who started the session.",
                requested_by=elicitation.requested_by,
            ),
        )


def _clean_content(elicitation: ElicitationRequest, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content for the server; raises `InvalidInput`."""
    if elicitation.mode == ElicitationRequest.Mode.URL:
        if content:
            raise InvalidInput("This request has no input fields.", field="content")
        return {}
    cleaned = clean_content(tuple(iterate_fields(elicitation.schema)), content)
    for name, value in cleaned.items():
        text = " ".join(value) if isinstance(value, list) else str(value)
        if mask_organization_secrets(text, elicitation.organization_id) != text:
            raise InvalidInput(
                format_message("`{name}` contains a stored secret.", name=name),
                code="secret_in_answer",
                field=f"content.{name}",
                remedy="Servers must not request secrets in a form. Decline the request.",
            )
    return cleaned


def _save_answer(elicitation: ElicitationRequest, answer: str, by: str) -> None:
    now = timezone.now()
    is_first = ElicitationRequest.objects.answer_pending(
        elicitation.pk, answer, now, answered_at=now, answered_by=by
    )
    elicitation.refresh_from_db()
    if is_first:
        return
    if elicitation.state in (ElicitationRequest.State.WAITING, ElicitationRequest.State.EXPIRED):
        raise Conflict("This elicitation request has expired.", code="elicitation_request_expired")
    raise Conflict(
        format_message(
            "This elicitation request was already answered: {state}.", state=elicitation.state
        ),
        code="already_answered",
    )


def _notify_waiting(elicitation: ElicitationRequest) -> None:
    notify(
        elicitation.organization_id,
        "question_waiting",
        NotificationSubject(
            "question", str(elicitation.pk), elicitation.server_name, build_page_path(elicitation)
        ),
        format_message(
            "The server {server} requests input from {who} in a session of {agent}. If "
            "there is no answer by {until} UTC, the server is notified that the request "
            "wasn't answered.",
            server=elicitation.server_name,
            who=elicitation.requested_by,
            agent=elicitation.agent.name,
            until=f"{elicitation.expires_at:%Y-%m-%d %H:%M}",
        ),
        topic=f"question:{elicitation.pk}",
    )
