"""Snapshots of everything that decisions and calls need.

A snapshot stores its policy generation, which is read first, so that a concurrent change makes it
stale, never wrong. Admission rejects stale snapshots, so a cached one needs no query.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from threading import Lock
from types import MappingProxyType
from typing import Any
from uuid import UUID

from agents.budgets.limits import BudgetLimit
from agents.budgets.services import load_limits
from agents.builtin_tools.registry import build_agent_tool, load_builtin_tools
from agents.builtin_tools.toolset_options import AgentToolsets
from agents.builtin_tools.toolsets.find_tools import CATALOG_TOOLS, FIND_TOOLS
from agents.builtin_tools.types import AgentBuiltinTool, BuiltinTool
from agents.calls.agent_tool_names import create_tool_names
from agents.calls.definitions import (
    DefinitionKey,
    ServerFacts,
    SnapshotDefinition,
    build_definitions,
    build_server_facts,
    collect_server_instructions,
    get_effective_state,
    list_servers_with_changed_instructions,
    split_tools,
)
from agents.models import Agent, AgentServer
from agents.policies.compare_decisions import POLICY_DENIAL_CODES
from agents.policies.decisions import (
    EffectivePolicy,
    PolicyDecision,
    ToolFacts,
    decide_tool_call,
)
from agents.policies.effective_policies import (
    build_agent_draft,
    build_agent_policy,
    build_organization_draft,
    build_server_policy,
    find_organization_policy,
)
from agents.policies.rules import Arguments, Rule
from agents.policies.shadow_mode import ORGANIZATION_SHADOW, SHADOW
from agents.skills import SkillTemplate
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.ledger.policy_generations import load_policy_generation
from mcp_servers.client.mcp_extensions import is_for_models, list_app_pages
from mcp_servers.flow_labels.effective_labels import get_effective_labels, get_store_use
from mcp_servers.flow_labels.store_use import NO_STORE, StoreUse
from mcp_servers.models import Definition, Server
from mcp_servers.schemas import SchemaVerdict
from mcp_servers.schemas.classify_schema import ValueSize, read_stored_verdict
from mcp_servers.schemas.defaults import fill_defaults
from mcp_servers.tool_names import build_tool_aliases

MAX_CACHED_SNAPSHOTS = 1000
MAX_CACHED_DECISIONS = 1000  # one per tool and set of met conditions
ANY_OBJECT: dict[str, Any] = {"type": "object"}  # one object, since schemas are cached by identity


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
    schema_verdict: SchemaVerdict = field(default_factory=lambda: SchemaVerdict("inline", ""))
    digest: str = ""
    definition_id: UUID | None = None
    conditional: tuple[Rule, ...] = ()
    labels: tuple[str, ...] = ()
    has_set_labels: bool = False  # by a person, instead of those of a preset or suggested ones
    store_use: StoreUse = NO_STORE
    builtin: BuiltinTool | None = field(default=None, compare=False)
    # The original input schema, which arguments must match.
    input_schema: dict[str, Any] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Set the input schema."""
        schema = self.declaration.get("inputSchema") or ANY_OBJECT
        object.__setattr__(self, "input_schema", schema)

    @property
    def description(self) -> str:
        """The description, else the title, else an empty string."""
        return self.declaration.get("description") or self.declaration.get("title") or ""


# What a call's name means.
Target = SnapshotTool | SnapshotDefinition


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
    tools_in_prompt: bool = False
    calls_per_minute: int = 0
    organization_calls_per_minute: int | None = None
    limits: tuple[BudgetLimit, ...] = ()
    effective_policy: EffectivePolicy = field(default_factory=EffectivePolicy)
    definitions: Mapping[DefinitionKey, SnapshotDefinition] = field(default_factory=dict)
    instructions: Mapping[str, str] = field(default_factory=dict)
    skills: Mapping[str, SkillTemplate] = field(default_factory=dict)
    draft: EffectivePolicy | None = None
    organization_draft: EffectivePolicy | None = None
    # Cache of values derived from the snapshot.
    memo: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)
    toolbox: AgentToolsets = field(default_factory=AgentToolsets)
    _decisions: dict[tuple[str, tuple[bool, ...]], PolicyDecision] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def find_tool(self, name: str) -> SnapshotTool | None:
        """Return the tool with this name, in either style, or None."""
        tool = self.tools.get(name)
        if tool is None and self.agent_id is not None and name.startswith("mcp_"):
            tool = self.tools.get(self._get_aliases().get(name, ""))
        return tool

    def find_catalog_tool(self, name: str) -> SnapshotTool | None:
        """Return a tool of the gateway's search view, as the agent's policy decides it, or None."""
        key = "catalog tool", name
        if self.agent_id is not None and name in CATALOG_TOOLS and key not in self.memo:
            tool = build_agent_tool(CATALOG_TOOLS[name], self.toolbox)
            self.memo[key] = decide_tool(_build_builtin_tool(tool), self.effective_policy)
        found_tool: SnapshotTool | None = self.memo.get(key)
        return found_tool

    def _get_aliases(self) -> Mapping[str, str]:
        """Return alias → name of the servers' tools; built when an alias is first used."""
        aliases: Mapping[str, str] | None = self.memo.get("aliases")
        if aliases is None:
            aliases = self.memo["aliases"] = build_tool_aliases(
                {
                    tool.name: (self.servers[tool.facts.server_id].slug, tool.facts.own_name)
                    for tool in self.tools.values()
                    if tool.facts.server_id is not None
                }
            )
        return aliases

    def list_callable_tools(self) -> list[SnapshotTool]:
        """Return the tools that may be called, including those that need approval, by name."""
        return [tool for _, tool in sorted(self.tools.items()) if tool.decision.is_callable]

    def list_model_tools(self) -> list[SnapshotTool]:
        """Return the callable tools that are for models, not only for an MCP App's page."""
        return [tool for tool in self.list_callable_tools() if is_for_models(tool.declaration)]

    def list_searchable_tools(self) -> list[SnapshotTool]:
        """Return the callable tools that a model must search for if it isn't shown all."""
        return [tool for tool in self.list_model_tools() if tool.facts.source == "mcp"]

    def list_shown_tools(self, found_names: Collection[str]) -> list[SnapshotTool]:
        """Return the tools shown to a model: all, or the built-in and the found ones."""
        search = self.tools.get(FIND_TOOLS)
        if search is None or not search.decision.is_callable:
            return self.list_model_tools()
        found_tools = {tool.name for name in found_names if (tool := self.find_tool(name))}
        return [
            tool
            for tool in self.list_model_tools()
            if tool.facts.source != "mcp" or tool.name in found_tools
        ]

    def decide_call(
        self, tool: SnapshotTool, arguments: Arguments, size: ValueSize | None = None
    ) -> PolicyDecision:
        """Return the decision for a call of a tool with these arguments.

        Defaults of the tool's schema count as provided values. `size` is that of the arguments if
        they were checked before.
        """
        if not tool.conditional:
            return tool.decision
        filled_arguments = fill_defaults(tool.input_schema, arguments)
        if filled_arguments is not arguments:
            arguments, size = filled_arguments, None
        # Arguments affect a decision only through the conditions they meet.
        met_conditions = (
            tool.name,
            tuple([rule.is_condition_met(arguments, size) for rule in tool.conditional]),
        )
        decision = self._decisions.get(met_conditions)
        if decision is None:
            decision = decide_tool_call(tool.facts, self.effective_policy, arguments)
            if len(self._decisions) < MAX_CACHED_DECISIONS:
                self._decisions[met_conditions] = decision
        return decision

    def compare_shadow_policies(
        self, tool: SnapshotTool, arguments: Arguments, decision: PolicyDecision
    ) -> dict[str, PolicyDecision]:
        """Return the shadow policies' decisions about a call that differ from the current one.

        Empty for a call that isn't denied by policy, since no policy would change that.
        """
        if decision.verdict == "deny" and decision.code not in POLICY_DENIAL_CODES:
            return {}
        drafts = {SHADOW: self.draft, ORGANIZATION_SHADOW: self.organization_draft}
        arguments = fill_defaults(tool.input_schema, arguments)
        current_verdict = self.decide_call(tool, arguments).verdict
        draft_decisions = {
            name: decide_tool_call(tool.facts, draft, arguments)
            for name, draft in drafts.items()
            if draft
        }
        return {
            name: draft_decision
            for name, draft_decision in draft_decisions.items()
            if draft_decision.verdict != current_verdict
        }

    def list_definitions(self, *kinds: str) -> list[SnapshotDefinition]:
        """Return the definitions of these kinds, sorted by server name, kind and own name."""
        definitions = [
            definition for definition in self.definitions.values() if definition.facts.kind in kinds
        ]
        return sorted(
            definitions,
            key=lambda definition: (
                definition.facts.server_name,
                definition.facts.kind,
                definition.name,
            ),
        )


class SnapshotCache:
    """A bounded cache of snapshots by agent or server; safe from several threads."""

    def __init__(self) -> None:
        # By the number of the UUID: a call looks several times, and Python hashes UUIDs slowly.
        self._snapshots: OrderedDict[tuple[str, int], CallSnapshot] = OrderedDict()
        self._lock = Lock()

    def find_cached(self, kind: str, key: UUID) -> CallSnapshot | None:
        """Return the cached snapshot, which may be stale; admission detects that."""
        return self._snapshots.get((kind, key.int))  # one lookup needs no lock

    def load(self, kind: str, key: UUID) -> CallSnapshot:
        """Load a snapshot from the database and cache it; raises `NotFound`."""
        snapshot = _load_agent_snapshot(key) if kind == "agent" else _load_server_snapshot(key)
        with self._lock:
            self._snapshots[kind, key.int] = snapshot
            self._snapshots.move_to_end((kind, key.int))
            while len(self._snapshots) > MAX_CACHED_SNAPSHOTS:
                self._snapshots.popitem(last=False)
        return snapshot

    def load_current(self, kind: str, key: UUID) -> CallSnapshot:
        """Return a current snapshot; one query if the cached one is still valid."""
        snapshot = self.find_cached(kind, key)
        if snapshot and snapshot.generation == load_policy_generation(snapshot.organization_id):
            return snapshot
        return self.load(kind, key)


_SNAPSHOTS = SnapshotCache()


def get_snapshot_cache() -> SnapshotCache:
    """Return the snapshot cache of this process."""
    return _SNAPSHOTS


def _load_agent_snapshot(agent_id: UUID) -> CallSnapshot:
    agent = Agent.objects.filter(pk=agent_id).select_related("tool_policy").first()
    if agent is None:
        raise NotFound(
            format_message("The agent {name!r} doesn't exist.", name=str(agent_id)), field="agent"
        )
    generation = load_policy_generation(agent.organization_id)
    # Read again after the generation, so that the row isn't older than it.
    agent = Agent.objects.select_related("tool_policy", "organization").get(pk=agent_id)
    attached_servers = _load_attached_servers(agent)
    servers = {row.server_id: build_server_facts(row.server) for row in attached_servers}
    organization_policy = find_organization_policy(agent.organization_id)
    effective_policy = build_agent_policy(agent, attached_servers, organization_policy)
    definitions = list(Definition.objects.filter(server__in=servers).only_call_fields())
    tool_rows, other_definitions = split_tools(definitions)
    names = create_tool_names(agent, [row.server for row in attached_servers], tool_rows)
    changed_servers = list_servers_with_changed_instructions(definitions)
    tools = _list_server_tools(tool_rows, servers, changed_servers, names)
    decided_tools = {tool.name: decide_tool(tool, effective_policy) for tool in tools}
    app_pages = _collect_app_pages(decided_tools.values())
    builtin_tools = load_builtin_tools(agent, effective_policy)
    callable_count = sum(tool.decision.is_callable for tool in decided_tools.values())
    for tool in map(_build_builtin_tool, builtin_tools.iterate_tools(callable_count)):
        decided_tools[tool.name] = decide_tool(tool, effective_policy)
    return CallSnapshot(
        organization_id=agent.organization_id,
        generation=generation,
        tools=decided_tools,
        servers=servers,
        agent_id=agent.pk,
        agent_name=agent.name,
        agent_slug=agent.slug,
        tools_in_prompt=agent.tools_in_prompt,
        calls_per_minute=agent.calls_per_minute,
        organization_calls_per_minute=agent.organization.calls_per_minute,
        limits=load_limits(agent.organization_id, servers, agent),
        effective_policy=effective_policy,
        definitions=build_definitions(
            other_definitions, servers, effective_policy, changed_servers, app_pages
        ),
        instructions=collect_server_instructions(definitions, servers, effective_policy),
        skills=builtin_tools.skills,
        draft=build_agent_draft(agent, effective_policy),
        organization_draft=build_organization_draft(
            organization_policy, effective_policy, for_agent=True
        ),
        toolbox=builtin_tools.toolbox,
    )


def _collect_app_pages(tools: Iterable[SnapshotTool]) -> set[tuple[UUID | None, str]]:
    """Return the servers and URIs of the app pages of callable tools."""
    return {
        (tool.facts.server_id, uri)
        for tool in tools
        if tool.decision.is_callable
        for uri in list_app_pages(tool.declaration)
    }


def _load_attached_servers(agent: Agent) -> list[AgentServer]:
    attached_servers = agent.agent_servers.select_related("server__preset")
    return list(attached_servers.prefetch_related("server__secrets"))


def _load_server_snapshot(server_id: UUID) -> CallSnapshot:
    """Load the snapshot for calls without an agent; the organization's policy decides."""
    server = Server.objects.filter(pk=server_id).first()
    if server is None:
        raise NotFound(
            format_message("The server {name!r} doesn't exist.", name=str(server_id)),
            field="server",
        )
    generation = load_policy_generation(server.organization_id)
    server = (
        Server.objects.select_related("organization", "preset")
        .prefetch_related("secrets")
        .get(pk=server_id)
    )
    facts = build_server_facts(server)
    organization_policy = find_organization_policy(server.organization_id)
    effective_policy = build_server_policy(server, organization_policy)
    definitions = list(server.definitions.only_call_fields())
    tool_rows, other_definitions = split_tools(definitions)
    changed_servers = list_servers_with_changed_instructions(definitions)
    tools = _list_server_tools(tool_rows, {server.pk: facts}, changed_servers)
    return CallSnapshot(
        organization_id=server.organization_id,
        generation=generation,
        tools={tool.name: decide_tool(tool, effective_policy) for tool in tools},
        servers={server.pk: facts},
        organization_calls_per_minute=server.organization.calls_per_minute,
        limits=load_limits(server.organization_id, {server.pk: facts}),
        effective_policy=effective_policy,
        definitions=build_definitions(
            other_definitions, {server.pk: facts}, effective_policy, changed_servers
        ),
        instructions=collect_server_instructions(definitions, {server.pk: facts}, effective_policy),
        organization_draft=build_organization_draft(
            organization_policy, effective_policy, for_agent=False
        ),
    )


_NO_DECISION = PolicyDecision("deny", "undecided")


def _list_server_tools(
    rows: Iterable[Definition],
    servers: Mapping[UUID, ServerFacts],
    changed_servers: frozenset[UUID],
    names: Mapping[tuple[UUID, str], str] = MappingProxyType({}),
) -> list[SnapshotTool]:
    """Return the servers' tools, under the agent's names if there are any."""
    return [
        _build_mcp_tool(
            names.get((row.server_id, row.name), row.name),
            row,
            servers[row.server_id],
            get_effective_state(row, changed_servers),
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
        schema_verdict=read_stored_verdict(row.schema_verdict, row.fault),
        digest=row.digest,
        definition_id=row.pk,
        labels=get_effective_labels(row, server.origin),
        has_set_labels=row.labels is not None,
        store_use=get_store_use(row, server.origin),
    )


def _build_builtin_tool(builtin_tool: AgentBuiltinTool) -> SnapshotTool:
    return SnapshotTool(
        name=builtin_tool.tool.name,
        facts=builtin_tool.facts,
        decision=_NO_DECISION,
        declaration=builtin_tool.tool.declaration,
        digest=builtin_tool.digest,
        labels=builtin_tool.labels,
        builtin=builtin_tool.tool,
    )


def decide_tool(tool: SnapshotTool, effective_policy: EffectivePolicy) -> SnapshotTool:
    """Return a tool with its decision and conditional rules under a policy."""
    rules = effective_policy.list_tool_rules(tool.facts)
    return replace(
        tool,
        decision=decide_tool_call(tool.facts, effective_policy),
        conditional=tuple(rule for rule in rules if rule.condition is not None),
    )
