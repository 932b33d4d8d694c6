"""The commands `tools list`, `agents tools` and `agents workspace`."""

import argparse
import json
from typing import Any

from agents.builtin_tools.toolset_options import TOOLSETS, apply_defaults
from agents.models import Agent
from bonobot.core.cli.command_group import Alternatives, Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput
from mcp_servers.models import Definition


def _list_tools(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.builtin_tools.registry import BUILTIN_TOOLS

    serialized = (
        [] if options.mcp else [_serialize_builtin_tool(tool) for tool in BUILTIN_TOOLS.values()]
    )
    rows = Definition.objects.for_organization(cli.principal.organization_id).tools()
    serialized += [
        _serialize_mcp_tool(row)
        for row in rows.select_related("server").order_by("server__name", "name")
    ]
    table_rows = [(t["server"], t["name"], t["state"], t["description"]) for t in serialized]
    empty = "No tools yet. Add a server: bonobot mcp add NAME --url URL"
    cli.emit(
        serialized,
        build_table("SERVER", "TOOL", "STATE", "DESCRIPTION", rows=table_rows, empty=empty),
    )


def _serialize_builtin_tool(tool: Any) -> dict[str, Any]:
    return {
        "server": "(built-in)",
        "name": tool.name,
        "state": "approved",
        "enabled": True,
        "description": tool.description,
        "input_schema": tool.input_schema,
    }


def _serialize_mcp_tool(row: Definition) -> dict[str, Any]:
    return {
        "server": row.server.slug,
        "name": row.name,
        "state": row.state.value,
        "enabled": row.enabled,
        "description": row.description.split("\n", 1)[0][:100],
        "input_schema": row.input_schema,
    }


VERBS = (
    CommandVerb(
        "list",
        "List the built-in tools and the tools of all servers",
        _list_tools,
        arguments=(Argument("--mcp", "Only tools of MCP servers"),),
        examples=("tools list", "tools list --mcp --json"),
    ),
)


_TOOLSET_OPTIONS: dict[str, Any] = {"action": "append", "default": [], "choices": [*TOOLSETS]}
_TOOLSET_ARGUMENTS = (
    Argument("SLUG", "Slug of the agent"),
    Argument(
        "--enable TOOLSET",
        f"Toolset to enable: {', '.join(TOOLSETS)}. Repeatable",
        **_TOOLSET_OPTIONS,
    ),
    Argument(
        "--disable TOOLSET",
        f"Toolset to disable: {', '.join(TOOLSETS)}. Repeatable",
        **_TOOLSET_OPTIONS,
    ),
    Argument(
        "--set TOOLSET.OPTION=VALUE",
        "Option of a toolset. VALUE is JSON. Lists can be written as a,b. Repeatable",
        action="append",
        default=[],
    ),
)


def _handle_toolsets(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.services import AgentSpec, update_agent

    agent = cli.get_row(Agent, slug=options.slug)
    toolsets = {name: dict(values) for name, values in agent.builtin_tools.items()}
    for name in options.enable:
        toolsets.setdefault(name, {})
    for name in options.disable:
        toolsets.pop(name, None)
    for text in options.set:
        name, option, value = _parse_option(text)
        toolsets.setdefault(name, {})[option] = value
    if toolsets != agent.builtin_tools:
        update_agent(cli.principal, agent, AgentSpec(name=agent.name, builtin_tools=toolsets))
    enabled_toolsets = apply_defaults(agent.builtin_tools)
    serialized: list[dict[str, Any]] = [
        {
            "toolset": toolset.name,
            "enabled": toolset.name in enabled_toolsets,
            "options": dict(enabled_toolsets.get(toolset.name, toolset.defaults)),
            "description": toolset.description,
        }
        for toolset in TOOLSETS.values()
    ]
    rows = [
        (
            toolset["toolset"],
            "enabled" if toolset["enabled"] else "disabled",
            _format_options(toolset["options"]),
            toolset["description"],
        )
        for toolset in serialized
    ]
    cli.emit(
        serialized, build_table("TOOLSET", "STATUS", "OPTIONS", "DESCRIPTION", rows=rows, empty="")
    )


def _format_options(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_format_option_value(value)}" for name, value in options.items())


def _format_option_value(value: Any) -> str:
    return ",".join(value) if isinstance(value, list | tuple) else json.dumps(value)


def _parse_option(text: str) -> tuple[str, str, Any]:
    """Return the toolset, the option and its value; raises `InvalidInput`."""
    target, equals, raw_value = text.partition("=")
    name, dot, option = target.partition(".")
    if not equals or not dot or name not in TOOLSETS:
        raise InvalidInput(
            f"{text!r} isn't a valid toolset option.",
            field="--set",
            remedy="Use the format TOOLSET.OPTION=VALUE, such as shell.time_s=120.",
        )
    definition = TOOLSETS[name].find_option(option)
    if definition is not None and definition.kind == "texts":
        return name, option, [item.strip() for item in raw_value.split(",") if item.strip()]
    try:
        return name, option, json.loads(raw_value)
    except (ValueError, RecursionError):
        return name, option, raw_value


_WORKSPACE_ARGUMENTS = (
    Argument("SLUG", "Slug of the agent"),
    Alternatives(
        Argument("--attach DIR", "Use a folder on this host as the workspace"),
        Argument("--detach", "Use the agent's own workspace folder again"),
        Argument("--empty", "Delete everything in the agent's own workspace folder"),
    ),
    Argument("--mib N", "Maximum size of the agent's own folder, in MiB", type=int),
    Argument("--files N", "Maximum number of files and folders in it", type=int),
)


def _handle_workspace(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.builtin_tools.workspaces import clear_workspace, describe_workspace
    from agents.services import AgentSpec, update_agent

    agent = cli.get_row(Agent, slug=options.slug)
    folder = "" if options.detach else options.attach
    if (folder, options.mib, options.files) != (None, None, None):
        spec = AgentSpec(
            name=agent.name,
            workspace_folder=folder,
            workspace_mib=options.mib,
            workspace_files=options.files,
        )
        update_agent(cli.principal, agent, spec)
    if options.empty:
        clear_workspace(cli.principal, agent)
    workspace = describe_workspace(agent)
    rows = [(name.replace("_", " "), _format_value(value)) for name, value in workspace.items()]
    cli.emit(workspace, build_table("WORKSPACE", "", rows=rows, empty=""))


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else value or "–"


WORKSPACE_VERBS = (
    CommandVerb(
        "tools",
        "Show or change an agent's built-in tools",
        _handle_toolsets,
        arguments=_TOOLSET_ARGUMENTS,
        examples=(
            "agents tools demo",
            "agents tools demo --enable filesystem --enable search --set filesystem.read_only=true",
            "agents tools demo --enable fetch --set fetch.hosts=docs.example.com,*.example.org",
            "agents tools demo --disable shell",
        ),
    ),
    CommandVerb(
        "workspace",
        "Show or change an agent's workspace",
        _handle_workspace,
        arguments=_WORKSPACE_ARGUMENTS,
        examples=(
            "agents workspace demo",
            "agents workspace demo --attach /srv/project",
            "agents workspace demo --detach --mib 512",
            "agents workspace demo --empty",
        ),
    ),
)
