"""Declarations of the organization's tools, and the audit of their calls.

As in the call pipeline, no call is made without an audit entry, and the rate limits of the token,
the organization and the installation apply. Changes made by a tool have audit entries of their own.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings

from agents.budgets.limits import build_charge, build_global_charge
from agents.calls.redaction import build_audited_arguments, redact_value
from agents.calls.types import OutcomeUnrecorded
from agents.gateway.client_request import VIA, GatewayRequest
from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.organization_secrets import load_masker
from bonobot.core.problems import InternalError, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.masking import MASK, get_organization_secrets
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.admission import AuditUnavailable
from bonobot.ledger.policy_generations import load_policy_generation
from bonobot.ledger.types import Admission, Opening, Outcome, RateCharge, Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.schemas import SchemaVerdict, classify_schema

ToolRunner = Callable[[GatewayRequest, dict[str, Any]], Awaitable[dict[str, Any]]]
AUDIT_ACTION = "gateway_call"
AUDIT_RESOURCE_TYPE = "gateway_tool"
MAX_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OrganizationToolHints:
    """MCP's tool annotations."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = False

    def to_dict(self) -> dict[str, bool]:
        """Return them by their MCP names; two of them are omitted for a read-only tool."""
        hints = {"readOnlyHint": self.read_only, "openWorldHint": self.open_world}
        if not self.read_only:
            hints |= {"destructiveHint": self.destructive, "idempotentHint": self.idempotent}
        return hints


READ_ONLY_HINTS = OrganizationToolHints(read_only=True)


class ToolInputSchema:
    """A tool's input schema, classified once."""

    def __init__(self, properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> None:
        self.schema: dict[str, Any] = {
            "type": "object",
            "properties": dict(properties),
            "additionalProperties": False,
        }
        if required:
            self.schema["required"] = list(required)

    @cached_property
    def verdict(self) -> SchemaVerdict:
        """How arguments can be validated against the schema."""
        return classify_schema(self.schema)


@dataclass(frozen=True, kw_only=True)
class OrganizationTool:
    """A tool; values of `secret_arguments` are masked in the audit log.

    `meta` names the page of an MCP App, on which a person with the permission `answers` can answer.
    """

    name: str
    title: str
    description: str
    input_schema: ToolInputSchema
    output_schema: Mapping[str, Any]
    hints: OrganizationToolHints
    run: ToolRunner = field(repr=False)
    agent: Agent | None = None
    secret_arguments: frozenset[str] = frozenset()
    meta: Mapping[str, Any] = field(default_factory=dict)
    answers: Action | None = None

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as MCP declares it."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": self.input_schema.schema,
            "outputSchema": dict(self.output_schema),
            "annotations": {"title": self.title, **self.hints.to_dict()},
            **({"_meta": dict(self.meta)} if self.meta else {}),
        }


def build_output_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the output schema of an object whose properties are all required."""
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


@asynccontextmanager
async def audit_call(
    inbound: GatewayRequest, tool: OrganizationTool, arguments: dict[str, Any]
) -> AsyncIterator[None]:
    """Admit a call and settle it after the block; raises the ledger's `Refusal`."""
    principal = inbound.caller.principal
    charges = await get_runtime().run_orm(_load_charges, principal)
    opening, started_at = _build_opening(inbound, tool.name, arguments, tool), perf_counter()
    try:
        await get_writer().admit_call_async(Admission(opening, charges=charges))
    except Problem as problem:
        await record_refusal(inbound, tool.name, arguments, problem, tool)
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
            duration_ms=round((perf_counter() - started_at) * 1000),
            kind="bot",
        )
        await _settle_call(settlement)


async def _settle_call(settlement: Settlement) -> None:
    """Settle a call; raises `OutcomeUnrecorded`: the call was made and must not be repeated."""
    try:
        await get_writer().settle_call_async(settlement)
    except AuditUnavailable as problem:
        raise OutcomeUnrecorded(problem) from problem


async def record_refusal(
    inbound: GatewayRequest,
    name: str,
    arguments: dict[str, Any],
    problem: Problem,
    tool: OrganizationTool | None = None,
) -> None:
    """Record a refused call in the audit log."""
    if problem.code == "audit_unavailable":
        return
    await get_runtime().run_orm(_load_masker, inbound.caller.principal.organization_id)
    # For an unknown tool, it isn't known which arguments are secret, so record none.
    opening = _build_opening(inbound, name, arguments if tool else {}, tool, problem)
    await get_writer().record_refusal_async(opening)


def _build_opening(
    inbound: GatewayRequest,
    name: str,
    arguments: dict[str, Any],
    tool: OrganizationTool | None,
    problem: Problem | None = None,
) -> Opening:
    principal = inbound.caller.principal
    organization_id = principal.organization_id
    agent = tool.agent if tool else None
    secret_arguments = tool.secret_arguments if tool else frozenset()
    masked_arguments = {
        key: MASK if key in secret_arguments else value for key, value in arguments.items()
    }
    tool_name = make_visible(str(redact_value(name, organization_id, None)), MAX_NAME_LENGTH)
    return Opening(
        call_id=uuid4(),
        organization_id=organization_id,
        action=AUDIT_ACTION,
        event_type="call",
        resource_type=AUDIT_RESOURCE_TYPE,
        resource_id=tool_name,
        resource_name=tool.title if tool else "",
        actor=principal.actor,
        decision="deny" if problem else "allow",
        rule=(problem.rule or problem.code) if problem else "",
        code=problem.code if problem else "",
        details={
            "tool_name": tool_name,
            **build_audited_arguments(masked_arguments, organization_id),
            "via": VIA,
            "client": redact_value(inbound.client_name, organization_id, None),
        },
        agent_id=agent.pk if agent else None,
        agent_name=agent.name if agent else "",
        tool_name=tool_name,
    )


def _load_charges(principal: Principal) -> tuple[RateCharge, ...]:
    """Return the rate limit charges of a call, and load the secrets to mask (2 queries)."""
    organization_id = principal.organization_id
    _load_masker(organization_id)
    rows = Organization.objects.filter(pk=organization_id).values_list("calls_per_minute")
    own_rate = next((rate for (rate,) in rows), None)
    rates = (
        ("token", principal.token_id, principal.calls_per_minute),
        (
            "organization",
            organization_id,
            settings.BONOBOT_ORG_CALLS_PER_MINUTE if own_rate is None else own_rate,
        ),
    )
    charges = [
        build_charge(organization_id, scope, scope_id, rate)
        for scope, scope_id, rate in rates
        if scope_id and rate
    ]
    if settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE:
        charges.append(build_global_charge(settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE))
    return tuple(charges)


def _load_masker(organization_id: UUID) -> None:
    generation = load_policy_generation(organization_id)
    if get_organization_secrets(str(organization_id)).find_current_masker(generation) is None:
        load_masker(organization_id, generation)
