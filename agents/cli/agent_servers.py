"""The commands `mcp status`, `connect`, `disconnect` and `tools`."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from django.utils import timezone
from rich.console import RenderableType

from agents.models import Agent
from agents.policies.rules import choose
from agents.services import bind, set_attachment_enabled
from bonobot.core.cli import command_group
from bonobot.core.cli.command_group import CommandContext, CommandFailed, CommandVerb, build_table
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.discovery import discover_servers
from mcp_servers.cli.servers import find
from mcp_servers.definition_reviews import set_definition_enabled
from mcp_servers.models import Definition, Server
from mcp_servers.oauth_client.queries import LoginStatus, load_login_statuses
from mcp_servers.services import set_server_enabled
from mcp_servers.subscriptions.queries import load_change_notification_status
from mcp_servers.tool_names import matches_tool_name

LONGEST_ERROR = 120
# Options that choose what an agent gets of a server.
CHOICES = ("tools", "without", "resource", "prompt")


def _add_status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("servers", metavar="SERVER", nargs="*", help="only these (default: all)")
    parser.add_argument("--agent", metavar="SLUG", help="only what this agent has")
    command_group.add_watch_arguments(parser)


def _show_status(cli: CommandContext, options: argparse.Namespace) -> None:
    chosen = [find(cli, name).pk for name in options.servers]
    agent = _get_agent(cli, options.agent) if options.agent else None

    def look() -> list[dict[str, Any]]:
        servers = list(_iterate_servers(cli, chosen, agent))
        found = load_login_statuses(cli.principal, servers)
        return [
            _as_json(server) | {"sign_in": _serialize_sign_in(found, server)} for server in servers
        ]

    command_group.show(cli, options, look, _render_status)


def _iterate_servers(
    cli: CommandContext, chosen: list[Any], agent: Agent | None
) -> Iterator[Server]:
    rows = Server.objects.for_organization(cli.principal.organization_id)
    if chosen:
        rows = rows.filter(pk__in=chosen)
    if agent is not None:
        rows = rows.filter(pk__in=agent.bindings.filter(enabled=True).values("server_id"))
    return rows.select_related("watch").iterator()


def _serialize_sign_in(found: dict[UUID, LoginStatus], server: Server) -> dict[str, Any] | None:
    return found[server.pk].as_dict() if server.pk in found else None


def _as_json(server: Server) -> dict[str, Any]:
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


def _render_status(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            one["name"],
            one["status"],
            "" if one["latency_ms"] is None else f"{one['latency_ms']} ms",
            _format_age(one["last_connected_at"]),
            one["failures"] or "",
            one["change_notices"]["state"].replace("_", " "),
            _format_sign_in(one["sign_in"]),
            make_visible(
                " ".join(part for part in (one["code"], one["detail"]) if part), LONGEST_ERROR
            ),
        )
        for one in found
    ]
    columns = (
        *("NAME", "STATE", "LATENCY", "CONNECTED", "FAILURES", "NOTICES", "SIGN-IN"),
        "LAST ERROR",
    )
    empty = "No servers yet. Add one: bonobot mcp add NAME --url URL"
    drawn: RenderableType = build_table(*columns, rows=rows, empty=empty)
    return drawn


def _format_sign_in(stand: dict[str, Any] | None) -> str:
    if stand is None:
        return ""
    if stand["state"] == "personal":
        return f"{stand['people']} people" if stand["people"] != 1 else "1 person"
    return str(stand["state"]).replace("_", " ")


def _format_age(moment: Any) -> str:
    if moment is None:
        return "never"
    seconds = max(int((timezone.now() - moment).total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def _add_attachment_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("--agent", metavar="SLUG", help="for this agent only")


def _connect_arguments(parser: argparse.ArgumentParser) -> None:
    _add_attachment_arguments(parser)
    parser.add_argument(
        "--tools",
        "--only",
        dest="tools",
        action="append",
        metavar="A,B",
        help="the agent gets these (names or globs); '*' is everything, also what comes later",
    )
    parser.add_argument(
        "--without", action="append", metavar="A,B", help="the agent never gets these"
    )
    parser.add_argument(
        "--resource", action="append", metavar="URI", help="tick resources (URI, template or glob)"
    )
    parser.add_argument(
        "--prompt", action="append", metavar="NAME", help="tick prompts (name or glob)"
    )


def _connect(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    if options.agent:
        agent = _get_agent(cli, options.agent)
        _attach_server(cli, agent, server, options)
        _show_attachment(cli, agent, server, connected=True)
        return
    chosen = [name for name in CHOICES if getattr(options, name)]
    if chosen:
        raise InvalidInput(
            "What is given is chosen for an agent.",
            field=f"--{chosen[0]}",
            remedy="Add --agent SLUG; `bonobot mcp tools` switches tools for everybody.",
        )
    if not server.enabled:
        set_server_enabled(cli.principal, server, enabled=True)
    outcome = discover_servers(cli, [server])[server.name]
    server.refresh_from_db()
    cli.emit(_as_json(server) | {"discovery": outcome.as_dict()})
    cli.say(make_visible(f"{server.name}: {outcome.told()}"))
    if outcome.problem is not None:
        raise CommandFailed


def _attach_server(
    cli: CommandContext, agent: Agent, server: Server, options: argparse.Namespace
) -> None:
    """Attach the server, or enable the attachment; lists that aren't given stay unchanged."""
    tools = list(server.definitions.tools())
    only, without = _split_names(options.tools), _split_names(options.without)
    _match_tools(server, tools, without, "--without")
    binding = agent.bindings.filter(server=server).first()
    if binding is not None and all(getattr(options, name) is None for name in CHOICES):
        set_attachment_enabled(cli.principal, agent, server, enabled=True)
        return
    allowed = binding.allowed_tools if binding else []
    if only is not None:
        allowed = choose(only, {row.name for row in tools}, field="--tools")
    denied = binding.denied_tools if binding and without is None else without
    bind(
        cli.principal,
        agent,
        server,
        allowed_tools=allowed,
        denied_tools=denied or (),
        allowed_resources=options.resource,
        allowed_prompts=options.prompt,
    )


def _split_names(given: Sequence[str] | None) -> list[str] | None:
    """Return the comma-separated names, or None if the option isn't given."""
    if given is None:
        return None
    parts = (part.strip() for text in given for part in text.split(","))
    return [part for part in parts if part]


def _disconnect(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    if options.agent:
        agent = _get_agent(cli, options.agent)
        set_attachment_enabled(cli.principal, agent, server, enabled=False)
        _show_attachment(cli, agent, server, connected=False)
        return
    if server.enabled:
        set_server_enabled(cli.principal, server, enabled=False)
    cli.emit(_as_json(server))
    cli.say(make_visible(f"{server.name} is disconnected for everybody, from the next call on."))


def _show_attachment(cli: CommandContext, agent: Agent, server: Server, *, connected: bool) -> None:
    cli.emit({"agent": agent.slug, "server": server.slug, "connected": connected})
    what = "has" if connected else "no longer has"
    cli.say(make_visible(f"{agent.slug} {what} {server.name}, from the next call on."))


def _get_agent(cli: CommandContext, slug: str) -> Agent:
    found: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=slug)
    return found


def _add_tools_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("--enable", action="append", metavar="TOOL", help="a name or glob")
    parser.add_argument("--disable", action="append", metavar="TOOL", help="a name or glob")


def _handle_tools(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    tools = list(server.definitions.tools())
    off = _match_tools(server, tools, options.disable, "--disable")
    on = _match_tools(server, tools, options.enable, "--enable")
    for row in tools:
        wanted = row.name in on or (row.enabled and row.name not in off)
        if row.enabled is not wanted:
            set_definition_enabled(cli.principal, row, enabled=wanted)
            row.enabled = wanted
    found = [_serialize_tool(row) for row in tools]
    shown = [
        (tool["name"], tool["state"], "on" if tool["enabled"] else "off", tool["description"])
        for tool in found
    ]
    empty = f"No tools yet: bonobot mcp refresh {server.slug}"
    cli.emit(found, build_table("TOOL", "STATE", "SWITCH", "DESCRIPTION", rows=shown, empty=empty))


def _match_tools(
    server: Server, tools: Sequence[Definition], patterns: Sequence[str] | None, field: str
) -> set[str]:
    """Return the names that match the patterns; raises `NotFound` for a pattern without match."""
    found: set[str] = set()
    for pattern in patterns or ():
        named = {row.name for row in tools if matches_tool_name(pattern, row.name)}
        if not named:
            raise NotFound(
                f"{server.name} has no tool {pattern!r}.",
                code="unknown_tool",
                field=field,
                remedy=f"`bonobot mcp tools {server.slug}` lists them.",
            )
        found |= named
    return found


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
        "Show how the servers are: state, latency, last error.",
        _show_status,
        _add_status_arguments,
        ("mcp status", "mcp status --watch", "mcp status time --json"),
    ),
    CommandVerb(
        "connect",
        "Switch a server on and discover it; with --agent, give it to that agent.",
        _connect,
        _connect_arguments,
        (
            "mcp connect time",
            "mcp connect time --agent demo --tools get_current_time,convert_time",
            "mcp connect git --agent demo --tools 'git_*' --without git_commit",
            "mcp connect git --agent demo --tools '*'",
            "mcp connect docs --agent demo --resource 'docs://*' --prompt review",
        ),
    ),
    CommandVerb(
        "disconnect",
        "Switch a server off, for everybody or for one agent; it holds on the next call.",
        _disconnect,
        _add_attachment_arguments,
        ("mcp disconnect time", "mcp disconnect time --agent demo"),
    ),
    CommandVerb(
        "tools",
        "List a server's tools with their state, and switch them on or off.",
        _handle_tools,
        _add_tools_arguments,
        ("mcp tools git", "mcp tools git --disable 'git_commit' --disable 'git_reset'"),
    ),
)
