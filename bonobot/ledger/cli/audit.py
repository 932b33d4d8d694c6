"""`audit list|show|verify|export|prune`."""

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from django.core.exceptions import ValidationError

from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    parse_time,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import EVENT_TYPES, FlowLabel, is_approval_request

if TYPE_CHECKING:
    from bonobot.ledger.api.audit_filter import AuditFilter
    from bonobot.ledger.audit.signed_checkpoints import SignedCheckpoint
    from bonobot.ledger.audit.verify_chain import VerificationReport

MAX_DIGITS = 18  # of a number that the database can store
PERIOD_ARGUMENTS = (
    Argument(
        "--since TIME", "Start of the period, such as 2026-11-01, 7d, or 12h", type=parse_time
    ),
    Argument("--until TIME", "End of the period, in the same format", type=parse_time),
)
# The filters that `list` has in common with the REST list.
FILTER_OPTIONS = {
    "agent": "Only entries of this agent (ID or name)",
    "server": "Only entries of this server (ID or name)",
    "tool": "Only entries of this tool",
    "session": "Only entries of this session (ID)",
    "action": "Only entries with this action, such as agent_created",
    "code": "Only entries with this error code",
    "rule": "Only entries decided by this rule",
    "decision": "Only entries with this decision: allow, deny, ask",
    "resource": "Only entries for the object with this ID",
    "flow_label": "Only calls of tools with this flow label: " + ", ".join(FlowLabel),
    "actor": "Only entries by this actor (ID or name)",
    "outcome": "Only entries with this outcome, such as denied or failed",
}


_LIST_ARGUMENTS = (
    Argument("--limit LIMIT", "Maximum number of entries (default: 50)", type=int, default=50),
    Argument("--search WORDS", "Words in names, codes, and arguments"),
    Argument("--event", "Only entries of this event type", choices=EVENT_TYPES),
    *(
        Argument(f"--{name.replace('_', '-')} {name.upper()}", help_text)
        for name, help_text in FILTER_OPTIONS.items()
    ),
    *PERIOD_ARGUMENTS,
)


def _show_entries(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.ledger.audit import search as audit_search

    filters = _build_filter(cli, options)
    rows, limit = filters.qs, max(options.limit, 0)
    looked_to = filters.build_search(cli.principal.organization_id).find_stop_time()
    if looked_to is not None:
        rows = rows.filter(opened_at__gte=looked_to)
    entries = [_serialize_entry(row) for row in rows[:limit]]
    table_rows = [
        (
            row["seq"],
            f"{row['at']:%Y-%m-%d %H:%M:%S}",
            row["action"],
            row["resource"],
            row["actor"],
            _format_outcome(row),
            row["code"],
        )
        for row in entries
    ]
    empty = "No audit log entries match these filters."
    cli.emit(
        entries,
        build_table(
            *("NUMBER", "TIME", "ACTION", "RESOURCE", "ACTOR", "OUTCOME", "CODE"),
            rows=table_rows,
            empty=empty,
        ),
    )

    if looked_to is not None and len(entries) < limit:
        looked = f"The latest {audit_search.MAX_ROWS_SCANNED:,} entries were searched."
        onward = f"To search older entries, add --until {looked_to.isoformat()}"
        cli.print_note(f"{looked} {onward}", {"looked_to": looked_to.isoformat()})


def _format_outcome(entry: dict[str, Any]) -> str:
    """Return the outcome in the words of the admin; JSON has the code."""
    if is_approval_request(entry["outcome"], entry["code"]):
        return "Approval requested"
    return str(AuditRow.Outcome(entry["outcome"]).label) if entry["outcome"] else ""


def _build_filter(cli: CommandContext, options: argparse.Namespace) -> "AuditFilter":
    """Return the validated filters, parsed as in REST; raises `InvalidInput` naming the option."""
    from bonobot.ledger.api.audit_filter import AuditFilter  # its library loads slowly

    values = {name: getattr(options, name) for name in (*FILTER_OPTIONS, "since", "until")}
    values |= {"q": options.search, "event_type": options.event}
    if options.outcome:
        values["outcome"] = _parse_outcome(options.outcome)
    parameters = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in values.items()
        if value
    }
    rows = AuditRow.objects.for_organization(cli.principal.organization_id).defer(
        "opened", "closed"
    )
    filters = AuditFilter(parameters, queryset=rows)
    if not filters.is_valid():
        name, errors = next(iter(filters.errors.items()))
        raise InvalidInput(str(errors[0]), field=f"--{name.replace('_', '-')}")
    return filters


def _parse_outcome(text: str) -> str:
    """Return the code of an outcome, given as that or in the table's words.

    Raises `InvalidInput` listing the outcomes.
    """
    outcomes = {str(outcome.label).lower(): outcome.value for outcome in AuditRow.Outcome}
    outcome = outcomes.get(text.lower(), text)
    if outcome not in outcomes.values():
        raise InvalidInput(
            f"{text!r} isn't an outcome.",
            field="--outcome",
            remedy=f"Choose one of: {', '.join(outcomes)}.",
        )
    return outcome


def _serialize_entry(row: AuditRow) -> dict[str, Any]:
    return {
        "id": str(row.pk),
        "seq": row.seq,
        "at": row.opened_at,
        "action": row.action,
        "event_type": row.event_type,
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


def _show_entry(cli: CommandContext, options: argparse.Namespace) -> None:
    is_number = options.entry.isdecimal() and len(options.entry) <= MAX_DIGITS
    key: dict[str, Any] = {"seq": int(options.entry)} if is_number else {"pk": options.entry}
    rows = AuditRow.objects.for_organization(cli.principal.organization_id)
    try:
        row = rows.get(**key)
    except (AuditRow.DoesNotExist, ValidationError):
        raise NotFound(
            f"The audit log entry {options.entry!r} doesn't exist.",
            field="ENTRY",
            remedy="List the entries with: bonobot audit list",
        ) from None
    from bonobot.ledger.api.audit import AuditEntryDetailSerializer  # imports all of REST

    entry = AuditEntryDetailSerializer(row).data
    fields = {name: value for name, value in entry.items() if name != "details"}
    fields |= {f"details.{name}": value for name, value in entry["details"].items()}
    shown_fields = [
        (name, text) for name, value in fields.items() if (text := _format_value(value))
    ]
    cli.emit(entry, build_table("FIELD", "VALUE", rows=shown_fields, empty=""))


def _format_value(value: Any) -> str:
    """Return a field's value as text: JSON for objects and lists, "" for what isn't set."""
    if value in (None, "", [], {}):
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


_VERIFY_ARGUMENTS = (
    Argument("--checkpoints FILE", "Compare with signed checkpoints stored elsewhere"),
    Argument("--file FILE", "Verify an exported file instead of the database"),
    Argument(
        "--continue", "Continue from where the last verification stopped or ended", dest="onward"
    ),
)


def _show_verification(cli: CommandContext, options: argparse.Namespace) -> None:
    report = _verify_chain(cli, options)
    faults = [str(fault) for fault in report.faults]
    cli.emit(
        {
            "ok": report.ok,
            "rows": report.rows,
            "faults": faults,
            "seq": report.seq,
            "digest": report.digest,
            "start": report.start,
        }
    )
    since = f" from the checkpoint at {report.start}" if report.start else ""
    state = "no errors" if report.ok else format_count(len(faults), "error")
    cli.print_message(f"{report.rows} entries{since} verified: {state}")
    for fault in faults:
        cli.print_message(f"✗ {fault}")
    if not report.ok:
        raise CommandFailed


def _verify_chain(cli: CommandContext, options: argparse.Namespace) -> "VerificationReport":
    from bonobot.ledger.audit import export as audit_export
    from bonobot.ledger.audit import signed_checkpoints
    from bonobot.ledger.audit.verify_chain import verify_exported

    organization_id = cli.principal.organization_id
    try:
        if options.file:
            with (
                cli.show_spinner("Verifying the file…"),
                Path(options.file).open(encoding="utf-8") as lines,
            ):
                return verify_exported(audit_export.parse_lines(lines))
        if not options.checkpoints:
            checkpoints = list(
                signed_checkpoints.parse_checkpoints(
                    organization_id, signed_checkpoints.read_checkpoint_lines()
                )
            )
        else:
            with Path(options.checkpoints).open(encoding="utf-8") as lines:
                checkpoints = list(signed_checkpoints.parse_checkpoints(organization_id, lines))
            if not checkpoints:
                raise ValueError("The file contains no signed checkpoints of this organization.")
    except (OSError, ValueError) as error:
        path = (
            options.file or options.checkpoints or str(signed_checkpoints.get_checkpoint_folder())
        )
        raise InvalidInput(
            f"{path!r} can't be used: {error}",
            code="unusable_file",
            field="--file" if options.file else "--checkpoints",
            remedy="Specify a file written by `bonobot audit`.",
        ) from error
    return _verify_stepwise(cli, checkpoints, restart=not options.onward)


def _verify_stepwise(
    cli: CommandContext, checkpoints: "list[SignedCheckpoint]", *, restart: bool
) -> "VerificationReport":
    """Verify to the end in steps, so that `--continue` can resume it."""
    from bonobot.ledger.audit.verify_chain import verify_step

    with cli.show_percentage("Verifying the audit log") as show:
        while True:
            progress = verify_step(
                cli.principal.organization_id, checkpoints=checkpoints, restart=restart
            )
            show(progress.share)
            if progress.done:
                return progress.build_report()
            restart = False


def _show_checkpoints(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.ledger.audit import signed_checkpoints

    statements = signed_checkpoints.sign_chain_ends(cli.principal.organization_id)
    cli.emit(statements)
    for statement in statements:
        cli.print_message(
            f"{statement['seq']} entries, {statement['digest']}, signed by {statement['key']}"
        )
    for name, key in signed_checkpoints.get_signer().public_keys.items():
        cli.print_message(f"Public key {name}: {key}")


def _add_format_argument(parser: argparse.ArgumentParser) -> None:
    from bonobot.ledger.audit.export import MEDIA_TYPES

    help_text = "Format (default: jsonl)"
    parser.add_argument("--format", choices=sorted(MEDIA_TYPES), default="jsonl", help=help_text)


_EXPORT_ARGUMENTS = (
    _add_format_argument,
    *PERIOD_ARGUMENTS,
    Argument("--output FILE", "File to write to (default: standard output)"),
)


def _export_entries(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.ledger.audit import export as audit_export

    rows = AuditRow.objects.for_organization(cli.principal.organization_id)
    if options.since:
        rows = rows.filter(opened_at__gte=options.since)
    if options.until:
        rows = rows.filter(opened_at__lt=options.until)
    with _open_output(cli, options.output) as file:
        for page in audit_export.export_pages(rows, options.format):
            file.write(page)
    if options.output:
        cli.emit({"rows": rows.count(), "file": options.output})
        cli.print_message(f"{rows.count()} entries were written to {options.output}.")


@contextmanager
def _open_output(cli: CommandContext, path: str | None) -> Iterator[IO[str]]:
    if path is None:
        yield cli.out.file
        return
    try:
        with Path(path).open("w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise InvalidInput(
            f"{path!r} can't be written: {error}",
            code="unusable_file",
            field="--output",
            remedy="Specify a file in an existing folder that you can write to.",
        ) from error


_PRUNE_ARGUMENTS = (
    Argument(
        "--before TIME",
        "Delete entries before this time, such as 2026-01-01 or 90d",
        type=parse_time,
        required=True,
    ),
    Argument("--dry-run", "Show what would be deleted, without deleting it"),
    Argument("--archive FILE", "Write the entries to this file before deleting them"),
    Argument("--yes", "Don't ask for confirmation"),
)


def _prune_entries(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.ledger.audit import prune_chain

    organization_id = cli.principal.organization_id
    plan = prune_chain.plan_pruning(organization_id, before=options.before)
    row_count = plan.rows
    if options.dry_run:
        cli.emit({"rows": row_count, "seq": plan.seq, "dry_run": True})
        cli.print_message(
            f"{format_count(row_count, 'entry', 'entries')} would be deleted. "
            f"The hash chain would continue after {plan.seq}."
        )
        return
    entries = format_count(row_count, "entry", "entries")
    question = f"Permanently delete {entries} before {options.before:%Y-%m-%d %H:%M}?"
    if row_count and not options.yes and not cli.confirm(question):
        raise InvalidInput(
            f"The deletion of {entries} wasn't confirmed. Nothing was deleted.",
            code="not_confirmed",
            field="--yes",
            remedy="Confirm with --yes.",
        )
    arguments: dict[str, Any] = {"before": options.before, "actor": cli.principal.actor}
    try:
        result = (
            prune_chain.archive_and_prune(organization_id, file=Path(options.archive), **arguments)
            if options.archive
            else prune_chain.prune_entries(organization_id, **arguments)
        )
    except OSError as error:
        raise InvalidInput(
            f"{options.archive!r} can't be written: {error}",
            code="unusable_file",
            field="--archive",
            remedy="Nothing was deleted. Specify a new file in a folder that you can write to.",
        ) from error
    cli.emit({"rows": result.rows, "seq": result.seq})
    cli.print_message(
        f"{result.rows} entries were deleted. The hash chain continues after {result.seq}."
    )


VERBS = (
    CommandVerb(
        "list",
        "List audit log entries, newest first",
        _show_entries,
        arguments=_LIST_ARGUMENTS,
        examples=(
            "audit list",
            "audit list --outcome denied --json",
            "audit list --search invoice --since 7d",
            "audit list --flow-label sends_out --since 24h",
        ),
    ),
    CommandVerb(
        "show",
        "Show an entry with its arguments, result, and decision",
        _show_entry,
        arguments=(Argument("ENTRY", "Number of the entry, as shown by `audit list`, or its ID"),),
        examples=("audit show 1042", "audit show 1042 --json"),
    ),
    CommandVerb(
        "verify",
        "Verify the integrity of the audit log and compare it with signed checkpoints",
        _show_verification,
        arguments=_VERIFY_ARGUMENTS,
        examples=(
            "audit verify",
            "audit verify --continue",
            "audit verify --checkpoints /backup/2026-11.jsonl",
            "audit verify --file a.jsonl",
        ),
    ),
    CommandVerb(
        "checkpoint",
        "Print a signed checkpoint of the audit log and the public keys",
        _show_checkpoints,
        examples=("audit checkpoint", "audit checkpoint --json"),
    ),
    CommandVerb(
        "export",
        "Export the audit log as JSON Lines (for `audit verify --file`) or CSV",
        _export_entries,
        arguments=_EXPORT_ARGUMENTS,
        examples=("audit export --output audit.jsonl", "audit export --format csv --since 7d"),
    ),
    CommandVerb(
        "prune",
        "Delete old entries. A signed checkpoint keeps the remaining entries verifiable.",
        _prune_entries,
        arguments=_PRUNE_ARGUMENTS,
        examples=(
            "audit prune --before 365d --dry-run",
            "audit prune --before 365d --archive 2025.jsonl",
            "audit prune --before 2026-01-01 --yes --json",
        ),
    ),
)
