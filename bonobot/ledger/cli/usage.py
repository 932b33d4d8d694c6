"""`usage`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from bonobot.accounts.templatetags.display import dollars, milliseconds
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb, parse_time
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.localization import format_number
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import InvalidInput
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.report import (
    GROUPS,
    UsageQuery,
    UsageReport,
    UsageReportEntry,
    load_usage_report,
)

SINCE_HELP = "Start of the period, such as 2026-11-01 or 7d (default: 30d)"
UNTIL_HELP = "End of the period, in the same format"
EMPTY = "No calls match this period and these filters."


_USAGE_ARGUMENTS = (
    Argument("--by", "Group by (default: agent)", choices=list(GROUPS), default="agent"),
    Argument("--since TIME", SINCE_HELP, type=parse_time),
    Argument("--until TIME", UNTIL_HELP, type=parse_time),
    Argument("--agent NAME", "Only usage of this agent"),
    Argument("--server NAME", "Only usage of this server"),
    Argument("--tool NAME", "Only usage of this tool"),
    Argument("--model NAME", "Only usage of this model"),
)


_EXPORT_ARGUMENTS = (
    *_USAGE_ARGUMENTS,
    Argument("--output FILE", "File to write to (default: standard output)"),
)


def _load_report(cli: CommandContext, options: argparse.Namespace) -> UsageReport:
    query = UsageQuery(
        by=options.by,
        since=options.since,
        until=options.until,
        agent=options.agent or "",
        server=options.server or "",
        tool=options.tool or "",
        model=options.model or "",
    )
    return load_usage_report(cli.principal, query)


def _show_report(cli: CommandContext, options: argparse.Namespace) -> None:
    report = _load_report(cli, options)
    lines = (
        [*report.entries, UsageReportEntry("", "total", "", report.total)] if report.entries else []
    )
    columns = ("CALLS", "ERRORS", "UNKNOWN", "DENIED", "P50", "P95", "TURNS", "TOKENS", "COST")
    table = build_table(
        options.by.upper(), *columns, rows=[_build_row(entry) for entry in lines], empty=EMPTY
    )
    cli.emit(report.as_dict(), table)
    cli.print_message(f"{report.since:%Y-%m-%d %H:%M} to {report.until:%Y-%m-%d %H:%M} UTC")
    if not report.complete:
        cli.print_message("The latest calls are still being counted.")


def _build_row(entry: UsageReportEntry) -> Sequence[str]:
    line = entry.line
    name = f"{entry.server}: {entry.name}" if entry.server else entry.name or "–"
    return (
        name,
        *(
            format_number(number)
            for number in (line.calls, line.errors, line.unknown, line.refused)
        ),
        milliseconds(line.p50),
        milliseconds(line.p95),
        format_number(line.turns),
        format_number(line.tokens),
        dollars(line.cost_microusd),
    )


def _export_report(cli: CommandContext, options: argparse.Namespace) -> None:
    report = _load_report(cli, options)
    if not options.output:
        cli.out.file.write(report.as_csv())
        return
    try:
        Path(options.output).write_text(report.as_csv(), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{options.output!r} can't be written: {error}",
            code="unusable_file",
            field="--output",
            remedy="Specify a file in an existing folder that you can write to.",
        ) from error
    cli.emit({"rows": len(report.entries), "file": options.output})
    cli.print_message(f"Wrote {format_count(len(report.entries), 'row')} to {options.output}.")


def _rebuild_rollups(cli: CommandContext, options: argparse.Namespace) -> None:
    with cli.show_spinner("Counting audit log entries…"):
        rows = build_rollups.rebuild_rollups(cli.principal.organization_id)
    cli.emit({"rows": rows})
    cli.print_message(f"{rows} audit log entries were counted again.")


VERBS = (
    CommandVerb(
        "show",
        "Show calls, tokens, and cost by organization, agent, server, tool, model, or day",
        _show_report,
        arguments=_USAGE_ARGUMENTS,
        examples=("usage show --by tool", "usage show --by model --since 7d --json"),
    ),
    CommandVerb(
        "export",
        "Export usage as CSV",
        _export_report,
        arguments=_EXPORT_ARGUMENTS,
        examples=("usage export --by agent --since 2026-11-01 --output november.csv",),
    ),
    CommandVerb(
        "rebuild",
        "Recalculate usage from the audit log. Days with deleted entries aren't changed.",
        _rebuild_rollups,
        examples=("usage rebuild",),
    ),
)
