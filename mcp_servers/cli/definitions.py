"""The command `mcp label`."""

import argparse

from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import find
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.services import (
    get_effective_labels,
    load_label_context,
    set_labels,
    suggest_labels,
)
from mcp_servers.models import Definition, Server

NAMES = "`bonobot mcp label SERVER` shows their names."
OPTIONS = {
    "private": (FlowLabel.PRIVATE_DATA, "it reads private data"),
    "untrusted": (FlowLabel.UNTRUSTED_CONTENT, "it brings in text that anybody may have written"),
    "sends": (FlowLabel.SENDS_OUT, "it can send something out"),
    "repeatable": (FlowLabel.REPEATABLE, "a second call does no more than the first"),
}


def _label_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("names", metavar="TOOL", nargs="*", help="the server's own names")
    for name, (_label, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--none", action="store_true", help="it does none of these")
    parser.add_argument("--suggested", action="store_true", help="back to what is suggested")


def _label(cli: CommandContext, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    rows = server.definitions.exclude(kind=Definition.Kind.INSTRUCTIONS)
    labels = [label for name, (label, _) in OPTIONS.items() if getattr(options, name)]
    sets = bool(labels) + options.none + options.suggested
    if sets > 1:
        raise InvalidInput("Give labels, --none or --suggested: one of these.", field="--none")
    if sets and not options.names:
        raise InvalidInput("Name the tools that are labelled.", field="TOOL")
    chosen = list(rows.filter(name__in=options.names) if options.names else rows)
    if missing := sorted({*options.names} - {row.name for row in chosen}):
        raise NotFound(
            f"{server.name} has no definition {missing[0]!r}.", field="TOOL", remedy=NAMES
        )
    if sets:
        set_labels(cli.principal, server, chosen, None if options.suggested else labels)
        chosen = list(rows.filter(name__in=options.names))
    _show(cli, server, chosen)


def _show(cli: CommandContext, server: Server, rows: list[Definition]) -> None:
    known = load_label_context(server)
    found = [
        {
            "kind": row.kind,
            "name": row.name,
            "labels": row.labels,
            "labels_suggested": [*suggest_labels(row, known)],
        }
        for row in rows
    ]
    cli.emit(found)
    if not cli.as_json:
        lines = [
            (
                make_visible(row.name, 60),
                ", ".join(get_effective_labels(row, known)) or "none",
                "suggested" if row.labels is None else "set",
            )
            for row in rows
        ]
        cli.out.print(build_table("NAME", "LABELS", "", rows=lines, empty="It offers nothing."))


VERBS = (
    CommandVerb(
        "label",
        "Say what tools do with what they touch, or show it.",
        _label,
        _label_arguments,
        (
            "mcp label github",
            "mcp label mail send_mail reply --sends",
            "mcp label mail read_mail --private --untrusted",
            "mcp label time get_current_time --none",
        ),
    ),
)
