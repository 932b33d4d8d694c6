"""Load policies, kill switches and attached servers for decisions."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from agents.models import Agent, ToolPolicy, ToolRule
from agents.policies.decisions import (
    UNRESTRICTED_POLICY,
    AgentServerScope,
    EffectivePolicy,
    KillSwitches,
    evaluate_agent_stage,
)
from agents.policies.rules import Policy, Rule, read_policy
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, NotFound
from mcp_servers.models import Server

# The scope of calls without an agent: everything, including URIs of any depth.
FULL_SCOPE = AgentServerScope(resources=("*", "*:*"), prompts=("*",))


def build_agent_policy(
    agent: Agent, attached_servers: Iterable[Any], organization_policy: ToolPolicy | None
) -> EffectivePolicy:
    return EffectivePolicy(
        policy=_build_policy(getattr(agent, "tool_policy", None)),
        organization=replace(_build_organization_policy(organization_policy), mode="all"),
        switches=build_switches(agent),
        scopes={
            attached_server.server_id: build_scope(attached_server)
            for attached_server in attached_servers
        },
    )


def build_server_policy(server: Server, organization_policy: ToolPolicy | None) -> EffectivePolicy:
    """Return the effective policy of calls to a server without an agent: the organization's."""
    return EffectivePolicy(
        policy=_build_organization_policy(organization_policy),
        switches=KillSwitches(server.organization.halted_at is None),
        scopes={server.pk: FULL_SCOPE},
        of_agent=False,
    )


def load_policy(kind: str, pk: UUID) -> EffectivePolicy:
    """Return the effective policy of an agent or of direct calls to a server; raises `NotFound`."""
    if kind == "agent":
        return _load_agent_policy(pk)
    server = Server.objects.select_related("organization").filter(pk=pk).first()
    if server is None:
        raise NotFound(
            format_message("The server {name!r} doesn't exist.", name=str(pk)), field="server"
        )
    return build_server_policy(server, find_organization_policy(server.organization_id))


def _load_agent_policy(pk: UUID) -> EffectivePolicy:
    agents = Agent.objects.select_related("tool_policy", "organization")
    agent = agents.filter(pk=pk).first()
    if agent is None:
        raise NotFound(
            format_message("The agent {name!r} doesn't exist.", name=str(pk)), field="agent"
        )
    organization_policy = find_organization_policy(agent.organization_id)
    return build_agent_policy(agent, agent.agent_servers.all(), organization_policy)


def build_agent_draft(agent: Agent, effective_policy: EffectivePolicy) -> EffectivePolicy | None:
    row: ToolPolicy | None = getattr(agent, "tool_policy", None)
    return replace(effective_policy, policy=read_policy(row.draft)) if row and row.draft else None


def build_organization_draft(
    row: ToolPolicy | None, effective_policy: EffectivePolicy, *, for_agent: bool
) -> EffectivePolicy | None:
    return (
        apply_organization_policy(effective_policy, read_policy(row.draft), for_agent)
        if row and row.draft
        else None
    )


def apply_organization_policy(
    effective_policy: EffectivePolicy, policy: Policy, for_agent: bool
) -> EffectivePolicy:
    """Return the effective policy with another policy of the organization.

    For agents only its deny and ask rules apply; without an agent, all of it does.
    """
    if for_agent:
        return replace(effective_policy, organization=replace(policy, mode="all"))
    return replace(effective_policy, policy=policy)


def find_organization_policy(organization_id: UUID) -> ToolPolicy | None:
    policies = ToolPolicy.objects.filter(organization_id=organization_id, agent=None)
    return policies.prefetch_related("rules").first()


def _build_organization_policy(row: ToolPolicy | None) -> Policy:
    return _build_policy(row) if row else UNRESTRICTED_POLICY


def _build_policy(row: ToolPolicy | None) -> Policy:
    if row is None:
        return Policy()
    return Policy(row.mode, build_rules(row.rules.all()))


def build_rules(rows: Iterable[ToolRule]) -> tuple[Rule, ...]:
    """Return stored (or unsaved) rules in the form used by decisions."""
    return tuple(
        Rule(
            row.effect,
            source=row.source,
            pattern=row.pattern,
            server_id=row.server_id,
            condition=row.condition,
        )
        for row in rows
    )


def build_switches(agent: Agent) -> KillSwitches:
    return KillSwitches(agent.organization.halted_at is None, agent.enabled)


def require_enabled(agent: Agent) -> None:
    """Raise `Conflict` if the agent or its organization is stopped by a kill switch."""
    stage = evaluate_agent_stage(build_switches(agent))
    if not stage.allows:
        raise Conflict(stage.reason, code=stage.code, rule=stage.rule, remedy=stage.remedy)


def build_scope(attached_server: Any) -> AgentServerScope:
    return AgentServerScope(
        enabled=attached_server.enabled,
        allowed=tuple(attached_server.allowed_tools),
        denied=tuple(attached_server.denied_tools),
        resources=tuple(attached_server.allowed_resources),
        prompts=tuple(attached_server.allowed_prompts),
    )
