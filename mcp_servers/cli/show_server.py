"""The command `mcp show`."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import get_server, serialize_server
from mcp_servers.extension_points import attached_agents
from mcp_servers.models import Definition, Server


def _show_server(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    server_data = (
        serialize_server(server)
        | _serialize_settings(server)
        | _load_status(cli, server)
        | _load_definitions(server)
    )
    cli.emit(server_data)
    if not cli.as_json:
        _print_server(cli, server_data)


def _serialize_settings(server: Server) -> dict[str, Any]:
    return {
        "description": server.description,
        "approval": server.approval,
        "only_tools": server.only_tools,
        "allow_private": server.allow_private,
    }


def _load_status(cli: CommandContext, server: Server) -> dict[str, Any]:
    """Return the sign-in, change notification, installation and health status of a server."""
    from mcp_servers.health.outages import list_recent_outages
    from mcp_servers.health.server_status import build_connection_status
    from mcp_servers.health.uptime_windows import load_uptime_windows
    from mcp_servers.oauth_client.login_status import load_login_statuses
    from mcp_servers.reinstall_package import find_server_installation
    from mcp_servers.subscriptions.change_notification_status import load_change_notification_status

    now, outages = timezone.now(), list_recent_outages(server, timezone.now())
    login_status = load_login_statuses(cli.principal, [server]).get(server.pk)
    return {
        "sign_in": login_status.as_dict() if login_status else None,
        "change_notices": load_change_notification_status(server).as_dict(),
        "installation": find_server_installation(server),
        "history": {
            "connection": asdict(build_connection_status(server, outages)),
            "windows": [asdict(window) for window in load_uptime_windows(server, outages, now)],
        },
    }


def _load_definitions(server: Server) -> dict[str, Any]:
    """Return a server's definitions, their counts by state, and the agents that have it."""
    definitions = [_serialize_definition(row) for row in server.definitions.all()]
    return {
        "states": dict(Counter(item["state"] for item in definitions)),
        "agent_servers": [
            asdict(item) for item in attached_agents.get().list_attached_agents(server)
        ],
        "definitions": definitions,
    }


def _serialize_definition(row: Definition) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "kind": row.kind,
        "name": row.name,
        "state": row.state.value,
        "digest": row.digest,
        "enabled": row.enabled,
        "fault": row.fault,
        "findings": row.findings,
        "description": row.description.split("\n", 1)[0][:100],
    }


def _print_server(cli: CommandContext, server_data: dict[str, Any]) -> None:
    for title, text in _iterate_lines(server_data):
        if text:
            cli.print_message(f"{title:<12} {make_visible(text)}")
    cli.print_message("")
    agent_rows = [
        (
            item["agent"],
            "yes" if item["enabled"] else "no",
            ", ".join(item["allowed_tools"]) or "all",
            ", ".join(item["denied_tools"]),
        )
        for item in server_data["agent_servers"]
    ]
    empty = f"Not attached to any agent: bonobot mcp connect {server_data['slug']} --agent SLUG"
    cli.print_result(
        build_table("AGENT", "ENABLED", "TOOLS", "EXCEPT", rows=agent_rows, empty=empty)
    )
    cli.print_message("")
    rows = [
        (item["kind"], item["name"], item["state"], _format_findings(item), item["description"])
        for item in server_data["definitions"]
    ]
    empty = f"No definitions yet. Discover them: bonobot mcp refresh {server_data['slug']}"
    columns = ("KIND", "NAME", "STATE", "FINDINGS", "DESCRIPTION")
    cli.print_result(build_table(*columns, rows=rows, empty=empty))


def _iterate_lines(server_data: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", server_data["name"]
    yield "id", server_data["id"]
    yield "description", server_data["description"]
    yield "scope", server_data["scope"]
    yield "enabled", "yes" if server_data["enabled"] else "no"
    yield "status", " ".join((server_data["status"], server_data["status_code"])).strip()
    yield "", server_data["status_detail"]
    yield (
        "transport",
        " ".join(
            part for part in (server_data["transport_type"], _format_era(server_data)) if part
        ),
    )
    yield "endpoint", json.dumps(server_data["endpoint_config"], ensure_ascii=False)
    yield "address", "private address allowed" if server_data["allow_private"] else ""
    yield "sign-in", _format_sign_in(server_data)
    yield "approval", server_data["approval"]
    yield "only tools", ", ".join(server_data["only_tools"])
    if server_data["transport_type"] == Server.Transport.STDIO:
        yield "sandbox", f"{server_data['sandbox']}, network: {server_data['network']}"
    for name, reason in server_data["env_exceptions"].items():
        yield "allowed env", f"{name}: {reason}"
    if package := server_data["installation"]:
        yield "package", " ".join((package["state"], package["detail"])).strip()
    if server_data["session_state"] != Server.SessionState.AUTO:
        yield "session state", server_data["session_state"]
    yield "capabilities", ", ".join(_iterate_capabilities(server_data))
    yield "changes", server_data["change_notices"]["text"]
    for window in server_data["history"]["windows"]:
        yield f"last {window['name']}", _format_window(window)
    yield (
        "definitions",
        ", ".join(f"{count} {state}" for state, count in server_data["states"].items()),
    )


def _iterate_capabilities(server_data: dict[str, Any]) -> Iterator[str]:
    if server_data["sampling"] != Server.Sampling.OFF:
        tokens = server_data["sampling_tokens"]
        daily_limit = "" if tokens is None else f"{format_count(tokens, 'token')} per day"
        token_limit = daily_limit or "default token limit"
        yield f"sampling ({server_data['sampling']}; {token_limit})"
    if server_data["elicitation"]:
        yield "elicitation"
    if server_data["roots"]:
        yield "roots"


def _format_era(server_data: dict[str, Any]) -> str:
    return f"({server_data['era']} era)" if server_data["era"] else ""


def _format_sign_in(server_data: dict[str, Any]) -> str:
    kind = server_data["auth_config"]["type"]
    if server_data["sign_in"] is None:
        return str(kind)
    state = server_data["sign_in"]["state"].replace("_", " ")
    return (
        f"{kind}, {state}: {server_data['sign_in']['url']}"
        if state == "needed"
        else f"{kind}, {state}"
    )


def _format_window(window: dict[str, Any]) -> str:
    uptime = "not checked" if window["uptime"] is None else f"up {window['uptime']:.2f} %"
    latency = "" if window["p50"] is None else f", p50 {window['p50']} ms"
    outages, calls = (format_count(window[name], name[:-1]) for name in ("outages", "calls"))
    return f"{uptime}, {outages}, {calls}{latency}"


def _format_findings(definition: dict[str, Any]) -> str:
    if definition["fault"]:
        return str(definition["fault"])
    return ", ".join(sorted({str(finding["rule"]) for finding in definition["findings"]}))


VERBS = (
    CommandVerb(
        "show",
        "Show the details, agents, and definitions of a server",
        _show_server,
        arguments=(Argument("SERVER", "Slug, name, or ID of the server"),),
        examples=("mcp show time", "mcp show time --json"),
    ),
)
