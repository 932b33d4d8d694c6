"""Scan stored definitions again when the rules have changed.

Hard findings of new rules block a definition, approved or not, and notify people. Soft findings are
only shown, because a person has reviewed the text. Definitions that are already refused are scanned
again by the next discovery.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.utils import timezone

from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_json_digest
from bonobot.ledger.audit.admin_changes import record_changes_at_end
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import notify
from mcp_servers.audit import record_server_change
from mcp_servers.health import outages
from mcp_servers.models import Definition, Server
from mcp_servers.scanning.definitions import RULES_VERSION
from mcp_servers.scanning.services import (
    Findings,
    KnownToolNames,
    collect_all_findings,
    describe_hard_finding,
    load_tool_names,
)

logger = logging.getLogger(__name__)

SCANNER = Actor(kind="system", id="scanning", label="scanning")
BATCH_SIZE = 200
MAX_NAMES_IN_NOTIFICATION = 10


@dataclass(frozen=True)
class OutdatedDefinitions:
    """Definitions of one server that were scanned with older rules, and the known tool names."""

    server: Server
    rows: Sequence[Definition]
    names: KnownToolNames


@dataclass
class _RescanChanges:
    """What a rescan changed: audit entries, and approved definitions that it refused."""

    audit_entries: list[dict[str, object]] = field(default_factory=list)
    newly_refused: list[Definition] = field(default_factory=list)


async def scan_outdated_definitions() -> int:
    """Rescan all definitions that were scanned with older rules; return their number."""
    orm, scanned_count = get_runtime().run_background_orm, 0
    while batch := await orm(find_outdated_definitions):
        findings = await collect_all_findings(
            {row.pk: row.payload for row in batch.rows}, batch.names
        )
        await orm(save_findings, batch, findings)
        scanned_count += len(batch.rows)
    if scanned_count:
        logger.info("read %d definitions again with rules %d", scanned_count, RULES_VERSION)
    return scanned_count


def find_outdated_definitions() -> OutdatedDefinitions | None:
    """Return a batch of definitions of one server that were scanned with older rules, or None.

    Refused ones are left to the next discovery.
    """
    due = Definition.objects.without_fault().filter(rules_version__lt=RULES_VERSION)
    first = due.select_related("server").order_by("server", "pk").first()
    if first is None:
        return None
    server: Server = first.server
    rows = list(due.filter(server=server).order_by("pk")[:BATCH_SIZE])
    own_names = server.definitions.tools().values_list("name", flat=True)
    return OutdatedDefinitions(server, rows, load_tool_names(server, own_names))


def save_findings(batch: OutdatedDefinitions, findings: dict[UUID, Findings]) -> None:
    """Save the findings in one transaction, and notify people of newly refused definitions.

    Definitions that changed meanwhile are skipped: the change scanned them.
    """
    unchanged_ids = [row.pk for row in batch.rows if row.findings == findings[row.pk]]
    with record_changes_at_end():
        lock_rows(Server.objects.filter(pk=batch.server.pk))
        Definition.objects.filter(pk__in=unchanged_ids, rules_version__lt=RULES_VERSION).update(
            rules_version=RULES_VERSION
        )
        if changed_rows := [row for row in batch.rows if row.findings != findings[row.pk]]:
            _save_changed_findings(batch.server, changed_rows, findings)


def _save_changed_findings(
    server: Server, rows: Sequence[Definition], findings: dict[UUID, Findings]
) -> None:
    changes = _RescanChanges()
    with record_server_change(
        server,
        SCANNER,
        "definitions_rescanned",
        (details := {"rules_version": RULES_VERSION, "definitions": changes.audit_entries}),
    ):
        for row in rows:
            _save_definition_findings(row, findings[row.pk], changes)
        details["definitions"] = changes.audit_entries
    if changes.newly_refused:
        _notify_refused(server, changes.newly_refused)


def _save_definition_findings(row: Definition, findings: Findings, changes: _RescanChanges) -> None:
    fault = describe_hard_finding(findings)
    outdated = Definition.objects.filter(
        pk=row.pk, digest=row.digest, fault="", rules_version__lt=RULES_VERSION
    )
    updated_count = outdated.update(
        findings=findings, fault=fault, rules_version=RULES_VERSION, updated_at=timezone.now()
    )
    if not updated_count:
        return
    changes.audit_entries.append(
        {
            "kind": row.kind,
            "name": row.name,
            "before": sorted({finding["rule"] for finding in row.findings}),
            "after": sorted({finding["rule"] for finding in findings}),
            "refused": bool(fault),
        }
    )
    if fault and row.state == Definition.State.APPROVED:
        row.fault = fault
        changes.newly_refused.append(row)


def _notify_refused(server: Server, rows: Sequence[Definition]) -> None:
    """Notify people, once, of approved definitions that can't be called any more."""
    reasons = "; ".join(
        f"{row.name or row.kind} ({row.fault})" for row in rows[:MAX_NAMES_IN_NOTIFICATION]
    )
    ellipsis = "; …" if len(rows) > MAX_NAMES_IN_NOTIFICATION else ""
    digest = compute_json_digest(sorted((row.kind, row.name) for row in rows))
    notify(
        server.organization_id,
        "definitions_refused",
        outages.build_server_subject(server, "tools"),
        format_message(
            "{server}: {n} approved definitions were rescanned with updated rules and can "
            "no longer be called: {why}.",
            server=server.name,
            n=len(rows),
            why=reasons + ellipsis,
        ),
        topic=f"refused:{server.pk}:{digest}",
    )
