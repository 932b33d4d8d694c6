"""Find the approval of a call or request one.

An approval is valid for one call with the same arguments, definition and asking rules, or for one
tool in one session. Without one, a pending approval is created once, and the caller gets its URL.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from agents.approvals.change_arguments import compute_arguments_digest, compute_call_digest
from agents.approvals.services import build_requester_fields, create_approval
from agents.calls.definitions import ServerFacts
from agents.calls.redaction import redact_value
from agents.calls.snapshots import Target
from agents.calls.types import ApprovalGrant, CallContext, CallRefused, CallRequest
from agents.flow_labels.call_effects import build_flow_keys
from agents.flow_labels.text_labels import label_text_reader
from agents.models import Approval, Session, SessionApproval
from agents.models.page_urls import build_page_url
from agents.policies.decisions import PolicyDecision
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.models import ApprovalCell, FlowCell
from bonobot.ledger.types import ApprovalReference
from mcp_servers.flow_labels import decode_labels

# `approval_id` in the audit entry of a call whose tool is approved for the session.
SESSION_APPROVAL = "session"


class ApprovalRequired(CallRefused):
    """A person must approve the call first; `extra` has the approval's id and URL."""

    code = "approval_required"
    title = "Approval required"
    is_pending = True

    def __init__(self, approval: Approval) -> None:
        self.approval_id = approval.pk
        self.expires_at = approval.expires_at
        page_url = build_page_url(approval)
        super().__init__(
            format_message(
                "{reason} The approval expires at {expires_at:%Y-%m-%d %H:%M} UTC.",
                reason=approval.reason,
                expires_at=approval.expires_at,
            ),
            rule=approval.rule,
            remedy=format_message(
                "Answer at {where}. After approval, the same call can be retried.",
                where=page_url,
            ),
            extra={
                "approval_id": str(approval.pk),
                "approval_url": page_url,
                "expires_at": approval.expires_at.isoformat(),
            },
        )


class CallNotApproved(CallRefused):
    """The approval of the call was denied, expired, or was canceled."""

    def __init__(self, approval: Approval, code: str, reason: str) -> None:
        self.approval_id = approval.pk
        comment = f" Message: {approval.message}" if approval.message else ""
        super().__init__(
            f"{reason}{comment}",
            code=code,
            rule=approval.rule,
            remedy="Continue without this call, or ask the person what to do instead.",
        )


@dataclass(frozen=True, slots=True)
class ApprovalDigests:
    """Digests of what an approval is bound to."""

    arguments: str
    definition: str
    rules: str
    combined: str


def require_approval(context: CallContext) -> ApprovalGrant:
    """Return the approval of a call whose decision is *ask* (queries the database).

    Raises `ApprovalRequired`, or `CallRefused` (`approval_denied`, `approval_expired`).
    """
    request, target = context.request, context.target
    digests = compute_approval_digests(request, target, context.decision)
    if request.session_id and (
        session_approval := _find_session_approval(request.session_id, target, digests)
    ):
        return ApprovalGrant(
            {
                "approval_id": SESSION_APPROVAL,
                "approved_by": session_approval.granted_by,
                "approved_at": session_approval.created_at.isoformat(),
            }
        )
    approval = (
        Approval.objects.filter(
            organization_id=context.snapshot.organization_id, digest=digests.combined
        )
        .order_by("-created_at")
        .first()
    )
    if approval is None:
        raise ApprovalRequired(create_approval(_build_approval(context, digests)))
    is_own_approval = approval.call_id == request.call_id
    is_valid = approval.state == Approval.State.APPROVED and approval.expires_at > timezone.now()
    if is_valid and not _is_spent(approval):
        reference = ApprovalReference(approval.pk, approval.digest)
        return ApprovalGrant({"approval_id": str(approval.pk)}, reference)
    if _is_spent_by_same_call(request, approval):
        return ApprovalGrant({"approval_id": str(approval.pk)})
    if approval.is_answerable(timezone.now()):
        raise ApprovalRequired(approval)
    refusal = build_refusal(approval)
    if refusal is not None and (
        is_own_approval or (is_denied(approval) and approval.expires_at > timezone.now())
    ):
        if approval.message and request.session_id is None:  # or the session has its labels
            label_text_reader(request.principal, approval)
        raise refusal
    raise ApprovalRequired(create_approval(_build_approval(context, digests)))


def build_refusal(approval: Approval) -> CallNotApproved | None:
    """Return the refusal for a denied, canceled or expired approval; None if approved."""
    if approval.state == Approval.State.APPROVED:
        return None
    if is_denied(approval):
        return CallNotApproved(
            approval,
            "approval_denied",
            format_message("{decided_by} denied this call.", decided_by=approval.decided_by),
        )
    if approval.state == Approval.State.WITHDRAWN:
        return CallNotApproved(
            approval, "approval_cancelled", "The request for approval of this call was canceled."
        )
    return CallNotApproved(
        approval, "approval_expired", "The approval expired without an answer. The call is denied."
    )


def is_denied(approval: Approval) -> bool:
    """Return whether a person denied the call."""
    return approval.state == Approval.State.DENIED


def compute_approval_digests(
    request: CallRequest, target: Target, decision: PolicyDecision
) -> ApprovalDigests:
    """Return the digests that an approval of this call is bound to."""
    arguments = compute_arguments_digest(request.principal.organization_id, request.arguments)
    rules = compute_digest(to_canonical_json([decision.code, decision.rule]))
    combined = compute_call_digest(
        requester=str(request.session_id or f"{request.principal.kind}:{request.principal.id}"),
        agent_id=request.agent_id,
        server_id=target.facts.server_id,
        method=request.method,
        tool=target.facts.own_name,
        uri=request.tool if request.method == "resources/read" else "",
        arguments=arguments,
        definition=target.digest,
        rules=rules,
    )
    return ApprovalDigests(arguments, target.digest, rules, combined)


def _find_session_approval(
    session_id: UUID, target: Target, digests: ApprovalDigests
) -> SessionApproval | None:
    return SessionApproval.objects.filter(
        session_id=session_id,
        server_id=target.facts.server_id,
        own_name=target.facts.own_name,
        definition_digest=digests.definition,
        rules_digest=digests.rules,
    ).first()


def _is_spent_by_same_call(request: CallRequest, approval: Approval) -> bool:
    """Return whether an earlier round trip of the same call used the approval."""
    earlier_call_ids = request.earlier_call_ids
    spent = ApprovalCell.objects.filter(pk=approval.pk, spent_by__in=earlier_call_ids)
    return bool(earlier_call_ids) and spent.exists()


def _is_spent(approval: Approval) -> bool:
    return not ApprovalCell.objects.filter(pk=approval.pk, spent_by=None).exists()


def _build_approval(context: CallContext, digests: ApprovalDigests) -> Approval:
    request, decision = context.request, context.decision
    organization_id = context.snapshot.organization_id
    return Approval(
        organization_id=organization_id,
        agent_id=request.agent_id,
        session_id=request.session_id,
        call_id=request.call_id,
        method=request.method,
        **build_target_fields(context.target, request.arguments, organization_id, context.server),
        arguments_digest=digests.arguments,
        rules_digest=digests.rules,
        digest=digests.combined,
        rule=decision.rule[:255],
        code=decision.code,
        reason=decision.reason,
        flow_labels=_load_held_labels(request),
        **_build_requester(request),
    )


def _build_requester(request: CallRequest) -> dict[str, str]:
    if request.session_id is not None:
        return build_requester_fields(Session.objects.get(pk=request.session_id))
    principal = request.principal
    return {
        "requested_by_kind": principal.kind,
        "requested_by_id": principal.id,
        "requested_by": principal.label,
    }


def _load_held_labels(request: CallRequest) -> list[str]:
    """Return the flow labels the caller holds now, to show them to the approver."""
    keys = build_flow_keys(
        request.principal, session_id=request.label_session_id, agent_id=request.agent_id
    )
    held_labels = 0
    for labels in FlowCell.objects.filter(pk__in=keys).values_list("labels", flat=True):
        held_labels |= labels
    return [str(label) for label in decode_labels(held_labels)]


def build_target_fields(
    target: Target, arguments: dict[str, Any], organization_id: UUID, server: ServerFacts | None
) -> dict[str, Any]:
    """Return the approval's fields about the target, with secrets masked."""
    facts = target.facts
    return {
        "server_id": facts.server_id,
        "server_name": facts.server_name,
        "own_name": facts.own_name,
        "label": facts.label[:512],
        "arguments": make_storable(redact_value(arguments, organization_id, server)),
        "definition_digest": target.digest,
    }
