"""Tools as agents get them: definitions of real servers under the names that Bonobot gives."""

import json
from pathlib import Path

from agents.llm.interface import ToolSpec
from mcp_servers.tool_names import build_tool_name

DEFINITIONS = json.loads((Path(__file__).parent / "definitions.json").read_text("utf-8"))


def of(*servers: str) -> list[ToolSpec]:
    """Return the tools of some servers; of all without names."""
    return [
        ToolSpec(build_tool_name(server, each["name"]), each["description"], each["inputSchema"])
        for server in servers or DEFINITIONS
        for each in DEFINITIONS[server]
    ]


def tool(name: str) -> ToolSpec:
    """Return the one tool whose name ends so."""
    (found,) = [each for each in of() if each.name.endswith(f"_{name}")]
    return found
