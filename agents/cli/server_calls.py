"""The commands `mcp test-tool`, `resources`, `prompts`, `read` and `prompt`."""

import argparse
import json
from collections.abc import Iterable
from typing import Any

from agents.calls import pipeline
from agents.calls.snapshots import CallSnapshot, SnapshotDefinition, get_snapshot_cache
from agents.calls.types import Method
from agents.models import Agent
from bonobot.core.cli.command_group import (
    CLIENT,
    CommandContext,
    CommandFailed,
    CommandVerb,
    build_table,
    parse_pairs,
)
from bonobot.core.problems import InvalidInput
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import find
from mcp_servers.models import Server

TEXT_SHOWN = 100


def _test_tool(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    request = pipeline.CallRequest(
        principal=cli.principal,
        tool=options.tool,
        arguments=_parse_arguments(options.arguments),
        via="cli",
        client=CLIENT,
        holder=f"server:{server.pk}:cli",
        server_id=server.pk,
        unapproved=options.unapproved,
    )
    with cli.waiting(f"Calling {options.tool} …"):
        outcome = get_runtime().call(pipeline.call, request)
    cli.emit(outcome.as_dict())
    cli.say(make_visible(outcome.text))
    if outcome.is_error:
        raise CommandFailed


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"The arguments are not JSON: {error.msg} at character {error.pos}.",
            code="broken_json",
            field="ARGUMENTS",
            remedy="""Quote them for the shell: '{"timezone": "Europe/Berlin"}'""",
        ) from None
    if not isinstance(found, dict):
        raise InvalidInput("The arguments must be a JSON object.", field="ARGUMENTS")
    return found


def _list_resources(cli: CommandContext, options: argparse.Namespace) -> None:
    offers = _list_definitions(cli, options, ("resource", "resource_template"))
    rows = [(_format_kind(o), o["name"], o["mime_type"], o["allowed"], o["about"]) for o in offers]
    empty = f"No resources are known; to ask anew: bonobot mcp refresh {options.server}"
    columns = ("KIND", "URI OR TEMPLATE", "TYPE", "CAN BE READ", "ABOUT")
    cli.emit(offers, build_table(*columns, rows=_format_availability(offers, rows, 3), empty=empty))


def _list_prompts(cli: CommandContext, options: argparse.Namespace) -> None:
    offers = _list_definitions(cli, options, ("prompt",))
    rows = [
        (o["name"], _format_arguments(o["arguments"]), o["allowed"], o["about"]) for o in offers
    ]
    empty = f"No prompts are known; to ask anew: bonobot mcp refresh {options.server}"
    columns = ("PROMPT", "ARGUMENTS", "CAN BE USED", "ABOUT")
    cli.emit(offers, build_table(*columns, rows=_format_availability(offers, rows, 2), empty=empty))


def _read(cli: CommandContext, options: argparse.Namespace) -> None:
    _call(cli, options, "resources/read", options.uri, {})


def _get_prompt(cli: CommandContext, options: argparse.Namespace) -> None:
    _call(cli, options, "prompts/get", options.name, dict(parse_pairs(options.arguments, "K=V")))


def _call(
    cli: CommandContext,
    options: argparse.Namespace,
    method: Method,
    name: str,
    given: dict[str, Any],
) -> None:
    server = find(cli, options.server)
    agent = _find_agent(cli, options)
    request = pipeline.CallRequest(
        principal=cli.principal,
        method=method,
        tool=name,
        arguments=given,
        via="cli",
        client=CLIENT,
        holder=f"server:{server.pk}:cli",
        agent_id=agent.pk if agent else None,
        server_id=server.pk,
        unapproved=options.unapproved,
    )
    with cli.waiting(f"Asking {server.name} …"):
        outcome = get_runtime().call(pipeline.call, request)
    cli.emit(outcome.as_dict())
    cli.say(make_visible(outcome.text))
    if outcome.is_error:
        raise CommandFailed


def _list_definitions(
    cli: CommandContext, options: argparse.Namespace, kinds: tuple[str, ...]
) -> list[dict[str, Any]]:
    server = find(cli, options.server)
    snapshot = _snapshot(server, _find_agent(cli, options))
    offers = snapshot.offers_of(*kinds)
    return [_as_json(one) for one in offers if one.facts.server_id == server.pk]


def _snapshot(server: Server, agent: Agent | None) -> CallSnapshot:
    if agent is None:
        return get_snapshot_cache().current("server", server.pk)
    return get_snapshot_cache().current("agent", agent.pk)


def _find_agent(cli: CommandContext, options: argparse.Namespace) -> Agent | None:
    if not options.agent:
        return None
    found: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.agent)
    return found


def _as_json(offer: SnapshotDefinition) -> dict[str, Any]:
    schema = offer.argument_schema if offer.facts.kind == "prompt" else {}
    required = schema.get("required", ())
    about = " – ".join(part for part in (offer.title, offer.description) if part)
    return {
        "kind": offer.facts.kind,
        "name": offer.name,
        "title": offer.title,
        "description": offer.description,
        "about": " ".join(about.split())[:TEXT_SHOWN],
        "mime_type": offer.declaration.get("mimeType") or "",
        "arguments": [
            {"name": name, "description": one["description"], "required": name in required}
            for name, one in schema.get("properties", {}).items()
        ],
        "allowed": offer.decision.allowed,
        "code": offer.decision.code,
        "reason": offer.decision.reason,
        "remedy": offer.decision.remedy,
    }


def _format_kind(offer: dict[str, Any]) -> str:
    return "template" if offer["kind"] == "resource_template" else "resource"


def _format_arguments(arguments: Iterable[dict[str, Any]]) -> str:
    return " ".join(one["name"] if one["required"] else f"[{one['name']}]" for one in arguments)


def _format_availability(
    offers: Iterable[dict[str, Any]], rows: Iterable[tuple[Any, ...]], at: int
) -> list[tuple[Any, ...]]:
    """Replace the `allowed` cell of each row with `yes` or the decision code."""
    return [
        (*row[:at], "yes" if offer["allowed"] else offer["code"], *row[at + 1 :])
        for offer, row in zip(offers, rows, strict=True)
    ]


def _add_listing_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("--agent", metavar="SLUG", help="as this agent, with what it may use")


def _add_call_arguments(parser: argparse.ArgumentParser) -> None:
    _add_listing_arguments(parser)
    parser.add_argument(
        "--unapproved", action="store_true", help="try a definition that waits for approval"
    )


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    _add_call_arguments(parser)
    parser.add_argument("uri", metavar="URI", help="of a resource, or one that a template means")


def _add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    _add_call_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the server's own name of the prompt")
    parser.add_argument("arguments", metavar="K=V", nargs="*", help="the prompt's arguments")


def _test_tool_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("tool", metavar="TOOL", help="the server's own name of the tool")
    parser.add_argument("arguments", metavar="ARGUMENTS", nargs="?", default="{}", help="JSON")
    parser.add_argument(
        "--unapproved", action="store_true", help="try a definition that waits for approval"
    )


VERBS = (
    CommandVerb(
        "test-tool",
        "Call a tool through the door, without an agent.",
        _test_tool,
        _test_tool_arguments,
        ("""mcp test-tool time get_current_time '{"timezone": "Asia/Tokyo"}'""",),
    ),
    CommandVerb(
        "resources",
        "List a server's resources and templates, and what can be read of them.",
        _list_resources,
        _add_listing_arguments,
        ("mcp resources docs", "mcp resources docs --agent demo --json"),
    ),
    CommandVerb(
        "prompts",
        "List a server's prompts with their arguments.",
        _list_prompts,
        _add_listing_arguments,
        ("mcp prompts docs", "mcp prompts docs --agent demo"),
    ),
    CommandVerb(
        "read",
        "Read a resource through the door.",
        _read,
        _read_arguments,
        ("mcp read docs docs://intro", "mcp read docs docs://pages/7 --agent demo --json"),
    ),
    CommandVerb(
        "prompt",
        "Fill a prompt through the door and show its messages.",
        _get_prompt,
        _add_prompt_arguments,
        ("mcp prompt docs review book=Emma tone=kindly", "mcp prompt docs plain --agent demo"),
    ),
)
