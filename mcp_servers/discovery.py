"""Discovery: ask a server what it offers and keep it, whole, with digests (FEATURES B3, X3).

What is new or changed waits for approval unless the server's approval mode trusts it; what
disappeared is marked, its pin kept; one invalid definition never hides the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.ledger.changes import written_last
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.row_locks import lock
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import storable, visible
from bonobot.notices.writing import notify
from mcp_servers import outages
from mcp_servers.approval import pin_all
from mcp_servers.connections.installation import installed
from mcp_servers.connections.pool import connections
from mcp_servers.connections.survey import DECLARED_TWICE, Item, Survey
from mcp_servers.digests import digest, same_value
from mcp_servers.endpoints import endpoint_of
from mcp_servers.models import Check, Definition, Server
from mcp_servers.models.definitions import NAME_LENGTH
from mcp_servers.naming import own_name_matches
from mcp_servers.oauth.faults import LoginNeeded
from mcp_servers.oauth.signing import for_background, for_person
from mcp_servers.openapi.surveying import survey_document
from mcp_servers.recording import changing
from mcp_servers.scanning.version import RULES
from mcp_servers.scans import Around, Findings, around, hard_fault, read, read_all
from mcp_servers.schema_worker import judge_all
from mcp_servers.schemas import Judgement
from mcp_servers.status import forget_attempt, record_attempt, record_failure, record_success

DESCRIPTION_KEPT = 4096
NAMES_TOLD = 10
NAME_SHOWN = 100

Judgements = Mapping[str, Judgement]
Key = tuple[str, str]


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


class Removed(NotFound):
    """The server was removed before it was asked, or while it was."""

    def __init__(self) -> None:
        super().__init__(
            say("The server was removed meanwhile."), remedy=say("Add it again if it was needed.")
        )


async def discover(
    server_id: UUID,
    *,
    actor: Actor,
    kind: str = Check.Kind.DISCOVERY,
    of: str = "",
    patience_s: float | None = None,
) -> Discovered:
    """Survey the server and keep what it declares; status and a `Check` row tell how it went.

    Where each person signs in, a person's discovery uses their own login, and one in the background
    that of any member whose login holds. `of` names a holder whose connection, where it lives, is
    asked: lists may differ by connection. `patience_s` is how long the installation of its package
    is waited for, by default as long as for a start. Raises `UpstreamError` (or another `Problem`)
    after having recorded it; that one person has to sign in says nothing about the server.
    `Removed` where there is no such server, or none any more.
    """
    try:
        return await _discover(server_id, actor=actor, kind=kind, of=of, patience_s=patience_s)
    except Server.DoesNotExist:
        raise Removed() from None


async def _discover(
    server_id: UUID, *, actor: Actor, kind: str, of: str, patience_s: float | None
) -> Discovered:
    orm = runtime().aside
    server = await orm(Server.objects.get, pk=server_id)
    await orm(record_attempt, server)
    person = UUID(actor.id) if server.by_person and actor.kind == "user" else None
    try:
        endpoint = await orm(endpoint_of, server)
        reached = for_person(endpoint, person) if person else await for_background(endpoint)
        if patience_s is not None:
            await installed(replace(reached, patience_s=patience_s))
        if server.speaks_mcp:
            survey = await connections().survey(reached, of=of)
        else:
            survey = await survey_document(server, reached)
            await connections().request(reached, "ping", holder=f"survey:{server_id}")
        judgements = await _judged(survey)
        readings = await _readings(server, survey)
    except Problem as problem:
        if person and problem.code == LoginNeeded.code:
            await orm(forget_attempt, server)
        else:
            await orm(record_failure, server_id, kind, problem)
        raise
    return await orm(keep, server_id, survey, judgements, readings, actor=actor, kind=kind)


async def _judged(survey: Survey) -> Judgements:
    """Judge the schemas of all tools, in a child process (DESIGN section 3)."""
    tools = [item for item in survey.items if item.kind == "tool" and not item.fault]
    verdicts = await judge_all([item.payload.get("inputSchema", {}) for item in tools])
    return {item.name: verdict for item, verdict in zip(tools, verdicts, strict=True)}


@dataclass(frozen=True)
class Readings:
    """What was found in definitions that are new or changed, by kind and name."""

    names: Around = field(default_factory=Around)
    findings: Mapping[Key, Findings] = field(default_factory=dict)

    def of(self, item: Item) -> Findings:
        """Return the findings of one; it is read now if it changed since they were."""
        found = self.findings.get((item.kind, item.name))
        return read(item.payload, self.names) if found is None else found


async def _readings(server: Server, survey: Survey) -> Readings:
    """Read what is new or changed for what hides and what orders, beside loop and database."""
    unread, names = await runtime().aside(_unread, server, survey)
    return Readings(names, await read_all(unread, names))


def _unread(server: Server, survey: Survey) -> tuple[dict[Key, Any], Around]:
    """Return the declarations that nobody has read, and the names around them (two queries)."""
    known = {(row.kind, row.name): row for row in server.definitions.defer("payload", "pinned")}
    unread: dict[Key, Any] = {
        (item.kind, item.name): item.payload
        for item in survey.items
        if len(item.name) <= NAME_LENGTH
        and ((row := known.get((item.kind, item.name))) is None or not _as_read(row, item))
    }
    return unread, around(server, (item.name for item in survey.items))


@written_last()
def keep(
    server_id: UUID,
    survey: Survey,
    judgements: Judgements,
    readings: Readings | None = None,
    *,
    actor: Actor,
    kind: str,
) -> Discovered:
    """Write a survey into rows: one transaction, audited when anything about it changed.

    What is not in `readings` is read now.
    """
    lock(rows := Server.objects.filter(pk=server_id))
    server = rows.get()
    fresh, altered, gone = _compared(server, survey, judgements, readings or Readings())
    first = server.discovered_at is None
    renamed = _find_rename(server, survey)
    record_success(server, kind, survey)
    if fresh or altered or gone or renamed:
        _write(server, fresh, altered, gone, renamed, actor=actor, first=first)
    if renamed:
        _tell_renamed(server, renamed)
    kept = server.definitions.all()
    kept.filter(present=True).update(last_seen_at=timezone.now())
    if fresh or altered:
        _tell_waiting(server, [row.pk for row in (*fresh, *altered)])
    return Discovered(
        tools=tuple(kept.tools().filter(present=True).values_list("name", flat=True)),
        new=len(fresh),
        changed=len(altered),
        gone=len(gone),
        waiting=kept.waiting().count(),
        refused=kept.exclude(fault="").count(),
        latency_ms=survey.latency_ms,
        notices=survey.notices,
    )


def _compared(
    server: Server, survey: Survey, judgements: Judgements, readings: Readings
) -> tuple[list[Definition], list[Definition], list[Definition]]:
    """Return what is new, what changed and what is gone, the first two as they will be kept."""
    known = {(row.kind, row.name): row for row in server.definitions.all()}
    seen = {(item.kind, item.name): item for item in survey.items if len(item.name) <= NAME_LENGTH}
    changed = {
        key: row
        for key, item in seen.items()
        if _alter(row := known.get(key) or _new(server, item), item, judgements, readings)
    }
    fresh = [row for key, row in changed.items() if key not in known]
    altered = [row for key, row in changed.items() if key in known]
    # A listing that broke off says nothing about what it didn't come to.
    gone = [
        row
        for key, row in known.items()
        if key not in seen and row.present and row.kind in survey.complete
    ]
    return fresh, altered, gone


def _write(
    server: Server,
    fresh: list[Definition],
    altered: list[Definition],
    gone: list[Definition],
    renamed: Mapping[str, str],
    *,
    actor: Actor,
    first: bool,
) -> None:
    details: dict[str, Any] = {
        "new": _named(fresh),
        "changed": _named(altered),
        "gone": _named(gone),
    }
    if renamed:
        details["renamed"] = dict(renamed)
    with changing(server, actor, "definitions_discovered", details):
        Definition.objects.bulk_create(fresh)
        for row in altered:
            row.save()
        Definition.objects.filter(pk__in=[row.pk for row in gone]).update(present=False)
        if server.approval == Server.Approval.ALWAYS or (
            server.approval == Server.Approval.FIRST and first
        ):
            pin_all(server, [*fresh, *altered], by=f"approval:{server.approval}")
        if renamed and server.approval != Server.Approval.ALWAYS:
            server.definitions.exclude(pinned_digest="").update(
                pinned=None, pinned_digest="", pinned_at=None, pinned_by=""
            )


def _find_rename(server: Server, survey: Survey) -> dict[str, str]:
    """Return the names that an MCP server gave itself before and gives itself now, if they differ.

    A server that calls itself something else may be another one, so what was approved of it is
    reviewed again. One that has no name, or had none, says nothing by it.
    """
    if not server.speaks_mcp:
        return {}
    for member in ("name", "title"):
        old, new = (_text(info.get(member)) for info in (server.server_info, survey.server_info))
        if old and new and old != new:
            return {"from": visible(old, NAME_SHOWN), "to": visible(new, NAME_SHOWN)}
    return {}


def _tell_renamed(server: Server, renamed: Mapping[str, str]) -> None:
    notify(
        server.organization_id,
        "definitions_waiting",
        outages.subject_of(server, "tools"),
        say(
            "{server} calls itself {new} now, and called itself {old} before. Its approvals were "
            "withdrawn: review its tools again before they can be called.",
            server=server.name,
            new=renamed["to"],
            old=renamed["from"],
        ),
        topic=f"renamed:{server.pk}:{renamed['to']}",
    )


def _tell_waiting(server: Server, found: list[UUID]) -> None:
    """Tell people what of this discovery nobody has read; the same is told once."""
    rows = server.definitions.waiting().filter(pk__in=found)
    waiting = sorted(rows.values_list("kind", "name", "digest"))
    if not waiting:
        return
    names = ", ".join(name or kind for kind, name, _digest in waiting[:NAMES_TOLD])
    more = ", …" if len(waiting) > NAMES_TOLD else ""
    notify(
        server.organization_id,
        "definitions_waiting",
        outages.subject_of(server, "tools"),
        say(
            "{server} offers what is new or changed ({n}): {names}. Nothing of it can be called "
            "before somebody has read and approved it.",
            server=server.name,
            n=len(waiting),
            names=names + more,
        ),
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


def _as_read(row: Definition, item: Item) -> bool:
    """Tell whether a row says what was declared, and nothing more could be found in it.

    What older rules refused is judged anew; what they passed is read again by `rescanning`.
    """
    current = row.rules_version >= RULES or not row.fault
    same = row.present and bool(item.fault) <= bool(row.fault)
    # All other faults lie in the definition itself.
    same = same and (row.fault == DECLARED_TWICE) == (item.fault == DECLARED_TWICE)
    return (
        same
        and current
        and (row.digest == digest(item.payload) or same_value(row.payload, storable(item.payload)))
    )


def _alter(row: Definition, item: Item, judgements: Judgements, readings: Readings) -> bool:
    """Put what was declared into `row`; tell whether that changes it."""
    if _as_read(row, item):
        return False
    row.payload = storable(item.payload)
    row.digest = digest(item.payload)
    row.present = True
    row.title = _text(item.payload.get("title"))[:255]
    row.description = _text(item.payload.get("description"))[:DESCRIPTION_KEPT]
    row.findings = readings.of(item)
    row.rules_version = RULES
    row.fault = item.fault or _fault(row, judgements.get(item.name))
    return True


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _fault(row: Definition, judgement: Judgement | None) -> str:
    """Say why this declaration can never be used, if so: hard findings, or a refused schema."""
    if hard := hard_fault(row.findings):
        return hard
    if row.kind != Definition.Kind.TOOL or judgement is None:
        return ""
    row.schema_verdict = judgement.verdict
    return judgement.reason if judgement.verdict == "refused" else ""
