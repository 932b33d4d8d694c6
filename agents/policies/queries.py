"""Read policies, kill switches and attached servers from their rows, as decisions take them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from agents.models import Agent, ToolPolicy, ToolRule
from agents.policies.decisions import (
    UNRULED,
    AgentServerScope,
    EffectivePolicy,
    KillSwitches,
    evaluate_agent_stage,
)
from agents.policies.rules import Policy, Rule, read_policy
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, NotFound
from mcp_servers.models import Server

# What a call without an agent gets of a server: all of it, URIs of any depth too.
EVERYTHING = AgentServerScope(resources=("*", "*:*"), prompts=("*",))


def build_agent_policy(
    agent: Agent, bindings: Iterable[Any], own: ToolPolicy | None
) -> EffectivePolicy:
    """Return what decides an agent's calls; `own` is the organization's policy."""
    return EffectivePolicy(
        policy=_build_policy(getattr(agent, "tool_policy", None)),
        organization=replace(_build_organization_policy(own), mode="all"),
        switches=build_switches(agent),
        scopes={binding.server_id: _build_scope(binding) for binding in bindings},
    )


def build_server_policy(server: Server, own: ToolPolicy | None) -> EffectivePolicy:
    """Return what decides calls of a server without an agent: the organization's policy."""
    return EffectivePolicy(
        policy=_build_organization_policy(own),
        switches=KillSwitches(server.organization.halted_at is None),
        scopes={server.pk: EVERYTHING},
    )


def load_policy(kind: str, pk: UUID) -> EffectivePolicy:
    """Return what decides an agent's calls, or a server's without one; raises `NotFound`."""
    if kind == "agent":
        return _load_agent_policy(pk)
    server = Server.objects.select_related("organization").filter(pk=pk).first()
    if server is None:
        raise NotFound(format_message("There is no server {key!r}.", key=str(pk)), field="server")
    return build_server_policy(server, find_organization_policy(server.organization_id))


def _load_agent_policy(pk: UUID) -> EffectivePolicy:
    whole = Agent.objects.select_related("tool_policy", "organization")
    agent = whole.filter(pk=pk).first()
    if agent is None:
        raise NotFound(format_message("There is no agent {key!r}.", key=str(pk)), field="agent")
    own = find_organization_policy(agent.organization_id)
    return build_agent_policy(agent, agent.bindings.all(), own)


def build_agent_draft(agent: Agent, ruling: EffectivePolicy) -> EffectivePolicy | None:
    """Return the ruling as the policy in the shadow of the agent's would have it."""
    row: ToolPolicy | None = getattr(agent, "tool_policy", None)
    return replace(ruling, policy=read_policy(row.draft)) if row and row.draft else None


def build_organization_draft(
    row: ToolPolicy | None, ruling: EffectivePolicy, *, of_agent: bool
) -> EffectivePolicy | None:
    """Return a ruling as the policy in the shadow of the organization's would have it."""
    return (
        apply_organization_policy(ruling, read_policy(row.draft), of_agent)
        if row and row.draft
        else None
    )


def apply_organization_policy(
    ruling: EffectivePolicy, policy: Policy, of_agent: bool
) -> EffectivePolicy:
    """Return a ruling under another policy of the organization.

    Its deny and ask rules hold for every agent; without an agent, all of it decides.
    """
    if of_agent:
        return replace(ruling, organization=replace(policy, mode="all"))
    return replace(ruling, policy=policy)


def find_organization_policy(organization_id: UUID) -> ToolPolicy | None:
    """Return what rules calls without an agent, and with its deny and ask rules every agent."""
    found = ToolPolicy.objects.filter(organization_id=organization_id, agent=None)
    return found.prefetch_related("rules").first()


def _build_organization_policy(row: ToolPolicy | None) -> Policy:
    return _build_policy(row) if row else UNRULED


def _build_policy(row: ToolPolicy | None) -> Policy:
    if row is None:
        return Policy()
    return Policy(row.mode, build_rules(row.rules.all()))


def build_rules(rows: Iterable[ToolRule]) -> tuple[Rule, ...]:
    """Return stored rules, or such as could be stored, as decisions take them."""
    return tuple(
        Rule(row.effect, row.source, row.pattern, row.server_id, row.condition) for row in rows
    )


def build_switches(agent: Agent) -> KillSwitches:
    """Return how the kill switches over an agent stand, as its row and its organization's say."""
    return KillSwitches(agent.organization.halted_at is None, agent.enabled)


def require_on(agent: Agent) -> None:
    """Raise `Conflict` where a kill switch stands over an agent: nothing of it may begin."""
    stage = evaluate_agent_stage(build_switches(agent))
    if not stage.allows:
        raise Conflict(stage.reason, code=stage.code, rule=stage.rule, remedy=stage.remedy)


def _build_scope(binding: Any) -> AgentServerScope:
    return AgentServerScope(
        enabled=binding.enabled,
        allowed=tuple(binding.allowed_tools),
        denied=tuple(binding.denied_tools),
        resources=tuple(binding.allowed_resources),
        prompts=tuple(binding.allowed_prompts),
    )
