"""Create, answer and expire access requests."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext as _t

from agents.access_requests.provision_access import provision_access
from agents.flow_labels.text_labels import label_text
from agents.models import AccessRequest, Agent
from agents.models.access_requests import MAX_REASON_LENGTH, MAX_TARGET_LENGTH
from agents.page_wakeups import wake_pages
from bonobot.accounts.account_emails import EmailContent, queue_email
from bonobot.accounts.models import Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.ledger.audit.admin_changes import record_change
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import NotificationSubject, notify

Answer = Literal["approve", "deny"]
ANSWERS: tuple[Answer, ...] = ("approve", "deny")
# Answering requires one of these. A person who can approve calls but not manage agents, a reviewer,
# approves with the permissions of an operator, limited to what was requested.
ANSWER_PERMISSIONS = (Action.MANAGE_AGENTS, Action.APPROVE_CALLS)
REQUEST_ANSWERED = "access_request_answered"
SYSTEM = Actor(kind="system", id="access_requests", label="access requests")


@dataclass(frozen=True, kw_only=True)
class AccessRequestSpec:
    """What is requested and why; servers and tools are requested for an agent."""

    kind: str
    target: str
    reason: str
    agent: Agent | None = None


def create_access_request(principal: Principal, spec: AccessRequestSpec) -> AccessRequest:
    """Create a pending request and notify the people who can answer it.

    Raises `InvalidInput`, and `Conflict` (`already_requested`, `too_many_access_requests`).
    """
    principal.require(Action.RUN_AGENTS)
    target, reason = make_storable(spec.target.strip()), make_storable(spec.reason.strip())
    agent = None if spec.kind == AccessRequest.Kind.AGENT else spec.agent
    _check_spec(spec.kind, target, reason, agent)
    access_request = AccessRequest(
        organization_id=principal.organization_id,
        kind=spec.kind,
        target=target,
        target_key=_build_target_key(spec.kind, target, agent),
        agent=agent,
        reason=reason,
        requested_by_kind=principal.kind,
        requested_by_id=principal.id,
        requested_by=principal.label[:255],
        expires_at=timezone.now() + timedelta(days=settings.BONOBOT_ACCESS_REQUEST_DAYS),
    )
    with record_change(
        **_build_audit_fields(access_request, principal.actor, "access_requested"),
        details={"reason": reason},
    ):
        _save_once(principal, access_request)
        label_text(principal, access_request)
        _notify_approvers(access_request)
        wake_pages(access_request.organization_id)
    return access_request


def answer_access_request(
    principal: Principal, access_request: AccessRequest, answer: str, message: str = ""
) -> AccessRequest:
    """Approve a request and set up what it asks for, or deny it; the requester gets `message`.

    If that can't be set up, the request stays pending and the problem is raised. Also raises
    `Forbidden`, `InvalidInput`, and `Conflict` (`already_answered`, `access_request_expired`).
    """
    _require_answer_permission(principal, access_request, answer)
    message = make_storable(message.strip())
    _check_length("message", message, MAX_REASON_LENGTH)
    if answer == "deny" and not message:
        raise InvalidInput(
            "A denial needs a reason.",
            field="message",
            remedy="Tell the requester why, or what to request instead.",
        )
    is_approved = answer == "approve"
    details = {"message": message, "requested_by": access_request.requested_by}
    with record_change(
        **_build_audit_fields(
            access_request,
            principal.actor,
            "access_request_approved" if is_approved else "access_request_denied",
        ),
        details=details,
    ):
        state = AccessRequest.State.APPROVED if is_approved else AccessRequest.State.DENIED
        _save_answer(principal, access_request, state, message)
        label_text(principal, access_request, is_changed=False)
        if is_approved:
            provisioner = _build_provisioner(principal, access_request)
            details["provisioned"] = provision_access(provisioner, access_request)
        _queue_answer_email(access_request)
        wake_pages(access_request.organization_id)
    return AccessRequest.objects.select_related("agent").get(pk=access_request.pk)


def cancel_access_request(principal: Principal, access_request: AccessRequest) -> AccessRequest:
    """Cancel one's own pending request; raises `Forbidden` and as `answer_access_request`."""
    if not is_requester(principal, access_request):
        raise Forbidden(
            "Only the requester can cancel an access request.",
            rule="requester",
            remedy="Deny the request instead.",
        )
    with record_change(
        **_build_audit_fields(access_request, principal.actor, "access_request_canceled")
    ):
        _save_answer(principal, access_request, AccessRequest.State.WITHDRAWN)
        wake_pages(access_request.organization_id)
    return AccessRequest.objects.select_related("agent").get(pk=access_request.pk)


def is_requester(principal: Principal, access_request: AccessRequest) -> bool:
    """Return whether the principal made the request."""
    return (principal.kind, principal.id) == (
        access_request.requested_by_kind,
        access_request.requested_by_id,
    )


def expire_overdue() -> int:
    """Expire overdue requests; return how many."""
    overdue = list(AccessRequest.objects.overdue()[:500])
    for access_request in overdue:
        with record_change(**_build_audit_fields(access_request, SYSTEM, "access_request_expired")):
            AccessRequest.objects.expire_pending(access_request.pk, updated_at=timezone.now())
            wake_pages(access_request.organization_id)
    return len(overdue)


def build_page_path(access_request: AccessRequest) -> str:
    # Not by `reverse`: listing them must not load the whole admin.
    return f"/admin/agents/accessrequest/{access_request.pk}/change/"


def build_page_url(access_request: AccessRequest) -> str:
    return f"{settings.BONOBOT_URL}{build_page_path(access_request)}"


def _check_spec(kind: str, target: str, reason: str, agent: Agent | None) -> None:
    if kind not in AccessRequest.Kind.values:
        raise InvalidInput(
            format_message("{kind!r} can't be requested.", kind=kind),
            field="kind",
            remedy=format_message(
                "Use one of: {values}.", values=", ".join(AccessRequest.Kind.values)
            ),
        )
    _check_length("target", target, MAX_TARGET_LENGTH)
    _check_length("reason", reason, MAX_REASON_LENGTH)
    for field, text in (("target", target), ("reason", reason)):
        if not text:
            raise InvalidInput("This field is required.", field=field)
    if agent is None and kind != AccessRequest.Kind.AGENT:
        raise InvalidInput(
            "Servers and tools are requested for an agent.",
            field="agent",
            remedy="Choose the agent that needs it.",
        )


def _check_length(field: str, text: str, maximum: int) -> None:
    if len(text) > maximum:
        raise InvalidInput(
            format_message("The text has {count} characters.", count=len(text)),
            field=field,
            remedy=format_message("Use at most {limit} characters.", limit=maximum),
        )


def _build_target_key(kind: str, target: str, agent: Agent | None) -> str:
    parts = [kind, str(agent.pk) if agent else "", target.casefold()]
    return compute_digest(to_canonical_json(parts))


def _save_once(principal: Principal, access_request: AccessRequest) -> None:
    """Insert a request within the limit; raises `Conflict` if the same one is pending."""
    lock_row(Organization(pk=principal.organization_id))
    own_requests = AccessRequest.objects.for_organization(principal.organization_id).filter(
        requested_by_kind=principal.kind, requested_by_id=principal.id
    )
    # Overdue ones that haven't been expired yet are replaced.
    own_requests.overdue().update(state=AccessRequest.State.EXPIRED)
    if own_requests.pending().count() >= settings.BONOBOT_PENDING_ACCESS_REQUESTS:
        raise Conflict(
            format_message(
                "You have {count} pending access requests.",
                count=settings.BONOBOT_PENDING_ACCESS_REQUESTS,
            ),
            code="too_many_access_requests",
            remedy="Wait until some of them are answered.",
        )
    try:
        with transaction.atomic():
            access_request.save(force_insert=True)
    except IntegrityError:
        raise Conflict(
            format_message(
                "You already requested {target!r}. The request is pending.",
                target=access_request.target,
            ),
            code="already_requested",
            field="target",
            remedy="Wait for the answer.",
        ) from None


def _require_answer_permission(
    principal: Principal, access_request: AccessRequest, answer: str
) -> None:
    if answer not in ANSWERS:
        raise InvalidInput(
            format_message("{value!r} isn't a valid answer.", value=answer),
            field="answer",
            remedy=format_message("Use one of: {values}.", values=", ".join(ANSWERS)),
        )
    if principal.may(Action.MANAGE_AGENTS):
        return
    principal.require(Action.APPROVE_CALLS)
    if answer == "approve" and is_requester(principal, access_request):
        raise Forbidden(
            "You made this access request, so someone else has to approve it.",
            rule="requester",
        )


def _build_provisioner(principal: Principal, access_request: AccessRequest) -> Principal:
    """Return who sets up a request: the approver, with an operator's permissions if needed.

    Its audit entries have the approver's ID and both names.
    """
    if principal.may(Action.MANAGE_AGENTS):
        return principal
    label = f"{principal.label[:120]} for {access_request.requested_by[:120]}"
    return replace(principal, label=label, role=Role.OPERATOR, scopes=None, platform_admin=False)


def _save_answer(
    principal: Principal, access_request: AccessRequest, state: str, message: str = ""
) -> None:
    now = timezone.now()
    answer = {"answered_at": now, "answered_by": principal.label[:255], "message": message}
    if AccessRequest.objects.answer_pending(access_request.pk, state, now, **answer):
        return
    access_request.refresh_from_db()
    if access_request.state in (AccessRequest.State.WAITING, AccessRequest.State.EXPIRED):
        raise Conflict("This access request has expired.", code="access_request_expired")
    raise Conflict(
        format_message(
            "This access request was already answered: {state} by {answered_by}.",
            state=access_request.state,
            answered_by=access_request.answered_by,
        ),
        code="already_answered",
    )


def _build_audit_fields(access_request: AccessRequest, actor: Actor, action: str) -> dict[str, Any]:
    return {
        "organization_id": access_request.organization_id,
        "actor": actor,
        "action": action,
        "resource_type": "access_request",
        "resource_id": str(access_request.pk),
        "resource_name": f"{access_request.kind}: {access_request.target}",
        "governed": False,
    }


def _notify_approvers(access_request: AccessRequest) -> None:
    values: Mapping[str, str] = {
        "who": access_request.requested_by,
        "target": access_request.target,
        "agent": access_request.agent.name if access_request.agent else "",
    }
    if access_request.kind == AccessRequest.Kind.SERVER:
        text = format_message("{who} requests the server {target} for the agent {agent}.", **values)
    elif access_request.kind == AccessRequest.Kind.TOOL:
        text = format_message("{who} requests the tool {target} for the agent {agent}.", **values)
    else:
        text = format_message("{who} requests the agent {target}.", **values)
    notify(
        access_request.organization_id,
        "access_requested",
        NotificationSubject(
            "access_request",
            str(access_request.pk),
            access_request.target,
            build_page_path(access_request),
        ),
        text,
        topic=f"access_request:{access_request.pk}",
    )


def _queue_answer_email(access_request: AccessRequest) -> None:
    if access_request.requested_by_kind == "user":
        for user in User.objects.filter(pk=access_request.requested_by_id):
            queue_email(user, REQUEST_ANSWERED, access_request=str(access_request.pk))


def build_answer_email(user: User, access_request: str) -> EmailContent | None:
    """Build the email about the answer; None if the request or the account is gone."""
    row = AccessRequest.objects.filter(pk=access_request, answered_at__isnull=False).first()
    if row is None or not user.is_active:
        return None
    values = {
        "target": make_visible(row.target, 120),
        "who": make_visible(row.answered_by, 120),
    }
    subject = (
        _t("Your request for %(target)s was approved")
        if row.state == AccessRequest.State.APPROVED
        else _t("Your request for %(target)s was denied")
    )
    paragraphs = [_t("Answered by %(who)s.") % values]
    if row.message:
        paragraphs.append(make_visible(row.message, 2_000))
    paragraphs.append(build_page_url(row))
    return EmailContent(subject % values, paragraphs)
