"""Scan definitions off the event loop and rescan stored ones when the rules change.

Hard findings of new rules block a definition, approved or not, and notify people. Soft findings are
only shown, because a person has reviewed the text. Definitions that are already refused are scanned
again by the next discovery.
"""

import asyncio
import logging
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from django.utils import timezone

from bonobot.core.db.transactions import lock
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_json_digest
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import record_changes_at_end
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import notify
from mcp_servers.audit import record_server_change
from mcp_servers.health import services as health
from mcp_servers.models import Definition, Server
from mcp_servers.scanning.definitions import RULES, scan
from mcp_servers.scanning.results import StrippedValue, strip

MOST_PEERS = 5_000
INLINE = 16_384

Findings = list[dict[str, Any]]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class KnownToolNames:
    """Tool names of the server itself and of the organization's other servers."""

    own: frozenset[str] = frozenset()
    peers: frozenset[str] = frozenset()


def load_tool_names(server: Server, own: Iterable[str]) -> KnownToolNames:
    """Return the tool names of a server (`own_names`) and of the other servers (one query)."""
    others = Definition.objects.for_organization(server.organization_id).tools()
    names = others.filter(present=True).exclude(server=server).values_list("name", flat=True)
    return KnownToolNames(frozenset(own), frozenset(names[:MOST_PEERS]))


def read(payload: Any, names: KnownToolNames) -> Findings:
    """Return the findings of a definition in stored form. Takes about 1 ms per KiB."""
    found: Findings = make_storable(
        [one.as_dict() for one in scan(payload, own=names.own, peers=names.peers)]
    )
    return found


async def read_all(payloads: Mapping[Key, Any], names: KnownToolNames) -> dict[Key, Findings]:
    """Scan many definitions in another thread."""
    if not payloads:
        return {}
    return await asyncio.to_thread(
        lambda: {key: read(payload, names) for key, payload in payloads.items()}
    )


async def strip_result(result: Any, size: int) -> StrippedValue:
    """Return the stripped result without blocking the loop; `size` is its approximate length."""
    return strip(result) if size <= INLINE else await asyncio.to_thread(strip, result)


def describe_hard_finding(findings: Findings) -> str:
    """Return the first hard finding as text; "" if there is none."""
    hard = next((one for one in findings if one["tier"] == "hard"), None)
    return f"{hard['rule']} at {hard['path']}: {hard['excerpt']}" if hard else ""


logger = logging.getLogger(__name__)

SCANNER = Actor(kind="system", id="scanning", label="scanning")
AT_ONCE = 200
NAMES_TOLD = 10


@dataclass(frozen=True)
class OutdatedDefinitions:
    """Definitions of one server that were scanned with older rules, and the known tool names."""

    server: Server
    rows: Sequence[Definition]
    names: KnownToolNames


@dataclass
class _RescanChanges:
    """What a rescan changed: audit entries, and approved definitions that it refused."""

    told: list[dict[str, object]] = field(default_factory=list)
    refused: list[Definition] = field(default_factory=list)


async def scan_outdated_definitions() -> int:
    """Rescan all definitions that were scanned with older rules; return their number."""
    orm, done = get_runtime().aside, 0
    while batch := await orm(find_outdated_definitions):
        findings = await read_all({row.pk: row.payload for row in batch.rows}, batch.names)
        await orm(write, batch, findings)
        done += len(batch.rows)
    if done:
        logger.info("read %d definitions again with rules %d", done, RULES)
    return done


def find_outdated_definitions() -> OutdatedDefinitions | None:
    """Return a batch of definitions of one server that were scanned with older rules, or None.

    Refused ones are left to the next discovery.
    """
    due = Definition.objects.sound().filter(rules_version__lt=RULES)
    first = due.select_related("server").order_by("server", "pk").first()
    if first is None:
        return None
    server: Server = first.server
    rows = list(due.filter(server=server).order_by("pk")[:AT_ONCE])
    own = server.definitions.tools().values_list("name", flat=True)
    return OutdatedDefinitions(server, rows, load_tool_names(server, own))


def write(batch: OutdatedDefinitions, findings: dict[UUID, Findings]) -> None:
    """Save the findings in one transaction, and notify people of newly refused definitions.

    Definitions that changed meanwhile are skipped: the change scanned them.
    """
    same = [row.pk for row in batch.rows if row.findings == findings[row.pk]]
    with record_changes_at_end():
        lock(Server.objects.filter(pk=batch.server.pk))
        Definition.objects.filter(pk__in=same, rules_version__lt=RULES).update(rules_version=RULES)
        if other := [row for row in batch.rows if row.findings != findings[row.pk]]:
            _write_other(batch.server, other, findings)


def _write_other(
    server: Server, rows: Sequence[Definition], findings: dict[UUID, Findings]
) -> None:
    found = _RescanChanges()
    with record_server_change(
        server,
        SCANNER,
        "definitions_rescanned",
        (details := {"rules_version": RULES, "definitions": found.told}),
    ):
        for row in rows:
            _write_one(row, findings[row.pk], found)
        details["definitions"] = found.told
    if found.refused:
        _notify_refused(server, found.refused)


def _write_one(row: Definition, findings: Findings, found: _RescanChanges) -> None:
    fault = describe_hard_finding(findings)
    mine = Definition.objects.filter(
        pk=row.pk, digest=row.digest, fault="", rules_version__lt=RULES
    )
    wrote = mine.update(
        findings=findings, fault=fault, rules_version=RULES, updated_at=timezone.now()
    )
    if not wrote:
        return
    found.told.append(
        {
            "kind": row.kind,
            "name": row.name,
            "before": sorted({one["rule"] for one in row.findings}),
            "after": sorted({one["rule"] for one in findings}),
            "refused": bool(fault),
        }
    )
    if fault and row.state == Definition.State.APPROVED:
        row.fault = fault
        found.refused.append(row)


def _notify_refused(server: Server, rows: Sequence[Definition]) -> None:
    """Notify people, once, of approved definitions that can't be called any more."""
    why = "; ".join(f"{row.name or row.kind} ({row.fault})" for row in rows[:NAMES_TOLD])
    more = "; …" if len(rows) > NAMES_TOLD else ""
    digest = compute_json_digest(sorted((row.kind, row.name) for row in rows))
    notify(
        server.organization_id,
        "definitions_refused",
        health.build_server_subject(server, "tools"),
        format_message(
            "{server}: {n} approved definitions were read again with better rules and can't be "
            "called any more: {why}.",
            server=server.name,
            n=len(rows),
            why=why + more,
        ),
        topic=f"refused:{server.pk}:{digest}",
    )
