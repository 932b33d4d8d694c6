"""Read stored definitions again when the rules have become better (FEATURES X3, point 4).

What new rules find hard can't be called any more, approved or not, and people are told; what they
find soft is shown beside an approval, which stays: a person has read that text. What is refused
already is looked at again by the next discovery.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import written_last
from bonobot.lib.row_locks import lock
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.notices.writing import notify
from mcp_servers import outages
from mcp_servers.digests import digest
from mcp_servers.models import Definition, Server
from mcp_servers.recording import changing
from mcp_servers.scanning.version import RULES
from mcp_servers.scans import Around, Findings, around, hard_fault, read_all

logger = logging.getLogger(__name__)

SCANNER = Actor(kind="system", id="scanning", label="scanning")
AT_ONCE = 200
NAMES_TOLD = 10


@dataclass(frozen=True)
class Outdated:
    """Definitions of one server that were read with older rules, and the names around them."""

    server: Server
    rows: Sequence[Definition]
    names: Around


@dataclass
class _Changed:
    """What reading them again changed."""

    told: list[dict[str, object]] = field(default_factory=list)
    refused: list[Definition] = field(default_factory=list)


async def rescan() -> int:
    """Read again all that was read with older rules; return how many definitions that were."""
    orm, done = runtime().aside, 0
    while batch := await orm(outdated):
        findings = await read_all({row.pk: row.payload for row in batch.rows}, batch.names)
        await orm(write, batch, findings)
        done += len(batch.rows)
    if done:
        logger.info("read %d definitions again with rules %d", done, RULES)
    return done


def outdated() -> Outdated | None:
    """Return some definitions of one server that were read with older rules; None: there are none.

    Those that are refused wait for a discovery, which judges all of them again.
    """
    due = Definition.objects.sound().filter(rules_version__lt=RULES)
    first = due.select_related("server").order_by("server", "pk").first()
    if first is None:
        return None
    server: Server = first.server
    rows = list(due.filter(server=server).order_by("pk")[:AT_ONCE])
    own = server.definitions.tools().values_list("name", flat=True)
    return Outdated(server, rows, around(server, own))


def write(batch: Outdated, findings: dict[UUID, Findings]) -> None:
    """Write what was found, in one transaction, and tell people what can't be called any more.

    A definition that changed meanwhile was read by whoever changed it.
    """
    same = [row.pk for row in batch.rows if row.findings == findings[row.pk]]
    with written_last():
        lock(Server.objects.filter(pk=batch.server.pk))
        Definition.objects.filter(pk__in=same, rules_version__lt=RULES).update(rules_version=RULES)
        if other := [row for row in batch.rows if row.findings != findings[row.pk]]:
            _write_other(batch.server, other, findings)


def _write_other(
    server: Server, rows: Sequence[Definition], findings: dict[UUID, Findings]
) -> None:
    found = _Changed()
    with changing(
        server,
        SCANNER,
        "definitions_rescanned",
        (details := {"rules_version": RULES, "definitions": found.told}),
    ):
        for row in rows:
            _write_one(row, findings[row.pk], found)
        details["definitions"] = found.told
    if found.refused:
        _tell(server, found.refused)


def _write_one(row: Definition, findings: Findings, found: _Changed) -> None:
    fault = hard_fault(findings)
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


def _tell(server: Server, rows: Sequence[Definition]) -> None:
    """Tell people of approved definitions that can't be called any more; the same is told once."""
    why = "; ".join(f"{row.name or row.kind} ({row.fault})" for row in rows[:NAMES_TOLD])
    more = "; …" if len(rows) > NAMES_TOLD else ""
    notify(
        server.organization_id,
        "definitions_refused",
        outages.subject_of(server, "tools"),
        say(
            "{server}: {n} approved definitions were read again with better rules and can't be "
            "called any more: {why}.",
            server=server.name,
            n=len(rows),
            why=why + more,
        ),
        topic=f"refused:{server.pk}:{digest(sorted((row.kind, row.name) for row in rows))}",
    )
