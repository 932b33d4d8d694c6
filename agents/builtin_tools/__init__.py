"""Built-in tools: the same policy, audit and bounds as any server's tool (FEATURES A8)."""

from agents.builtin_tools.catalogue import BUILTIN_TOOLS
from agents.builtin_tools.running import run_builtin
from agents.builtin_tools.tool import BuiltinTool, Context

__all__ = ["BUILTIN_TOOLS", "BuiltinTool", "Context", "run_builtin"]
