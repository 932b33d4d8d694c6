"""Definitions of real servers, as the tools of an agent."""

import json
from pathlib import Path

from agents.llm.interface import ToolSpec
from mcp_servers.tool_names import build_tool_name

DEFINITIONS = json.loads((Path(__file__).parent / "definitions.json").read_text("utf-8"))


def load_tools(*servers: str) -> list[ToolSpec]:
    """Return the tools of these servers, or of all without arguments."""
    return [
        ToolSpec(
            build_tool_name(server, definition["name"]),
            definition["description"],
            definition["inputSchema"],
        )
        for server in servers or DEFINITIONS
        for definition in DEFINITIONS[server]
    ]


def get_tool(name: str) -> ToolSpec:
    """Return the tool whose name ends with this name."""
    (match,) = [spec for spec in load_tools() if spec.name.endswith(f"_{name}")]
    return match
