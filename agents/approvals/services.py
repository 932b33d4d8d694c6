"""Create, answer, withdraw and expire approvals of calls, and notify approvers."""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from agents.approvals.changed_definitions import (
    DEFINITION_CHANGED_CODE,
    find_changed_definitions,
    has_changed_definition,
    is_reviewed,
)
from agents.approvals.ended_requests import (
    Cancellation,
    record_canceled_call,
    record_refused_call,
)
from agents.approvals.pending_calls import filter_unused_approvals
from agents.flow_labels.session_labels import label_session
from agents.models import Approval, Session, SessionApproval
from agents.models.approvals import INTERRUPTED_CODE
from agents.models.page_urls import build_page_path
from agents.wakeups import notify_of_answer, wake_pages, wake_session
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.message_bus import wake_listeners
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.ledger.audit.admin_changes import (
    ChangeEvent,
    describe_row,
    record_change,
    record_changes_at_end,
    record_finished_change,
)
from bonobot.ledger.models import ApprovalCell
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import NotificationSubject, notify
from mcp_servers.models import Server

Answer = Literal["approve", "approve_session", "deny"]
ANSWERS: tuple[Answer, ...] = ("approve", "approve_session", "deny")
MAX_MESSAGE_LENGTH = 2_000
MAX_EXPIRED = 500  # at once
EXPIRED_CODE = "approval_expired"
MICROSECONDS_PER_SECOND = 1_000_000
ANSWER_EVENT = ChangeEvent("approval")
SYSTEM = Actor(kind="system", id="approvals", label="approvals")
DEFINITION_CHANGE = Actor(kind="system", id="definition_changes", label="definition_changes")
REQUEST_CANCELED = "The request for approval was canceled."
SESSION_CANCELED = format_message("The session was canceled.")
UNANSWERED = "The approval expired without an answer."
UNUSED = "The client didn't retry the call before its approval expired."
ENDED_CALLS = Cancellation(SYSTEM, "The call ended before it was approved.")


def resolve_approval(
    principal: Principal,
    approval: Approval,
    answer: str,
    message: str = "",
    *,
    is_changed: bool = False,
) -> Approval:
    """Approve or deny a call and wake its session; `message` is passed to the model with a denial.

    `is_changed` records that a person changed the arguments.

    Raises `Forbidden` (missing role, or `own_call` if the organization requires a second person),
    `Conflict` (`already_answered`, `approval_expired`, `definition_changed`) or `InvalidInput`.
    """
    principal.require(Action.APPROVE_CALLS)
    _check_answer(principal, approval, answer, message)
    is_approved = answer != "deny"
    if is_approved:
        require_same_definition(approval)
    if message and approval.session is not None:
        label_session(principal, approval.session)  # before the change: see its lock order
    with record_change(
        **describe_row("approval", approval, approval.call_title),
        event=ANSWER_EVENT,
        actor=principal.actor,
        action="call_approved" if is_approved else "call_denied",
        details={
            "call_id": str(approval.call_id),
            "digest": approval.digest,
            "for_session": answer == "approve_session",
            "message": message,
            **({"arguments_changed": True} if is_changed else {}),
        },
        governed=answer == "approve_session",
    ):
        _save_decision(principal, approval, is_approved=is_approved, message=message)
        if is_approved:
            _create_approval_cell(approval)
        else:
            record_refused_call(approval, "approval_denied", message)
        if answer == "approve_session":
            _create_session_approval(principal, approval)
        _wake_waiting_calls(approval)
    return Approval.objects.get(pk=approval.pk)


def require_same_definition(approval: Approval) -> None:
    """Raise `Conflict` (`definition_changed`) if a pending approval no longer applies."""
    if has_changed_definition(approval):
        raise Conflict(
            format_message(
                "The definition of {name} changed after this approval was requested.",
                name=approval.own_name,
            ),
            code=DEFINITION_CHANGED_CODE,
            remedy="Review the definition, or deny the call.",
        )


def revoke_session_approval(principal: Principal, grant: SessionApproval) -> None:
    """Revoke a session approval; the next call needs an approval again."""
    principal.require(Action.APPROVE_CALLS)
    with record_change(
        event=ANSWER_EVENT,
        organization_id=grant.organization_id,
        actor=principal.actor,
        action="session_approval_revoked",
        resource_type="session",
        resource_id=str(grant.session_id),
        resource_name=grant.label,
    ):
        grant.delete()


def withdraw_approval(principal: Principal, approval: Approval) -> bool:
    """Withdraw an approval that its requester no longer needs; return False if it isn't pending."""
    pending_approvals = Approval.objects.filter(pk=approval.pk, state=Approval.State.WAITING)
    if not pending_approvals.exists():
        return False
    with record_change(
        **describe_row("approval", approval, approval.call_title),
        event=ANSWER_EVENT,
        actor=principal.actor,
        action="approval_request_canceled",
        details={"call_id": str(approval.call_id)},
        governed=False,
    ):
        _wake_waiting_calls(approval)
        return _withdraw(approval, Cancellation(principal.actor, REQUEST_CANCELED))


def withdraw_approvals(
    session_id: UUID,
    call_ids: Collection[UUID] | None = None,
    cancellation: Cancellation = ENDED_CALLS,
) -> int:
    """Withdraw the pending approvals of an ended session, or of some ended calls of a session."""
    approvals = Approval.objects.filter(session_id=session_id)
    if call_ids is not None:
        approvals = approvals.filter(call_id__in=call_ids)
    return cancel_pending_calls(approvals, cancellation)


def cancel_pending_calls(approvals: QuerySet[Approval], cancellation: Cancellation) -> int:
    """Withdraw those that are pending, and record their calls as canceled; return how many."""
    pending_approvals = list(approvals.filter(state=Approval.State.WAITING))
    if not pending_approvals:
        return 0
    with record_changes_at_end():
        return sum(_withdraw(approval, cancellation) for approval in pending_approvals)


def _withdraw(approval: Approval, cancellation: Cancellation) -> bool:
    """Withdraw an approval unless it was answered meanwhile, and record its call as canceled."""
    this_approval = Approval.objects.filter(pk=approval.pk, state=Approval.State.WAITING)
    if not this_approval.update(state=Approval.State.WITHDRAWN, decided_at=timezone.now()):
        return False
    record_canceled_call(approval, cancellation)
    return True


def expire_overdue() -> int:
    """Expire overdue approvals and wake their sessions; return how many."""
    expired_count = sum(_expire(approval) for approval in Approval.objects.overdue()[:MAX_EXPIRED])
    for approval in filter_unused_approvals().order_by("expires_at")[:MAX_EXPIRED]:
        record_refused_call(approval, EXPIRED_CODE, UNUSED)
        wake_pages(approval.organization_id)
    return expired_count


def _expire(approval: Approval) -> bool:
    """Expire an overdue approval unless it was answered meanwhile, and record that."""
    with record_changes_at_end():
        if not Approval.objects.expire_pending(approval.pk, decided_at=timezone.now()):
            return False
        record_finished_change(
            **describe_row("approval", approval, approval.call_title),
            event=ANSWER_EVENT,
            actor=SYSTEM,
            action="approval_request_expired",
            details={"call_id": str(approval.call_id)},
            governed=False,
        )
        record_refused_call(approval, EXPIRED_CODE, UNANSWERED)
        _wake_waiting_calls(approval)
    return True


def _check_answer(principal: Principal, approval: Approval, answer: str, message: str) -> None:
    if answer not in ANSWERS:
        raise InvalidInput(
            format_message("{value!r} isn't a valid answer.", value=answer),
            field="answer",
            remedy=format_message("Use one of: {values}.", values=", ".join(ANSWERS)),
        )
    if answer == "approve_session" and not approval.may_be_granted:
        raise InvalidInput(
            "This call can't be approved for a session.", field="answer", remedy="Approve it once."
        )
    if len(message) > MAX_MESSAGE_LENGTH:
        raise InvalidInput(
            format_message("The comment has {count} characters.", count=len(message)),
            field="message",
            remedy=format_message("Use at most {limit} characters.", limit=MAX_MESSAGE_LENGTH),
        )
    is_model = principal.kind == "token" and _is_requester(principal, approval)
    is_held_by_labels = is_model and bool(approval.flow_labels)
    if answer != "deny" and (is_held_by_labels or is_own_call(principal, approval)):
        raise Forbidden(
            "You requested this call.",
            code="own_call",
            rule="flow_labels" if is_held_by_labels else "organization:four_eyes",
            remedy="Someone else who can approve calls must answer.",
        )


def is_own_call(principal: Principal, approval: Approval) -> bool:
    """Return whether someone else must approve, because the principal requested the call."""
    requester = (approval.requested_by_kind, approval.requested_by_id)
    is_requester = _is_requester(principal, approval) or _is_own_token(principal, *requester)
    organization = Organization.objects.filter(pk=approval.organization_id, four_eyes=True)
    return is_requester and organization.exists()


def _is_requester(principal: Principal, approval: Approval) -> bool:
    return (approval.requested_by_kind, approval.requested_by_id) == (principal.kind, principal.id)


def _is_own_token(principal: Principal, kind: str, token_id: str) -> bool:
    """Return whether the requester is an OAuth client that the person authorized."""
    if kind != "token" or principal.kind != "user":
        return False
    return Token.objects.filter(pk=token_id, user_id=principal.id).exists()


def _save_decision(
    principal: Principal, approval: Approval, *, is_approved: bool, message: str
) -> None:
    now = timezone.now()
    state = Approval.State.APPROVED if is_approved else Approval.State.DENIED
    if Approval.objects.answer_pending(
        approval.pk, state, now, decided_at=now, decided_by=principal.label, message=message
    ):
        return
    approval.refresh_from_db()
    if approval.state in (Approval.State.WAITING, Approval.State.EXPIRED):
        raise Conflict("This approval has expired. The call is denied.", code="approval_expired")
    raise Conflict(
        format_message(
            "This approval was already answered: {state} by {decided_by}.",
            state=approval.state,
            decided_by=approval.decided_by or "–",
        ),
        code="already_answered",
    )


def _create_approval_cell(approval: Approval) -> None:
    ApprovalCell.objects.create(
        id=approval.pk,
        organization_id=approval.organization_id,
        digest=approval.digest,
        expires=int(approval.expires_at.timestamp() * MICROSECONDS_PER_SECOND),
    )


def _create_session_approval(principal: Principal, approval: Approval) -> None:
    SessionApproval.objects.get_or_create(
        organization_id=approval.organization_id,
        agent=approval.agent,
        session=approval.session,
        server_id=approval.server_id,
        own_name=approval.own_name,
        definition_digest=approval.definition_digest,
        rules_digest=approval.rules_digest,
        defaults={"label": approval.call_title, "granted_by": principal.label},
    )


def build_approval_topic(approval_id: UUID) -> str:
    """Return the bus topic of an approval, whose listeners are woken when it ends."""
    return f"approval:{approval_id}"


def request_approvals_again(server: Server) -> None:
    """Let calls request new approvals after the changed definitions they wait for were approved.

    Each call is decided again, which replaces its approval; see `create_approval`.
    """
    approvals = list(Approval.objects.pending().filter(server_id=server.pk))
    changed = find_changed_definitions(approvals)
    for approval in approvals:
        if approval.pk in changed and is_reviewed(changed[approval.pk]):
            _wake_waiting_calls(approval)


def _wake_waiting_calls(approval: Approval) -> None:
    """Wake what waits for the approval's end: a session, or a process with the call."""
    wake_listeners(build_approval_topic(approval.pk))
    wake_pages(approval.organization_id)
    if approval.session_id is not None:
        notify_of_answer(approval.session_id)
        wake_session(approval.session_id)


def calculate_expiry(organization_id: UUID) -> datetime:
    """Return when an approval that is requested now expires."""
    configured_hours = Organization.objects.filter(pk=organization_id).values_list("approval_hours")
    hours = next((hours for (hours,) in configured_hours if hours), settings.BONOBOT_APPROVAL_H)
    return timezone.now() + timedelta(hours=hours)


def build_requester_fields(session: Session) -> dict[str, str]:
    """Return the requester fields: the person or token that started the session."""
    return {
        "requested_by_kind": session.started_by_kind,
        "requested_by_id": session.started_by_id,
        "requested_by": session.started_by,
    }


def create_approval(approval: Approval) -> Approval:
    """Save an approval and notify approvers; concurrent identical requests share one.

    It replaces the pending ones of the same call for other definitions.
    """
    approval.expires_at = calculate_expiry(approval.organization_id)
    try:
        with transaction.atomic():
            approval.save(force_insert=True)
            _withdraw_replaced(approval)
            notify_approvers(approval)
            wake_pages(approval.organization_id)
    except IntegrityError:
        pending_approvals = Approval.objects.filter(
            organization_id=approval.organization_id,
            digest=approval.digest,
            state=Approval.State.WAITING,
        )
        # An overdue one that hasn't been expired yet is replaced.
        overdue = pending_approvals.overdue().first()
        if overdue is not None and _expire(overdue):
            return create_approval(approval)
        return pending_approvals.get()
    return approval


def filter_same_call(approval: Approval) -> QuerySet[Approval]:
    """Return the approvals of the same call, by the same caller, for other definitions."""
    names = (
        *("organization_id", "agent_id", "session_id", "server_id", "own_name", "method"),
        *("arguments_digest", "requested_by_kind", "requested_by_id"),
    )
    same_call: dict[str, Any] = {name: getattr(approval, name) for name in names}
    rows: QuerySet[Approval] = Approval.objects.filter(**same_call)
    others = rows.exclude(definition_digest=approval.definition_digest)
    return others.exclude(code=INTERRUPTED_CODE)


def _withdraw_replaced(approval: Approval) -> None:
    if not approval.definition_digest:
        return
    for replaced in filter_same_call(approval).filter(state=Approval.State.WAITING):
        with record_change(
            **describe_row("approval", replaced, replaced.call_title),
            event=ANSWER_EVENT,
            actor=DEFINITION_CHANGE,
            action="approval_request_canceled",
            details={"call_id": str(replaced.call_id), "replaced_by": str(approval.pk)},
            governed=False,
        ):
            still_pending = Approval.objects.filter(pk=replaced.pk, state=Approval.State.WAITING)
            still_pending.update(state=Approval.State.WITHDRAWN, decided_at=timezone.now())


def notify_approvers(approval: Approval) -> None:
    """Notify approvers of a pending approval, once, without the call's arguments."""
    values = {"called": approval.call_title, "who": approval.requested_by}
    if approval.agent:
        name = approval.agent.name
        summary = format_message(
            "The agent {agent} requests approval to call {called}, on behalf of {who}.",
            agent=name,
            **values,
        )
    else:
        summary = format_message("{who} requests approval to call {called}.", **values)
    deadline = format_message(
        "If there is no answer by {until} UTC, the call is denied.",
        until=f"{approval.expires_at:%Y-%m-%d %H:%M}",
    )
    notify(
        approval.organization_id,
        "approval_waiting",
        NotificationSubject(
            "approval", str(approval.pk), approval.call_title, build_page_path(approval)
        ),
        " ".join((summary, approval.reason, deadline)),
        topic=f"approval:{approval.pk}",
    )
