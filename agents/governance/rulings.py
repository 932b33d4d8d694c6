"""Rulings: the rows of policies, switches, bindings and budgets, read as decisions take them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db.models import Q

from agents.governance.limits import Limit
from agents.governance.policies import UNRULED, Ruling, Scope, Switches, agent_stage
from agents.governance.rules import Policy, Rule, read_policy
from agents.models import Agent, Budget, ToolPolicy, ToolRule
from bonobot.lib.problems import Conflict
from mcp_servers.models import Server

# What a call without an agent gets of a server: all of it, URIs of any depth too.
EVERYTHING = Scope(resources=("*", "*:*"), prompts=("*",))


def agent_ruling(agent: Agent, bindings: Iterable[Any], own: ToolPolicy | None) -> Ruling:
    """Return what decides an agent's calls; `own` is the organization's policy."""
    return Ruling(
        policy=_policy(getattr(agent, "tool_policy", None)),
        organization=replace(_ruled(own), mode="all"),
        switches=switches_of(agent),
        scopes={binding.server_id: _scope(binding) for binding in bindings},
    )


def server_ruling(server: Server, own: ToolPolicy | None) -> Ruling:
    """Return what decides calls of a server without an agent: the organization's policy."""
    return Ruling(
        policy=_ruled(own),
        switches=Switches(server.organization.halted_at is None),
        scopes={server.pk: EVERYTHING},
    )


def agent_draft(agent: Agent, ruling: Ruling) -> Ruling | None:
    """Return the ruling as the policy in the shadow of the agent's would have it."""
    row: ToolPolicy | None = getattr(agent, "tool_policy", None)
    return replace(ruling, policy=read_policy(row.draft)) if row and row.draft else None


def own_draft(row: ToolPolicy | None, ruling: Ruling, *, of_agent: bool) -> Ruling | None:
    """Return a ruling as the policy in the shadow of the organization's would have it."""
    return under_own(ruling, read_policy(row.draft), of_agent) if row and row.draft else None


def under_own(ruling: Ruling, policy: Policy, of_agent: bool) -> Ruling:
    """Return a ruling under another policy of the organization.

    Its deny and ask rules hold for every agent; without an agent, all of it decides.
    """
    if of_agent:
        return replace(ruling, organization=replace(policy, mode="all"))
    return replace(ruling, policy=policy)


def own_policy(organization_id: UUID) -> ToolPolicy | None:
    """Return what rules calls without an agent, and with its deny and ask rules every agent."""
    found = ToolPolicy.objects.filter(organization_id=organization_id, agent=None)
    return found.prefetch_related("rules").first()


def _ruled(row: ToolPolicy | None) -> Policy:
    return _policy(row) if row else UNRULED


def _policy(row: ToolPolicy | None) -> Policy:
    if row is None:
        return Policy()
    return Policy(row.mode, rules_of(row.rules.all()))


def rules_of(rows: Iterable[ToolRule]) -> tuple[Rule, ...]:
    """Return stored rules, or such as could be stored, as decisions take them."""
    return tuple(
        Rule(row.effect, row.source, row.pattern, row.server_id, row.condition) for row in rows
    )


def switches_of(agent: Agent) -> Switches:
    """Return how the kill switches over an agent stand, as its row and its organization's say."""
    return Switches(agent.organization.halted_at is None, agent.enabled)


def require_on(agent: Agent) -> None:
    """Raise `Conflict` where a kill switch stands over an agent: nothing of it may begin."""
    stage = agent_stage(switches_of(agent))
    if not stage.allows:
        raise Conflict(stage.reason, code=stage.code, rule=stage.rule, remedy=stage.remedy)


def _scope(binding: Any) -> Scope:
    return Scope(
        enabled=binding.enabled,
        allowed=tuple(binding.allowed_tools),
        denied=tuple(binding.denied_tools),
        resources=tuple(binding.allowed_resources),
        prompts=tuple(binding.allowed_prompts),
    )


def limits_of(
    organization_id: UUID, servers: Iterable[UUID], agent: Agent | None = None
) -> tuple[Limit, ...]:
    """Return the budgets that calls may be charged to: which of them, each call tells."""
    whose = Q(agent=None, server=None) | Q(server__in=list(servers))
    if agent is not None:
        whose |= Q(agent=agent)
    rows = Budget.objects.filter(whose, organization_id=organization_id)
    return tuple(limit_of(row) for row in rows)


def limit_of(row: Budget) -> Limit:
    """Return a budget as calls meet it; one for each session names none of them yet."""
    owner = row.server_id or (None if row.each_session else row.agent_id or row.organization_id)
    return Limit(row.scope, str(owner or ""), row.unit, row.period, row.limit)
