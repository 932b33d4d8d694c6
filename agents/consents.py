"""Consent: whether a person has said yes to this very call, at the door (FEATURES X4).

A yes holds for one call with the same arguments, definition and asking rules, or for one tool in
one session. Where there is none, the question is written down for a person, once, and the caller is
told where it is answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from django.db import IntegrityError, transaction
from django.utils import timezone

from agents.governance.flows import flow_keys
from agents.governance.policies import Decision
from agents.governance.snapshots import Snapshot
from agents.models import Approval, Session, SessionGrant
from agents.questions import address, closing_time, tell
from agents.redaction import kept
from agents.requests import Refused, Request
from agents.targets import Target
from bonobot.ledger.entries import Permit
from bonobot.ledger.fingerprints import fingerprint
from bonobot.ledger.models import FlowCell, PermitRow
from bonobot.lib.canonical import canonical, digest
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
            f"{approval.reason} It waits for an answer until {approval.expires_at:%Y-%m-%d %H:%M} "
            "UTC.",
            rule=approval.rule,
            remedy=f"It is answered at {where}; after a yes, the same call may be sent again.",
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
        raise ApprovalRequired(_ask(request, snapshot, target, asked, binding))
    own = found.call_id == request.call_id
    if found.state == Approval.State.APPROVED and not _spent(found):
        return Consent(Permit(found.pk, found.digest))
    if found.answerable(timezone.now()):
        raise ApprovalRequired(found)
    if found.state == Approval.State.DENIED and (own or found.expires_at > timezone.now()):
        raise _no(found, "approval_denied", f"{found.decided_by} denied this call.")
    if own:
        raise _no(found, "approval_expired", "Nobody answered in time, and that is a no.")
    raise ApprovalRequired(_ask(request, snapshot, target, asked, binding))


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


def _spent(approval: Approval) -> bool:
    return not PermitRow.objects.filter(pk=approval.pk, spent_by=None).exists()


def _ask(
    request: Request, snapshot: Snapshot, target: Target, asked: Decision, binding: Binding
) -> Approval:
    """Write the question down; two callers at once get the same one."""
    question = _question(request, snapshot, target, asked, binding)
    try:
        with transaction.atomic():
            question.save(force_insert=True)
            tell(question)
    except IntegrityError:
        waiting = Approval.objects.filter(
            organization_id=snapshot.organization_id,
            digest=binding.whole,
            state=Approval.State.WAITING,
        )
        # One that was overdue and not swept yet makes way for the new question.
        if waiting.overdue().update(state=Approval.State.EXPIRED):
            return _ask(request, snapshot, target, asked, binding)
        return waiting.get()
    return question


def _question(
    request: Request, snapshot: Snapshot, target: Target, asked: Decision, binding: Binding
) -> Approval:
    facts = target.facts
    server = snapshot.servers.get(facts.server_id) if facts.server_id else None
    return Approval(
        id=uuid4(),
        organization_id=snapshot.organization_id,
        agent_id=request.agent_id,
        session_id=request.session_id,
        call_id=request.call_id,
        server_id=facts.server_id,
        server_name=facts.server_name,
        own_name=facts.own_name,
        label=facts.label[:512],
        method=request.method,
        arguments=storable(kept(request.arguments, snapshot.organization_id, server)),
        arguments_digest=binding.arguments,
        definition_digest=binding.definition,
        rules_digest=binding.rules,
        digest=binding.whole,
        rule=asked.rule[:255],
        code=asked.code,
        reason=asked.reason,
        held=_held(request),
        expires_at=closing_time(snapshot.organization_id),
        **_requester(request),
    )


def _requester(request: Request) -> Mapping[str, Any]:
    """Return who stands behind the call: of a session, the person or token that started it."""
    names = ("requested_by_kind", "requested_by_id", "requested_by")
    if request.session_id is None:
        asks = request.principal
        return dict(zip(names, (asks.kind, asks.id, asks.label), strict=True))
    started = Session.objects.filter(pk=request.session_id)
    found = started.values_list("started_by_kind", "started_by_id", "started_by").get()
    return dict(zip(names, found, strict=True))


def _held(request: Request) -> list[str]:
    """Return the labels that the caller holds now, for the person who is asked."""
    keys = flow_keys(request.principal, session_id=request.session_id, agent_id=request.agent_id)
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
