"""`bonobot mcp show`: everything that is known of one server, for people and for programs."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from agents.models import Binding
from bonobot.cli.group import Cli, Verb, table
from bonobot.cli.servers import as_json, find
from bonobot.lib.untrusted import visible
from mcp_servers.history import connection, recent_outages, windows
from mcp_servers.models import Definition, Server
from mcp_servers.oauth.presence import presences
from mcp_servers.packages import installation_of_server
from mcp_servers.standing import standing


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")


def _show(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    found = as_json(server) | _settings(server) | _standing(cli, server) | _offered(server)
    cli.emit(found)
    if not cli.as_json:
        _draw(cli, found)


def _settings(server: Server) -> dict[str, Any]:
    return {
        "description": server.description,
        "approval": server.approval,
        "only_tools": server.only_tools,
        "allow_private": server.allow_private,
    }


def _standing(cli: Cli, server: Server) -> dict[str, Any]:
    """Return how it stands with a server: sign-in, change notices, and how it was lately."""
    now, outages = timezone.now(), recent_outages(server, timezone.now())
    signed_in = presences(cli.principal, [server]).get(server.pk)
    return {
        "sign_in": signed_in.as_dict() if signed_in else None,
        "change_notices": standing(server).as_dict(),
        "installation": installation_of_server(server),
        "history": {
            "connection": asdict(connection(server, outages)),
            "windows": [asdict(one) for one in windows(server, outages, now)],
        },
    }


def _offered(server: Server) -> dict[str, Any]:
    """Return what a server offers, by state, and which agents have it."""
    definitions = [_definition(row) for row in server.definitions.all()]
    bound = Binding.objects.filter(server=server).select_related("agent").order_by("agent__slug")
    return {
        "states": dict(Counter(one["state"] for one in definitions)),
        "bindings": [_binding(row) for row in bound],
        "definitions": definitions,
    }


def _definition(row: Definition) -> dict[str, Any]:
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


def _binding(row: Binding) -> dict[str, Any]:
    lists = ("allowed_tools", "denied_tools", "allowed_resources", "allowed_prompts")
    return {"agent": row.agent.slug, "enabled": row.enabled} | {
        name: getattr(row, name) for name in lists
    }


def _draw(cli: Cli, found: dict[str, Any]) -> None:
    for title, text in _lines(found):
        if text:
            cli.say(f"{title:<12} {visible(text)}")
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
    cli.out.print(table("AGENT", "SWITCH", "TOOLS", "WITHOUT", rows=bound, empty=empty))
    cli.say("")
    rows = [
        (one["kind"], one["name"], one["state"], _found(one), one["description"])
        for one in found["definitions"]
    ]
    empty = f"Nothing discovered yet: bonobot mcp refresh {found['slug']}"
    columns = ("KIND", "NAME", "STATE", "FINDINGS", "DESCRIPTION")
    cli.out.print(table(*columns, rows=rows, empty=empty))


def _lines(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "name", found["name"]
    yield "id", found["id"]
    yield "about", found["description"]
    yield "scope", found["scope"]
    yield "switch", "on" if found["enabled"] else "off"
    yield "status", " ".join((found["status"], found["status_code"])).strip()
    yield "", found["status_detail"]
    yield "transport", " ".join(part for part in (found["transport_type"], _era(found)) if part)
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
    yield "may ask for", ", ".join(_asks(found))
    yield "notices", found["change_notices"]["text"]
    for one in found["history"]["windows"]:
        yield f"last {one['name']}", _window(one)
    yield "offers", ", ".join(f"{count} {state}" for state, count in found["states"].items())


def _asks(found: dict[str, Any]) -> Iterator[str]:
    if found["sampling"] != Server.Sampling.OFF:
        own = found["sampling_tokens"]
        most = "as many tokens as the setting says" if own is None else f"{own} tokens"
        yield f"the model ({found['sampling']}; {most} a day)"
    if found["elicitation"]:
        yield "answers of people"
    if found["roots"]:
        yield "the working folder"


def _era(found: dict[str, Any]) -> str:
    return f"({found['era']} era)" if found["era"] else ""


def _sign_in(found: dict[str, Any]) -> str:
    kind = found["auth_config"]["type"]
    if found["sign_in"] is None:
        return str(kind)
    state = found["sign_in"]["state"].replace("_", " ")
    return (
        f"{kind}, {state}: {found['sign_in']['url']}" if state == "needed" else f"{kind}, {state}"
    )


def _window(one: dict[str, Any]) -> str:
    up = "nobody asked" if one["uptime"] is None else f"up {one['uptime']:.2f} %"
    took = "" if one["p50"] is None else f", half of the answers in {one['p50']} ms"
    return f"{up}, {one['outages']} outages, {one['calls']} calls{took}"


def _found(one: dict[str, Any]) -> str:
    if one["fault"]:
        return str(one["fault"])
    return ", ".join(sorted({str(finding["rule"]) for finding in one["findings"]}))


VERBS = (
    Verb(
        "show",
        "Show everything that is known of a server, and what it offers.",
        _show,
        _arguments,
        ("mcp show time", "mcp show time --json"),
    ),
)
