"""Template filters for built-in tools."""

from collections.abc import Mapping
from typing import Any

from django import template

from agents.builtin_tools.registry import BUILTIN_TOOLS

register = template.Library()


@register.filter
def is_builtin_tool(tool_activity: Mapping[str, Any]) -> bool:
    """Return whether a tool without a server exists: denied calls can have any name."""
    line = tool_activity["line"]
    return tool_activity["tool"] in BUILTIN_TOOLS or line.calls > line.refused
