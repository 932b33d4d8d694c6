"""`bonobot audit …`: what happened, and whether the record of it is whole."""

import argparse
from typing import Any

from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.ledger.models import AuditRow
from bonobot.ledger.verify import verify


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, default=50, help="newest rows (default: 50)")
    parser.add_argument("--agent", metavar="NAME", help="only this agent's")
    parser.add_argument("--server", metavar="NAME", help="only this server's")
    parser.add_argument("--outcome", help="ok, error, refused, unknown, cancelled")


def _list(cli: Cli, options: argparse.Namespace) -> None:
    rows = AuditRow.objects.filter(organization_id=cli.principal.organization_id)
    wanted = {
        "agent_name": options.agent,
        "server_name": options.server,
        "outcome": options.outcome,
    }
    rows = rows.filter(**{name: value for name, value in wanted.items() if value})
    found = [_row(row) for row in rows.order_by("-seq")[: max(options.limit, 0)]]
    shown = [
        (
            f"{row['at']:%Y-%m-%d %H:%M:%S}",
            row["action"],
            row["resource"],
            row["actor"],
            row["outcome"],
            row["code"],
        )
        for row in found
    ]
    empty = "Nothing has happened yet, or nothing matches."
    cli.emit(
        found,
        table("TIME", "ACTION", "RESOURCE", "ACTOR", "OUTCOME", "CODE", rows=shown, empty=empty),
    )


def _row(row: AuditRow) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "seq": row.seq,
        "at": row.opened_at,
        "action": row.action,
        "resource_type": row.resource_type,
        "resource_id": row.resource_id,
        "resource": row.resource_name or row.resource_id,
        "actor": row.actor_label,
        "decision": row.decision,
        "rule": row.rule,
        "code": row.code,
        "outcome": row.outcome,
        "duration_ms": row.duration_ms,
        "agent": row.agent_name,
        "server": row.server_name,
        "tool": row.tool_name,
        "session_id": str(row.session_id) if row.session_id else None,
    }


def _verify(cli: Cli, options: argparse.Namespace) -> None:
    report = verify(cli.principal.organization_id)
    faults = [str(fault) for fault in report.faults]
    cli.emit({"ok": report.ok, "rows": report.rows, "faults": faults})
    cli.say(f"{report.rows} rows, {'unbroken' if report.ok else f'{len(faults)} faults'}")
    for fault in faults:
        cli.say(f"✗ {fault}")
    if not report.ok:
        raise Failed


VERBS = (
    Verb(
        "list",
        "List what happened, newest first.",
        _list,
        _list_arguments,
        ("audit list", "audit list --outcome refused --json"),
    ),
    Verb(
        "verify", "Check that nothing was changed or removed.", _verify, examples=("audit verify",)
    ),
)
