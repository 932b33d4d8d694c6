"""What a built-in tool is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID


@dataclass(frozen=True, kw_only=True)
class Context:
    """For whom a built-in tool runs."""

    organization_id: UUID
    agent_id: UUID | None
    session_id: UUID | None


@dataclass(frozen=True, kw_only=True)
class BuiltinTool:
    """A tool that Bonobot itself offers; `run` returns text, or raises a `Problem`."""

    name: str
    description: str
    input_schema: dict[str, Any]
    run: Callable[[Context, dict[str, Any]], Awaitable[str]]

    @property
    def declaration(self) -> dict[str, Any]:
        """The tool as MCP would declare it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "annotations": {"readOnlyHint": True},
        }
