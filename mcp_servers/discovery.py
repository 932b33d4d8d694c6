"""Discovery: store the definitions that a server declares, with digests.

New and changed definitions need review unless the server's approval mode trusts them; missing ones
are marked and keep their pin; an invalid definition never hides the others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.utils import timezone

from bonobot.core.db.transactions import lock
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_json_digest, same_value
from bonobot.core.text.untrusted_text import make_storable, make_visible
from bonobot.ledger.audit.admin_changes import record_changes_at_end
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import notify
from mcp_servers.audit import record_server_change
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.list_definitions import DECLARED_TWICE, RawDefinition, ServerDeclarations
from mcp_servers.client.package_installation import install_package
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import pin_all
from mcp_servers.health import services as health
from mcp_servers.health.services import (
    forget_attempt,
    record_attempt,
    record_failure,
    record_success,
)
from mcp_servers.models import Check, Definition, Server
from mcp_servers.models.definitions import NAME_LENGTH
from mcp_servers.oauth_client.access_tokens import build_background_endpoint, build_person_endpoint
from mcp_servers.oauth_client.types import LoginNeeded
from mcp_servers.openapi.discovery import discover_operations
from mcp_servers.scanning.definitions import RULES
from mcp_servers.scanning.services import (
    Findings,
    KnownToolNames,
    describe_hard_finding,
    load_tool_names,
    read,
    read_all,
)
from mcp_servers.schemas import SchemaVerdict
from mcp_servers.schemas.subprocess_pool import classify_schemas
from mcp_servers.tool_names import matches_tool_name

DESCRIPTION_KEPT = 4096
NAMES_TOLD = 10
NAME_SHOWN = 100

Judgements = Mapping[str, SchemaVerdict]
Key = tuple[str, str]


@dataclass(frozen=True)
class DiscoveryResult:
    """The result of a discovery: tool names and counts."""

    tools: tuple[str, ...]
    new: int
    changed: int
    gone: int
    waiting: int
    refused: int
    latency_ms: int
    notices: tuple[str, ...]


class ServerRemoved(NotFound):
    """The server was deleted before or during the discovery."""

    def __init__(self) -> None:
        super().__init__(
            format_message("The server was removed meanwhile."),
            remedy=format_message("Add it again if it was needed."),
        )


async def discover(
    server_id: UUID,
    *,
    actor: Actor,
    kind: str = Check.Kind.DISCOVERY,
    of: str = "",
    patience_s: float | None = None,
) -> DiscoveryResult:
    """Fetch the server's declarations and store them with status and a `Check` row.

    If each person signs in separately, a person's discovery uses their own login, and a background
    one that of any signed-in member. An open connection of `preferred_holder` is used, as lists may
    differ by connection. `patience_s` is how long to wait for the installation of the package, by
    default as long as for a start. Raises `UpstreamError` (or another `Problem`) after recording it
    (except that a person has to sign in), and `ServerRemoved` if the server doesn't exist.
    """
    try:
        return await _discover(server_id, actor=actor, kind=kind, of=of, patience_s=patience_s)
    except Server.DoesNotExist:
        raise ServerRemoved() from None


async def _discover(
    server_id: UUID, *, actor: Actor, kind: str, of: str, patience_s: float | None
) -> DiscoveryResult:
    orm = get_runtime().aside
    server = await orm(Server.objects.get, pk=server_id)
    await orm(record_attempt, server)
    person = UUID(actor.id) if server.by_person and actor.kind == "user" else None
    try:
        endpoint = await orm(build_endpoint, server)
        reached = (
            build_person_endpoint(endpoint, person)
            if person
            else await build_background_endpoint(endpoint)
        )
        if patience_s is not None:
            await install_package(replace(reached, patience_s=patience_s))
        if server.speaks_mcp:
            survey = await get_connection_pool().survey(reached, of=of)
        else:
            survey = await discover_operations(server, reached)
            await get_connection_pool().request(reached, "ping", holder=f"survey:{server_id}")
        judgements = await _inspect_schemas(survey)
        readings = await _inspect_definitions(server, survey)
    except Problem as problem:
        if person and problem.code == LoginNeeded.code:
            await orm(forget_attempt, server)
        else:
            await orm(record_failure, server_id, kind, problem)
        raise
    return await orm(keep, server_id, survey, judgements, readings, actor=actor, kind=kind)


async def _inspect_schemas(survey: ServerDeclarations) -> Judgements:
    """Classify the schemas of all tools in a child process."""
    tools = [item for item in survey.items if item.kind == "tool" and not item.fault]
    verdicts = await classify_schemas([item.payload.get("inputSchema", {}) for item in tools])
    return {item.name: verdict for item, verdict in zip(tools, verdicts, strict=True)}


@dataclass(frozen=True)
class DefinitionFindings:
    """Findings in new and changed definitions, by kind and name."""

    names: KnownToolNames = field(default_factory=KnownToolNames)
    findings: Mapping[Key, Findings] = field(default_factory=dict)

    def of(self, item: RawDefinition) -> Findings:
        """Return the findings of one definition; scan it now if there are none yet."""
        found = self.findings.get((item.kind, item.name))
        return read(item.payload, self.names) if found is None else found


async def _inspect_definitions(server: Server, survey: ServerDeclarations) -> DefinitionFindings:
    """Scan new and changed definitions, without blocking loop or database."""
    unread, names = await get_runtime().aside(_load_unread, server, survey)
    return DefinitionFindings(names, await read_all(unread, names))


def _load_unread(
    server: Server, survey: ServerDeclarations
) -> tuple[dict[Key, Any], KnownToolNames]:
    """Return unscanned definitions and the known tool names (two queries)."""
    known = {(row.kind, row.name): row for row in server.definitions.defer("payload", "pinned")}
    unread: dict[Key, Any] = {
        (item.kind, item.name): item.payload
        for item in survey.items
        if len(item.name) <= NAME_LENGTH
        and ((row := known.get((item.kind, item.name))) is None or not _as_read(row, item))
    }
    return unread, load_tool_names(server, (item.name for item in survey.items))


@record_changes_at_end()
def keep(
    server_id: UUID,
    survey: ServerDeclarations,
    judgements: Judgements,
    readings: DefinitionFindings | None = None,
    *,
    actor: Actor,
    kind: str,
) -> DiscoveryResult:
    """Store declarations in one transaction; record changes in the audit log.

    Definitions without `findings` are scanned now.
    """
    lock(rows := Server.objects.filter(pk=server_id))
    server = rows.get()
    fresh, altered, gone = _compare_definitions(
        server, survey, judgements, readings or DefinitionFindings()
    )
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
        _notify_pending_review(server, [row.pk for row in (*fresh, *altered)])
    return DiscoveryResult(
        tools=tuple(kept.tools().filter(present=True).values_list("name", flat=True)),
        new=len(fresh),
        changed=len(altered),
        gone=len(gone),
        waiting=kept.waiting().count(),
        refused=kept.exclude(fault="").count(),
        latency_ms=survey.latency_ms,
        notices=survey.notices,
    )


def _compare_definitions(
    server: Server, survey: ServerDeclarations, judgements: Judgements, readings: DefinitionFindings
) -> tuple[list[Definition], list[Definition], list[Definition]]:
    """Return new, changed and missing definitions, the first two updated but not saved."""
    known = {(row.kind, row.name): row for row in server.definitions.all()}
    seen = {(item.kind, item.name): item for item in survey.items if len(item.name) <= NAME_LENGTH}
    changed = {
        key: row
        for key, item in seen.items()
        if _update_definition(
            row := known.get(key) or _build_definition(server, item), item, judgements, readings
        )
    }
    fresh = [row for key, row in changed.items() if key not in known]
    altered = [row for key, row in changed.items() if key in known]
    # An incomplete listing says nothing about the definitions after its end.
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
        "new": _build_audit_entries(fresh),
        "changed": _build_audit_entries(altered),
        "gone": _build_audit_entries(gone),
    }
    if renamed:
        details["renamed"] = dict(renamed)
    with record_server_change(server, actor, "definitions_discovered", details):
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


def _find_rename(server: Server, survey: ServerDeclarations) -> dict[str, str]:
    """Return the old and new name that an MCP server declares, if they differ.

    A renamed server may be a different one, so its definitions are reviewed again. A missing name
    means nothing.
    """
    if not server.speaks_mcp:
        return {}
    for member in ("name", "title"):
        old, new = (_to_text(info.get(member)) for info in (server.server_info, survey.server_info))
        if old and new and old != new:
            return {"from": make_visible(old, NAME_SHOWN), "to": make_visible(new, NAME_SHOWN)}
    return {}


def _tell_renamed(server: Server, renamed: Mapping[str, str]) -> None:
    notify(
        server.organization_id,
        "definitions_waiting",
        health.build_server_subject(server, "tools"),
        format_message(
            "{server} calls itself {new} now, and called itself {old} before. Its approvals were "
            "withdrawn: review its tools again before they can be called.",
            server=server.name,
            new=renamed["to"],
            old=renamed["from"],
        ),
        topic=f"renamed:{server.pk}:{renamed['to']}",
    )


def _notify_pending_review(server: Server, found: list[UUID]) -> None:
    """Notify about definitions to review; topics prevent repeated notifications."""
    rows = server.definitions.waiting().filter(pk__in=found)
    waiting = sorted(rows.values_list("kind", "name", "digest"))
    if not waiting:
        return
    names = ", ".join(name or kind for kind, name, _digest in waiting[:NAMES_TOLD])
    more = ", …" if len(waiting) > NAMES_TOLD else ""
    notify(
        server.organization_id,
        "definitions_waiting",
        health.build_server_subject(server, "tools"),
        format_message(
            "{server} offers what is new or changed ({n}): {names}. Nothing of it can be called "
            "before somebody has read and approved it.",
            server=server.name,
            n=len(waiting),
            names=names + more,
        ),
        topic=f"definitions:{server.pk}:{compute_json_digest(waiting)}",
    )


def _build_audit_entries(rows: Iterable[Definition]) -> list[dict[str, str]]:
    return [{"kind": row.kind, "name": row.name, "digest": row.digest} for row in rows]


def _build_definition(server: Server, item: RawDefinition) -> Definition:
    return Definition(
        organization_id=server.organization_id,
        server=server,
        kind=item.kind,
        name=item.name,
        present=False,
        enabled=item.kind != "tool" or _is_tool_selected(server, item.name),
    )


def _is_tool_selected(server: Server, tool: str) -> bool:
    """Return whether a tool matches the server's `only_tools`; all do if that is empty."""
    wanted: list[str] = server.only_tools
    return not wanted or any(matches_tool_name(pattern, tool) for pattern in wanted)


def _as_read(row: Definition, item: RawDefinition) -> bool:
    """Return whether a row matches the declaration and needs no new scan.

    What older rules refused is scanned again here; what they passed, by `scanning.services`.
    """
    current = row.rules_version >= RULES or not row.fault
    same = row.present and bool(item.fault) <= bool(row.fault)
    # All other faults follow from the payload.
    same = same and (row.fault == DECLARED_TWICE) == (item.fault == DECLARED_TWICE)
    return (
        same
        and current
        and (
            row.digest == compute_json_digest(item.payload)
            or same_value(row.payload, make_storable(item.payload))
        )
    )


def _update_definition(
    row: Definition, item: RawDefinition, judgements: Judgements, readings: DefinitionFindings
) -> bool:
    """Update `row` to the declaration; return whether it changed."""
    if _as_read(row, item):
        return False
    row.payload = make_storable(item.payload)
    row.digest = compute_json_digest(item.payload)
    row.present = True
    row.title = _to_text(item.payload.get("title"))[:255]
    row.description = _to_text(item.payload.get("description"))[:DESCRIPTION_KEPT]
    row.findings = readings.of(item)
    row.rules_version = RULES
    row.fault = item.fault or _find_fault(row, judgements.get(item.name))
    return True


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _find_fault(row: Definition, judgement: SchemaVerdict | None) -> str:
    """Return why a definition can't be used (hard findings, refused schema), or ""."""
    if hard := describe_hard_finding(row.findings):
        return hard
    if row.kind != Definition.Kind.TOOL or judgement is None:
        return ""
    row.schema_verdict = judgement.verdict
    return judgement.reason if judgement.verdict == "refused" else ""
