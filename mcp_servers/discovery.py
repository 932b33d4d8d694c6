"""Discovery: ask a server what it offers and keep it, whole, with digests (FEATURES B3, X3).

What is new or changed waits for approval unless the server's approval mode trusts it; what
disappeared is marked, its pin kept; one invalid definition never hides the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import change
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers.approval import pin_all
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.pool import connections
from mcp_servers.connections.survey import Item, Survey
from mcp_servers.digests import digest
from mcp_servers.endpoints import endpoint_of
from mcp_servers.models import Check, Definition, Server
from mcp_servers.models.definitions import NAME_LENGTH
from mcp_servers.scanning import scan
from mcp_servers.schemas import judge
from mcp_servers.status import record_failure, record_success

DESCRIPTION_KEPT = 4096


@dataclass(frozen=True)
class Discovered:
    """What a discovery found: counts for people, names for the log."""

    tools: tuple[str, ...]
    new: int
    changed: int
    gone: int
    waiting: int
    refused: int
    latency_ms: int
    notices: tuple[str, ...]


async def discover(
    server_id: UUID, *, actor: Actor, kind: str = Check.Kind.DISCOVERY
) -> Discovered:
    """Survey the server and keep what it declares; status and a `Check` row tell how it went.

    Raises `UpstreamError` (or another `Problem`) after having recorded it.
    """
    orm = runtime().orm
    server = await orm(Server.objects.get, pk=server_id)
    try:
        endpoint = await orm(endpoint_of, server)
        survey = await connections().survey(endpoint)
    except Problem as problem:
        await orm(record_failure, server_id, kind, problem)
        raise
    return await orm(keep, server_id, survey, actor=actor, kind=kind)


def keep(server_id: UUID, survey: Survey, *, actor: Actor, kind: str) -> Discovered:
    """Write a survey into rows: one transaction, audited when anything about it changed."""
    server = Server.objects.get(pk=server_id)
    known = {(row.kind, row.name): row for row in server.definitions.all()}
    seen = {(item.kind, item.name): item for item in survey.items if len(item.name) <= NAME_LENGTH}
    fresh = [_declared(server, item) for key, item in seen.items() if key not in known]
    altered = [
        known[key] for key, item in seen.items() if key in known and _alter(known[key], item)
    ]
    gone = [row for key, row in known.items() if key not in seen and row.present]
    first = server.discovered_at is None
    record_success(server, kind, survey)
    if fresh or altered or gone:
        _write(server, fresh, altered, gone, actor=actor, first=first)
    rows = server.definitions.all()
    rows.filter(present=True).update(last_seen_at=timezone.now())
    return Discovered(
        tools=tuple(rows.tools().filter(present=True).values_list("name", flat=True)),
        new=len(fresh),
        changed=len(altered),
        gone=len(gone),
        waiting=rows.waiting().count(),
        refused=rows.exclude(fault="").count(),
        latency_ms=survey.latency_ms,
        notices=survey.notices,
    )


def _write(
    server: Server,
    fresh: list[Definition],
    altered: list[Definition],
    gone: list[Definition],
    *,
    actor: Actor,
    first: bool,
) -> None:
    with change(
        organization_id=server.organization_id,
        actor=actor,
        action="definitions_discovered",
        resource_type="mcp_server",
        resource_id=str(server.pk),
        resource_name=server.name,
        details={
            "new": _named(fresh),
            "changed": _named(altered),
            "gone": _named(gone),
        },
    ):
        Definition.objects.bulk_create(fresh)
        for row in altered:
            row.save()
        Definition.objects.filter(pk__in=[row.pk for row in gone]).update(present=False)
        if server.approval == Server.Approval.ALWAYS or (
            server.approval == Server.Approval.FIRST and first
        ):
            pin_all(server, [*fresh, *altered], by=f"approval:{server.approval}")


def _named(rows: Iterable[Definition]) -> list[dict[str, str]]:
    return [{"kind": row.kind, "name": row.name, "digest": row.digest} for row in rows]


def _declared(server: Server, item: Item) -> Definition:
    row = Definition(
        organization_id=server.organization_id, server=server, kind=item.kind, name=item.name
    )
    _alter(row, item)
    return row


def _alter(row: Definition, item: Item) -> bool:
    """Put what was declared into `row`; tell whether that changes it."""
    found = digest(item.payload)
    if row.digest == found and row.present and not (item.fault and not row.fault):
        return False
    row.payload = item.payload
    row.digest = found
    row.present = True
    row.title = _text(item.payload.get("title"))[:255]
    row.description = _text(item.payload.get("description"))[:DESCRIPTION_KEPT]
    row.findings = [finding.as_dict() for finding in scan(item.payload)]
    row.fault = item.fault or _fault(row)
    return True


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fault(row: Definition) -> str:
    """Say why this declaration can never be used, if so: hard findings, or a refused schema."""
    if hard := [finding for finding in row.findings if finding["tier"] == "hard"]:
        return f"{hard[0]['rule']} at {hard[0]['path']}: {hard[0]['excerpt']}"
    if row.kind != Definition.Kind.TOOL:
        return ""
    judgement = judge(row.input_schema)
    row.schema_verdict = judgement.verdict
    return judgement.reason if judgement.verdict == "refused" else ""


def problem_of(error: Problem) -> dict[str, str]:
    """Return what a failed test or refresh shows: code, detail and remedy."""
    shown = error.as_dict()
    if isinstance(error, UpstreamError):
        shown.setdefault("server", error.server)
    return shown
