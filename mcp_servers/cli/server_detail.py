"""The command `mcp show`."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.attached_agents import get_attached_agents
from mcp_servers.cli.servers import as_json, find
from mcp_servers.health.queries import (
    build_connection_status,
    list_recent_outages,
    load_uptime_windows,
)
from mcp_servers.installed_packages import installation_of_server
from mcp_servers.models import Definition, Server
from mcp_servers.oauth_client.queries import load_login_statuses
from mcp_servers.subscriptions.queries import load_change_notification_status


def _add_server_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")


def _show(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    found = (
        as_json(server)
        | _serialize_settings(server)
        | _load_status(cli, server)
        | _load_definitions(server)
    )
    cli.emit(found)
    if not cli.as_json:
        _draw(cli, found)


def _serialize_settings(server: Server) -> dict[str, Any]:
    return {
        "description": server.description,
        "approval": server.approval,
        "only_tools": server.only_tools,
        "allow_private": server.allow_private,
    }


def _load_status(cli: CommandContext, server: Server) -> dict[str, Any]:
    """Return the sign-in, change notification, installation and health status of a server."""
    now, outages = timezone.now(), list_recent_outages(server, timezone.now())
    signed_in = load_login_statuses(cli.principal, [server]).get(server.pk)
    return {
        "sign_in": signed_in.as_dict() if signed_in else None,
        "change_notices": load_change_notification_status(server).as_dict(),
        "installation": installation_of_server(server),
        "history": {
            "connection": asdict(build_connection_status(server, outages)),
            "windows": [asdict(one) for one in load_uptime_windows(server, outages, now)],
        },
    }


def _load_definitions(server: Server) -> dict[str, Any]:
    """Return a server's definitions, their counts by state, and the agents that have it."""
    definitions = [_serialize_definition(row) for row in server.definitions.all()]
    return {
        "states": dict(Counter(one["state"] for one in definitions)),
        "bindings": [asdict(one) for one in get_attached_agents().list_attached_agents(server)],
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


def _draw(cli: CommandContext, found: dict[str, Any]) -> None:
    for title, text in _format_lines(found):
        if text:
            cli.say(f"{title:<12} {make_visible(text)}")
    cli.say("")
    bound = [
        (
            one["agent"],
            "on" if one["enabled"] else "off",
            ", ".join(one["allowed_tools"]) or "all",
            ", ".join(one["denied_tools"]),
        )
        for one in found["bindings"]
    ]
    empty = f"No agent has it: bonobot mcp connect {found['slug']} --agent SLUG"
    cli.out.print(build_table("AGENT", "SWITCH", "TOOLS", "WITHOUT", rows=bound, empty=empty))
    cli.say("")
    rows = [
        (one["kind"], one["name"], one["state"], _format_findings(one), one["description"])
        for one in found["definitions"]
    ]
    empty = f"Nothing discovered yet: bonobot mcp refresh {found['slug']}"
    columns = ("KIND", "NAME", "STATE", "FINDINGS", "DESCRIPTION")
    cli.out.print(build_table(*columns, rows=rows, empty=empty))


def _format_lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", found["name"]
    yield "id", found["id"]
    yield "about", found["description"]
    yield "scope", found["scope"]
    yield "switch", "on" if found["enabled"] else "off"
    yield "status", " ".join((found["status"], found["status_code"])).strip()
    yield "", found["status_detail"]
    yield (
        "transport",
        " ".join(part for part in (found["transport_type"], _format_era(found)) if part),
    )
    yield "endpoint", json.dumps(found["endpoint_config"], ensure_ascii=False)
    yield "address", "may be a private one" if found["allow_private"] else ""
    yield "sign-in", _sign_in(found)
    yield "approval", found["approval"]
    yield "kept to", ", ".join(found["only_tools"])
    if found["transport_type"] == Server.Transport.STDIO:
        yield "confinement", f"{found['confinement']}, network: {found['network']}"
    for name, why in found["env_exceptions"].items():
        yield "allowed", f"{name}: {why}"
    if package := found["installation"]:
        yield "package", " ".join((package["state"], package["detail"])).strip()
    yield "may ask for", ", ".join(_describe_capabilities(found))
    yield "notices", found["change_notices"]["text"]
    for one in found["history"]["windows"]:
        yield f"last {one['name']}", _format_window(one)
    yield "offers", ", ".join(f"{count} {state}" for state, count in found["states"].items())


def _describe_capabilities(found: dict[str, Any]) -> Iterator[str]:
    if found["sampling"] != Server.Sampling.OFF:
        own = found["sampling_tokens"]
        most = "as many tokens as the setting says" if own is None else f"{own} tokens"
        yield f"the model ({found['sampling']}; {most} a day)"
    if found["elicitation"]:
        yield "answers of people"
    if found["roots"]:
        yield "the working folder"


def _format_era(found: dict[str, Any]) -> str:
    return f"({found['era']} era)" if found["era"] else ""


def _sign_in(found: dict[str, Any]) -> str:
    kind = found["auth_config"]["type"]
    if found["sign_in"] is None:
        return str(kind)
    state = found["sign_in"]["state"].replace("_", " ")
    return (
        f"{kind}, {state}: {found['sign_in']['url']}" if state == "needed" else f"{kind}, {state}"
    )


def _format_window(one: dict[str, Any]) -> str:
    up = "nobody asked" if one["uptime"] is None else f"up {one['uptime']:.2f} %"
    took = "" if one["p50"] is None else f", half of the answers in {one['p50']} ms"
    return f"{up}, {one['outages']} outages, {one['calls']} calls{took}"


def _format_findings(one: dict[str, Any]) -> str:
    if one["fault"]:
        return str(one["fault"])
    return ", ".join(sorted({str(finding["rule"]) for finding in one["findings"]}))


VERBS = (
    CommandVerb(
        "show",
        "Show everything that is known of a server, and what it offers.",
        _show,
        _add_server_argument,
        ("mcp show time", "mcp show time --json"),
    ),
)
