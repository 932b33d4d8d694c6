"""`bonobot mcp …`: registering, reading, approving and trying MCP servers (FEATURES D8)."""

import argparse
import json
import shlex
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings

from agents import calls
from agents.bindings import bind
from agents.models import Agent
from bonobot.cli import watching
from bonobot.cli.apis import api_spec, declare_choice
from bonobot.cli.asking_back import declare_asking, said_asking
from bonobot.cli.definitions import tell_approval, tell_held
from bonobot.cli.group import CLIENT, Cli, Failed, Verb, expand, pairs, table
from bonobot.cli.prices import declare_prices, said_prices
from bonobot.lib.problems import Invalid, NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible
from mcp_servers.approval import approve
from mcp_servers.asked_back import ASKED_BACK
from mcp_servers.configuration import ServerSpec, shown_auth, shown_endpoint
from mcp_servers.discovery import Discovered, discover
from mcp_servers.models import Check, Preset, Server
from mcp_servers.oauth.keeper import login_address
from mcp_servers.packages import install_package
from mcp_servers.presets.using import preset_named, spec_from
from mcp_servers.pricing import PRICED
from mcp_servers.registration import add, remove, switch


def find(cli: Cli, name: str) -> Server:
    """Return a server by slug, name or id; raises `NotFound`."""
    mine = Server.objects.for_organization(cli.principal.organization_id)
    try:
        by_id = mine.filter(pk=UUID(name))
    except ValueError:
        by_id = mine.none()
    found = (
        mine.pool().filter(slug=name).first()
        or mine.filter(slug=name).first()
        or mine.filter(name=name).first()
        or by_id.first()
    )
    if found is None:
        raise NotFound(
            f"There is no server {name!r} here.",
            field="SERVER",
            remedy="`bonobot mcp list` shows the servers.",
        )
    return found


OWN = ("confinement", "network", "env_exceptions", *PRICED, *ASKED_BACK)


def as_json(server: Server) -> dict[str, Any]:
    """Return a server as programs read it, secrets masked."""
    return {
        "id": str(server.pk),
        "name": server.name,
        "slug": server.slug,
        "scope": "agent" if server.private_to_agent else "pool",
        "transport_type": server.transport_type,
        "endpoint_config": shown_endpoint(server),
        **{name: getattr(server, name) for name in OWN},
        "auth_config": shown_auth(server),
        "enabled": server.enabled,
        "status": server.status,
        "status_code": server.status_code,
        "status_detail": server.status_detail,
        "era": server.era,
        "latency_ms": server.latency_ms,
        "last_connected_at": server.last_connected_at,
        "tools": server.definitions.tools().filter(present=True).count(),
        "waiting": server.definitions.waiting().count(),
    }


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--url", help="a Streamable HTTP endpoint")
    how.add_argument(
        "--command", help="a program and its arguments, as in a shell, run without one"
    )
    how.add_argument("--openapi", metavar="FILE|URL", help="an OpenAPI document of a REST API")
    how.add_argument("--preset", metavar="SLUG", help="an entry of the catalogue")
    parser.add_argument("--agent", metavar="SLUG", help="private to this agent, and bound to it")
    parser.add_argument("--header", action="append", metavar="K=V", help="an HTTP header (sealed)")
    parser.add_argument("--env", action="append", metavar="K=V", help="a variable for the program")
    parser.add_argument("--set", action="append", metavar="K=V", help="a parameter of the preset")
    parser.add_argument("--cwd", help="the folder that the program starts in")
    parser.add_argument(
        "--confine",
        choices=Server.Confinement.values,
        help="what the program runs in (by default a sandbox); it isn't started with less",
    )
    parser.add_argument(
        "--network",
        action=argparse.BooleanOptionalAction,
        help="whether a confined program reaches the network of this machine "
        "(sandbox: by the egress rules unless said; bubblewrap: not unless said)",
    )
    parser.add_argument(
        "--allow-env",
        action="append",
        metavar="NAME=REASON",
        help="allow a dangerous variable of --env, and say why (audited)",
    )
    parser.add_argument("--bearer", metavar="TOKEN", help="sign in by a bearer token (sealed)")
    declare_choice(parser)
    declare_prices(parser)
    declare_asking(parser)
    parser.add_argument("--allow-private", action="store_true", help="allow a private address")
    parser.add_argument("--approve", action="store_true", help="approve what is found")


def _add(cli: Cli, options: argparse.Namespace) -> None:
    agent = _agent(cli, options.agent)
    spec, preset = _spec(cli, options)
    server = add(cli.principal, spec, scope_id=agent.pk if agent else None, preset=preset)
    if agent:
        bind(cli.principal, agent, server)
    if server.interactive:  # nothing can be asked before a person has signed in
        _tell_login(cli, server)
        return
    problem = None
    try:
        _discover(cli, server)
        if options.approve:
            approve(cli.principal, server)
            tell_held(cli, server)
    except Problem as found:
        problem = found
    server.refresh_from_db()
    cli.emit(as_json(server))
    if problem is not None:
        cli.say(f"{server.name} is registered, but could not be discovered.")
        cli.say(f"Repair it, then: bonobot mcp refresh {server.slug}")
        raise problem
    _tell_waiting(cli, server)


def _tell_login(cli: Cli, server: Server) -> None:
    url = login_address(server.pk)
    cli.emit(as_json(server) | {"sign_in": {"state": "needed", "url": url}})
    cli.say(f"{server.name} is registered. Sign in at {url}")
    cli.say(f"To wait for it and read what the server offers: bonobot mcp login {server.slug}")


def _spec(cli: Cli, options: argparse.Namespace) -> tuple[ServerSpec, Preset | None]:
    auth = {"type": "none"}
    if options.bearer:
        auth = {"type": "bearer_token", "token": expand(options.bearer, "--bearer")}
    common: dict[str, Any] = {"name": options.name, "allow_private": options.allow_private}
    common |= _box(options) | said_prices(options) | said_asking(options)
    env, headers = pairs(options.env, "--env"), pairs(options.header, "--header")
    if options.preset:
        return _from_preset(cli, options, common)
    if options.openapi:
        spec = api_spec(cli, options, {**common, "auth_config": auth})
        return replace(spec, endpoint_config={**spec.endpoint_config, "headers": headers}), None
    if options.url:
        config: dict[str, Any] = {"url": expand(options.url, "--url"), "headers": headers}
        return ServerSpec(
            transport_type="http", endpoint_config=config, auth_config=auth, **common
        ), None
    try:
        command, *args = shlex.split(options.command)
    except ValueError as error:
        raise Invalid(f"The command can't be read: {error}.", field="--command") from None
    cwd = {"cwd": options.cwd} if options.cwd else {}
    config = {"command": command, "args": args, "env": env, **cwd}
    if options.allow_env:
        common["env_exceptions"] = pairs(options.allow_env, "--allow-env")
    return ServerSpec(transport_type="stdio", endpoint_config=config, **common), None


def _box(options: argparse.Namespace) -> dict[str, str]:
    """Return what was said of the confinement; what wasn't is left to the preset or the default."""
    said = {} if options.confine is None else {"confinement": options.confine}
    if options.network is None:
        return said
    return said | {"network": Server.Network.HOST if options.network else Server.Network.NONE}


def _from_preset(
    cli: Cli, options: argparse.Namespace, common: dict[str, Any]
) -> tuple[ServerSpec, Preset]:
    preset = preset_named(cli.principal, options.preset, field="--preset")
    return spec_from(cli.principal, preset, pairs(options.set, "--set"), **common), preset


def _agent(cli: Cli, slug: str | None) -> Agent | None:
    if slug is None:
        return None
    found: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=slug)
    return found


def _discover(cli: Cli, server: Server, kind: str = Check.Kind.DISCOVERY) -> Discovered:
    with cli.waiting(f"Asking {server.name} …"):
        found: Discovered = runtime().call(
            discover,
            server.pk,
            actor=cli.principal.actor,
            kind=kind,
            patience_s=settings.BONOBOT_INSTALL_S,  # what this process began would end with it
        )
    return found


def _install(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    with cli.waiting(f"Installing {server.name} …"):
        found = runtime().call(install_package, cli.principal, server)
    state = found.state if found else "nothing to install"
    cli.emit({"server": server.slug, "state": state, "detail": found.detail if found else ""})
    cli.say(f"{server.name}: {state}")


def _tell_waiting(cli: Cli, server: Server) -> None:
    shown = as_json(server)
    cli.say(
        f"{server.name}: {shown['tools']} tools, {server.latency_ms} ms"
        + (f", {server.era} era" if server.era else "")
    )
    if shown["waiting"]:
        cli.say(f"{shown['waiting']} definitions wait: bonobot mcp approve {server.slug}")


def _list(cli: Cli, options: argparse.Namespace) -> None:
    servers = Server.objects.for_organization(cli.principal.organization_id)

    def look() -> list[dict[str, Any]]:
        return [as_json(server) for server in servers.prefetch_related("secrets")]

    watching.show(cli, options, look, _drawn)


def _drawn(found: list[dict[str, Any]]) -> Any:
    rows = [
        (s["name"], s["transport_type"], s["status"], s["tools"], s["waiting"], s["scope"])
        for s in found
    ]
    empty = "No servers yet. Add one: bonobot mcp add NAME --url URL"
    columns = ("NAME", "TRANSPORT", "STATUS", "TOOLS", "WAITING", "SCOPE")
    return table(*columns, rows=rows, empty=empty)


def _test(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    try:
        found = _discover(cli, server, Check.Kind.TEST)
    except Problem as problem:
        status = "needs_reauth" if problem.code == "needs_reauth" else "error"
        cli.emit({"status": status, "tools_discovered": 0, "tools": []} | problem.as_dict())
        if not cli.as_json:
            cli.show_problem(problem)
        raise Failed from problem
    tools = [
        {"name": row.name, "description": row.description}
        for row in server.definitions.tools().filter(present=True)
    ]
    cli.emit(
        {
            "status": "connected",
            "tools_discovered": len(tools),
            "tools": tools,
            "latency_ms": found.latency_ms,
        }
    )
    cli.say(f"connected: {len(tools)} tools in {found.latency_ms} ms")


def _refresh(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    found = _discover(cli, server)
    server.refresh_from_db()
    counts = {name: getattr(found, name) for name in ("new", "changed", "gone", "refused")}
    cli.emit(as_json(server) | counts | {"notices": found.notices})
    cli.say(", ".join(f"{count} {name}" for name, count in counts.items()))
    for notice in found.notices:
        cli.say(f"! {visible(notice)}")
    _tell_waiting(cli, server)


def _approve(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    seen = None
    if options.names:
        rows = {row.name: row for row in server.definitions.filter(name__in=options.names)}
        if missing := [name for name in options.names if name not in rows]:
            raise NotFound(f"{server.name} has no definition {missing[0]!r}.", field="NAME")
        seen = {row.pk: row.digest for row in rows.values()}
    done = approve(cli.principal, server, seen)
    cli.emit({"approved": done.approved, "skipped": done.skipped, "held": done.held})
    tell_approval(cli, server, done)


def _test_tool(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    request = calls.Request(
        principal=cli.principal,
        tool=options.tool,
        arguments=_arguments(options.arguments),
        via="cli",
        client=CLIENT,
        holder=f"server:{server.pk}:cli",
        server_id=server.pk,
        unapproved=options.unapproved,
    )
    with cli.waiting(f"Calling {options.tool} …"):
        outcome = runtime().call(calls.call, request)
    cli.emit(outcome.as_dict())
    cli.say(visible(outcome.text))
    if outcome.is_error:
        raise Failed


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise Invalid(
            f"The arguments are not JSON: {error.msg} at character {error.pos}.",
            code="broken_json",
            field="ARGUMENTS",
            remedy="""Quote them for the shell: '{"timezone": "Europe/Berlin"}'""",
        ) from None
    if not isinstance(found, dict):
        raise Invalid("The arguments must be a JSON object.", field="ARGUMENTS")
    return found


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    remove(cli.principal, server)
    cli.emit({"removed": server.name})
    cli.say(f"{server.name} is removed.")


def _switch(enabled: bool) -> Any:
    def run(cli: Cli, options: argparse.Namespace) -> None:
        server = find(cli, options.server)
        switch(cli.principal, server, enabled=enabled)
        cli.emit(as_json(server))
        cli.say(f"{server.name} is switched {'on' if enabled else 'off'}.")

    return run


def _one_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")


def _approve_arguments(parser: argparse.ArgumentParser) -> None:
    _one_server(parser)
    parser.add_argument("names", metavar="NAME", nargs="*", help="only these (default: all)")


def _test_tool_arguments(parser: argparse.ArgumentParser) -> None:
    _one_server(parser)
    parser.add_argument("tool", metavar="TOOL", help="the server's own name of the tool")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs="?", default="{}", help="JSON")
    parser.add_argument(
        "--unapproved", action="store_true", help="try a definition that waits for approval"
    )


VERBS = (
    Verb(
        "add",
        "Register a server and discover what it offers.",
        _add,
        _add_arguments,
        (
            "mcp add docs --url https://mcp.example.com/mcp --header 'X-Key=${DOCS_KEY}'",
            "mcp add time --command 'uvx mcp-server-time@2026.10.19' --approve",
            "mcp add pets --openapi https://api.example.com/openapi.json --tag pets",
            "mcp add files --preset filesystem --set FOLDER=/srv/files",
            "mcp add ours --command 'python3 /srv/ours.py' --confine namespaces --no-network",
        ),
    ),
    Verb(
        "list",
        "List the servers.",
        _list,
        watching.declare_watch,
        ("mcp list", "mcp list --watch", "mcp list --json"),
    ),
    Verb(
        "test", "Connect to a server and count its tools.", _test, _one_server, ("mcp test time",)
    ),
    Verb("refresh", "Discover a server again.", _refresh, _one_server, ("mcp refresh time",)),
    Verb(
        "approve",
        "Approve the definitions of a server that wait, or some of them.",
        _approve,
        _approve_arguments,
        ("mcp approve time", "mcp approve git git_log git_status"),
    ),
    Verb(
        "test-tool",
        "Call a tool through the door, without an agent.",
        _test_tool,
        _test_tool_arguments,
        ("""mcp test-tool time get_current_time '{"timezone": "Asia/Tokyo"}'""",),
    ),
    Verb(
        "install",
        "Install again what npx or uvx starts of a server.",
        _install,
        _one_server,
        ("mcp install time",),
    ),
    Verb("enable", "Switch a server on.", _switch(True), _one_server, ("mcp enable time",)),
    Verb("disable", "Switch a server off.", _switch(False), _one_server, ("mcp disable time",)),
    Verb("remove", "Delete a server.", _remove, _one_server, ("mcp remove time",)),
)
