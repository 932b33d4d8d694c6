"""The agents that the organization's rules affect, with the effective decisions on their tools.

An agent's own policy can be stricter than the organization's rules. Kill switches count as off,
since a policy can't change them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from django.db.models import QuerySet

from agents.admin.policy_editor import PolicyEditor
from agents.builtin_tools.registry import BUILTIN_TOOLS, BuiltinToolAvailability
from agents.builtin_tools.toolset_options import build_toolbox
from agents.models import Agent, AgentAssignment, AgentServer
from agents.policies.decisions import (
    ALL_SWITCHES_ON,
    EffectivePolicy,
    ToolFacts,
    decide_tool_call,
)
from agents.policies.effective_policies import apply_organization_policy, build_agent_policy
from agents.policies.rules import Policy

# A decision takes about 0.1 ms: agents beyond that have no numbers.
MAX_DECISIONS = 10_000


@dataclass(frozen=True)
class AffectedAgent:
    """An agent, and how many of its tools have each decision.

    `is_counted` is false if there are too many agents and tools to count them.
    """

    agent: Agent
    tools_by_decision: Counter[str] = field(default_factory=Counter)
    is_counted: bool = True

    @property
    def tools(self) -> int:
        return self.tools_by_decision.total()

    @property
    def denied(self) -> int:
        return self.tools_by_decision["deny"]

    @property
    def needing_approval(self) -> int:
        return self.tools_by_decision["ask"]


@dataclass(frozen=True)
class AgentTools:
    """An agent's own policy, and its tools among some of the organization."""

    agent: Agent
    policy: EffectivePolicy
    server_tools: Sequence[ToolFacts]
    builtin_tools: Sequence[ToolFacts]
    has_skills: bool

    def decide(self, organization_policy: Policy) -> dict[ToolFacts, str]:
        """Return the decision on each tool that the agent has, which its page *Tools* lists.

        How many tools of servers can be called decides whether tools are searched.
        """
        policy = apply_organization_policy(self.policy, organization_policy, for_agent=True)
        decisions = {tool: decide_tool_call(tool, policy).verdict for tool in self.server_tools}
        callable_count = sum(decision != "deny" for decision in decisions.values())
        availability = BuiltinToolAvailability(
            has_resources=any(scope.resources for scope in self.policy.scopes.values()),
            has_skills=self.has_skills,
            has_many_tools=0 < self.agent.tool_search_above < callable_count,
            toolbox=build_toolbox(self.agent),
        )
        for tool in self.builtin_tools:
            builtin_tool = BUILTIN_TOOLS[tool.own_name]
            is_available = availability.is_available(builtin_tool)
            if is_available and builtin_tool.is_granted(availability.toolbox):
                decisions[tool] = decide_tool_call(tool, policy).verdict
        return decisions


def list_agents(organization_id: UUID) -> QuerySet[Agent]:
    """Return the agents with their policies, by name."""
    rows = Agent.objects.for_organization(organization_id).order_by("name", "pk")
    return rows.select_related("tool_policy", "organization").prefetch_related("tool_policy__rules")


def count_agent_decisions(
    agents: Sequence[Agent], tools: Iterable[ToolFacts], organization_policy: Policy
) -> list[AffectedAgent]:
    """Return the agents of `list_agents` with the decisions on their tools (two queries)."""
    return [
        AffectedAgent(row.agent, Counter(row.decide(organization_policy).values()))
        for row in _load_agent_tools(agents, tools)
    ]


def list_newly_decided_agents(organization_id: UUID, editor: PolicyEditor) -> list[AffectedAgent]:
    """Return the agents for which unsaved changes of the rules change the decision on tools.

    Those with the most tools are first (four queries).
    """
    if not editor.changed_tools:
        return []
    tools = [tool.facts for tool in editor.changed_tools]
    rows, decision_count = [], 0
    for row in _load_agent_tools(list(list_agents(organization_id)), tools):
        decision_count += 2 * (len(row.server_tools) + len(row.builtin_tools))
        if decision_count > MAX_DECISIONS:
            rows.append(AffectedAgent(row.agent, is_counted=False))
            continue
        before = row.decide(editor.before)
        counts = Counter(
            decision
            for tool, decision in row.decide(editor.after).items()
            if decision != before.get(tool)
        )
        if counts:
            rows.append(AffectedAgent(row.agent, counts))
    return sorted(rows, key=lambda row: (-row.tools, row.agent.name))


def _load_agent_tools(agents: Sequence[Agent], tools: Iterable[ToolFacts]) -> Iterator[AgentTools]:
    """Yield the agents with those of the tools that they have, if any (two queries)."""
    server_tools: dict[UUID | None, list[ToolFacts]] = defaultdict(list)
    for tool in tools:
        server_tools[tool.server_id].append(tool)
    builtin_tools = server_tools.pop(None, [])
    agent_ids = [agent.pk for agent in agents]
    attached_servers: dict[UUID, list[AgentServer]] = defaultdict(list)
    for attached in AgentServer.objects.filter(agent__in=agent_ids):
        attached_servers[attached.agent_id].append(attached)
    assignments = AgentAssignment.objects.filter(agent__in=agent_ids, skill__enabled=True)
    agents_with_skills = set(assignments.values_list("agent_id", flat=True))
    for agent in agents:
        policy = build_agent_policy(agent, attached_servers[agent.pk], None)
        own_tools = [
            tool
            for server_id, scope in policy.scopes.items()
            if scope.enabled
            for tool in server_tools.get(server_id, ())
            if scope.has_tool(tool.own_name)
        ]
        if own_tools or builtin_tools:
            yield AgentTools(
                agent,
                replace(policy, switches=ALL_SWITCHES_ON),
                server_tools=own_tools,
                builtin_tools=builtin_tools,
                has_skills=agent.pk in agents_with_skills,
            )
