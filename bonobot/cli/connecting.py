"""`bonobot mcp status|connect|disconnect|tools`: what is reachable, and the switches (D8, D2)."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

from django.utils import timezone
from rich.console import RenderableType

from agents.bindings import bind, switch_binding
from agents.choices import choose
from agents.models import Agent
from bonobot.cli import watching
from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.cli.servers import find
from bonobot.cli.sweeping import sweep
from bonobot.lib.problems import Invalid, NotFound
from bonobot.lib.untrusted import visible
from mcp_servers.approval import switch_definition
from mcp_servers.models import Definition, Server
from mcp_servers.naming import own_name_matches
from mcp_servers.oauth.presence import Presence, presences
from mcp_servers.registration import switch
from mcp_servers.standing import standing

LONGEST_ERROR = 120
# What of a server is chosen for an agent.
CHOICES = ("tools", "without", "resource", "prompt")


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("servers", metavar="SERVER", nargs="*", help="only these (default: all)")
    parser.add_argument("--agent", metavar="SLUG", help="only what this agent has")
    watching.declare_watch(parser)


def _status(cli: Cli, options: argparse.Namespace) -> None:
    chosen = [find(cli, name).pk for name in options.servers]
    agent = _agent(cli, options.agent) if options.agent else None

    def look() -> list[dict[str, Any]]:
        servers = list(_servers(cli, chosen, agent))
        found = presences(cli.principal, servers)
        return [_as_json(server) | {"sign_in": _stand(found, server)} for server in servers]

    watching.show(cli, options, look, _drawn)


def _servers(cli: Cli, chosen: list[Any], agent: Agent | None) -> Iterator[Server]:
    rows = Server.objects.for_organization(cli.principal.organization_id)
    if chosen:
        rows = rows.filter(pk__in=chosen)
    if agent is not None:
        rows = rows.filter(pk__in=agent.bindings.filter(enabled=True).values("server_id"))
    return rows.select_related("watch").iterator()


def _stand(found: dict[UUID, Presence], server: Server) -> dict[str, Any] | None:
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
        "change_notices": standing(server).as_dict(),
    }


def _drawn(found: list[dict[str, Any]]) -> RenderableType:
    rows = [
        (
            one["name"],
            one["status"],
            "" if one["latency_ms"] is None else f"{one['latency_ms']} ms",
            _ago(one["last_connected_at"]),
            one["failures"] or "",
            one["change_notices"]["state"].replace("_", " "),
            _signed_in(one["sign_in"]),
            visible(" ".join(part for part in (one["code"], one["detail"]) if part), LONGEST_ERROR),
        )
        for one in found
    ]
    columns = (
        *("NAME", "STATE", "LATENCY", "CONNECTED", "FAILURES", "NOTICES", "SIGN-IN"),
        "LAST ERROR",
    )
    empty = "No servers yet. Add one: bonobot mcp add NAME --url URL"
    drawn: RenderableType = table(*columns, rows=rows, empty=empty)
    return drawn


def _signed_in(stand: dict[str, Any] | None) -> str:
    if stand is None:
        return ""
    if stand["state"] == "personal":
        return f"{stand['people']} people" if stand["people"] != 1 else "1 person"
    return str(stand["state"]).replace("_", " ")


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


def _connect(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    if options.agent:
        agent = _agent(cli, options.agent)
        _give(cli, agent, server, options)
        _tell_binding(cli, agent, server, connected=True)
        return
    chosen = [name for name in CHOICES if getattr(options, name)]
    if chosen:
        raise Invalid(
            "What is given is chosen for an agent.",
            field=f"--{chosen[0]}",
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
    only, without = _parts(options.tools), _parts(options.without)
    _named(server, tools, without, "--without")
    binding = agent.bindings.filter(server=server).first()
    if binding is not None and all(getattr(options, name) is None for name in CHOICES):
        switch_binding(cli.principal, agent, server, enabled=True)
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


def _parts(given: Sequence[str] | None) -> list[str] | None:
    """Return what options name, separated by commas; None where there is no such option."""
    if given is None:
        return None
    parts = (part.strip() for text in given for part in text.split(","))
    return [part for part in parts if part]


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
        (
            "mcp connect time",
            "mcp connect time --agent demo --tools get_current_time,convert_time",
            "mcp connect git --agent demo --tools 'git_*' --without git_commit",
            "mcp connect git --agent demo --tools '*'",
            "mcp connect docs --agent demo --resource 'docs://*' --prompt review",
        ),
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
