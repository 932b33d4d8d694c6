"""`bonobot mcp resources|prompts|read|prompt`: what servers offer beside tools (FEATURES D9)."""

import argparse
from collections.abc import Iterable
from typing import Any

from agents import calls
from agents.governance.offerings import Offer
from agents.governance.snapshots import Snapshot, snapshots
from agents.models import Agent
from agents.requests import Method
from bonobot.cli.group import CLIENT, Cli, Failed, Verb, pairs, table
from bonobot.cli.servers import find
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible
from mcp_servers.models import Server

TEXT_SHOWN = 100


def _resources(cli: Cli, options: argparse.Namespace) -> None:
    offers = _offers(cli, options, ("resource", "resource_template"))
    rows = [(_kind(o), o["name"], o["mime_type"], o["allowed"], o["about"]) for o in offers]
    empty = f"No resources are known; to ask anew: bonobot mcp refresh {options.server}"
    columns = ("KIND", "URI OR TEMPLATE", "TYPE", "CAN BE READ", "ABOUT")
    cli.emit(offers, table(*columns, rows=_yes_or_why(offers, rows, 3), empty=empty))


def _prompts(cli: Cli, options: argparse.Namespace) -> None:
    offers = _offers(cli, options, ("prompt",))
    rows = [(o["name"], _told(o["arguments"]), o["allowed"], o["about"]) for o in offers]
    empty = f"No prompts are known; to ask anew: bonobot mcp refresh {options.server}"
    columns = ("PROMPT", "ARGUMENTS", "CAN BE USED", "ABOUT")
    cli.emit(offers, table(*columns, rows=_yes_or_why(offers, rows, 2), empty=empty))


def _read(cli: Cli, options: argparse.Namespace) -> None:
    _call(cli, options, "resources/read", options.uri, {})


def _prompt(cli: Cli, options: argparse.Namespace) -> None:
    _call(cli, options, "prompts/get", options.name, dict(pairs(options.arguments, "K=V")))


def _call(
    cli: Cli, options: argparse.Namespace, method: Method, name: str, given: dict[str, Any]
) -> None:
    server = find(cli, options.server)
    agent = _agent(cli, options)
    request = calls.Request(
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
        outcome = runtime().call(calls.call, request)
    cli.emit(outcome.as_dict())
    cli.say(visible(outcome.text))
    if outcome.is_error:
        raise Failed


def _offers(cli: Cli, options: argparse.Namespace, kinds: tuple[str, ...]) -> list[dict[str, Any]]:
    server = find(cli, options.server)
    snapshot = _snapshot(server, _agent(cli, options))
    offers = snapshot.offers_of(*kinds)
    return [_as_json(one) for one in offers if one.facts.server_id == server.pk]


def _snapshot(server: Server, agent: Agent | None) -> Snapshot:
    if agent is None:
        return snapshots().current("server", server.pk)
    return snapshots().current("agent", agent.pk)


def _agent(cli: Cli, options: argparse.Namespace) -> Agent | None:
    if not options.agent:
        return None
    found: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.agent)
    return found


def _as_json(offer: Offer) -> dict[str, Any]:
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


def _kind(offer: dict[str, Any]) -> str:
    return "template" if offer["kind"] == "resource_template" else "resource"


def _told(arguments: Iterable[dict[str, Any]]) -> str:
    return " ".join(one["name"] if one["required"] else f"[{one['name']}]" for one in arguments)


def _yes_or_why(
    offers: Iterable[dict[str, Any]], rows: Iterable[tuple[Any, ...]], at: int
) -> list[tuple[Any, ...]]:
    """Return the rows with `yes`, or the code of why not, in place of a flag."""
    return [
        (*row[:at], "yes" if offer["allowed"] else offer["code"], *row[at + 1 :])
        for offer, row in zip(offers, rows, strict=True)
    ]


def _listing_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("--agent", metavar="SLUG", help="as this agent, with what it may use")


def _calling_arguments(parser: argparse.ArgumentParser) -> None:
    _listing_arguments(parser)
    parser.add_argument(
        "--unapproved", action="store_true", help="try a definition that waits for approval"
    )


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    _calling_arguments(parser)
    parser.add_argument("uri", metavar="URI", help="of a resource, or one that a template means")


def _prompt_arguments(parser: argparse.ArgumentParser) -> None:
    _calling_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="the server's own name of the prompt")
    parser.add_argument("arguments", metavar="K=V", nargs="*", help="the prompt's arguments")


VERBS = (
    Verb(
        "resources",
        "List a server's resources and templates, and what can be read of them.",
        _resources,
        _listing_arguments,
        ("mcp resources docs", "mcp resources docs --agent demo --json"),
    ),
    Verb(
        "prompts",
        "List a server's prompts with their arguments.",
        _prompts,
        _listing_arguments,
        ("mcp prompts docs", "mcp prompts docs --agent demo"),
    ),
    Verb(
        "read",
        "Read a resource through the door.",
        _read,
        _read_arguments,
        ("mcp read docs docs://intro", "mcp read docs docs://pages/7 --agent demo --json"),
    ),
    Verb(
        "prompt",
        "Fill a prompt through the door and show its messages.",
        _prompt,
        _prompt_arguments,
        ("mcp prompt docs review book=Emma tone=kindly", "mcp prompt docs plain --agent demo"),
    ),
)
