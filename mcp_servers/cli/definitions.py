"""The command `mcp label`."""

import argparse

from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import get_server
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.services import (
    get_effective_labels,
    load_label_context,
    set_labels,
    suggest_labels,
)
from mcp_servers.models import Definition, Server

NAMES_REMEDY = "List the names: bonobot mcp label SERVER"
OPTIONS = {
    "private": (FlowLabel.PRIVATE_DATA, "Reads private data"),
    "untrusted": (FlowLabel.UNTRUSTED_CONTENT, "Returns untrusted content"),
    "sends": (FlowLabel.SENDS_OUT, "Has an external effect"),
    "repeatable": (FlowLabel.REPEATABLE, "Is idempotent"),
}


def _add_label_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="Slug, name, or ID of the server")
    parser.add_argument("names", metavar="TOOL", nargs="*", help="Names of tools on the server")
    for name, (_label, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument(
        "--none", action="store_true", help="Set no labels, overriding the suggested ones"
    )
    parser.add_argument("--suggested", action="store_true", help="Use the suggested labels")


def _label_definitions(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    rows = server.definitions.exclude(kind=Definition.Kind.INSTRUCTIONS)
    labels = [label for name, (label, _) in OPTIONS.items() if getattr(options, name)]
    mode_count = bool(labels) + options.none + options.suggested
    if mode_count > 1:
        raise InvalidInput(
            "Labels, --none, and --suggested can't be combined.",
            field="--none",
            remedy="Use only one of them.",
        )
    if mode_count and not options.names:
        raise InvalidInput(
            "No tools are specified.",
            field="TOOL",
            remedy="Add the names of the tools to label.",
        )
    definitions = list(rows.filter(name__in=options.names) if options.names else rows)
    if missing := sorted({*options.names} - {row.name for row in definitions}):
        raise NotFound(
            f"{server.name} has no definition {missing[0]!r}.", field="TOOL", remedy=NAMES_REMEDY
        )
    if mode_count:
        set_labels(cli.principal, server, definitions, None if options.suggested else labels)
        definitions = list(rows.filter(name__in=options.names))
    _show_labels(cli, server, definitions)


def _show_labels(cli: CommandContext, server: Server, rows: list[Definition]) -> None:
    label_context = load_label_context(server)
    serialized = [
        {
            "kind": row.kind,
            "name": row.name,
            "labels": row.labels,
            "labels_suggested": [*suggest_labels(row, label_context)],
        }
        for row in rows
    ]
    cli.emit(serialized)
    if not cli.as_json:
        lines = [
            (
                make_visible(row.name, 60),
                ", ".join(get_effective_labels(row, label_context)) or "none",
                "suggested" if row.labels is None else "set",
            )
            for row in rows
        ]
        cli.print_result(
            build_table("NAME", "LABELS", "SOURCE", rows=lines, empty="No definitions.")
        )


VERBS = (
    CommandVerb(
        "label",
        "Show or set the flow labels of tools",
        _label_definitions,
        (_add_label_arguments,),
        (
            "mcp label github",
            "mcp label mail send_mail reply --sends",
            "mcp label mail read_mail --private --untrusted",
            "mcp label time get_current_time --none",
        ),
    ),
)
