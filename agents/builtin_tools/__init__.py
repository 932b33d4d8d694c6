"""Built-in tools: the same policy, audit and bounds as any server's tool (FEATURES A8)."""

from agents.builtin_tools.results import READ_RESULT
from agents.builtin_tools.tool import BuiltinTool, Context

BUILTIN_TOOLS: dict[str, BuiltinTool] = {tool.name: tool for tool in (READ_RESULT,)}

__all__ = ["BUILTIN_TOOLS", "BuiltinTool", "Context"]
