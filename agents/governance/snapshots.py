"""Snapshots: all that deciding and calling needs of an agent or a server, read once.

A snapshot carries the policy generation that it was read at (read first, so that a change during
the reading makes it stale, never wrong). Admission compares the generation and refuses a stale one,
so a cached snapshot needs no query on the way to a call and still holds on every host
(DESIGN section 3).
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from types import MappingProxyType
from typing import Any
from uuid import UUID

from agents.builtin_tools import BuiltinTool
from agents.builtin_tools.finding import FIND_TOOLS
from agents.governance.costs import FREE, Price
from agents.governance.kits import Toolbox
from agents.governance.limits import Limit
from agents.governance.names import name_tools
from agents.governance.offerings import (
    Offer,
    OfferKey,
    notes_from,
    offers_from,
    servers_with_changed_instructions,
    split,
    state_of,
)
from agents.governance.own_tools import OwnTool, own_of
from agents.governance.policies import (
    Decision,
    Ruling,
    ToolFacts,
    decide,
)
from agents.governance.replaying import RULED
from agents.governance.rules import Arguments, Rule
from agents.governance.rulings import (
    agent_draft,
    agent_ruling,
    limits_of,
    own_draft,
    own_policy,
    server_ruling,
)
from agents.models import Agent, Binding
from agents.skills.rendering import SkillText
from bonobot.ledger.heads import generation
from bonobot.lib.problems import NotFound
from bonobot.lib.sayings import say
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.endpoints import endpoint_of
from mcp_servers.labelled import labels_of, origin_of, store_use_of
from mcp_servers.labelling import Origin
from mcp_servers.models import Definition, Server
from mcp_servers.schemas import Judgement
from mcp_servers.store_use import NO_STORE, StoreUse

KEPT = 1000
MOST_DECIDED = 1000  # one for each tool and each set of conditions that were met


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as the snapshot's owner knows it: under `name`, with facts and its declaration.

    `conditional` are the rules about it that ask something of the arguments: where there are any,
    `decision` says what might come of a call, and `Snapshot.decided` what does.
    """

    name: str
    facts: ToolFacts
    decision: Decision
    declaration: Mapping[str, Any]
    judgement: Judgement = field(default_factory=lambda: Judgement("inline", ""))
    digest: str = ""
    definition_id: UUID | None = None
    conditional: tuple[Rule, ...] = ()
    labels: tuple[str, ...] = ()
    store_use: StoreUse = NO_STORE
    builtin: BuiltinTool | None = field(default=None, compare=False)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The original input schema, which arguments are always checked against."""
        return self.declaration.get("inputSchema") or {"type": "object"}

    @property
    def description(self) -> str:
        """The description, or the title, or nothing."""
        return self.declaration.get("description") or self.declaration.get("title") or ""


# What a draft would have decided, in the audit's details: an agent's, the organization's.
SHADOW = "shadow"
ORGANIZATION_SHADOW = "organization_shadow"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server as a call needs it; the endpoint knows what must be masked."""

    id: UUID
    name: str
    slug: str
    enabled: bool
    endpoint: Endpoint
    origin: Origin = field(default_factory=Origin)
    price: Price = FREE
    calls_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that calls of one agent (or, without an agent, of one server) depend on.

    `notes` are the approved instructions of its servers, by their names; `skills` are those that it
    has, by theirs. `draft` is the ruling as
    it would be under the policy that stands in the shadow of the agent's, and
    `organization_draft` under the one in the shadow of the organization's.
    """

    organization_id: UUID
    generation: int
    tools: Mapping[str, Tool]
    servers: Mapping[UUID, ServerFacts]
    agent_id: UUID | None = None
    agent_name: str = ""
    agent_slug: str = ""
    calls_per_minute: int = 0
    organization_calls_per_minute: int | None = None
    limits: tuple[Limit, ...] = ()
    ruling: Ruling = field(default_factory=Ruling)
    offers: Mapping[OfferKey, Offer] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    skills: Mapping[str, SkillText] = field(default_factory=dict)
    draft: Ruling | None = None
    organization_draft: Ruling | None = None
    # What was worked out of it and is worth keeping as long as it.
    memo: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    toolbox: Toolbox = field(default_factory=Toolbox)
    _decided: dict[tuple[str, tuple[bool, ...]], Decision] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def offered(self) -> list[Tool]:
        """Return the tools that may be called, if need be with a yes, in a stable order."""
        return [tool for _, tool in sorted(self.tools.items()) if tool.decision.offered]

    def searchable(self) -> list[Tool]:
        """Return the offered tools that a model has to look for where it isn't shown all."""
        return [tool for tool in self.offered() if tool.facts.source == "mcp"]

    def shown(self, found: Collection[str]) -> list[Tool]:
        """Return the tools that a model is shown: all, or the built-in and the found ones (X11)."""
        search = self.tools.get(FIND_TOOLS)
        if search is None or not search.decision.offered:
            return self.offered()
        return [tool for tool in self.offered() if tool.facts.source != "mcp" or tool.name in found]

    def decided(self, tool: Tool, arguments: Arguments) -> Decision:
        """Return the decision about a call of a tool with these arguments."""
        if not tool.conditional:
            return tool.decision
        # Arguments count in a decision only by which conditions they meet.
        met = tool.name, tuple([rule.holds(arguments) for rule in tool.conditional])
        decision = self._decided.get(met)
        if decision is None:
            decision = decide(tool.facts, self.ruling, arguments)
            if len(self._decided) < MOST_DECIDED:
                self._decided[met] = decision
        return decision

    def shadows(self, tool: Tool, arguments: Arguments, decision: Decision) -> dict[str, Decision]:
        """Return what the drafts make of a call, where that isn't what the rules make of it.

        Of a call that something else refuses, nothing: no policy would change that.
        """
        if self.draft is None and self.organization_draft is None:
            return {}
        if decision.verdict == "deny" and decision.code not in RULED:
            return {}
        drafts = {SHADOW: self.draft, ORGANIZATION_SHADOW: self.organization_draft}
        now = self.decided(tool, arguments).verdict
        found = {
            name: decide(tool.facts, draft, arguments) for name, draft in drafts.items() if draft
        }
        return {name: other for name, other in found.items() if other.verdict != now}

    def offers_of(self, *kinds: str) -> list[Offer]:
        """Return the resources, templates or prompts, by the names of their servers and own."""
        found = [offer for offer in self.offers.values() if offer.facts.kind in kinds]
        return sorted(found, key=lambda one: (one.facts.server_name, one.facts.kind, one.name))


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
        raise NotFound(say("There is no agent {key!r}.", key=str(agent_id)), field="agent")
    read_at = generation(agent.organization_id)
    # Read again behind the generation: what was read before it may be older.
    agent = Agent.objects.select_related("tool_policy", "organization").get(pk=agent_id)
    bindings = _bindings(agent)
    servers = {binding.server_id: _server_facts(binding.server) for binding in bindings}
    own = own_policy(agent.organization_id)
    ruling = agent_ruling(agent, bindings, own)
    declared = list(Definition.objects.filter(server__in=servers).for_deciding())
    rows, others = split(declared)
    names = name_tools(agent, [binding.server for binding in bindings], rows)
    changed = servers_with_changed_instructions(declared)
    tools = _mcp_tools(rows, servers, changed, names)
    decided = {tool.name: _decided(tool, ruling) for tool in tools}
    ours = own_of(agent, ruling)
    offered = sum(tool.decision.offered for tool in decided.values())
    for tool in map(_own_tool, ours.tools(offered)):
        decided[tool.name] = _decided(tool, ruling)
    return Snapshot(
        organization_id=agent.organization_id,
        generation=read_at,
        tools=decided,
        servers=servers,
        agent_id=agent.pk,
        agent_name=agent.name,
        agent_slug=agent.slug,
        calls_per_minute=agent.calls_per_minute,
        organization_calls_per_minute=agent.organization.calls_per_minute,
        limits=limits_of(agent.organization_id, servers, agent),
        ruling=ruling,
        offers=offers_from(others, servers, ruling, changed),
        notes=notes_from(declared, servers, ruling),
        skills=ours.skills,
        draft=agent_draft(agent, ruling),
        organization_draft=own_draft(own, ruling, of_agent=True),
        toolbox=ours.toolbox,
    )


def _bindings(agent: Agent) -> list[Binding]:
    bound = agent.bindings.select_related("server__preset")
    return list(bound.prefetch_related("server__secrets"))


def _server_snapshot(server_id: UUID) -> Snapshot:
    """Read the snapshot of calls without an agent: the organization's policy decides."""
    server = Server.objects.filter(pk=server_id).first()
    if server is None:
        raise NotFound(say("There is no server {key!r}.", key=str(server_id)), field="server")
    read_at = generation(server.organization_id)
    server = (
        Server.objects.select_related("organization", "preset")
        .prefetch_related("secrets")
        .get(pk=server_id)
    )
    facts = _server_facts(server)
    own = own_policy(server.organization_id)
    ruling = server_ruling(server, own)
    declared = list(server.definitions.for_deciding())
    rows, others = split(declared)
    changed = servers_with_changed_instructions(declared)
    tools = _mcp_tools(rows, {server.pk: facts}, changed)
    return Snapshot(
        organization_id=server.organization_id,
        generation=read_at,
        tools={tool.name: _decided(tool, ruling) for tool in tools},
        servers={server.pk: facts},
        organization_calls_per_minute=server.organization.calls_per_minute,
        limits=limits_of(server.organization_id, {server.pk: facts}),
        ruling=ruling,
        offers=offers_from(others, {server.pk: facts}, ruling, changed),
        notes=notes_from(declared, {server.pk: facts}, ruling),
        organization_draft=own_draft(own, ruling, of_agent=False),
    )


def _server_facts(server: Server) -> ServerFacts:
    return ServerFacts(
        id=server.pk,
        name=server.name,
        slug=server.slug,
        enabled=server.enabled,
        endpoint=endpoint_of(server),
        origin=origin_of(server),
        price=Price(server.call_price, server.second_price),
        calls_per_minute=server.calls_per_minute,
    )


_NO_DECISION = Decision("deny", "undecided")


def _mcp_tools(
    rows: Iterable[Definition],
    servers: Mapping[UUID, ServerFacts],
    changed: frozenset[UUID],
    names: Mapping[tuple[UUID, str], str] = MappingProxyType({}),
) -> list[Tool]:
    """Return servers' tools by the names that an agent has for them, else by their own."""
    return [
        _mcp_tool(
            names.get((row.server_id, row.name), row.name),
            row,
            servers[row.server_id],
            state_of(row, changed),
        )
        for row in rows
    ]


def _mcp_tool(name: str, row: Definition, server: ServerFacts, state: str) -> Tool:
    facts = ToolFacts(
        source="mcp",
        own_name=row.name,
        label=name,
        server_id=server.id,
        server_name=server.name,
        server_enabled=server.enabled,
        state=state,
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
        labels=labels_of(row, server.origin),
        store_use=store_use_of(row, server.origin),
    )


def _judgement(row: Definition) -> Judgement:
    """Return the verdict of the discovery; without one the schema is checked in confinement."""
    verdicts: dict[str, Judgement] = {
        "inline": Judgement("inline", ""),
        "refused": Judgement("refused", row.fault),
    }
    return verdicts.get(row.schema_verdict) or Judgement("confined", "")


def _own_tool(own: OwnTool) -> Tool:
    return Tool(
        name=own.tool.name,
        facts=own.facts,
        decision=_NO_DECISION,
        declaration=own.tool.declaration,
        digest=own.digest,
        labels=own.labels,
        builtin=own.tool,
    )


def _decided(tool: Tool, ruling: Ruling) -> Tool:
    about = ruling.rules_about(tool.facts)
    return replace(
        tool,
        decision=decide(tool.facts, ruling),
        conditional=tuple(rule for rule in about if rule.condition is not None),
    )
