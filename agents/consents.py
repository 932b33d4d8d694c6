"""Consent: whether a person has said yes to this very call, at the door (FEATURES X4).

A yes holds for one call with the same arguments, definition and asking rules, or for one tool in
one session. Where there is none, the question is written down for a person, once, and the caller is
told where it is answered.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.utils import timezone

from agents.governance.flows import flow_keys
from agents.governance.policies import Decision
from agents.governance.snapshots import ServerFacts, Snapshot
from agents.models import Approval, Session, SessionGrant
from agents.questions import address, behind, put
from agents.redaction import kept
from agents.requests import Refused, Request
from agents.targets import Target
from bonobot.ledger.entries import Permit
from bonobot.ledger.fingerprints import fingerprint
from bonobot.ledger.models import FlowCell, PermitRow
from bonobot.lib.canonical import canonical, digest
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import storable
from mcp_servers.labels import labels_in


class ApprovalRequired(Refused):
    """A person has to say yes first; `extra` names the approval and where it is answered."""

    code = "approval_required"
    title = "A person has to allow this call"

    def __init__(self, approval: Approval) -> None:
        self.approval_id = approval.pk
        where = address(approval)
        super().__init__(
            say(
                "{reason} It waits for an answer until {expires_at:%Y-%m-%d %H:%M} UTC.",
                reason=approval.reason,
                expires_at=approval.expires_at,
            ),
            rule=approval.rule,
            remedy=say(
                "It is answered at {where}; after a yes, the same call may be sent again.",
                where=where,
            ),
            extra={
                "approval_id": str(approval.pk),
                "approval_url": where,
                "expires_at": approval.expires_at.isoformat(),
            },
        )


@dataclass(frozen=True, slots=True)
class Consent:
    """A yes: a permit to spend on this one call, or none where the tool is free in the session."""

    permit: Permit | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """What a yes is bound to."""

    arguments: str
    definition: str
    rules: str
    whole: str


def consent(request: Request, snapshot: Snapshot, target: Target, asked: Decision) -> Consent:
    """Return the yes to this call; raises `ApprovalRequired`, or `Refused` for a no (queries).

    Codes of a no: `approval_denied`, `approval_expired`.
    """
    binding = bind(request, target, asked)
    if request.session_id and _granted(request.session_id, target, binding):
        return Consent()
    found = (
        Approval.objects.filter(organization_id=snapshot.organization_id, digest=binding.whole)
        .order_by("-created_at")
        .first()
    )
    if found is None:
        raise ApprovalRequired(put(_question(request, snapshot, target, asked, binding)))
    own = found.call_id == request.call_id
    if found.state == Approval.State.APPROVED and not _spent(found):
        return Consent(Permit(found.pk, found.digest))
    if _spent_by_a_leg(request, found):
        return Consent()
    if found.answerable(timezone.now()):
        raise ApprovalRequired(found)
    no = refusal(found)
    if no is not None and (own or (denied(found) and found.expires_at > timezone.now())):
        raise no
    raise ApprovalRequired(put(_question(request, snapshot, target, asked, binding)))


def refusal(approval: Approval) -> Refused | None:
    """Return the no of a question that nobody can answer any more; None for a yes."""
    if approval.state == Approval.State.APPROVED:
        return None
    if denied(approval):
        return _no(
            approval,
            "approval_denied",
            say("{decided_by} denied this call.", decided_by=approval.decided_by),
        )
    return _no(approval, "approval_expired", "Nobody answered in time, and that is a no.")


def denied(approval: Approval) -> bool:
    """Tell whether a person has said no."""
    return approval.state == Approval.State.DENIED


def bind(request: Request, target: Target, asked: Decision) -> Binding:
    """Return what a yes to this call is bound to; a change of any of it needs another."""
    # Keyed: short secrets in arguments would be found by trying.
    arguments = fingerprint(request.principal.organization_id, canonical(request.arguments))
    rules = digest(canonical([asked.code, asked.rule]))
    who = str(request.session_id or f"{request.principal.kind}:{request.principal.id}")
    whole = canonical(
        {
            "who": who,
            "agent": str(request.agent_id or ""),
            "server": str(target.facts.server_id or ""),
            "method": request.method,
            "tool": target.facts.own_name,
            "uri": request.tool if request.method == "resources/read" else "",
            "arguments": arguments,
            "definition": target.digest,
            "rules": rules,
        }
    )
    return Binding(arguments, target.digest, rules, digest(whole))


def _granted(session_id: UUID, target: Target, binding: Binding) -> bool:
    return SessionGrant.objects.filter(
        session_id=session_id,
        server_id=target.facts.server_id,
        own_name=target.facts.own_name,
        definition_digest=binding.definition,
        rules_digest=binding.rules,
    ).exists()


def _spent_by_a_leg(request: Request, approval: Approval) -> bool:
    """Tell whether the yes was spent by an earlier leg of the same call, which goes on by it."""
    legs = request.legs
    return bool(legs) and PermitRow.objects.filter(pk=approval.pk, spent_by__in=legs).exists()


def _spent(approval: Approval) -> bool:
    return not PermitRow.objects.filter(pk=approval.pk, spent_by=None).exists()


def _question(
    request: Request, snapshot: Snapshot, target: Target, asked: Decision, binding: Binding
) -> Approval:
    facts = target.facts
    server = snapshot.servers.get(facts.server_id) if facts.server_id else None
    return Approval(
        organization_id=snapshot.organization_id,
        agent_id=request.agent_id,
        session_id=request.session_id,
        call_id=request.call_id,
        method=request.method,
        **aimed_at(target, request.arguments, snapshot.organization_id, server),
        arguments_digest=binding.arguments,
        rules_digest=binding.rules,
        digest=binding.whole,
        rule=asked.rule[:255],
        code=asked.code,
        reason=asked.reason,
        held=_held(request),
        **_requester(request),
    )


def _requester(request: Request) -> dict[str, str]:
    if request.session_id is not None:
        return behind(Session.objects.get(pk=request.session_id))
    asks = request.principal
    return {
        "requested_by_kind": asks.kind,
        "requested_by_id": asks.id,
        "requested_by": asks.label,
    }


def _held(request: Request) -> list[str]:
    """Return the labels that the caller holds now, for the person who is asked."""
    keys = flow_keys(
        request.principal, session_id=request.holding_session, agent_id=request.agent_id
    )
    found = 0
    for labels in FlowCell.objects.filter(pk__in=keys).values_list("labels", flat=True):
        found |= labels
    return [str(label) for label in labels_in(found)]


def _no(approval: Approval, code: str, reason: str) -> Refused:
    said = f" They say: {approval.word}" if approval.word else ""
    return Refused(
        f"{reason}{said}",
        code=code,
        rule=approval.rule,
        remedy="Do without this call, or ask the person what to do instead.",
    )


def aimed_at(
    target: Target, arguments: dict[str, Any], organization_id: UUID, server: ServerFacts | None
) -> dict[str, Any]:
    """Return a question's fields about what is called, without secrets."""
    facts = target.facts
    return {
        "server_id": facts.server_id,
        "server_name": facts.server_name,
        "own_name": facts.own_name,
        "label": facts.label[:512],
        "arguments": storable(kept(arguments, organization_id, server)),
        "definition_digest": target.digest,
    }
