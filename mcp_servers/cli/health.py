"""The command `mcp history`."""

import argparse
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb, parse_time
from bonobot.core.cli.text_table import build_table
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.servers import get_server
from mcp_servers.health.outages import OUTAGES_SHOWN, get_outage_duration, list_recent_outages
from mcp_servers.health.server_status import build_connection_status
from mcp_servers.health.uptime_windows import load_uptime_windows
from mcp_servers.models import HealthCheck, Outage

CHECKS_SHOWN = 20
MAX_CHECKS = 10_000


_HISTORY_ARGUMENTS = (
    Argument("SERVER", "Slug, name, or ID of the server"),
    Argument(
        "--since TIME",
        "Show checks since this time, such as 2026-11-01, 24h, or 7d "
        f"(default: the latest {CHECKS_SHOWN} checks)",
        type=parse_time,
    ),
)


def _show_history(cli: CommandContext, options: argparse.Namespace) -> None:
    server = get_server(cli, options.server)
    now = timezone.now()
    outages = list_recent_outages(server, now)
    rows = server.checks.all()
    checks = (
        rows.filter(created_at__gte=options.since)[:MAX_CHECKS]
        if options.since
        else rows[:CHECKS_SHOWN]
    )
    history = {
        "server": server.name,
        "connection": asdict(build_connection_status(server, outages)),
        "windows": [asdict(item) for item in load_uptime_windows(server, outages, now)],
        "outages": [_serialize_outage(item) for item in outages[:OUTAGES_SHOWN]],
        "checks": [_serialize_check(item) for item in checks],
    }
    if cli.as_json:
        cli.emit(history)
    else:
        _print_history(cli, history)


def _print_history(cli: CommandContext, history: dict[str, Any]) -> None:
    connection = history["connection"]
    cli.print_message(
        f"{make_visible(history['server'])}: {connection['status']}, "
        f"last checked {_format_time(connection['pinged_at'])}"
    )
    counts = ("outages", "checks", "failures", "calls", "p50", "p95")
    rows = [
        (w["name"], _format_percent(w["uptime"]), *(w[name] for name in counts))
        for w in history["windows"]
    ]
    titles = ("PERIOD", "UPTIME", "OUTAGES", "CHECKS", "FAILED", "CALLS", "P50 MS", "P95 MS")
    cli.print_result(build_table(*titles, rows=rows, empty=""))
    facts = ("seconds", "failures", "code", "detail")
    outage_rows = [
        (
            _format_time(o["began_at"]),
            _format_time(o["ended_at"], "ongoing"),
            *(o[name] for name in facts),
        )
        for o in history["outages"]
    ]
    empty = "No contact has failed in the last 30 days."
    names = ("STARTED", "ENDED", "SECONDS", "FAILED", "CODE", "CAUSE")
    cli.print_result(build_table(*names, rows=outage_rows, empty=empty))
    check_rows = [
        (_format_time(c["created_at"]), c["kind"], "ok" if c["ok"] else c["code"], c["latency_ms"])
        for c in history["checks"]
    ]
    empty = "No checks in this period. Check the server now: bonobot mcp test SERVER"
    cli.print_result(build_table("TIME", "KIND", "OUTCOME", "MS", rows=check_rows, empty=empty))


def _serialize_outage(row: Outage) -> dict[str, Any]:
    return {
        "began_at": row.began_at,
        "ended_at": row.ended_at,
        "seconds": round(get_outage_duration(row).total_seconds()),
        "failures": row.failures,
        "code": row.code,
        "detail": row.detail,
    }


def _serialize_check(row: HealthCheck) -> dict[str, Any]:
    names = ("created_at", "kind", "ok", "latency_ms", "code", "detail")
    return {name: getattr(row, name) for name in names}


def _format_percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def _format_time(value: Any, fallback: str = "never") -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if value else fallback


VERBS = (
    CommandVerb(
        "history",
        "Show a server's uptime, outages, latency, and checks",
        _show_history,
        arguments=_HISTORY_ARGUMENTS,
        examples=("mcp history time", "mcp history github --since 24h --json"),
    ),
)
