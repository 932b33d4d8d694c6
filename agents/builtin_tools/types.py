"""The types of built-in tools: the tool, its call context, its hints."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from agents.builtin_tools.toolset_options import AgentToolsets
from agents.policies.decisions import DefinitionFacts, PolicyDecision, ToolFacts
from agents.skills import SkillTemplate
from bonobot.accounts.principals import Principal
from mcp_servers.flow_labels import FlowLabel


class NestedCallOutcome(Protocol):
    """The outcome of a call that a built-in tool made."""

    @property
    def is_error(self) -> bool:
        """Whether the call failed."""

    @property
    def text(self) -> str:
        """The result as models see it, or the error."""

    @property
    def code(self) -> str:
        """The code of a failure."""

    @property
    def remedy(self) -> str:
        """What to do about a failure."""


class ToolDescription(Protocol):
    """A tool of the agent, as described to its model."""

    @property
    def name(self) -> str:
        """The name that the agent calls it by."""

    @property
    def description(self) -> str:
        """The description."""

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""

    @property
    def declaration(self) -> Mapping[str, Any]:
        """The tool as its server declared it."""

    @property
    def facts(self) -> ToolFacts:
        """The facts that policy decisions use."""


class DefinitionDescription(Protocol):
    """A resource, template or prompt of an attached server."""

    @property
    def name(self) -> str:
        """The URI, URI template or name."""

    @property
    def title(self) -> str:
        """The title, or ""."""

    @property
    def description(self) -> str:
        """The description."""

    @property
    def declaration(self) -> Mapping[str, Any]:
        """The definition as its server declared it."""

    @property
    def facts(self) -> DefinitionFacts:
        """The facts that policy decisions use."""

    @property
    def decision(self) -> PolicyDecision:
        """The policy decision for the agent."""


class ServerIdentity(Protocol):
    """An attached server, as built-in tools refer to it."""

    @property
    def id(self) -> UUID:
        """The server's id."""

    @property
    def slug(self) -> str:
        """The server's slug."""


class AgentSnapshot(Protocol):
    """The part of an agent's snapshot that built-in tools use."""

    @property
    def agent_name(self) -> str:
        """The agent's name."""

    @property
    def agent_slug(self) -> str:
        """The agent's slug."""

    @property
    def tools(self) -> Mapping[str, ToolDescription]:
        """All tools of the agent, by name."""

    @property
    def servers(self) -> Mapping[UUID, ServerIdentity]:
        """The attached servers, by id."""

    @property
    def skills(self) -> Mapping[str, SkillTemplate]:
        """The attached skills, by name."""

    @property
    def memo(self) -> dict[object, Any]:
        """Values cached for the lifetime of the snapshot."""

    def list_searchable_tools(self) -> Sequence[ToolDescription]:
        """Return the tools that `find_tools` searches."""

    def list_definitions(self, *kinds: str) -> Sequence[DefinitionDescription]:
        """Return the definitions of the given kinds."""


@dataclass(frozen=True, kw_only=True)
class BuiltinToolContext:
    """The context of a call of a built-in tool; `call` makes a nested call (method, server, name).

    Nested calls go through policy and audit like any other, so the tool can do nothing that its
    agent can't. `labels` are the flow labels that the call was admitted with. `timeout_s` is how
    long the caller waits; None means the tool's own timeout. `stopping` is set when the caller's
    process stops, and another one will repeat the call.
    """

    organization_id: UUID
    principal: Principal
    call_id: UUID
    labels: tuple[str, ...]
    agent_id: UUID | None
    session_id: UUID | None
    # The session whose flow labels apply: this one, or the root session if another started it.
    label_session_id: UUID | None
    snapshot: AgentSnapshot
    toolbox: AgentToolsets
    call: Callable[..., Awaitable[NestedCallOutcome]]
    timeout_s: float | None = None
    stopping: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class BuiltinToolHints:
    """MCP's tool annotations; no decision depends on them."""

    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False

    def to_annotations(self) -> dict[str, bool]:
        """Return the annotations; two of them apply only to tools that aren't read-only."""
        annotations = {"readOnlyHint": self.read_only}
        if not self.read_only:
            annotations |= {"destructiveHint": self.destructive, "idempotentHint": self.idempotent}
        return annotations | {"openWorldHint": self.open_world}


@dataclass(frozen=True, kw_only=True)
class BuiltinTool:
    """A tool that Bonobot provides; `run` returns text or an MCP result, or raises `Problem`.

    `toolset` limits it to agents with that toolset ("": all agents). `needs_resources`,
    `needs_skills` and `needs_many_tools` limit it to agents with an allowed resource, with a skill,
    and with more tools than are shown to their model at once. `returns_instructions`: its results
    were written by members and are not data. `labels` are the flow labels of the tool itself;
    nested calls add their own. `list_result_labels` returns the labels that a call with the given
    arguments adds (it may query); the tool must not return content with other labels.
    `network_option` names the option of the toolset that allows network access.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[[BuiltinToolContext, dict[str, Any]], Awaitable[str | dict[str, Any]]]
    toolset: str = ""
    needs_resources: bool = False
    needs_skills: bool = False
    returns_instructions: bool = False
    needs_many_tools: bool = False
    labels: tuple[FlowLabel, ...] = ()
    list_result_labels: Callable[[UUID, dict[str, Any]], Iterable[FlowLabel]] | None = None
    reads_workspace: bool = False
    writes_workspace: bool = False
    network_option: str = ""
    hints: BuiltinToolHints = field(default_factory=BuiltinToolHints)

    @property
    def declaration(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": self.hints.to_annotations(),
        }

    def is_granted(self, toolbox: AgentToolsets) -> bool:
        return not self.toolset or toolbox.has_toolset(self.toolset, writes=self.writes_workspace)

    def list_labels(self, toolbox: AgentToolsets) -> tuple[FlowLabel, ...]:
        """Return the flow labels of calls: the tool's, the workspace's and the network's."""
        labels = [*self.labels, *(toolbox.list_labels() if self.reads_workspace else ())]
        if self.network_option and toolbox.options_by_toolset.get(self.toolset, {}).get(
            self.network_option
        ):
            labels += [FlowLabel.UNTRUSTED_CONTENT, FlowLabel.SENDS_OUT]
        return tuple(dict.fromkeys(labels))


@dataclass(frozen=True, slots=True)
class AgentBuiltinTool:
    """A built-in tool with the facts that policy decisions use."""

    tool: BuiltinTool
    facts: ToolFacts
    labels: tuple[str, ...]
    digest: str = ""
