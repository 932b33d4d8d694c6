"""Which servers have anything that may be called, for many servers and agents at once.

The decisions are those of snapshots (`snapshots`), without loading declarations, secrets and
limits. They are preliminary: conditions on arguments are decided for each call.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import cast
from uuid import UUID

from django.db.models import F

from agents.models import Agent, AgentServer
from agents.policies.decisions import (
    DefinitionFacts,
    EffectivePolicy,
    Kind,
    ToolFacts,
    decide_definition,
    decide_tool_call,
)
from agents.policies.queries import (
    build_agent_policy,
    build_server_policy,
    find_organization_policy,
)
from mcp_servers.models import Definition, Server


def list_callable_servers(organization_id: UUID, servers: Iterable[Server]) -> set[UUID]:
    """Return those of an organization's servers with anything that may be called without an agent.

    The servers have their `organization` loaded; four queries.
    """
    names = _load_callable_names(organization_id)
    organization_policy = find_organization_policy(organization_id)
    return {
        server.pk
        for server in servers
        if _is_callable(server, names[server.pk], build_server_policy(server, organization_policy))
    }


def list_callable_servers_of_agents(
    organization_id: UUID, agents: Sequence[Agent]
) -> dict[UUID, set[UUID]]:
    """Return the servers of each agent with anything that the agent may call.

    The agents have their `organization` and `tool_policy` with its rules loaded; five queries.
    """
    names = _load_callable_names(organization_id)
    organization_policy = find_organization_policy(organization_id)
    attached_servers: Mapping[UUID, list[AgentServer]] = defaultdict(list)
    for row in AgentServer.objects.filter(agent__in=agents).select_related("server"):
        attached_servers[row.agent_id].append(row)
    callable_servers = {}
    for agent in agents:
        rows = attached_servers[agent.pk]
        policy = build_agent_policy(agent, rows, organization_policy)
        callable_servers[agent.pk] = {
            row.server_id for row in rows if _is_callable(row.server, names[row.server_id], policy)
        }
    return callable_servers


def _load_callable_names(organization_id: UUID) -> Mapping[UUID, list[tuple[str, str]]]:
    """Return kind and name of the usable definitions of each server (two queries)."""
    definitions = Definition.objects.filter(organization_id=organization_id)
    instructions = definitions.filter(kind=Definition.Kind.INSTRUCTIONS, present=True)
    changed_servers = set(
        instructions.exclude(pinned_digest="")
        .exclude(pinned_digest=F("digest"))
        .values_list("server", flat=True)
    )
    rows = definitions.callable().exclude(kind=Definition.Kind.INSTRUCTIONS).order_by()
    names: Mapping[UUID, list[tuple[str, str]]] = defaultdict(list)
    for server_id, kind, name in rows.values_list("server", "kind", "name").iterator():
        if server_id not in changed_servers:
            names[server_id].append((kind, name))
    return names


def _is_callable(
    server: Server, names: Iterable[tuple[str, str]], effective_policy: EffectivePolicy
) -> bool:
    """Tell whether the policy allows, perhaps after approval, any of a server's definitions."""
    return any(
        decide_tool_call(
            ToolFacts("mcp", name, name, server.pk, server.name, server.enabled), effective_policy
        ).is_callable
        if kind == Definition.Kind.TOOL
        else decide_definition(
            DefinitionFacts(cast(Kind, kind), name, server.pk, server.name, server.enabled),
            effective_policy,
        ).is_callable
        for kind, name in names
    )
