"""`bonobot mcp history`: when a server was there, how fast, and why it was away (D12)."""

import argparse
from dataclasses import asdict
from typing import Any

from django.utils import timezone

from bonobot.cli.group import Cli, Verb, moment, table
from bonobot.cli.servers import find
from bonobot.lib.untrusted import visible
from mcp_servers.history import OUTAGES_SHOWN, connection, lasted, recent_outages, windows
from mcp_servers.models import Check, Outage

CHECKS_SHOWN = 20
MOST_CHECKS = 10_000


def _history_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("server", metavar="SERVER", help="slug, name or id")
    parser.add_argument(
        "--since",
        type=moment,
        metavar="TIME",
        help=f"all contacts since: 2026-11-01, or 24h, 7d (default: the last {CHECKS_SHOWN})",
    )


def _history(cli: Cli, options: argparse.Namespace) -> None:
    server = find(cli, options.server)
    now = timezone.now()
    outages = recent_outages(server, now)
    rows = server.checks.all()
    checks = (
        rows.filter(created_at__gte=options.since)[:MOST_CHECKS]
        if options.since
        else rows[:CHECKS_SHOWN]
    )
    found = {
        "server": server.name,
        "connection": asdict(connection(server, outages)),
        "windows": [asdict(one) for one in windows(server, outages, now)],
        "outages": [_outage(one) for one in outages[:OUTAGES_SHOWN]],
        "checks": [_check(one) for one in checks],
    }
    if cli.as_json:
        cli.emit(found)
    else:
        _draw(cli, found)


def _draw(cli: Cli, found: dict[str, Any]) -> None:
    where = found["connection"]
    cli.say(f"{visible(found['server'])}: {where['status']}, asked {_time(where['pinged_at'])}")
    counts = ("outages", "checks", "failures", "calls", "p50", "p95")
    rows = [
        (w["name"], _percent(w["uptime"]), *(w[name] for name in counts)) for w in found["windows"]
    ]
    titles = ("LAST", "UP", "OUTAGES", "CHECKS", "FAILED", "CALLS", "P50 MS", "P95 MS")
    cli.out.print(table(*titles, rows=rows, empty=""))
    facts = ("seconds", "failures", "code", "detail")
    down = [
        (_time(o["began_at"]), _time(o["ended_at"], "still away"), *(o[name] for name in facts))
        for o in found["outages"]
    ]
    empty = "No contact has failed in the last 30 days."
    names = ("BEGAN", "ENDED", "SECONDS", "FAILED", "CODE", "CAUSE")
    cli.out.print(table(*names, rows=down, empty=empty))
    contacts = [
        (_time(c["created_at"]), c["kind"], "ok" if c["ok"] else c["code"], c["latency_ms"])
        for c in found["checks"]
    ]
    empty = "Nobody has asked this server in that time: bonobot mcp test SERVER"
    cli.out.print(table("WHEN", "WHY", "OUTCOME", "MS", rows=contacts, empty=empty))


def _outage(row: Outage) -> dict[str, Any]:
    return {
        "began_at": row.began_at,
        "ended_at": row.ended_at,
        "seconds": round(lasted(row).total_seconds()),
        "failures": row.failures,
        "code": row.code,
        "detail": row.detail,
    }


def _check(row: Check) -> dict[str, Any]:
    names = ("created_at", "kind", "ok", "latency_ms", "code", "detail")
    return {name: getattr(row, name) for name in names}


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} %"


def _time(value: Any, otherwise: str = "never") -> str:
    return f"{value:%Y-%m-%d %H:%M:%S}" if value else otherwise


VERBS = (
    Verb(
        "history",
        "Show when a server was there, how fast it answered, and why it was away.",
        _history,
        _history_arguments,
        ("mcp history time", "mcp history github --since 24h --json"),
    ),
)
