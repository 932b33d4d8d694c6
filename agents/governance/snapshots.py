"""Snapshots: all that deciding and calling needs of an agent or a server, read once.

A snapshot carries the policy generation that it was read at (read first, so that a change during
the reading makes it stale, never wrong). Admission compares the generation and refuses a stale one,
so a cached snapshot needs no query on the way to a call and still holds on every host
(DESIGN section 3).
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any
from uuid import UUID

from agents.builtin_tools import BUILTIN_TOOLS
from agents.governance.names import name_tools
from agents.governance.policies import Decision, Policy, Rule, Scope, ToolFacts, decide
from agents.models import Agent, Budget, ToolPolicy
from bonobot.ledger.heads import generation
from bonobot.lib.problems import NotFound
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.endpoints import endpoint_of
from mcp_servers.models import Definition, Server
from mcp_servers.schemas import Judgement

KEPT = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """One budget as the ledger counts it."""

    scope: str
    scope_id: str
    unit: str
    period: str
    limit: int


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the snapshot's owner knows it: under `name`, with facts and its declaration."""

    name: str
    facts: ToolFacts
    decision: Decision
    declaration: Mapping[str, Any]
    judgement: Judgement = field(default_factory=lambda: Judgement("inline", ""))
    digest: str = ""
    definition_id: UUID | None = None

    @property
    def input_schema(self) -> dict[str, Any]:
        """The original input schema, which arguments are always checked against."""
        return self.declaration.get("inputSchema") or {"type": "object"}

    @property
    def description(self) -> str:
        """The description, or the title, or nothing."""
        return self.declaration.get("description") or self.declaration.get("title") or ""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server as a call needs it; the endpoint knows what must be masked."""

    id: UUID
    name: str
    slug: str
    enabled: bool
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that calls of one agent (or, without an agent, of one server) depend on."""

    organization_id: UUID
    generation: int
    tools: Mapping[str, Tool]
    servers: Mapping[UUID, ServerFacts]
    agent_id: UUID | None = None
    agent_name: str = ""
    agent_slug: str = ""
    agent_enabled: bool = True
    calls_per_minute: int = 0
    limits: tuple[Limit, ...] = ()
    policy: Policy = field(default_factory=Policy)
    scopes: Mapping[UUID, Scope] = field(default_factory=dict)

    def offered(self) -> list[Tool]:
        """Return the tools whose decision allows them, in a stable order."""
        return [tool for _, tool in sorted(self.tools.items()) if tool.decision.allowed]


class Snapshots:
    """A bounded cache of snapshots by agent or server; safe from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, UUID], Snapshot] = OrderedDict()
        self._lock = Lock()

    def cached(self, kind: str, key: UUID) -> Snapshot | None:
        """Return the snapshot at hand, which may be stale: admission will tell."""
        with self._lock:
            return self._kept.get((kind, key))

    def read(self, kind: str, key: UUID) -> Snapshot:
        """Read a snapshot from the rows and keep it; raises `NotFound` (does queries)."""
        snapshot = _agent_snapshot(key) if kind == "agent" else _server_snapshot(key)
        with self._lock:
            self._kept[kind, key] = snapshot
            self._kept.move_to_end((kind, key))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return snapshot

    def current(self, kind: str, key: UUID) -> Snapshot:
        """Return a snapshot that is not stale now: one query where the cache still holds."""
        snapshot = self.cached(kind, key)
        if snapshot and snapshot.generation == generation(snapshot.organization_id):
            return snapshot
        return self.read(kind, key)


_SNAPSHOTS = Snapshots()


def snapshots() -> Snapshots:
    """Return this process's snapshots."""
    return _SNAPSHOTS


def _agent_snapshot(agent_id: UUID) -> Snapshot:
    agent = Agent.objects.filter(pk=agent_id).select_related("tool_policy").first()
    if agent is None:
        raise NotFound(f"There is no agent {str(agent_id)!r}.", field="agent")
    read_at = generation(agent.organization_id)
    # Read again behind the generation: what was read before it may be older.
    agent = Agent.objects.select_related("tool_policy").get(pk=agent_id)
    bindings = list(agent.bindings.select_related("server").prefetch_related("server__secrets"))
    servers = {binding.server_id: _server_facts(binding.server) for binding in bindings}
    scopes = {binding.server_id: _scope(binding) for binding in bindings}
    policy = _policy(getattr(agent, "tool_policy", None))
    rows = list(Definition.objects.tools().filter(server__in=servers))
    names = name_tools(agent, [binding.server for binding in bindings], rows)
    tools = [_mcp_tool(names[row.server_id, row.name], row, servers[row.server_id]) for row in rows]
    decided = {
        tool.name: _decided(tool, policy, _scope_of(tool, scopes), agent.enabled)
        for tool in (*tools, *_builtin_tools())
    }
    return Snapshot(
        organization_id=agent.organization_id,
        generation=read_at,
        tools=decided,
        servers=servers,
        agent_id=agent.pk,
        agent_name=agent.name,
        agent_slug=agent.slug,
        agent_enabled=agent.enabled,
        calls_per_minute=agent.calls_per_minute,
        limits=_limits(agent.organization_id, agent),
        policy=policy,
        scopes=scopes,
    )


def _server_snapshot(server_id: UUID) -> Snapshot:
    """Read the snapshot of calls without an agent: the organization's policy decides."""
    server = Server.objects.filter(pk=server_id).first()
    if server is None:
        raise NotFound(f"There is no server {str(server_id)!r}.", field="server")
    read_at = generation(server.organization_id)
    server = Server.objects.prefetch_related("secrets").get(pk=server_id)
    facts = _server_facts(server)
    stored = ToolPolicy.objects.filter(organization_id=server.organization_id, agent=None).first()
    policy = _policy(stored) if stored else Policy("all")
    tools = [_mcp_tool(row.name, row, facts) for row in server.definitions.tools()]
    return Snapshot(
        organization_id=server.organization_id,
        generation=read_at,
        tools={tool.name: _decided(tool, policy, Scope(), True) for tool in tools},
        servers={server.pk: facts},
        limits=_limits(server.organization_id),
        policy=policy,
        scopes={server.pk: Scope()},
    )


def _server_facts(server: Server) -> ServerFacts:
    return ServerFacts(
        id=server.pk,
        name=server.name,
        slug=server.slug,
        enabled=server.enabled,
        endpoint=endpoint_of(server),
    )


def _scope(binding: Any) -> Scope:
    return Scope(
        enabled=binding.enabled,
        allowed=tuple(binding.allowed_tools),
        denied=tuple(binding.denied_tools),
    )


def _scope_of(tool: Tool, scopes: Mapping[UUID, Scope]) -> Scope | None:
    return scopes.get(tool.facts.server_id) if tool.facts.server_id else None


def _policy(row: ToolPolicy | None) -> Policy:
    if row is None:
        return Policy()
    rules = tuple(
        Rule(rule.effect, rule.source, rule.pattern, rule.server_id) for rule in row.rules.all()
    )
    return Policy(row.mode, rules)


_NO_DECISION = Decision("deny", "undecided")


def _mcp_tool(name: str, row: Definition, server: ServerFacts) -> Tool:
    facts = ToolFacts(
        source="mcp",
        own_name=row.name,
        label=name,
        server_id=server.id,
        server_name=server.name,
        server_enabled=server.enabled,
        state=row.state,
        enabled=row.enabled,
    )
    return Tool(
        name=name,
        facts=facts,
        decision=_NO_DECISION,
        declaration=row.payload,
        judgement=_judgement(row),
        digest=row.digest,
        definition_id=row.pk,
    )


def _judgement(row: Definition) -> Judgement:
    """Return the verdict of the discovery; without one the schema is checked in confinement."""
    verdicts: dict[str, Judgement] = {
        "inline": Judgement("inline", ""),
        "refused": Judgement("refused", row.fault),
    }
    return verdicts.get(row.schema_verdict) or Judgement("confined", "")


def _builtin_tools() -> Iterable[Tool]:
    for name, tool in BUILTIN_TOOLS.items():
        yield Tool(
            name=name,
            facts=ToolFacts(source="builtin", own_name=name, label=name),
            decision=_NO_DECISION,
            declaration=tool.declaration,
        )


def _decided(tool: Tool, policy: Policy, scope: Scope | None, agent_enabled: bool) -> Tool:
    decision = decide(tool.facts, policy=policy, scope=scope, agent_enabled=agent_enabled)
    return replace(tool, decision=decision)


def _limits(organization_id: UUID, agent: Agent | None = None) -> tuple[Limit, ...]:
    """Return the budgets that a call is charged to: the agent's, and the organization's."""
    rows = Budget.objects.filter(organization_id=organization_id)
    own = [row for row in rows if row.agent_id is None or (agent and row.agent_id == agent.pk)]
    return tuple(
        Limit(
            scope="agent" if row.agent_id else "organization",
            scope_id=str(row.agent_id or organization_id),
            unit=row.unit,
            period=row.period,
            limit=row.limit,
        )
        for row in own
    )
