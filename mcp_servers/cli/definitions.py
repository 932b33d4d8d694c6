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

NAMES_REMEDY = "`bonobot mcp label SERVER` shows their names."
OPTIONS = {
    "private": (FlowLabel.PRIVATE_DATA, "it reads private data"),
    "untrusted": (FlowLabel.UNTRUSTED_CONTENT, "it brings in text that anybody may have written"),
    "sends": (FlowLabel.SENDS_OUT, "it can send something out"),
    "repeatable": (FlowLabel.REPEATABLE, "a second call does no more than the first"),
}


def _add_label_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("names", metavar="TOOL", nargs="*", help="the server's own names")
    for name, (_label, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--none", action="store_true", help="it does none of these")
    parser.add_argument("--suggested", action="store_true", help="back to what is suggested")


def _label_definitions(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    rows = server.definitions.exclude(kind=Definition.Kind.INSTRUCTIONS)
    labels = [label for name, (label, _) in OPTIONS.items() if getattr(options, name)]
    mode_count = bool(labels) + options.none + options.suggested
    if mode_count > 1:
        raise InvalidInput("Give labels, --none or --suggested: one of these.", field="--none")
    if mode_count and not options.names:
        raise InvalidInput("Name the tools that are labelled.", field="TOOL")
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
        cli.out.print(build_table("NAME", "LABELS", "", rows=lines, empty="It offers nothing."))


VERBS = (
    CommandVerb(
        "label",
        "Say what tools do with what they touch, or show it.",
        _label_definitions,
        _add_label_arguments,
        (
            "mcp label github",
            "mcp label mail send_mail reply --sends",
            "mcp label mail read_mail --private --untrusted",
            "mcp label time get_current_time --none",
        ),
    ),
)
