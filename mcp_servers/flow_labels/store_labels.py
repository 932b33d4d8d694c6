"""The labels that calls left in a server's store.

A server's store is all data that it keeps. Its key doesn't depend on the server's name or
attachments.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from django.db import transaction

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.problems import Conflict
from bonobot.ledger.audit.admin_changes import describe_row, record_finished_change
from bonobot.ledger.models import AuditRow, FlowCell, StoreLabel
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels
from mcp_servers.flow_labels.token_labels import require_no_held_labels
from mcp_servers.models import Server

MAX_LISTED = 50
MICROSECONDS = 1_000_000


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
