"""Discovery: store the definitions that a server declares, with digests.

New and changed definitions need review unless the server's approval mode trusts them; missing ones
are marked and keep their pin; an invalid definition never hides the others.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.utils import timezone

from bonobot.core.db.transactions import lock_rows
from bonobot.core.i18n.messages import format_count, format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import record_changes_at_end
from bonobot.ledger.types import Actor
from bonobot.notifications.notify import notify
from mcp_servers.audit import record_server_change
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.list_definitions import DECLARED_TWICE, RawDefinition, ServerDeclarations
from mcp_servers.client.package_installation import install_package
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import notify_pending_review, pin_trusted_definitions
from mcp_servers.health import outages
from mcp_servers.health.server_status import (
    record_attempt,
    record_failure,
    record_success,
    undo_attempt,
)
from mcp_servers.models import Definition, HealthCheck, Server
from mcp_servers.models.definitions import MAX_NAME_LENGTH
from mcp_servers.oauth_client.access_tokens import build_background_endpoint, build_person_endpoint
from mcp_servers.oauth_client.types import LoginNeeded
from mcp_servers.openapi.discovery import discover_operations
from mcp_servers.scanning.definitions import RULES_VERSION
from mcp_servers.scanning.services import (
    Findings,
    KnownToolNames,
    collect_all_findings,
    collect_findings,
    describe_hard_finding,
    load_tool_names,
)
from mcp_servers.schemas import SchemaVerdict
from mcp_servers.schemas.subprocess_pool import classify_schemas
from mcp_servers.tool_names import matches_tool_name

MAX_DESCRIPTION_LENGTH = 4096
MAX_NAME_SHOWN = 100
SERVER_NAMES = ("name", "title")  # of an MCP server

SchemaVerdicts = Mapping[str, SchemaVerdict]
Key = tuple[str, str]
MAX_CONCURRENT_DISCOVERIES = 16


@dataclass(frozen=True)
class DiscoveryResult:
    """The result of a discovery: tool names and counts."""

    tools: tuple[str, ...]
    new: int
    changed: int
    removed: int
    pending_review: int
    refused: int
    latency_ms: int
    notices: tuple[str, ...]


class ServerRemoved(NotFound):
    """The server was deleted before or during the discovery."""

    def __init__(self) -> None:
        super().__init__(
            format_message("The server was deleted in the meantime."),
            remedy=format_message("Add it again if you still need it."),
        )


async def run_discovery(
    server_id: UUID,
    *,
    actor: Actor,
    kind: str = HealthCheck.Kind.DISCOVERY,
    preferred_holder: str = "",
    install_wait_s: float | None = None,
) -> DiscoveryResult:
    """Fetch the server's declarations and store them with status and a `Check` row.

    If each person signs in separately, a person's discovery uses their own login, and a background
    one that of any signed-in member. An open connection of `preferred_holder` is used, as lists may
    differ by connection. `install_wait_s` is how long to wait for the installation of the package,
    by default as long as for a start. Raises `UpstreamError` (or another `Problem`) after recording
    it (except that a person has to sign in), and `ServerRemoved` if the server doesn't exist.
    """
    try:
        return await _run_discovery(
            server_id,
            actor=actor,
            kind=kind,
            preferred_holder=preferred_holder,
            install_wait_s=install_wait_s,
        )
    except Server.DoesNotExist:
        raise ServerRemoved() from None


async def _run_discovery(
    server_id: UUID, *, actor: Actor, kind: str, preferred_holder: str, install_wait_s: float | None
) -> DiscoveryResult:
    orm = get_runtime().run_background_orm
    server = await orm(Server.objects.get, pk=server_id)
    await orm(record_attempt, server)
    person_id = UUID(actor.id) if server.by_person and actor.kind == "user" else None
    try:
        endpoint = await orm(build_endpoint, server)
        signed_endpoint = (
            build_person_endpoint(endpoint, person_id)
            if person_id
            else await build_background_endpoint(endpoint)
        )
        if install_wait_s is not None:
            await install_package(replace(signed_endpoint, install_wait_s=install_wait_s))
        if server.speaks_mcp:
            declarations = await get_connection_pool().fetch_declarations(
                signed_endpoint, preferred_holder=preferred_holder
            )
        else:
            declarations = await discover_operations(server, signed_endpoint)
            await get_connection_pool().send_request(
                signed_endpoint, "ping", holder=f"survey:{server_id}"
            )
        verdicts = await _inspect_schemas(declarations)
        findings = await _inspect_definitions(server, declarations)
    except Problem as problem:
        if person_id and problem.code == LoginNeeded.code:
            await orm(undo_attempt, server)
        else:
            await orm(record_failure, server_id, kind, problem)
        raise
    return await orm(
        save_declarations, server_id, declarations, verdicts, findings, actor=actor, kind=kind
    )


async def _inspect_schemas(declarations: ServerDeclarations) -> SchemaVerdicts:
    """Classify the schemas of all tools in a child process."""
    tools = [item for item in declarations.items if item.kind == "tool" and not item.fault]
    verdicts = await classify_schemas([item.payload.get("inputSchema", {}) for item in tools])
    return {item.name: verdict for item, verdict in zip(tools, verdicts, strict=True)}


@dataclass(frozen=True)
class DefinitionFindings:
    """Findings in new and changed definitions, by kind and name."""

    names: KnownToolNames = field(default_factory=KnownToolNames)
    findings: Mapping[Key, Findings] = field(default_factory=dict)

    def get_findings(self, item: RawDefinition) -> Findings:
        """Return the findings of one definition; scan it now if there are none yet."""
        findings = self.findings.get((item.kind, item.name))
        return collect_findings(item.payload, self.names) if findings is None else findings


async def _inspect_definitions(
    server: Server, declarations: ServerDeclarations
) -> DefinitionFindings:
    """Scan new and changed definitions, without blocking loop or database."""
    unread, names = await get_runtime().run_background_orm(_load_unread, server, declarations)
    return DefinitionFindings(names, await collect_all_findings(unread, names))


def _load_unread(
    server: Server, declarations: ServerDeclarations
) -> tuple[dict[Key, Any], KnownToolNames]:
    """Return unscanned definitions and the known tool names (two queries)."""
    existing = {(row.kind, row.name): row for row in server.definitions.defer("payload", "pinned")}
    unread: dict[Key, Any] = {
        (item.kind, item.name): item.payload
        for item in declarations.items
        if len(item.name) <= MAX_NAME_LENGTH
        and ((row := existing.get((item.kind, item.name))) is None or not _is_unchanged(row, item))
    }
    return unread, load_tool_names(server, (item.name for item in declarations.items))


@record_changes_at_end()
def save_declarations(
    server_id: UUID,
    declarations: ServerDeclarations,
    verdicts: SchemaVerdicts,
    findings: DefinitionFindings | None = None,
    *,
    actor: Actor,
    kind: str,
) -> DiscoveryResult:
    """Store declarations in one transaction; record changes in the audit log.

    Definitions without `findings` are scanned now.
    """
    lock_rows(rows := Server.objects.filter(pk=server_id))
    server = rows.get()
    new, changed_definitions, missing = _compare_definitions(
        server, declarations, verdicts, findings or DefinitionFindings()
    )
    first = server.discovered_at is None
    renamed = _find_rename(server, declarations)
    declarations = _keep_known_names(server, declarations)
    record_success(server, kind, declarations)
    if new or changed_definitions or missing or renamed:
        _write_changes(server, new, changed_definitions, missing, renamed, actor=actor, first=first)
    if renamed and server.approval != Server.Approval.ALWAYS:  # else nothing was withdrawn
        _notify_renamed(server, renamed)
    definitions = server.definitions.all()
    definitions.filter(present=True).update(last_seen_at=timezone.now())
    if new or changed_definitions:
        notify_pending_review(server, [row.pk for row in (*new, *changed_definitions)])
    return DiscoveryResult(
        tools=tuple(definitions.tools().filter(present=True).values_list("name", flat=True)),
        new=len(new),
        changed=len(changed_definitions),
        removed=len(missing),
        pending_review=definitions.awaiting_review().count(),
        refused=definitions.exclude(fault="").count(),
        latency_ms=declarations.latency_ms,
        notices=declarations.notices,
    )


def _compare_definitions(
    server: Server,
    declarations: ServerDeclarations,
    verdicts: SchemaVerdicts,
    findings: DefinitionFindings,
) -> tuple[list[Definition], list[Definition], list[Definition]]:
    """Return new, changed and missing definitions, the first two updated but not saved."""
    existing = {(row.kind, row.name): row for row in server.definitions.all()}
    seen_keys = {
        (item.kind, item.name): item
        for item in declarations.items
        if len(item.name) <= MAX_NAME_LENGTH
    }
    changed_definitions = {
        key: row
        for key, item in seen_keys.items()
        if _update_definition(
            row := existing.get(key) or _build_definition(server, item), item, verdicts, findings
        )
    }
    new = [row for key, row in changed_definitions.items() if key not in existing]
    updated = [row for key, row in changed_definitions.items() if key in existing]
    # An incomplete listing says nothing about the definitions after its end.
    missing = [
        row
        for key, row in existing.items()
        if key not in seen_keys and row.present and row.kind in declarations.complete
    ]
    return new, updated, missing


def _write_changes(
    server: Server,
    new: list[Definition],
    changed_definitions: list[Definition],
    missing: list[Definition],
    rename: Mapping[str, str],
    *,
    actor: Actor,
    first: bool,
) -> None:
    details: dict[str, Any] = {
        "new": _build_audit_entries(new),
        "changed": _build_audit_entries(changed_definitions),
        "gone": _build_audit_entries(missing),
    }
    if rename:
        details["renamed"] = dict(rename)
    with record_server_change(server, actor, "definitions_discovered", details):
        Definition.objects.bulk_create(new)
        for row in changed_definitions:
            row.save()
        Definition.objects.filter(pk__in=[row.pk for row in missing]).update(present=False)
        if server.approval == Server.Approval.ALWAYS or (
            server.approval == Server.Approval.FIRST and first
        ):
            pin_trusted_definitions(
                server, [*new, *changed_definitions], pinned_by=f"approval:{server.approval}"
            )
        if rename and server.approval != Server.Approval.ALWAYS:
            server.definitions.exclude(pinned_digest="").update(
                pinned=None, pinned_digest="", pinned_at=None, pinned_by=""
            )


def _find_rename(server: Server, declarations: ServerDeclarations) -> dict[str, str]:
    """Return the old and new name that an MCP server declares, if they differ.

    A renamed server may be a different one, so its definitions are reviewed again. A missing name
    means nothing.
    """
    if not server.speaks_mcp:
        return {}
    for member in SERVER_NAMES:
        old, new = (
            _to_text(info.get(member)) for info in (server.server_info, declarations.server_info)
        )
        if old and new and old != new:
            return {
                "from": make_visible(old, MAX_NAME_SHOWN),
                "to": make_visible(new, MAX_NAME_SHOWN),
            }
    return {}


def _keep_known_names(server: Server, declarations: ServerDeclarations) -> ServerDeclarations:
    """Return declarations with the last known names where there are none.

    Otherwise, a server could have no name for a while and then another one.
    """
    server_info = declarations.server_info
    missing = [member for member in SERVER_NAMES if not _to_text(server_info.get(member))]
    known_names = {
        member: text for member in missing if (text := _to_text(server.server_info.get(member)))
    }
    return replace(declarations, server_info=server_info | known_names)


def _notify_renamed(server: Server, rename: Mapping[str, str]) -> None:
    notify(
        server.organization_id,
        "definitions_waiting",
        outages.build_server_subject(server, "tools"),
        format_message(
            "{server} now reports the name {new} instead of {old}. Its approvals "
            "were revoked. Review its tools again before they can be called.",
            server=server.name,
            new=rename["to"],
            old=rename["from"],
        ),
        topic=f"renamed:{server.pk}:{rename['to']}",
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
    patterns: list[str] = server.only_tools
    return not patterns or any(matches_tool_name(pattern, tool) for pattern in patterns)


def _is_unchanged(row: Definition, item: RawDefinition) -> bool:
    """Return whether a row matches the declaration and needs no new scan.

    What older rules refused is scanned again here; what they passed, by a rescan
    (`scanning.rescan_definitions`).
    """
    is_current = row.rules_version >= RULES_VERSION or not row.fault
    is_same = row.present and bool(item.fault) <= bool(row.fault)
    # All other faults follow from the payload.
    is_same = is_same and (row.fault == DECLARED_TWICE) == (item.fault == DECLARED_TWICE)
    return is_same and is_current and row.has_payload(item.payload)


def _update_definition(
    row: Definition, item: RawDefinition, verdicts: SchemaVerdicts, findings: DefinitionFindings
) -> bool:
    """Update `row` to the declaration; return whether it changed."""
    if _is_unchanged(row, item):
        return False
    row.set_payload(item.payload)
    row.present = True
    texts = item.payload
    if item.kind == "skill" and isinstance(frontmatter := texts.get("frontmatter"), dict):
        texts = {"title": frontmatter.get("name"), **frontmatter}
    row.title = _to_text(texts.get("title"))[:255]
    row.description = _to_text(texts.get("description"))[:MAX_DESCRIPTION_LENGTH]
    row.findings = findings.get_findings(item)
    row.rules_version = RULES_VERSION
    row.fault = item.fault or _find_fault(row, verdicts.get(item.name))
    return True


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _find_fault(row: Definition, verdict: SchemaVerdict | None) -> str:
    """Return why a definition can't be used (hard findings, refused schema), or ""."""
    if hard_finding := describe_hard_finding(row.findings):
        return hard_finding
    if row.kind != Definition.Kind.TOOL or verdict is None:
        return ""
    row.schema_verdict = verdict.verdict
    return verdict.reason if verdict.verdict == "refused" else ""


@dataclass(frozen=True)
class DiscoveryAttempt:
    """The discovery result of one server, or the problem.

    `pending_review` is the number of definitions that are pending review.
    """

    server: Server
    result: DiscoveryResult | None = None
    problem: Problem | None = None
    pending_review: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation."""
        if self.result is None:
            return {"status": "error"} | (self.problem.as_dict() if self.problem else {})
        return {
            "status": "connected",
            "tools": len(self.result.tools),
            "pending_review": self.pending_review,
            "refused": self.result.refused,
            "latency_ms": self.result.latency_ms,
        }

    def format_summary(self) -> str:
        if self.result is None:
            problem = self.problem
            return f"{problem.code}: {problem} {problem.remedy}".strip() if problem else ""
        tools = format_count(len(self.result.tools), "tool")
        review = (
            f", {format_count(self.pending_review, 'definition')} to review"
            if self.pending_review
            else ""
        )
        return f"{tools} in {self.result.latency_ms} ms{review}"


def discover_servers(
    servers: Sequence[Server],
    *,
    actor: Actor,
    kind: str = HealthCheck.Kind.DISCOVERY,
    on_attempt: Callable[[], object] = lambda: None,
) -> list[DiscoveryAttempt]:
    """Discover each server; a failure is recorded on that server only.

    `on_attempt` is called after each attempt.
    """
    if not servers:
        return []
    return get_runtime().call(_discover_all, servers, actor, kind, on_attempt)


async def _discover_all(
    servers: Sequence[Server], actor: Actor, kind: str, on_attempt: Callable[[], object]
) -> list[DiscoveryAttempt]:
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_DISCOVERIES)

    async def discover_one(server: Server) -> DiscoveryAttempt:
        async with semaphore:
            try:
                result = await run_discovery(server.pk, actor=actor, kind=kind)
                return DiscoveryAttempt(server, result=result, pending_review=result.pending_review)
            except Problem as problem:
                return DiscoveryAttempt(server, problem=problem)
            finally:
                on_attempt()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(discover_one(server)) for server in servers]
    return [task.result() for task in tasks]
