"""The tools that start sessions: they import the call pipeline, so upper packages register them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from agents.builtin_tools.types import AgentBuiltinTool

ToolSource = Callable[[Any], "AgentBuiltinTool"]
_tool_sources: dict[str, ToolSource] = {}


def register_tool_source(kind: Literal["agent", "workflow"], build_tool: ToolSource) -> None:
    """Register the function that builds the tool of a callable agent or attached workflow."""
    _tool_sources[kind] = build_tool


def build_source_tool(kind: Literal["agent", "workflow"], source: Any) -> "AgentBuiltinTool":
    """Return the tool of a callable agent or attached workflow."""
    return _tool_sources[kind](source)
