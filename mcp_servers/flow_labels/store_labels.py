"""Whether a call reads or writes its server's store, and the labels that calls left there.

A server's store is all data that it keeps. Its key doesn't depend on the server's name or
attachments.

Whether a call uses it is inferred from the same words as suggested labels. A call writes unless its
words say that it only reads, and reads unless they say that it only adds. A server's annotations
can add a write (`readOnlyHint: false`), but never remove one; for API operations, the annotation is
ours, from the method.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.problems import Conflict
from bonobot.ledger.audit.admin_changes import describe_row, record_finished_change
from bonobot.ledger.models import AuditRow, FlowCell, StoreLabel
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels
from mcp_servers.flow_labels.suggested_labels import (
    READ_DATA_LABELS,
    LabelContext,
    ToolClues,
    extract_clues,
    get_verb_actions,
    get_words,
    is_public_web,
)
from mcp_servers.flow_labels.token_labels import require_no_held_labels
from mcp_servers.models import Server

MAX_LISTED = 50
MICROSECONDS = 1_000_000


_READ_ACTIONS = ("read", "look")
_WRITE_ACTIONS = frozenset({"act", "change", "control", "run", "send"})
_ADD_ACTIONS = ("change", "control", "send")


@dataclass(frozen=True, slots=True)
class WrittenLabels:
    """Labels that one call left in a store, and when and by whom they were cleared."""

    labels: tuple[FlowLabel, ...]
    call_id: UUID
    session_id: UUID | None
    tool: str
    caller: str
    created_at: datetime
    cleared_at: datetime | None
    cleared_by: str


@dataclass(frozen=True, slots=True)
class StoredData:
    """Data of a server's store that a response contains."""

    server: Server


def get_store_labels(server: Server) -> tuple[FlowLabel, ...]:
    """Return the labels of a server's store, which reads add to the tools' own (1 query)."""
    cell = FlowCell.objects.filter(pk=_get_store_key(server)).first()
    return decode_labels(cell.labels) if cell else ()


def list_written_labels(server: Server) -> list[WrittenLabels]:
    """Return the calls that left labels in a server's store, latest first (2 queries)."""
    rows = list(
        StoreLabel.objects.filter(key=_get_store_key(server)).order_by("-created")[:MAX_LISTED]
    )
    calls = AuditRow.objects.for_organization(server.organization_id).in_bulk(
        [row.call_id for row in rows]
    )
    return [_describe_written_labels(row, calls.get(row.call_id)) for row in rows]


def clear_store_labels(
    principal: Principal, server: Server, *, seen_labels: Collection[str] | None = None
) -> Sequence[FlowLabel]:
    """Clear the labels of a server's store and configuration, effective immediately.

    Returns those of the store. Raises `Forbidden` without the permission to approve definitions,
    `LabeledCaller`, and `Conflict` (`version_conflict`) if the store has other labels than
    `seen_labels`.
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    require_no_held_labels(principal)
    with transaction.atomic():
        labels = get_store_labels(server)
        require_seen_labels(labels, seen_labels)
        # Audit entry first, then the cell: admissions lock in this order.
        record_finished_change(
            **describe_row("mcp_server", server),
            actor=principal.actor,
            action="store_labels_cleared",
            details={"labels": [*labels]},
            governed=False,
        )
        keys = (_get_store_key(server), build_flow_key(server.organization_id, "text", server.pk))
        FlowCell.objects.filter(pk__in=keys).update(labels=0)
        now = int(datetime.now(UTC).timestamp() * MICROSECONDS)
        uncleared = StoreLabel.objects.filter(key=_get_store_key(server), cleared=None)
        uncleared.update(cleared=now, cleared_by=principal.label[:255])
    return labels


def require_seen_labels(labels: Collection[str], seen_labels: Collection[str] | None) -> None:
    """Raise `Conflict` if a person who clears labels hasn't seen all of them; None: not checked."""
    if seen_labels is not None and not set(labels) <= set(seen_labels):
        raise Conflict(
            "Not cleared. Data with other labels was written after the page was loaded.",
            code=VersionConflict.code,
            remedy="Check that data, too, then clear the labels again.",
        )


def _describe_written_labels(row: StoreLabel, call: AuditRow | None) -> WrittenLabels:
    return WrittenLabels(
        labels=decode_labels(row.labels),
        call_id=row.call_id,
        session_id=row.session_id,
        tool=call.tool_name if call else "",
        caller=call.actor_label if call else "",
        created_at=_to_datetime(row.created),
        cleared_at=_to_datetime(row.cleared) if row.cleared is not None else None,
        cleared_by=row.cleared_by,
    )


def _to_datetime(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / MICROSECONDS, UTC)


def _get_store_key(server: Server) -> str:
    return build_flow_key(server.organization_id, "server", server.pk)


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Whether a call reads and writes its server's store; `is_public_web`: it reads the web."""

    reads: bool = True
    writes: bool = True
    is_public_web: bool = False

    def with_labels(self, labels: Collection[str]) -> "StoreUse":
        """Return the use by a tool with these labels: labels of read data imply a read."""
        read_labels = {FlowLabel.PRIVATE_DATA} if self.is_public_web else {*READ_DATA_LABELS}
        return self if self.reads or not {*labels} & read_labels else replace(self, reads=True)

    def with_answers(self) -> "StoreUse":
        """Return the use by a call that sends answers to the server's requests: it writes."""
        return replace(self, writes=True)


NO_STORE = StoreUse(reads=False, writes=False)


READS_ONLY = StoreUse(reads=True, writes=False)


def infer_store_use(kind: str, payload: Mapping[str, Any], context: LabelContext) -> StoreUse:
    """Return whether a call of a definition reads or writes its server's store."""
    if kind != "tool":
        return READS_ONLY
    clues = extract_clues(payload)
    if _is_pure(clues):
        return NO_STORE
    if context.transport == "openapi":
        return _infer_operation_use(payload, clues)
    writes = not _is_read_only(clues) or _get_read_only_hint(payload) is False
    reads_web = clues.action == "read" and not clues.is_browser_tool and is_public_web(clues)
    return StoreUse(not (reads_web or _is_add_only(clues)), writes, reads_web)


def _infer_operation_use(payload: Mapping[str, Any], clues: ToolClues) -> StoreUse:
    if _get_read_only_hint(payload) is True:
        return READS_ONLY
    return StoreUse(reads=not _is_add_only(clues), writes=True)


def _get_read_only_hint(payload: Mapping[str, Any]) -> Any:
    hints = payload.get("annotations")
    return hints.get("readOnlyHint") if isinstance(hints, Mapping) else None


def _is_pure(clues: ToolClues) -> bool:
    """Tell whether the tool stores nothing: `add` may calculate, `set_timer` stores."""
    actions = get_verb_actions("verbs")
    writing_words = {word for word in clues.name_words if actions.get(word) in _WRITE_ACTIONS}
    return clues.is_pure and not clues.can_run_code and writing_words <= get_words("other", "pure")


def _is_read_only(clues: ToolClues) -> bool:
    """Tell whether clear words say that the tool reads, and no argument allows more."""
    if clues.action not in _READ_ACTIONS or clues.is_action_guessed or clues.can_run_code:
        return False
    return not (clues.selectable_actions & _WRITE_ACTIONS or _has_statement(clues))


def _has_statement(clues: ToolClues) -> bool:
    """Tell whether an argument is a database statement and no clear verb says that it reads."""
    statement_arguments = {name.lower() for name in clues.arguments} & get_words(
        "arguments", "statement"
    )
    actions = get_verb_actions("verbs")
    return bool(statement_arguments) and not any(
        actions.get(word) == "read" for word in clues.name_words
    )


def _is_add_only(clues: ToolClues) -> bool:
    """Tell whether the tool adds data without returning existing data.

    Tools that edit a part may return the rest (`edit_file`: a diff).
    """
    if clues.action not in _ADD_ACTIONS or clues.is_action_guessed or clues.can_run_code:
        return False
    return not (
        "read" in clues.selectable_actions or {*clues.name_words} & get_words("other", "editing")
    )
