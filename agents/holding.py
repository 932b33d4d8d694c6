"""Holding: which labels a caller holds now, what brought them, and how they are let go (X9).

A session holds them to its end; an agent and a token until they were idle for a day, or until
somebody who manages agents clears them.
"""

import time
from collections.abc import Collection, Iterable
from uuid import UUID

from django.db import transaction

from agents.evidence import Brought, evidence_of
from agents.governance.flows import IDLE_S, SEEN, flow_key, flow_keys
from agents.models import Agent, Session
from bonobot.ledger.changes import record
from bonobot.ledger.entries import Flow
from bonobot.ledger.flows import Held, held_at
from bonobot.ledger.models import FlowCell
from bonobot.tenancy.models import Token
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.labels import Label, labels_in


def held_by_agent(agent: Agent) -> tuple[Label, ...]:
    """Return what an agent holds from calls without a session, whoever made them."""
    keys = [flow_key(agent.organization_id, "agent", agent.pk), *_token_keys(agent)]
    return _held(keys, IDLE_S)


def held_by_token(token: Token) -> tuple[Label, ...]:
    """Return what a token holds from calls without a session."""
    return _held([flow_key(token.organization_id, "token", token.pk)], IDLE_S)


def held_by_session(session: Session) -> list[Brought]:
    """Return what a session holds, each with the first call that brought it."""
    held = _held(
        [flow_key(session.organization_id, "session", session.root_id or session.pk)], None
    )
    return evidence_of(session, held)


def held_now(
    principal: Principal, *, session_id: UUID | None, agent_id: UUID | None
) -> tuple[Label, ...]:
    """Return what whoever makes a call holds now: its session, or its token and agent (a query)."""
    keys = flow_keys(principal, session_id=session_id, agent_id=agent_id)
    return _held(keys, None if session_id else IDLE_S)


def clear_agent(principal: Principal, agent: Agent) -> None:
    """Let go of what an agent and its own tokens hold; raises `Forbidden`."""
    keys = [flow_key(agent.organization_id, "agent", agent.pk), *_token_keys(agent)]
    _clear(principal, keys, resource=("agent", agent.pk, agent.name))


def clear_token(principal: Principal, token: Token) -> None:
    """Let go of what a token holds; raises `Forbidden`."""
    keys = [flow_key(token.organization_id, "token", token.pk)]
    _clear(principal, keys, resource=("token", token.pk, token.name))


def _token_keys(agent: Agent) -> list[str]:
    """Return the keys of the tokens that are narrowed to it, be it among others."""
    narrowed = Token.objects.for_organization(agent.organization_id).exclude(agent_ids=[])
    return [
        flow_key(agent.organization_id, "token", pk)
        for pk, agent_ids in narrowed.values_list("pk", "agent_ids")
        if str(agent.pk) in agent_ids
    ]


def _held(keys: Collection[str], idle_s: int | None) -> tuple[Label, ...]:
    now = time.time_ns() // 1_000
    found = 0
    for cell in FlowCell.objects.filter(pk__in=keys):
        held = Held(cell.labels, cell.touched)
        found |= held_at(held, Flow(cell.key, 0, 0, idle_s), now)
    return labels_in(found & SEEN)


def _clear(principal: Principal, keys: Iterable[str], *, resource: tuple[str, UUID, str]) -> None:
    principal.require(Action.MANAGE_AGENTS)
    kind, pk, name = resource
    cells = FlowCell.objects.filter(pk__in=list(keys))
    with transaction.atomic():
        before = 0
        for labels in cells.values_list("labels", flat=True):
            before |= labels
        # First the record, then the cells: admissions take the locks in this order.
        record(
            organization_id=principal.organization_id,
            actor=principal.actor,
            action="held_labels_cleared",
            resource_type=kind,
            resource_id=str(pk),
            resource_name=name,
            details={"labels": list(labels_in(before))},
            governed=False,
        )
        cells.update(labels=0)
