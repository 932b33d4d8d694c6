"""`bonobot usage …`: what was called, by whom and of what, and what it came to."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bonobot.cli.group import Cli, Verb, moment, table
from bonobot.ledger import counting
from bonobot.lib.problems import Invalid
from bonobot.tenancy.templatetags.bonobot import dollars, milliseconds, thousands
from bonobot.tenancy.usage import GROUPS, Asked, Entry, Report, usage

EMPTY = "Nothing was called in this time, or nothing matches."


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--by", choices=list(GROUPS), default="agent", help="default: agent")
    parser.add_argument("--since", type=moment, metavar="TIME", help="2026-11-01, or 7d (30d)")
    parser.add_argument("--until", type=moment, metavar="TIME")
    parser.add_argument("--agent", metavar="NAME", help="only this agent's")
    parser.add_argument("--server", metavar="NAME", help="only this server's")
    parser.add_argument("--tool", metavar="NAME", help="only this tool's")
    parser.add_argument("--model", metavar="NAME", help="only this model's")


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    parser.add_argument("--output", metavar="FILE", help="default: standard output")


def _report(cli: Cli, options: argparse.Namespace) -> Report:
    asked = Asked(
        by=options.by,
        since=options.since,
        until=options.until,
        agent=options.agent or "",
        server=options.server or "",
        tool=options.tool or "",
        model=options.model or "",
    )
    return usage(cli.principal, asked)


def _show(cli: Cli, options: argparse.Namespace) -> None:
    report = _report(cli, options)
    lines = [*report.entries, Entry("", "total", "", report.total)] if report.entries else []
    columns = ("CALLS", "ERRORS", "REFUSED", "MEDIAN", "95 %", "TURNS", "TOKENS", "COST")
    drawn = table(options.by.upper(), *columns, rows=[_row(one) for one in lines], empty=EMPTY)
    cli.emit(report.as_dict(), drawn)
    cli.say(f"{report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC")
    if not report.complete:
        cli.say("The latest calls are still being counted.")


def _row(entry: Entry) -> Sequence[str]:
    line = entry.line
    name = f"{entry.server}: {entry.name}" if entry.server else entry.name or "–"
    return (
        name,
        *(thousands(number) for number in (line.calls, line.errors, line.refused)),
        milliseconds(line.p50),
        milliseconds(line.p95),
        thousands(line.turns),
        thousands(line.tokens),
        dollars(line.cost_microusd),
    )


def _export(cli: Cli, options: argparse.Namespace) -> None:
    report = _report(cli, options)
    if not options.output:
        cli.out.file.write(report.as_csv())
        return
    try:
        Path(options.output).write_text(report.as_csv(), encoding="utf-8")
    except OSError as error:
        raise Invalid(
            f"{options.output!r} can't be written: {error}",
            code="unusable_file",
            field="--output",
            remedy="Name a file in a folder that is there and that you may write to.",
        ) from error
    cli.emit({"rows": len(report.entries), "file": options.output})
    cli.say(f"{len(report.entries)} rows are in {options.output}")


def _rebuild(cli: Cli, options: argparse.Namespace) -> None:
    with cli.waiting("Counting the audit"):
        rows = counting.rebuild(cli.principal.organization_id)
    cli.emit({"rows": rows})
    cli.say(f"{rows} rows of the audit were counted again.")


VERBS = (
    Verb(
        "show",
        "Show calls, tokens and cost by organization, agent, server, tool, model or day.",
        _show,
        _arguments,
        ("usage show --by tool", "usage show --by model --since 7d --json"),
    ),
    Verb(
        "export",
        "Write the same as CSV.",
        _export,
        _export_arguments,
        ("usage export --by agent --since 2026-11-01 --output november.csv",),
    ),
    Verb(
        "rebuild",
        "Count the audit again; days whose rows were removed stay as they are.",
        _rebuild,
        examples=("usage rebuild",),
    ),
)
