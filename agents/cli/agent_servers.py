"""The commands `mcp status`, `connect`, `disconnect` and `tools`."""

import argparse
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone

from agents.models import Agent
from bonobot.core.cli import watch_rows
from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    add_arguments,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import get_server
from mcp_servers.models import Definition, Server

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mcp_servers.oauth_client.login_status import LoginStatus

MAX_ERROR_LENGTH = 120
# Options that choose what an agent gets of a server.
CHOICES = ("tools", "without", "resource", "prompt")


_STATUS_ARGUMENTS = (
    Argument("SERVER", "Only these servers (default: all)", dest="servers", nargs="*"),
    Argument("--agent SLUG", "Only servers attached to this agent"),
    *watch_rows.WATCH_ARGUMENTS,
)


def _show_status(cli: CommandContext, options: argparse.Namespace) -> None:
    from mcp_servers.oauth_client.login_status import load_login_statuses

    server_ids = [get_server(cli, name).pk for name in options.servers]
    agent = cli.get_row(Agent, slug=options.agent) if options.agent else None

    def load_rows() -> list[dict[str, Any]]:
        servers = list(_iterate_servers(cli, server_ids, agent))
        logins = load_login_statuses(cli.principal, servers)
        return [
            _serialize_server(server) | {"sign_in": _serialize_sign_in(logins, server)}
            for server in servers
        ]

    watch_rows.show_rows(cli, options, load_rows, _render_status)


def _iterate_servers(
    cli: CommandContext, server_ids: list[Any], agent: Agent | None
) -> Iterator[Server]:
    rows = Server.objects.for_organization(cli.principal.organization_id)
    if server_ids:
        rows = rows.filter(pk__in=server_ids)
    if agent is not None:
        rows = rows.filter(pk__in=agent.agent_servers.filter(enabled=True).values("server_id"))
    return rows.select_related("change_subscription").iterator()


def _serialize_sign_in(logins: "dict[UUID, LoginStatus]", server: Server) -> dict[str, Any] | None:
    return logins[server.pk].as_dict() if server.pk in logins else None


def _serialize_server(server: Server) -> dict[str, Any]:
    from mcp_servers.subscriptions.change_notification_status import load_change_notification_status

    return {
        "name": server.name,
        "slug": server.slug,
        "scope": "agent" if server.private_to_agent else "pool",
        "enabled": server.enabled,
        "status": server.status,
        "latency_ms": server.latency_ms,
        "checked_at": server.checked_at,
        "last_connected_at": server.last_connected_at,
        "next_check_at": server.next_check_at,
        "failures": server.failures,
        "code": server.status_code,
        "detail": server.status_detail,
        "change_notices": load_change_notification_status(server).as_dict(),
    }


def _render_status(statuses: list[dict[str, Any]]) -> "RenderableType":
    rows = [
        (
            status["name"],
            status["status"],
            "" if status["latency_ms"] is None else f"{status['latency_ms']} ms",
            _format_age(status["last_connected_at"]),
            status["failures"] or "",
            status["change_notices"]["state"].replace("_", " "),
            _format_sign_in(status["sign_in"]),
            make_visible(
                " ".join(part for part in (status["code"], status["detail"]) if part),
                MAX_ERROR_LENGTH,
            ),
        )
        for status in statuses
    ]
    columns = (
        *("NAME", "STATE", "LATENCY", "CONNECTED", "FAILURES", "NOTIFICATIONS", "SIGN-IN"),
        "LAST ERROR",
    )
    empty = "No servers yet. Add one: bonobot mcp add NAME --url URL"
    table: RenderableType = build_table(*columns, rows=rows, empty=empty, sentences_below=True)
    return table


def _format_sign_in(sign_in: dict[str, Any] | None) -> str:
    if sign_in is None:
        return ""
    if sign_in["state"] == "personal":
        return f"{sign_in['people']} people" if sign_in["people"] != 1 else "1 person"
    return str(sign_in["state"]).replace("_", " ")


def _format_age(timestamp: Any) -> str:
    if timestamp is None:
        return "never"
    seconds = max(int((timezone.now() - timestamp).total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


_ATTACHMENT_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("--agent SLUG", "Only for this agent"),
)


def _add_connect_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, _ATTACHMENT_ARGUMENTS)
    parser.add_argument(
        "--tools",
        "--only",
        dest="tools",
        action="append",
        metavar="A,B",
        help="Tools to select for the agent: names or globs. '*': all current and future tools",
    )
    parser.add_argument(
        "--without", action="append", metavar="A,B", help="Tools to exclude for the agent"
    )
    parser.add_argument(
        "--resource",
        action="append",
        metavar="URI",
        help="Resource to select: URI, template, or glob",
    )
    parser.add_argument(
        "--prompt", action="append", metavar="NAME", help="Prompt to select: name or glob"
    )


def _connect_server(cli: CommandContext, options: argparse.Namespace) -> None:
    from mcp_servers.cli.discovery import discover_with_progress
    from mcp_servers.services import set_server_enabled

    server = get_server(cli, options.server)
    if options.agent:
        agent = cli.get_row(Agent, slug=options.agent)
        _attach_server(cli, agent, server, options)
        _show_attachment(cli, agent, server, connected=True)
        return
    chosen_options = [name for name in CHOICES if getattr(options, name)]
    if chosen_options:
        raise InvalidInput(
            "Definitions can be selected only for an agent.",
            field=f"--{chosen_options[0]}",
            remedy="Add --agent SLUG. To enable or disable tools for everyone: bonobot mcp tools",
        )
    if not server.enabled:
        set_server_enabled(cli.principal, server, enabled=True)
    outcome = discover_with_progress(cli, [server])[server.name]
    server.refresh_from_db()
    cli.emit(_serialize_server(server) | {"discovery": outcome.as_dict()})
    cli.print_message(make_visible(f"{server.name}: {outcome.format_summary()}"))
    if outcome.problem is not None:
        raise CommandFailed


def _attach_server(
    cli: CommandContext, agent: Agent, server: Server, options: argparse.Namespace
) -> None:
    """Attach the server, or enable the attachment; lists that aren't given stay unchanged."""
    from agents.policies.rules import clean_patterns
    from agents.services import attach_server, set_attachment_enabled

    tools = list(server.definitions.tools())
    selected, excluded = _split_names(options.tools), _split_names(options.without)
    _match_tools(server, tools, excluded, "--without")
    attachment = agent.agent_servers.filter(server=server).first()
    if attachment is not None and all(getattr(options, name) is None for name in CHOICES):
        set_attachment_enabled(cli.principal, agent, server, enabled=True)
        return
    allowed_tools = attachment.allowed_tools if attachment else []
    if selected is not None:
        allowed_tools = clean_patterns(selected, {row.name for row in tools}, field="--tools")
    denied_tools = attachment.denied_tools if attachment and excluded is None else excluded
    attach_server(
        cli.principal,
        agent,
        server,
        allowed_tools=allowed_tools,
        denied_tools=denied_tools or (),
        allowed_resources=options.resource,
        allowed_prompts=options.prompt,
    )


def _split_names(values: Sequence[str] | None) -> list[str] | None:
    """Return the comma-separated names, or None if the option isn't given."""
    if values is None:
        return None
    parts = (part.strip() for text in values for part in text.split(","))
    return [part for part in parts if part]


def _disconnect_server(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.services import set_attachment_enabled
    from mcp_servers.services import set_server_enabled

    server = get_server(cli, options.server)
    if options.agent:
        agent = cli.get_row(Agent, slug=options.agent)
        set_attachment_enabled(cli.principal, agent, server, enabled=False)
        _show_attachment(cli, agent, server, connected=False)
        return
    if server.enabled:
        set_server_enabled(cli.principal, server, enabled=False)
    cli.emit(_serialize_server(server))
    cli.print_message(
        make_visible(f"{server.name} was disabled for everyone. Effective from the next call.")
    )


def _show_attachment(cli: CommandContext, agent: Agent, server: Server, *, connected: bool) -> None:
    cli.emit({"agent": agent.slug, "server": server.slug, "connected": connected})
    outcome = "enabled" if connected else "disabled"
    cli.print_message(
        make_visible(f"{server.name} was {outcome} for {agent.slug}. Effective from the next call.")
    )


_TOOLS_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("--enable TOOL", "Tool to enable: name or glob", action="append"),
    Argument("--disable TOOL", "Tool to disable: name or glob", action="append"),
)


def _handle_tools(cli: CommandContext, options: argparse.Namespace) -> None:
    from mcp_servers.definition_reviews import set_definition_enabled

    server = get_server(cli, options.server)
    tools = list(server.definitions.tools())
    disabled = _match_tools(server, tools, options.disable, "--disable")
    enabled = _match_tools(server, tools, options.enable, "--enable")
    for row in tools:
        should_enable = row.name in enabled or (row.enabled and row.name not in disabled)
        if row.enabled is not should_enable:
            set_definition_enabled(cli.principal, row, enabled=should_enable)
            row.enabled = should_enable
    serialized = [_serialize_tool(row) for row in tools]
    rows = [
        (
            tool["name"],
            tool["state"],
            "enabled" if tool["enabled"] else "disabled",
            tool["description"],
        )
        for tool in serialized
    ]
    empty = f"No tools yet. Refresh the server: bonobot mcp refresh {server.slug}"
    cli.emit(
        serialized, build_table("TOOL", "STATE", "STATUS", "DESCRIPTION", rows=rows, empty=empty)
    )


def _match_tools(
    server: Server, tools: Sequence[Definition], patterns: Sequence[str] | None, field: str
) -> set[str]:
    """Return the names that match the patterns; raises `NotFound` for a pattern without match."""
    from mcp_servers.tool_names import matches_tool_name

    matches: set[str] = set()
    for pattern in patterns or ():
        matched = {row.name for row in tools if matches_tool_name(pattern, row.name)}
        if not matched:
            raise NotFound(
                f"{server.name} has no tool that matches {pattern!r}.",
                code="unknown_tool",
                field=field,
                remedy=f"List its tools with: bonobot mcp tools {server.slug}",
            )
        matches |= matched
    return matches


def _serialize_tool(row: Definition) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": row.state.value,
        "enabled": row.enabled,
        "fault": row.fault,
        "description": row.description.split("\n", 1)[0][:100],
    }


VERBS = (
    CommandVerb(
        "status",
        "Show the state, latency, and last error of each server",
        _show_status,
        arguments=_STATUS_ARGUMENTS,
        examples=("mcp status", "mcp status --watch", "mcp status time --json"),
    ),
    CommandVerb(
        "connect",
        "Enable a server and discover its definitions. With --agent, attach it to that agent.",
        _connect_server,
        arguments=(_add_connect_arguments,),
        examples=(
            "mcp connect time",
            "mcp connect time --agent demo --tools get_current_time,convert_time",
            "mcp connect git --agent demo --tools 'git_*' --without git_commit",
            "mcp connect git --agent demo --tools '*'",
            "mcp connect docs --agent demo --resource 'docs://*' --prompt review",
        ),
    ),
    CommandVerb(
        "disconnect",
        "Disable a server for everyone or for one agent, effective from the next call",
        _disconnect_server,
        arguments=_ATTACHMENT_ARGUMENTS,
        examples=("mcp disconnect time", "mcp disconnect time --agent demo"),
    ),
    CommandVerb(
        "tools",
        "List a server's tools with their state, or enable and disable them",
        _handle_tools,
        arguments=_TOOLS_ARGUMENTS,
        examples=("mcp tools git", "mcp tools git --disable 'git_commit' --disable 'git_reset'"),
    ),
)
