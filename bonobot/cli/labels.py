"""`bonobot mcp label`: what tools do with what they touch (X9)."""

import argparse

from bonobot.cli.group import Cli, Verb, table
from bonobot.cli.servers import find
from bonobot.lib.problems import Invalid, NotFound
from bonobot.lib.untrusted import visible
from mcp_servers.labelled import labels_of, origin_of, set_labels, suggestion
from mcp_servers.labels import Label
from mcp_servers.models import Definition, Server

NAMES = "`bonobot mcp label SERVER` shows their names."
OPTIONS = {
    "private": (Label.PRIVATE_DATA, "it reads private data"),
    "untrusted": (Label.UNTRUSTED_CONTENT, "it brings in text that anybody may have written"),
    "sends": (Label.SENDS_OUT, "it can send something out"),
    "repeatable": (Label.REPEATABLE, "a second call does no more than the first"),
}


def _label_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument("names", metavar="TOOL", nargs="*", help="the server's own names")
    for name, (_label, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    parser.add_argument("--none", action="store_true", help="it does none of these")
    parser.add_argument("--suggested", action="store_true", help="back to what is suggested")


def _label(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    rows = server.definitions.exclude(kind=Definition.Kind.INSTRUCTIONS)
    labels = [label for name, (label, _) in OPTIONS.items() if getattr(options, name)]
    sets = bool(labels) + options.none + options.suggested
    if sets > 1:
        raise Invalid("Give labels, --none or --suggested: one of these.", field="--none")
    if sets and not options.names:
        raise Invalid("Name the tools that are labelled.", field="TOOL")
    chosen = list(rows.filter(name__in=options.names) if options.names else rows)
    if missing := sorted({*options.names} - {row.name for row in chosen}):
        raise NotFound(
            f"{server.name} has no definition {missing[0]!r}.", field="TOOL", remedy=NAMES
        )
    if sets:
        set_labels(cli.principal, server, chosen, None if options.suggested else labels)
        chosen = list(rows.filter(name__in=options.names))
    _show(cli, server, chosen)


def _show(cli: Cli, server: Server, rows: list[Definition]) -> None:
    known = origin_of(server)
    found = [
        {
            "kind": row.kind,
            "name": row.name,
            "labels": row.labels,
            "labels_suggested": [*suggestion(row, known)],
        }
        for row in rows
    ]
    cli.emit(found)
    if not cli.as_json:
        lines = [
            (
                visible(row.name, 60),
                ", ".join(labels_of(row, known)) or "none",
                "suggested" if row.labels is None else "set",
            )
            for row in rows
        ]
        cli.out.print(table("NAME", "LABELS", "", rows=lines, empty="It offers nothing."))


VERBS = (
    Verb(
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
