"""Snapshots of everything that decisions and calls need, and the names of agents' tools.

A snapshot stores its policy generation, which is read first, so that a concurrent change makes it
stale, never wrong. Admission rejects stale snapshots, so a cached one needs no query.

A tool's name is created when the tool is first seen and stored. If two processes create it at the
same time, the unique constraint lets one win, and the other reads that name.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from types import MappingProxyType
from typing import Any, ClassVar, cast
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from agents.budgets.call_costs import FREE, CallPrice
from agents.budgets.limits import BudgetLimit
from agents.budgets.services import load_limits
from agents.builtin_tools.registry import BUILTIN_TOOLS, AgentBuiltinTool, load_builtin_tools
from agents.builtin_tools.toolset_options import AgentToolsets
from agents.builtin_tools.toolsets.find_tools import FIND_TOOLS
from agents.builtin_tools.types import BuiltinTool
from agents.models import Agent, Binding, ToolName
from agents.policies.compare_decisions import RULED
from agents.policies.decisions import (
    DefinitionFacts,
    EffectivePolicy,
    Kind,
    PolicyDecision,
    ToolFacts,
    decide,
    decide_offer,
)
from agents.policies.queries import (
    build_agent_draft,
    build_agent_policy,
    build_organization_draft,
    build_server_policy,
    find_organization_policy,
)
from agents.policies.rules import Arguments, Rule
from agents.policies.shadow_mode import ORGANIZATION_SHADOW, SHADOW
from agents.skills.templates import SkillTemplate
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.ledger.queries import load_policy_generation
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.flow_labels.inference import LabelContext
from mcp_servers.flow_labels.services import get_effective_labels, load_label_context, store_use_of
from mcp_servers.flow_labels.store_use import NO_STORE, READS_ONLY, StoreUse
from mcp_servers.models import Definition, Server
from mcp_servers.schemas import SchemaVerdict
from mcp_servers.tool_names import Style, build_tool_name
from mcp_servers.uri_templates import list_variables


@dataclass(frozen=True, slots=True)
class SnapshotDefinition:
    """A resource, template or prompt of a server; `name` is its URI, template or own name.

    `variables` are the template's variables, none if it can't be parsed.
    """

    name: str
    facts: DefinitionFacts
    decision: PolicyDecision
    declaration: Mapping[str, Any]
    digest: str = ""
    definition_id: UUID | None = None
    labels: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    store_use: ClassVar[StoreUse] = READS_ONLY

    @property
    def judgement(self) -> SchemaVerdict:
        """How arguments are checked: inline, because we build these schemas."""
        return SchemaVerdict("inline", "")

    @property
    def title(self) -> str:
        """The title, else the name, else an empty string."""
        said = self.declaration.get("title") or self.declaration.get("name")
        return said if isinstance(said, str) else ""

    @property
    def description(self) -> str:
        """The description or an empty string."""
        said = self.declaration.get("description")
        return said if isinstance(said, str) else ""

    @property
    def argument_schema(self) -> dict[str, Any]:
        """The JSON Schema of a prompt's declared arguments, all of them strings."""
        declared = self.declaration.get("arguments") or ()
        return {
            "type": "object",
            "properties": {
                one["name"]: {"type": "string", "description": str(one.get("description") or "")}
                for one in declared
            },
            "required": [one["name"] for one in declared if one.get("required") is True],
            "additionalProperties": False,
        }


# Server, kind and own name identify a resource, template or prompt.
OfferKey = tuple[UUID, str, str]


def split(rows: Iterable[Definition]) -> tuple[list[Definition], list[Definition]]:
    """Return the tools, and the resources, templates and prompts."""
    found = list(rows)
    others = (
        Definition.Kind.RESOURCE,
        Definition.Kind.RESOURCE_TEMPLATE,
        Definition.Kind.PROMPT,
    )
    return (
        [row for row in found if row.kind == Definition.Kind.TOOL],
        [row for row in found if row.kind in others],
    )


def servers_with_changed_instructions(rows: Iterable[Definition]) -> frozenset[UUID]:
    """Return the servers whose instructions differ from the approved ones.

    None of their definitions can be called until the new instructions are reviewed, because
    changed instructions may mean a different server.
    """
    return frozenset(
        row.server_id
        for row in rows
        if row.kind == Definition.Kind.INSTRUCTIONS
        and row.present
        and row.pinned_digest not in ("", row.digest)
    )


def state_of(row: Definition, changed: frozenset[UUID]) -> str:
    """Return a definition's state for decisions, considering its server's instructions."""
    held = row.server_id in changed and row.state == Definition.State.APPROVED
    return "instructions_changed" if held else str(row.state)


def collect_server_instructions(
    rows: Iterable[Definition], servers: "Mapping[UUID, ServerFacts]", ruling: EffectivePolicy
) -> dict[str, str]:
    """Return the approved instructions of enabled servers, by server name.

    Changed instructions are withheld, and block the server's other definitions.
    """
    found = {}
    for row in rows:
        if row.kind != Definition.Kind.INSTRUCTIONS or not row.enabled:
            continue
        server, scope = servers[row.server_id], ruling.scope(row.server_id)
        in_use = server.enabled and scope is not None and scope.enabled
        if in_use and row.state == Definition.State.APPROVED:
            found[server.name] = str(row.payload.get("text") or "")
    return found


def build_definitions(
    rows: Iterable[Definition],
    servers: "Mapping[UUID, ServerFacts]",
    ruling: EffectivePolicy,
    changed: frozenset[UUID] = frozenset(),
) -> dict[OfferKey, SnapshotDefinition]:
    """Return the definitions of the rows, each with its decision.

    `changed_servers` are the servers with changed instructions.
    """
    offers = {}
    for row in rows:
        server = servers[row.server_id]
        facts = _build_definition_facts(row, server, state_of(row, changed))
        offers[row.server_id, row.kind, row.name] = SnapshotDefinition(
            name=row.name,
            facts=facts,
            decision=decide_offer(facts, ruling),
            declaration=row.payload,
            digest=row.digest,
            definition_id=row.pk,
            labels=get_effective_labels(row, server.origin),
            # Parsed here, off the event loop: importing the parser takes time.
            variables=list_variables(row.name) if facts.kind == "resource_template" else (),
        )
    return offers


def _build_definition_facts(row: Definition, server: "ServerFacts", state: str) -> DefinitionFacts:
    return DefinitionFacts(
        kind=cast(Kind, row.kind),
        own_name=row.name,
        server_id=server.id,
        server_name=server.name,
        server_enabled=server.enabled,
        state=state,
        enabled=row.enabled,
    )


Names = dict[tuple[UUID, str], str]


def create_tool_names(agent: Agent, servers: Sequence[Server], rows: Sequence[Definition]) -> Names:
    """Return (server id, own name) → name for `rows`; stores new names."""
    names = _load_tool_names(agent)
    new = [row for row in rows if (row.server_id, row.name) not in names]
    if not new:
        return names
    try:
        with transaction.atomic():
            ToolName.objects.bulk_create(_build_tool_names(agent, servers, new, names))
    except IntegrityError:
        # Another process created the names in the meantime; use those.
        return create_tool_names(agent, servers, rows)
    return _load_tool_names(agent)


def _load_tool_names(agent: Agent) -> Names:
    # There may be thousands per snapshot: don't build model objects.
    rows = agent.tool_names.values_list("server_id", "own_name", "name")
    return {(server_id, own_name): name for server_id, own_name, name in rows}


def _build_tool_names(
    agent: Agent, servers: Sequence[Server], new: Sequence[Definition], names: Names
) -> list[ToolName]:
    slugs = {server.pk: server.slug for server in servers}
    taken = set(names.values()) | set(BUILTIN_TOOLS)
    made = []
    for row in new:
        name = build_tool_name(
            slugs[row.server_id],
            row.name,
            style=cast(Style, settings.BONOBOT_TOOL_NAME_STYLE),
            taken=taken,
        )
        taken.add(name)
        made.append(
            ToolName(
                organization_id=agent.organization_id,
                agent=agent,
                server_id=row.server_id,
                own_name=row.name,
                name=name,
            )
        )
    return made


KEPT = 1000
MOST_DECIDED = 1000  # one per tool and set of met conditions


@dataclass(frozen=True, slots=True)
class SnapshotTool:
    """A tool of a snapshot, under the name its callers use.

    `conditional` are its rules with conditions on arguments: if there are any, `decision` is
    preliminary, and `CallSnapshot.decide_call` gives the final one.
    """

    name: str
    facts: ToolFacts
    decision: PolicyDecision
    declaration: Mapping[str, Any]
    judgement: SchemaVerdict = field(default_factory=lambda: SchemaVerdict("inline", ""))
    digest: str = ""
    definition_id: UUID | None = None
    conditional: tuple[Rule, ...] = ()
    labels: tuple[str, ...] = ()
    store_use: StoreUse = NO_STORE
    builtin: BuiltinTool | None = field(default=None, compare=False)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The original input schema, which arguments must match."""
        return self.declaration.get("inputSchema") or {"type": "object"}

    @property
    def description(self) -> str:
        """The description, else the title, else an empty string."""
        return self.declaration.get("description") or self.declaration.get("title") or ""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A server's data for calls; the endpoint knows which values must be masked."""

    id: UUID
    name: str
    slug: str
    enabled: bool
    endpoint: ServerEndpoint
    origin: LabelContext = field(default_factory=LabelContext)
    price: CallPrice = FREE
    calls_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class CallSnapshot:
    """Everything that calls through one agent (or directly to one server) depend on.

    `instructions` are the approved instructions by server name; `skills` are attached, by name.
    `draft` is the effective policy with the agent's shadow policy, `organization_draft` the one
    with the organization's shadow policy.
    """

    organization_id: UUID
    generation: int
    tools: Mapping[str, SnapshotTool]
    servers: Mapping[UUID, ServerFacts]
    agent_id: UUID | None = None
    agent_name: str = ""
    agent_slug: str = ""
    calls_per_minute: int = 0
    organization_calls_per_minute: int | None = None
    limits: tuple[BudgetLimit, ...] = ()
    ruling: EffectivePolicy = field(default_factory=EffectivePolicy)
    offers: Mapping[OfferKey, SnapshotDefinition] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    skills: Mapping[str, SkillTemplate] = field(default_factory=dict)
    draft: EffectivePolicy | None = None
    organization_draft: EffectivePolicy | None = None
    # Cache of values derived from the snapshot.
    memo: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    toolbox: AgentToolsets = field(default_factory=AgentToolsets)
    _decided: dict[tuple[str, tuple[bool, ...]], PolicyDecision] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def offered(self) -> list[SnapshotTool]:
        """Return the tools that may be called, including those that need approval, by name."""
        return [tool for _, tool in sorted(self.tools.items()) if tool.decision.offered]

    def searchable(self) -> list[SnapshotTool]:
        """Return the callable tools that a model must search for if it isn't shown all."""
        return [tool for tool in self.offered() if tool.facts.source == "mcp"]

    def shown(self, found: Collection[str]) -> list[SnapshotTool]:
        """Return the tools shown to a model: all, or the built-in and the found ones."""
        search = self.tools.get(FIND_TOOLS)
        if search is None or not search.decision.offered:
            return self.offered()
        return [tool for tool in self.offered() if tool.facts.source != "mcp" or tool.name in found]

    def decided(self, tool: SnapshotTool, arguments: Arguments) -> PolicyDecision:
        """Return the decision for a call of a tool with these arguments."""
        if not tool.conditional:
            return tool.decision
        # Arguments affect a decision only through the conditions they meet.
        met = tool.name, tuple([rule.holds(arguments) for rule in tool.conditional])
        decision = self._decided.get(met)
        if decision is None:
            decision = decide(tool.facts, self.ruling, arguments)
            if len(self._decided) < MOST_DECIDED:
                self._decided[met] = decision
        return decision

    def shadows(
        self, tool: SnapshotTool, arguments: Arguments, decision: PolicyDecision
    ) -> dict[str, PolicyDecision]:
        """Return the shadow policies' decisions about a call that differ from the current one.

        Empty for a call that isn't denied by policy, since no policy would change that.
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

    def offers_of(self, *kinds: str) -> list[SnapshotDefinition]:
        """Return the definitions of these kinds, sorted by server name, kind and own name."""
        found = [offer for offer in self.offers.values() if offer.facts.kind in kinds]
        return sorted(found, key=lambda one: (one.facts.server_name, one.facts.kind, one.name))


class SnapshotCache:
    """A bounded cache of snapshots by agent or server; safe from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, UUID], CallSnapshot] = OrderedDict()
        self._lock = Lock()

    def cached(self, kind: str, key: UUID) -> CallSnapshot | None:
        """Return the cached snapshot, which may be stale; admission detects that."""
        with self._lock:
            return self._kept.get((kind, key))

    def read(self, kind: str, key: UUID) -> CallSnapshot:
        """Load a snapshot from the database and cache it; raises `NotFound`."""
        snapshot = _load_agent_snapshot(key) if kind == "agent" else _load_server_snapshot(key)
        with self._lock:
            self._kept[kind, key] = snapshot
            self._kept.move_to_end((kind, key))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return snapshot

    def current(self, kind: str, key: UUID) -> CallSnapshot:
        """Return a current snapshot; one query if the cached one is still valid."""
        snapshot = self.cached(kind, key)
        if snapshot and snapshot.generation == load_policy_generation(snapshot.organization_id):
            return snapshot
        return self.read(kind, key)


_SNAPSHOTS = SnapshotCache()


def get_snapshot_cache() -> SnapshotCache:
    """Return the snapshot cache of this process."""
    return _SNAPSHOTS


def _load_agent_snapshot(agent_id: UUID) -> CallSnapshot:
    agent = Agent.objects.filter(pk=agent_id).select_related("tool_policy").first()
    if agent is None:
        raise NotFound(
            format_message("There is no agent {key!r}.", key=str(agent_id)), field="agent"
        )
    read_at = load_policy_generation(agent.organization_id)
    # Read again after the generation, so that the row isn't older than it.
    agent = Agent.objects.select_related("tool_policy", "organization").get(pk=agent_id)
    bindings = _load_attached_servers(agent)
    servers = {binding.server_id: _build_server_facts(binding.server) for binding in bindings}
    own = find_organization_policy(agent.organization_id)
    ruling = build_agent_policy(agent, bindings, own)
    declared = list(Definition.objects.filter(server__in=servers).for_deciding())
    rows, others = split(declared)
    names = create_tool_names(agent, [binding.server for binding in bindings], rows)
    changed = servers_with_changed_instructions(declared)
    tools = _list_server_tools(rows, servers, changed, names)
    decided = {tool.name: _decide_tool(tool, ruling) for tool in tools}
    ours = load_builtin_tools(agent, ruling)
    offered = sum(tool.decision.offered for tool in decided.values())
    for tool in map(_build_builtin_tool, ours.tools(offered)):
        decided[tool.name] = _decide_tool(tool, ruling)
    return CallSnapshot(
        organization_id=agent.organization_id,
        generation=read_at,
        tools=decided,
        servers=servers,
        agent_id=agent.pk,
        agent_name=agent.name,
        agent_slug=agent.slug,
        calls_per_minute=agent.calls_per_minute,
        organization_calls_per_minute=agent.organization.calls_per_minute,
        limits=load_limits(agent.organization_id, servers, agent),
        ruling=ruling,
        offers=build_definitions(others, servers, ruling, changed),
        notes=collect_server_instructions(declared, servers, ruling),
        skills=ours.skills,
        draft=build_agent_draft(agent, ruling),
        organization_draft=build_organization_draft(own, ruling, of_agent=True),
        toolbox=ours.toolbox,
    )


def _load_attached_servers(agent: Agent) -> list[Binding]:
    bound = agent.bindings.select_related("server__preset")
    return list(bound.prefetch_related("server__secrets"))


def _load_server_snapshot(server_id: UUID) -> CallSnapshot:
    """Load the snapshot for calls without an agent; the organization's policy decides."""
    server = Server.objects.filter(pk=server_id).first()
    if server is None:
        raise NotFound(
            format_message("There is no server {key!r}.", key=str(server_id)), field="server"
        )
    read_at = load_policy_generation(server.organization_id)
    server = (
        Server.objects.select_related("organization", "preset")
        .prefetch_related("secrets")
        .get(pk=server_id)
    )
    facts = _build_server_facts(server)
    own = find_organization_policy(server.organization_id)
    ruling = build_server_policy(server, own)
    declared = list(server.definitions.for_deciding())
    rows, others = split(declared)
    changed = servers_with_changed_instructions(declared)
    tools = _list_server_tools(rows, {server.pk: facts}, changed)
    return CallSnapshot(
        organization_id=server.organization_id,
        generation=read_at,
        tools={tool.name: _decide_tool(tool, ruling) for tool in tools},
        servers={server.pk: facts},
        organization_calls_per_minute=server.organization.calls_per_minute,
        limits=load_limits(server.organization_id, {server.pk: facts}),
        ruling=ruling,
        offers=build_definitions(others, {server.pk: facts}, ruling, changed),
        notes=collect_server_instructions(declared, {server.pk: facts}, ruling),
        organization_draft=build_organization_draft(own, ruling, of_agent=False),
    )


def _build_server_facts(server: Server) -> ServerFacts:
    return ServerFacts(
        id=server.pk,
        name=server.name,
        slug=server.slug,
        enabled=server.enabled,
        endpoint=build_endpoint(server),
        origin=load_label_context(server),
        price=CallPrice(server.call_price, server.second_price),
        calls_per_minute=server.calls_per_minute,
    )


_NO_DECISION = PolicyDecision("deny", "undecided")


def _list_server_tools(
    rows: Iterable[Definition],
    servers: Mapping[UUID, ServerFacts],
    changed: frozenset[UUID],
    names: Mapping[tuple[UUID, str], str] = MappingProxyType({}),
) -> list[SnapshotTool]:
    """Return the servers' tools, under the agent's names if there are any."""
    return [
        _build_mcp_tool(
            names.get((row.server_id, row.name), row.name),
            row,
            servers[row.server_id],
            state_of(row, changed),
        )
        for row in rows
    ]


def _build_mcp_tool(name: str, row: Definition, server: ServerFacts, state: str) -> SnapshotTool:
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
    return SnapshotTool(
        name=name,
        facts=facts,
        decision=_NO_DECISION,
        declaration=row.payload,
        judgement=_build_judgment(row),
        digest=row.digest,
        definition_id=row.pk,
        labels=get_effective_labels(row, server.origin),
        store_use=store_use_of(row, server.origin),
    )


def _build_judgment(row: Definition) -> SchemaVerdict:
    """Return the stored schema verdict; without one, the schema is checked in a subprocess."""
    verdicts: dict[str, SchemaVerdict] = {
        "inline": SchemaVerdict("inline", ""),
        "refused": SchemaVerdict("refused", row.fault),
    }
    return verdicts.get(row.schema_verdict) or SchemaVerdict("confined", "")


def _build_builtin_tool(own: AgentBuiltinTool) -> SnapshotTool:
    return SnapshotTool(
        name=own.tool.name,
        facts=own.facts,
        decision=_NO_DECISION,
        declaration=own.tool.declaration,
        digest=own.digest,
        labels=own.labels,
        builtin=own.tool,
    )


def _decide_tool(tool: SnapshotTool, ruling: EffectivePolicy) -> SnapshotTool:
    about = ruling.rules_about(tool.facts)
    return replace(
        tool,
        decision=decide(tool.facts, ruling),
        conditional=tuple(rule for rule in about if rule.condition is not None),
    )
