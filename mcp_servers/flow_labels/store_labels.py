"""The labels that calls left in a server's store.

A server's store is all data that it keeps. Its key doesn't depend on the server's name or
attachments.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import transaction

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.db.object_version import VersionConflict, is_current
from bonobot.core.db.transactions import lock_row, lock_rows
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict
from bonobot.ledger.audit.admin_changes import describe_row, record_finished_change
from bonobot.ledger.models import AuditRow, FlowCell, Head, StoreLabel
from mcp_servers.audit import build_server_event
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels
from mcp_servers.flow_labels.token_labels import require_no_held_labels
from mcp_servers.models import Server

MAX_LISTED = 50
MICROSECONDS = 1_000_000
# At most this much do the clocks of a process and of the database differ; `doctor` checks it.
MAX_CLOCK_SKEW = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class ServerStore:
    """The labels of a server's data, and the last write of a caller with labels.

    `version_parts` (see `object_version`) change with each such write, also with one of the
    server's name or configuration, whose labels are cleared together with those of the data.
    """

    labels: tuple[FlowLabel, ...]
    written_at: datetime | None
    version_parts: Mapping[str, Any]


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


def load_server_store(server: Server) -> ServerStore:
    """Return the labels of a server's store and its last labeled write (1 query)."""
    cells = FlowCell.objects.exclude(labels=0).in_bulk([*_list_keys(server)])
    writes = [(cells[key].labels, cells[key].touched) for key in _list_keys(server) if key in cells]
    cell = cells.get(_get_store_key(server))
    labels = decode_labels(cell.labels) if cell else ()
    return ServerStore(
        labels,
        written_at=convert_microseconds(cell.touched) if cell else None,
        version_parts={"labels": [*labels], "written_at": [[*write] for write in writes]},
    )


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
    principal: Principal, server: Server, *, version: str | None = None
) -> Sequence[FlowLabel]:
    """Clear the labels of a server's store and configuration, effective immediately.

    Returns those of the store. Raises `Forbidden` without the permission to approve definitions,
    `LabeledCaller`, and `Conflict`: if a caller with labels wrote since `version`
    (`version_conflict`), or such a call may still write (`still_running`).
    """
    principal.require(Action.APPROVE_DEFINITIONS)
    require_no_held_labels(principal)
    with transaction.atomic():
        # Labeled writes of the configuration lock the server, and admissions the audit log. Both
        # are locked before the version is compared, and before the cells as in admissions.
        lock_row(server)
        lock_rows(Head.objects.filter(pk=server.organization_id))
        store = load_server_store(server)
        require_store_version(store.version_parts, version)
        _require_finished_writes(server, store)
        record_finished_change(
            **describe_row("mcp_server", server),
            actor=principal.actor,
            action="store_labels_cleared",
            details={"labels": [*store.labels]},
            governed=False,
            event=build_server_event(server),
        )
        FlowCell.objects.filter(pk__in=_list_keys(server)).update(labels=0)
        now = int(datetime.now(UTC).timestamp() * MICROSECONDS)
        uncleared = StoreLabel.objects.filter(key=_get_store_key(server), cleared=None)
        uncleared.update(cleared=now, cleared_by=principal.label[:255])
    return store.labels


def require_store_version(version_parts: Mapping[str, Any], version: str | None) -> None:
    """Raise `Conflict` if a person who clears labels hasn't seen all labeled writes.

    None: not checked.
    """
    if version is not None and not is_current(version_parts, version):
        raise Conflict(
            "Not cleared. The labels, or data with labels, changed after the page was loaded.",
            code=VersionConflict.code,
            remedy="Check that data, too, then clear the labels again.",
        )


def _require_finished_writes(server: Server, store: ServerStore) -> None:
    """Raise `Conflict` while a call that was admitted by the last labeled write is running.

    What it writes now can't have been checked. Calls that were admitted later hold no labels.
    """
    if store.written_at is None:
        return
    calls = AuditRow.objects.for_organization(server.organization_id).running()
    calls = calls.filter(server_id=server.pk, opened_at__lte=store.written_at + MAX_CLOCK_SKEW)
    if call := calls.order_by("opened_at").first():
        raise Conflict(
            format_message(
                "Not cleared. A call of {tool} that may write data with labels is still running.",
                tool=call.tool_name or call.action,
            ),
            code="still_running",
            remedy="Wait until it has ended, check the data that it wrote, then try again.",
        )


def _describe_written_labels(row: StoreLabel, call: AuditRow | None) -> WrittenLabels:
    return WrittenLabels(
        labels=decode_labels(row.labels),
        call_id=row.call_id,
        session_id=row.session_id,
        tool=call.tool_name if call else "",
        caller=call.actor_label if call else "",
        created_at=convert_microseconds(row.created),
        cleared_at=convert_microseconds(row.cleared) if row.cleared is not None else None,
        cleared_by=row.cleared_by,
    )


def convert_microseconds(microseconds: int) -> datetime:
    """Return the UTC time of a cell, which is in microseconds since 1970."""
    return datetime.fromtimestamp(microseconds / MICROSECONDS, UTC)


def _get_store_key(server: Server) -> str:
    return build_flow_key(server.organization_id, "server", server.pk)


def _list_keys(server: Server) -> tuple[str, str]:
    """Return the keys of a server's store, and of its name and configuration."""
    return _get_store_key(server), build_flow_key(server.organization_id, "text", server.pk)
