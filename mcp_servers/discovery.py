"""Discovery: ask a server what it offers and keep it, whole, with digests (FEATURES B3, X3).

What is new or changed waits for approval unless the server's approval mode trusts it; what
disappeared is marked, its pin kept; one invalid definition never hides the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import change
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import storable
from bonobot.notices.writing import notify
from mcp_servers import outages
from mcp_servers.approval import pin_all
from mcp_servers.connections.pool import connections
from mcp_servers.connections.survey import Item, Survey
from mcp_servers.digests import digest
from mcp_servers.endpoints import endpoint_of
from mcp_servers.models import Check, Definition, Server
from mcp_servers.models.definitions import NAME_LENGTH
from mcp_servers.naming import own_name_matches
from mcp_servers.oauth.faults import LoginNeeded
from mcp_servers.oauth.signing import for_background, for_person
from mcp_servers.openapi.surveying import survey_document
from mcp_servers.scanning import scan
from mcp_servers.schema_worker import judge_all
from mcp_servers.schemas import Judgement
from mcp_servers.status import forget_attempt, record_attempt, record_failure, record_success

DESCRIPTION_KEPT = 4096
NAMES_TOLD = 10
MOST_PEERS = 5_000

Judgements = Mapping[str, Judgement]


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
    server_id: UUID, *, actor: Actor, kind: str = Check.Kind.DISCOVERY, of: str = ""
) -> Discovered:
    """Survey the server and keep what it declares; status and a `Check` row tell how it went.

    Where each person signs in, a person's discovery uses their own login, and one in the background
    that of any member whose login holds. `of` names a holder whose connection, where it lives, is
    asked: lists may differ by connection. Raises `UpstreamError` (or another `Problem`) after
    having recorded it; that one person has to sign in says nothing about the server.
    """
    orm = runtime().orm
    server = await orm(Server.objects.get, pk=server_id)
    await orm(record_attempt, server)
    person = UUID(actor.id) if server.by_person and actor.kind == "user" else None
    try:
        endpoint = await orm(endpoint_of, server)
        reached = for_person(endpoint, person) if person else await for_background(endpoint)
        if server.speaks_mcp:
            survey = await connections().survey(reached, of=of)
        else:
            survey = await survey_document(server, reached)
            await connections().request(reached, "ping", holder=f"survey:{server_id}")
        judgements = await _judged(survey)
    except Problem as problem:
        if person and problem.code == LoginNeeded.code:
            await orm(forget_attempt, server)
        else:
            await orm(record_failure, server_id, kind, problem)
        raise
    return await orm(keep, server_id, survey, judgements, actor=actor, kind=kind)


async def _judged(survey: Survey) -> Judgements:
    """Judge the schemas of all tools, in a child process (DESIGN section 3)."""
    tools = [item for item in survey.items if item.kind == "tool" and not item.fault]
    verdicts = await judge_all([item.payload.get("inputSchema", {}) for item in tools])
    return {item.name: verdict for item, verdict in zip(tools, verdicts, strict=True)}


@transaction.atomic
def keep(
    server_id: UUID, survey: Survey, judgements: Judgements, *, actor: Actor, kind: str
) -> Discovered:
    """Write a survey into rows: one transaction, audited when anything about it changed."""
    server = Server.objects.get(pk=server_id)
    known = {(row.kind, row.name): row for row in server.definitions.all()}
    seen = {(item.kind, item.name): item for item in survey.items if len(item.name) <= NAME_LENGTH}
    fresh: list[Definition] = []
    altered: list[Definition] = []
    around = _around(server, survey)
    for key, item in seen.items():
        row = known.get(key) or _new(server, item)
        if _alter(row, item, judgements, around):
            (altered if key in known else fresh).append(row)
    # A listing that broke off says nothing about what it didn't come to.
    gone = [
        row
        for key, row in known.items()
        if key not in seen and row.present and row.kind in survey.complete
    ]
    first = server.discovered_at is None
    record_success(server, kind, survey)
    if fresh or altered or gone:
        _write(server, fresh, altered, gone, actor=actor, first=first)
    rows = server.definitions.all()
    rows.filter(present=True).update(last_seen_at=timezone.now())
    if fresh or altered:
        _tell_waiting(server, [row.pk for row in (*fresh, *altered)])
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


def _tell_waiting(server: Server, found: list[UUID]) -> None:
    """Tell people what of this discovery nobody has read; the same is told once."""
    rows = server.definitions.waiting().filter(pk__in=found)
    waiting = sorted(rows.values_list("kind", "name", "digest"))
    if not waiting:
        return
    names = ", ".join(name or kind for kind, name, _digest in waiting[:NAMES_TOLD])
    more = f" and {len(waiting) - NAMES_TOLD} more" if len(waiting) > NAMES_TOLD else ""
    notify(
        server.organization_id,
        "definitions_waiting",
        outages.subject_of(server, "tools"),
        f"{server.name} offers what is new or changed ({len(waiting)}): {names}{more}. "
        "Nothing of it can be called before somebody has read and approved it.",
        topic=f"definitions:{server.pk}:{digest(waiting)}",
    )


def _named(rows: Iterable[Definition]) -> list[dict[str, str]]:
    return [{"kind": row.kind, "name": row.name, "digest": row.digest} for row in rows]


def _new(server: Server, item: Item) -> Definition:
    return Definition(
        organization_id=server.organization_id,
        server=server,
        kind=item.kind,
        name=item.name,
        present=False,
        enabled=item.kind != "tool" or _kept_to(server, item.name),
    )


def _kept_to(server: Server, tool: str) -> bool:
    """Tell whether a tool is one that the server is kept to; without a list all of them are."""
    wanted: list[str] = server.only_tools
    return not wanted or any(own_name_matches(pattern, tool) for pattern in wanted)


@dataclass(frozen=True)
class _Around:
    """Names of tools: the server's own, and those of the organization's other servers."""

    own: frozenset[str]
    peers: frozenset[str]


def _around(server: Server, survey: Survey) -> _Around:
    others = Definition.objects.for_organization(server.organization_id).tools()
    names = others.filter(present=True).exclude(server=server).values_list("name", flat=True)
    own = frozenset(item.name for item in survey.items)
    return _Around(own, frozenset(names[:MOST_PEERS]))


def _alter(row: Definition, item: Item, judgements: Judgements, around: _Around) -> bool:
    """Put what was declared into `row`; tell whether that changes it."""
    found = digest(item.payload)
    if row.digest == found and row.present and bool(item.fault) <= bool(row.fault):
        return False
    row.payload = storable(item.payload)
    row.digest = found
    row.present = True
    row.title = _text(item.payload.get("title"))[:255]
    row.description = _text(item.payload.get("description"))[:DESCRIPTION_KEPT]
    found_in = scan(item.payload, own=around.own, peers=around.peers)
    row.findings = storable([finding.as_dict() for finding in found_in])
    row.fault = item.fault or _fault(row, judgements.get(item.name))
    return True


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fault(row: Definition, judgement: Judgement | None) -> str:
    """Say why this declaration can never be used, if so: hard findings, or a refused schema."""
    if hard := [finding for finding in row.findings if finding["tier"] == "hard"]:
        return f"{hard[0]['rule']} at {hard[0]['path']}: {hard[0]['excerpt']}"
    if row.kind != Definition.Kind.TOOL or judgement is None:
        return ""
    row.schema_verdict = judgement.verdict
    return judgement.reason if judgement.verdict == "refused" else ""
