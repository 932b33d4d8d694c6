"""What a built-in tool is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from mcp_servers.labels import Label

if TYPE_CHECKING:
    from agents.governance.snapshots import Snapshot
    from agents.requests import Outcome


@dataclass(frozen=True, kw_only=True)
class Context:
    """For whom a built-in tool runs; `call` makes a call of its own (method, server, name).

    Such a call goes through the door like every other: the tool itself may do nothing more than
    its agent.
    """

    organization_id: UUID
    agent_id: UUID | None
    session_id: UUID | None
    snapshot: "Snapshot"
    call: Callable[..., Awaitable["Outcome"]]


@dataclass(frozen=True, kw_only=True)
class BuiltinTool:
    """A tool that Bonobot itself offers; `run` returns text, or raises a `Problem`.

    `of_resources`: there only for agents that have a resource ticked. `labels`: what the tool adds
    of its own; a call that it makes brings those of what it reads.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[[Context, dict[str, Any]], Awaitable[str]]
    of_resources: bool = False
    labels: tuple[Label, ...] = ()

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as MCP would declare it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": {"readOnlyHint": True},
        }
