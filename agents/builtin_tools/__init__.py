"""Built-in tools: the same policy, audit and bounds as any server's tool (FEATURES A8)."""

from agents.builtin_tools.resources import LIST_RESOURCES, READ_RESOURCE
from agents.builtin_tools.results import READ_RESULT
from agents.builtin_tools.tool import BuiltinTool, Context

BUILTIN_TOOLS: dict[str, BuiltinTool] = {
    tool.name: tool for tool in (READ_RESULT, LIST_RESOURCES, READ_RESOURCE)
}

__all__ = ["BUILTIN_TOOLS", "BuiltinTool", "Context"]
