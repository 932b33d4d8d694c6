"""`bonobot tools …`: every tool of the organization, built-in and of servers (FEATURES E2)."""

import argparse
from typing import Any

from agents.builtin_tools import BUILTIN_TOOLS
from bonobot.cli.group import Cli, Verb, table
from mcp_servers.models import Definition


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mcp", action="store_true", help="only tools of MCP servers")


def _list(cli: Cli, options: argparse.Namespace) -> None:
    found = [] if options.mcp else [_builtin(tool) for tool in BUILTIN_TOOLS.values()]
    rows = Definition.objects.for_organization(cli.principal.organization_id).tools()
    found += [_mcp(row) for row in rows.select_related("server").order_by("server__name", "name")]
    shown = [(t["server"], t["name"], t["state"], t["description"]) for t in found]
    empty = "No tools yet. Add a server: bonobot mcp add NAME --url URL"
    cli.emit(found, table("SERVER", "TOOL", "STATE", "DESCRIPTION", rows=shown, empty=empty))


def _builtin(tool: Any) -> dict[str, Any]:
    return {
        "server": "(built-in)",
        "name": tool.name,
        "state": "approved",
        "enabled": True,
        "description": tool.description,
        "input_schema": tool.input_schema,
    }


def _mcp(row: Definition) -> dict[str, Any]:
    return {
        "server": row.server.slug,
        "name": row.name,
        "state": row.state.value,
        "enabled": row.enabled,
        "description": row.description.split("\n", 1)[0][:100],
        "input_schema": row.input_schema,
    }


VERBS = (
    Verb(
        "list",
        "List the tools there are.",
        _list,
        _list_arguments,
        ("tools list", "tools list --mcp --json"),
    ),
)
