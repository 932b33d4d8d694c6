"""The commands `mcp test-tool`, `resources`, `prompts`, `read` and `prompt`."""

import argparse
from collections.abc import Iterable
from typing import Any

from agents.calls import pipeline
from agents.calls.definitions import SnapshotDefinition
from agents.calls.parse_arguments import parse_arguments
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.calls.types import Method
from agents.models import Agent
from bonobot.core.cli.command_group import (
    CLIENT_NAME,
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    parse_pairs,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import get_server
from mcp_servers.models import Server

MAX_TEXT_SHOWN = 100
QUOTE_REMEDY = """Quote them for your shell: '{"timezone": "Europe/Berlin"}'"""


def _test_tool(cli: CommandContext, options: argparse.Namespace) -> None:
    arguments = parse_arguments(options.arguments, field="ARGUMENTS", remedy=QUOTE_REMEDY)
    _call_server(cli, options, "tools/call", options.tool, arguments)


def _list_resources(cli: CommandContext, options: argparse.Namespace) -> None:
    definitions = _list_definitions(cli, options, ("resource", "resource_template", "skill"))
    rows = [
        (
            _format_kind(definition),
            definition["name"],
            definition["mime_type"],
            definition["allowed"],
            definition["summary"],
        )
        for definition in definitions
    ]
    empty = f"No resources. Refresh the server: bonobot mcp refresh {options.server}"
    columns = ("KIND", "URI OR TEMPLATE", "TYPE", "ALLOWED", "DESCRIPTION")
    cli.emit(
        definitions,
        build_table(*columns, rows=_format_availability(definitions, rows, 3), empty=empty),
    )


def _list_prompts(cli: CommandContext, options: argparse.Namespace) -> None:
    definitions = _list_definitions(cli, options, ("prompt",))
    rows = [
        (
            definition["name"],
            _format_arguments(definition["arguments"]),
            definition["allowed"],
            definition["summary"],
        )
        for definition in definitions
    ]
    empty = f"No prompts. Refresh the server: bonobot mcp refresh {options.server}"
    columns = ("PROMPT", "ARGUMENTS", "ALLOWED", "DESCRIPTION")
    cli.emit(
        definitions,
        build_table(*columns, rows=_format_availability(definitions, rows, 2), empty=empty),
    )


def _read_resource(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = _find_agent(cli, options)
    _call_server(cli, options, "resources/read", options.uri, {}, agent)


def _get_prompt(cli: CommandContext, options: argparse.Namespace) -> None:
    arguments = dict(parse_pairs(options.arguments, "K=V"))
    agent = _find_agent(cli, options)
    _call_server(cli, options, "prompts/get", options.name, arguments, agent)


def _call_server(
    cli: CommandContext,
    options: argparse.Namespace,
    method: Method,
    name: str,
    arguments: dict[str, Any],
    agent: Agent | None = None,
) -> None:
    server = get_server(cli, options.server)
    request = pipeline.CallRequest(
        principal=cli.principal,
        method=method,
        tool=name,
        arguments=arguments,
        via="cli",
        client=CLIENT_NAME,
        holder=f"server:{server.pk}:cli",
        agent_id=agent.pk if agent else None,
        server_id=server.pk,
        allow_unapproved=options.unapproved,
    )
    with cli.show_spinner(f"Calling {name}…"):
        outcome = get_runtime().call(pipeline.make_call, request)
    cli.emit(outcome.as_dict())
    cli.print_message(make_visible(outcome.text))
    if outcome.is_error:
        raise CommandFailed


def _list_definitions(
    cli: CommandContext, options: argparse.Namespace, kinds: tuple[str, ...]
) -> list[dict[str, Any]]:
    server = get_server(cli, options.server)
    snapshot = _load_snapshot(server, _find_agent(cli, options))
    definitions = snapshot.list_definitions(*kinds)
    return [
        _serialize_definition(definition)
        for definition in definitions
        if definition.facts.server_id == server.pk
    ]


def _load_snapshot(server: Server, agent: Agent | None) -> CallSnapshot:
    if agent is None:
        return get_snapshot_cache().load_current("server", server.pk)
    return get_snapshot_cache().load_current("agent", agent.pk)


def _find_agent(cli: CommandContext, options: argparse.Namespace) -> Agent | None:
    return cli.get_row(Agent, slug=options.agent) if options.agent else None


def _serialize_definition(definition: SnapshotDefinition) -> dict[str, Any]:
    schema = definition.argument_schema if definition.facts.kind == "prompt" else {}
    required = schema.get("required", ())
    summary = " – ".join(part for part in (definition.title, definition.description) if part)
    return {
        "kind": definition.facts.kind,
        "name": definition.name,
        "title": definition.title,
        "description": definition.description,
        "summary": " ".join(summary.split())[:MAX_TEXT_SHOWN],
        "mime_type": definition.declaration.get("mimeType") or "",
        "arguments": [
            {"name": name, "description": argument["description"], "required": name in required}
            for name, argument in schema.get("properties", {}).items()
        ],
        "allowed": definition.decision.allowed,
        "code": definition.decision.code,
        "reason": definition.decision.reason,
        "remedy": definition.decision.remedy,
    }


def _format_kind(definition: dict[str, Any]) -> str:
    return str(definition["kind"]).removeprefix("resource_")


def _format_arguments(arguments: Iterable[dict[str, Any]]) -> str:
    return " ".join(
        argument["name"] if argument["required"] else f"[{argument['name']}]"
        for argument in arguments
    )


def _format_availability(
    definitions: Iterable[dict[str, Any]], rows: Iterable[tuple[Any, ...]], column: int
) -> list[tuple[Any, ...]]:
    """Replace the `allowed` cell of each row with `yes` or the decision code."""
    return [
        (*row[:column], "yes" if definition["allowed"] else definition["code"], *row[column + 1 :])
        for definition, row in zip(definitions, rows, strict=True)
    ]


_LISTING_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("--agent SLUG", "Act as this agent, with its policy"),
)


_CALL_ARGUMENTS = (
    *_LISTING_ARGUMENTS,
    Argument("--unapproved", "Allow a definition that is pending review"),
)


_READ_ARGUMENTS = (
    *_CALL_ARGUMENTS,
    Argument("URI", "URI of a resource, or one that matches a template"),
)


_PROMPT_ARGUMENTS = (
    *_CALL_ARGUMENTS,
    Argument("NAME", "Name of the prompt on the server"),
    Argument("K=V", "Arguments of the prompt", nargs="*", dest="arguments"),
)


_TEST_TOOL_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument("TOOL", "Name of the tool on the server"),
    Argument("ARGUMENTS", "Arguments as a JSON object (default: {})", nargs="?", default="{}"),
    Argument("--unapproved", "Allow a definition that is pending review"),
)


VERBS = (
    CommandVerb(
        "test-tool",
        "Call a tool without an agent. Policies, limits, and the audit log apply.",
        _test_tool,
        arguments=_TEST_TOOL_ARGUMENTS,
        examples=("""mcp test-tool time get_current_time '{"timezone": "Asia/Tokyo"}'""",),
    ),
    CommandVerb(
        "resources",
        "List a server's resources and templates, and whether they can be read",
        _list_resources,
        arguments=_LISTING_ARGUMENTS,
        examples=("mcp resources docs", "mcp resources docs --agent demo --json"),
    ),
    CommandVerb(
        "prompts",
        "List a server's prompts with their arguments",
        _list_prompts,
        arguments=_LISTING_ARGUMENTS,
        examples=("mcp prompts docs", "mcp prompts docs --agent demo"),
    ),
    CommandVerb(
        "read",
        "Read a resource. Policies, limits, and the audit log apply.",
        _read_resource,
        arguments=_READ_ARGUMENTS,
        examples=("mcp read docs docs://intro", "mcp read docs docs://pages/7 --agent demo --json"),
    ),
    CommandVerb(
        "prompt",
        "Get the messages of a prompt. Policies, limits, and the audit log apply.",
        _get_prompt,
        arguments=_PROMPT_ARGUMENTS,
        examples=(
            "mcp prompt docs review book=Emma tone=kindly",
            "mcp prompt docs plain --agent demo",
        ),
    ),
)
