"""The agents of a server on its overview, and how many of its tools each can call."""

from typing import Any

from agents.calls.snapshots import get_snapshot_cache
from agents.models import AgentServer
from agents.policies.decisions import ToolFacts, decide_tool_call
from agents.policies.effective_policies import build_agent_policy, find_organization_policy
from bonobot.accounts.admin_base import ObjectRequest

MAX_SHOWN = 20
# A decision takes about 0.1 ms: agents beyond that have no number.
MAX_DECISIONS = 2_000


def build_agents_panel(visit: ObjectRequest) -> tuple[str, dict[str, Any]]:
    """Return the template and context of the panel (a fixed number of queries)."""
    server = visit.object
    attached_servers = (
        AgentServer.objects.filter(server=server)
        .select_related("agent__tool_policy", "agent__organization")
        .prefetch_related("agent__tool_policy__rules")
        .order_by("agent__name")[:MAX_SHOWN]
    )
    snapshot = get_snapshot_cache().load_current("server", server.pk)
    tools = [tool.facts for tool in snapshot.tools.values() if tool.facts.state != "gone"]
    rows = list(attached_servers)
    counted_agents = MAX_DECISIONS // max(len(tools), 1)
    counts = _count_callable_tools(rows[:counted_agents], tools)
    return "admin/agents/attached_agents.html", {
        "agent_servers": [(row, counts.get(row.agent_id)) for row in rows],
        "tool_count": len(tools),
    }


def _count_callable_tools(rows: list[AgentServer], tools: list[ToolFacts]) -> dict[Any, int]:
    """Return how many of these tools of a server each agent can call, also with an approval."""
    if not rows:
        return {}
    organization_policy = find_organization_policy(rows[0].agent.organization_id)
    policies = {
        row.agent_id: build_agent_policy(row.agent, [row], organization_policy) for row in rows
    }
    return {
        agent_id: sum(decide_tool_call(facts, policy).is_callable for facts in tools)
        for agent_id, policy in policies.items()
    }
