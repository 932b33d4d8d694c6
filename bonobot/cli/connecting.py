"""`bonobot mcp status|connect|disconnect|tools`: what is reachable, and the switches (D8, D2)."""

import argparse
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from django.utils import timezone
from rich.console import RenderableType
from rich.live import Live

from agents.bindings import bind, switch_binding
from agents.models import Agent
from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.cli.servers import find
from bonobot.cli.sweeping import sweep
from bonobot.lib.problems import Invalid, NotFound
from bonobot.lib.untrusted import visible
from mcp_servers.approval import switch_definition
from mcp_servers.models import Definition, Server
from mcp_servers.naming import own_name_matches
from mcp_servers.registration import switch

SHORTEST_INTERVAL_S = 0.5
LONGEST_ERROR = 120


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("servers", metavar="SERVER", nargs="*", help="only these (default: all)")
    parser.add_argument("--agent", metavar="SLUG", help="only what this agent has")
    parser.add_argument("--watch", action="store_true", help="show it anew until Ctrl-C")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="of --watch")


def _status(cli: Cli, options: argparse.Namespace) -> None:
    chosen = [find(cli, name).pk for name in options.servers]
    agent = _agent(cli, options.agent) if options.agent else None

    def look() -> list[dict[str, Any]]:
        return [_as_json(server) for server in _servers(cli, chosen, agent)]

    if not options.watch:
        cli.emit(found := look(), _drawn(found))
        return
    try:
        _watch(cli, look, max(options.interval, SHORTEST_INTERVAL_S))
    except KeyboardInterrupt:
        return


def _watch(cli: Cli, look: Callable[[], list[dict[str, Any]]], interval_s: float) -> None:
    """Show the state until Ctrl-C; for programs as one line of JSON each time."""
    if cli.as_json:
        for found in _looks(look, interval_s):
            cli.out.file.write(json.dumps(found, default=str, ensure_ascii=False) + "\n")
            cli.out.file.flush()
        return
    with Live(console=cli.out, auto_refresh=False) as live:
        for found in _looks(look, interval_s):
            live.update(_drawn(found), refresh=True)


def _looks(
    look: Callable[[], list[dict[str, Any]]], interval_s: float
) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield look()
        pause(interval_s)


def pause(seconds: float) -> None:
    """Wait; Ctrl-C ends it."""
    threading.Event().wait(seconds)


def _servers(cli: Cli, chosen: list[Any], agent: Agent | None) -> Iterator[Server]:
    rows = Server.objects.for_organization(cli.principal.organization_id)
    if chosen:
        rows = rows.filter(pk__in=chosen)
    if agent is not None:
        rows = rows.filter(pk__in=agent.bindings.filter(enabled=True).values("server_id"))
    return rows.iterator()


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
    }


def _drawn(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            one["name"],
            one["status"],
            "" if one["latency_ms"] is None else f"{one['latency_ms']} ms",
            _ago(one["last_connected_at"]),
            one["failures"] or "",
            visible(" ".join(part for part in (one["code"], one["detail"]) if part), LONGEST_ERROR),
        )
        for one in found
    ]
    columns = ("NAME", "STATE", "LATENCY", "CONNECTED", "FAILURES", "LAST ERROR")
    empty = "No servers yet. Add one: bonobot mcp add NAME --url URL"
    drawn: RenderableType = table(*columns, rows=rows, empty=empty)
    return drawn


def _ago(moment: Any) -> str:
    if moment is None:
        return "never"
    seconds = max(int((timezone.now() - moment).total_seconds()), 0)
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


def _switch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("--agent", metavar="SLUG", help="for this agent only")


def _connect_arguments(parser: argparse.ArgumentParser) -> None:
    _switch_arguments(parser)
    parser.add_argument(
        "--only", action="append", metavar="TOOL", help="the agent gets these (name or glob)"
    )
    parser.add_argument(
        "--without", action="append", metavar="TOOL", help="the agent never gets these"
    )


def _connect(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    if options.agent:
        agent = _agent(cli, options.agent)
        _give(cli, agent, server, options)
        _tell_binding(cli, agent, server, connected=True)
        return
    if options.only or options.without:
        raise Invalid(
            "Tools are chosen for an agent.",
            field="--only" if options.only else "--without",
            remedy="Add --agent SLUG; `bonobot mcp tools` switches tools for everybody.",
        )
    if not server.enabled:
        switch(cli.principal, server, enabled=True)
    outcome = sweep(cli, [server])[server.name]
    server.refresh_from_db()
    cli.emit(_as_json(server) | {"discovery": outcome.as_dict()})
    cli.say(visible(f"{server.name}: {outcome.told()}"))
    if outcome.problem is not None:
        raise Failed


def _give(cli: Cli, agent: Agent, server: Server, options: argparse.Namespace) -> None:
    """Bind, or switch the binding on; lists that aren't given stay as they are."""
    tools = list(server.definitions.tools())
    for patterns, name in ((options.only, "--only"), (options.without, "--without")):
        _named(server, tools, patterns, name)
    binding = agent.bindings.filter(server=server).first()
    if binding is not None and not (options.only or options.without):
        switch_binding(cli.principal, agent, server, enabled=True)
        return
    allowed = binding.allowed_tools if binding and options.only is None else options.only
    denied = binding.denied_tools if binding and options.without is None else options.without
    bind(cli.principal, agent, server, allowed_tools=allowed or (), denied_tools=denied or ())


def _disconnect(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    if options.agent:
        agent = _agent(cli, options.agent)
        switch_binding(cli.principal, agent, server, enabled=False)
        _tell_binding(cli, agent, server, connected=False)
        return
    if server.enabled:
        switch(cli.principal, server, enabled=False)
    cli.emit(_as_json(server))
    cli.say(visible(f"{server.name} is disconnected for everybody, from the next call on."))


def _tell_binding(cli: Cli, agent: Agent, server: Server, *, connected: bool) -> None:
    cli.emit({"agent": agent.slug, "server": server.slug, "connected": connected})
    what = "has" if connected else "no longer has"
    cli.say(visible(f"{agent.slug} {what} {server.name}, from the next call on."))


def _agent(cli: Cli, slug: str) -> Agent:
    found: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=slug)
    return found


def _tools_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("--enable", action="append", metavar="TOOL", help="a name or glob")
    parser.add_argument("--disable", action="append", metavar="TOOL", help="a name or glob")


def _tools(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    tools = list(server.definitions.tools())
    off = _named(server, tools, options.disable, "--disable")
    on = _named(server, tools, options.enable, "--enable")
    for row in tools:
        wanted = row.name in on or (row.enabled and row.name not in off)
        if row.enabled is not wanted:
            switch_definition(cli.principal, row, enabled=wanted)
            row.enabled = wanted
    found = [_tool(row) for row in tools]
    shown = [
        (tool["name"], tool["state"], "on" if tool["enabled"] else "off", tool["description"])
        for tool in found
    ]
    empty = f"No tools yet: bonobot mcp refresh {server.slug}"
    cli.emit(found, table("TOOL", "STATE", "SWITCH", "DESCRIPTION", rows=shown, empty=empty))


def _named(
    server: Server, tools: Sequence[Definition], patterns: Sequence[str] | None, field: str
) -> set[str]:
    """Return the tools that the patterns name; each pattern must name one at least."""
    found: set[str] = set()
    for pattern in patterns or ():
        named = {row.name for row in tools if own_name_matches(pattern, row.name)}
        if not named:
            raise NotFound(
                f"{server.name} has no tool {pattern!r}.",
                code="unknown_tool",
                field=field,
                remedy=f"`bonobot mcp tools {server.slug}` lists them.",
            )
        found |= named
    return found


def _tool(row: Definition) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": row.state.value,
        "enabled": row.enabled,
        "fault": row.fault,
        "description": row.description.split("\n", 1)[0][:100],
    }


VERBS = (
    Verb(
        "status",
        "Show how the servers are: state, latency, last error.",
        _status,
        _status_arguments,
        ("mcp status", "mcp status --watch", "mcp status time --json"),
    ),
    Verb(
        "connect",
        "Switch a server on and discover it; with --agent, give it to that agent.",
        _connect,
        _connect_arguments,
        ("mcp connect time", "mcp connect git --agent demo --only 'git_*' --without git_commit"),
    ),
    Verb(
        "disconnect",
        "Switch a server off, for everybody or for one agent; it holds on the next call.",
        _disconnect,
        _switch_arguments,
        ("mcp disconnect time", "mcp disconnect time --agent demo"),
    ),
    Verb(
        "tools",
        "List a server's tools with their state, and switch them on or off.",
        _tools,
        _tools_arguments,
        ("mcp tools git", "mcp tools git --disable 'git_commit' --disable 'git_reset'"),
    ),
)
