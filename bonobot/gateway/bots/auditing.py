"""Auditing: each call of a tool of ours is a row, admitted before it and settled after it.

As at the door: no row, no call; the token's rate, the organization's and everybody's hold. What the
tool changes is a row of its own, written by whatever changes it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings

from agents.governance.limits import charge, global_charge
from agents.openings import written_arguments
from agents.redaction import kept
from agents.requests import OutcomeUnrecorded
from bonobot.gateway.bots.tools import Tool
from bonobot.gateway.inbound import Inbound
from bonobot.gateway.relaying import VIA
from bonobot.ledger.entries import Admission, Charge, Opening, Outcome, Settlement
from bonobot.ledger.heads import generation
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.writer import writer
from bonobot.lib.known_secrets import masker_at_hand, read_masker
from bonobot.lib.masking import MASK
from bonobot.lib.problems import InternalError, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import Principal

ACTION = "gateway_call"
RESOURCE = "gateway_tool"
LONGEST_NAME = 200


@asynccontextmanager
async def audited(inbound: Inbound, tool: Tool, arguments: dict[str, Any]) -> AsyncIterator[None]:
    """Admit a call, and settle it when the block ends; raises the ledger's `Refusal`."""
    principal = inbound.visitor.principal
    charges = await runtime().orm(_charges, principal)
    opening, began = _opening(inbound, tool.name, arguments, tool), perf_counter()
    try:
        await writer().admit_async(Admission(opening, charges=charges))
    except Problem as problem:
        await refused(inbound, tool.name, arguments, problem, tool)
        raise
    outcome: Outcome = "error"
    code = InternalError.code
    try:
        yield
        outcome, code = "ok", ""
    except asyncio.CancelledError:
        outcome, code = "cancelled", ""
        raise
    except Problem as problem:
        code = problem.code
        raise
    finally:
        settlement = Settlement(
            call_id=opening.call_id,
            organization_id=principal.organization_id,
            outcome=outcome,
            code=code,
            duration_ms=round((perf_counter() - began) * 1000),
            kind="bot",
        )
        await _settled(settlement)


async def _settled(settlement: Settlement) -> None:
    """Settle a call; raises `OutcomeUnrecorded`: it was made, and nobody must repeat it."""
    try:
        await writer().settle_async(settlement)
    except AuditUnavailable as problem:
        raise OutcomeUnrecorded(problem) from problem


async def refused(
    inbound: Inbound,
    name: str,
    arguments: dict[str, Any],
    problem: Problem,
    tool: Tool | None = None,
) -> None:
    """Write a call down that wasn't made."""
    if problem.code == "audit_unavailable":
        return
    await runtime().orm(_know_secrets, inbound.visitor.principal.organization_id)
    # Of a tool that there isn't, nobody knows which arguments are secrets.
    opening = _opening(inbound, name, arguments if tool else {}, tool, problem)
    await writer().refuse_async(opening)


def _opening(
    inbound: Inbound,
    name: str,
    arguments: dict[str, Any],
    tool: Tool | None,
    problem: Problem | None = None,
) -> Opening:
    principal = inbound.visitor.principal
    organization_id = principal.organization_id
    agent = tool.agent if tool else None
    veiled = tool.veiled if tool else frozenset()
    shown = {key: MASK if key in veiled else value for key, value in arguments.items()}
    named = visible(str(kept(name, organization_id, None)), LONGEST_NAME)
    return Opening(
        call_id=uuid4(),
        organization_id=organization_id,
        action=ACTION,
        event_type="call",
        resource_type=RESOURCE,
        resource_id=named,
        resource_name=tool.title if tool else "",
        actor=principal.actor,
        decision="deny" if problem else "allow",
        rule=(problem.rule or problem.code) if problem else "",
        code=problem.code if problem else "",
        details={
            "tool_name": named,
            **written_arguments(shown, organization_id),
            "via": VIA,
            "client": kept(inbound.client, organization_id, None),
        },
        agent_id=agent.pk if agent else None,
        agent_name=agent.name if agent else "",
        tool_name=named,
    )


def _charges(principal: Principal) -> tuple[Charge, ...]:
    """Return the rates that a call uses; what has to be masked is known then (2 queries)."""
    organization_id = principal.organization_id
    _know_secrets(organization_id)
    rows = Organization.objects.filter(pk=organization_id).values_list("calls_per_minute")
    own = next((rate for (rate,) in rows), None)
    rates = (
        ("token", principal.token_id, principal.calls_per_minute),
        (
            "organization",
            organization_id,
            settings.BONOBOT_ORG_CALLS_PER_MINUTE if own is None else own,
        ),
    )
    charges = [
        charge(organization_id, scope, one, rate) for scope, one, rate in rates if one and rate
    ]
    if settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE:
        charges.append(global_charge(settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE))
    return tuple(charges)


def _know_secrets(organization_id: UUID) -> None:
    now = generation(organization_id)
    if masker_at_hand(organization_id, now) is None:
        read_masker(organization_id, now)
