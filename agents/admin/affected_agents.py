"""The agents that have certain tools, which a rule of the organization's policy decides about."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from agents.admin.policy_editor import PolicyEditor
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolset_options import build_toolbox
from agents.models import Agent, AgentServer
from agents.policies.decisions import AgentServerScope, ToolFacts
from agents.policies.effective_policies import build_scope


@dataclass(frozen=True)
class AffectedAgent:
    """An agent, and how many of its tools have each decision."""

    agent: Agent
    tools_by_decision: Counter[str] = field(default_factory=Counter)

    @property
    def tools(self) -> int:
        return self.tools_by_decision.total()

    @property
    def denied(self) -> int:
        return self.tools_by_decision["deny"]

    @property
    def needing_approval(self) -> int:
        return self.tools_by_decision["ask"]


def list_affected_agents(
    organization_id: UUID, decisions: Mapping[ToolFacts, str]
) -> list[AffectedAgent]:
    """Return the agents that have at least one of the tools, most tools first (2 queries)."""
    builtin_tools: dict[str, str] = {}
    server_tools: dict[UUID, dict[str, str]] = defaultdict(dict)
    for tool, decision in decisions.items():
        if tool.server_id is None:
            builtin_tools[tool.own_name] = decision
        else:
            server_tools[tool.server_id][tool.own_name] = decision
    totals = {server_id: Counter(tools.values()) for server_id, tools in server_tools.items()}
    agents = {
        agent.pk: AffectedAgent(agent, _count_builtin_tools(agent, builtin_tools))
        for agent in Agent.objects.for_organization(organization_id)
    }
    attached_servers = AgentServer.objects.filter(
        organization_id=organization_id, server__in=server_tools, enabled=True
    )
    for attached in attached_servers:
        scope, tools = build_scope(attached), server_tools[attached.server_id]
        if (row := agents.get(attached.agent_id)) is None:  # deleted, and can be restored
            continue
        row.tools_by_decision.update(
            _count_selected_tools(scope, tools)
            if scope.allowed or scope.denied
            else totals[attached.server_id]
        )
    affected = [row for row in agents.values() if row.tools]
    return sorted(affected, key=lambda row: (-row.tools, row.agent.name))


def list_newly_decided_agents(organization_id: UUID, editor: PolicyEditor) -> list[AffectedAgent]:
    """Return the agents that have tools whose decision unsaved changes of the rules change."""
    if not editor.changed_tools:
        return []
    decisions = {tool.facts: tool.after for tool in editor.changed_tools}
    return list_affected_agents(organization_id, decisions)


def _count_builtin_tools(agent: Agent, decisions: Mapping[str, str]) -> Counter[str]:
    if not decisions:
        return Counter()
    toolbox = build_toolbox(agent)
    return Counter(
        decision for name, decision in decisions.items() if BUILTIN_TOOLS[name].is_granted(toolbox)
    )


def _count_selected_tools(scope: AgentServerScope, tools: Mapping[str, str]) -> Counter[str]:
    return Counter(decision for name, decision in tools.items() if scope.has_tool(name))
