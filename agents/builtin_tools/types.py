"""BuiltinTool, its context and hints."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from agents.builtin_tools.toolset_options import AgentToolsets
from agents.policies.decisions import DefinitionFacts, PolicyDecision
from agents.skills.templates import SkillTemplate
from bonobot.accounts.principals import Principal
from mcp_servers.flow_labels import FlowLabel


class NestedCallOutcome(Protocol):
    """What came of a call that a built-in tool made."""

    @property
    def is_error(self) -> bool:
        """Tell whether the call failed."""

    @property
    def text(self) -> str:
        """The result as models see it, or why there is none."""

    @property
    def code(self) -> str:
        """The code of a failure."""

    @property
    def remedy(self) -> str:
        """What to do about a failure."""


class ToolDescription(Protocol):
    """A tool of the agent, as it is described to its model."""

    @property
    def name(self) -> str:
        """The name that the agent calls it by."""

    @property
    def description(self) -> str:
        """What is said about it."""

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""


class DefinitionDescription(Protocol):
    """A resource, template or prompt of an attached server."""

    @property
    def name(self) -> str:
        """The URI, URI template or name."""

    @property
    def title(self) -> str:
        """The title, or nothing."""

    @property
    def description(self) -> str:
        """What is said about it."""

    @property
    def declaration(self) -> Mapping[str, Any]:
        """The definition as its server declared it."""

    @property
    def facts(self) -> DefinitionFacts:
        """What decisions need of it."""

    @property
    def decision(self) -> PolicyDecision:
        """Whether the agent may use it."""


class ServerIdentity(Protocol):
    """An attached server, as built-in tools name it."""

    @property
    def id(self) -> UUID:
        """The server's id."""

    @property
    def slug(self) -> str:
        """The name that tools and people know it by."""


class AgentSnapshot(Protocol):
    """What built-in tools read of their agent's snapshot; `memo` keeps what they computed of it."""

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
        """What is worth keeping as long as the snapshot."""

    def searchable(self) -> Sequence[ToolDescription]:
        """Return the tools that `find_tools` searches."""

    def offers_of(self, *kinds: str) -> Sequence[DefinitionDescription]:
        """Return the definitions of these kinds."""


@dataclass(frozen=True, kw_only=True)
class BuiltinToolContext:
    """For whom a built-in tool runs; `call` makes a call of its own (method, server, name).

    Such a call goes through the door like every other: the tool itself may do nothing more than
    its agent. `labels` are those that the call was admitted with. `timeout_s` is what the caller
    waits at most; None: the tool's own bound.
    """

    organization_id: UUID
    principal: Principal
    call_id: UUID
    labels: tuple[str, ...]
    agent_id: UUID | None
    session_id: UUID | None
    # Whose flow labels count: the session's, or the root's where another session began it.
    holding_session: UUID | None
    snapshot: AgentSnapshot
    toolbox: AgentToolsets
    call: Callable[..., Awaitable[NestedCallOutcome]]
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class BuiltinToolHints:
    """What a tool is, in MCP's words (ToolAnnotations): nothing here decides anything."""

    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False

    def declared(self) -> dict[str, bool]:
        """Return them as they are declared; two have no meaning where nothing is changed."""
        found = {"readOnlyHint": self.read_only}
        if not self.read_only:
            found |= {"destructiveHint": self.destructive, "idempotentHint": self.idempotent}
        return found | {"openWorldHint": self.open_world}


@dataclass(frozen=True, kw_only=True)
class BuiltinTool:
    """A tool that Bonobot itself offers; `run` returns text or an MCP result, or raises `Problem`.

    `kit`: there only for agents that were given it ("": for all). `of_resources`: there only for
    agents that have a resource ticked; `of_skills`: for those that have a skill; `of_many`: for
    those with more tools than are shown to their model at once. `instructs`: what it gives are our
    own people's words, no data. `labels`: what the tool adds of its own; a call that it makes
    brings those of what it reads. `brings` says what a call with these arguments adds (it may
    query); the tool then gives nothing that would bring more. `reads` and `writes` say what it does
    with the workspace, `online` names the kit's flag that makes it a way out.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[[BuiltinToolContext, dict[str, Any]], Awaitable[str | dict[str, Any]]]
    kit: str = ""
    of_resources: bool = False
    of_skills: bool = False
    instructs: bool = False
    of_many: bool = False
    labels: tuple[FlowLabel, ...] = ()
    brings: Callable[[UUID, dict[str, Any]], Iterable[FlowLabel]] | None = None
    reads: bool = False
    writes: bool = False
    online: str = ""
    hints: BuiltinToolHints = field(default_factory=BuiltinToolHints)

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as MCP would declare it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": self.hints.declared(),
        }

    def granted(self, toolbox: AgentToolsets) -> bool:
        """Tell whether an agent with this toolbox has the tool."""
        return not self.kit or toolbox.has(self.kit, writes=self.writes)

    def labels_in(self, toolbox: AgentToolsets) -> tuple[FlowLabel, ...]:
        """Return the labels of its calls: its own, the workspace's, those of a granted network."""
        found = [*self.labels, *(toolbox.labels() if self.reads else ())]
        if self.online and toolbox.kits.get(self.kit, {}).get(self.online):
            found += [FlowLabel.UNTRUSTED_CONTENT, FlowLabel.SENDS_OUT]
        return tuple(dict.fromkeys(found))
