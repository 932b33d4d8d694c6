"""Record administrative changes in the transaction that makes them.

The audit entry is the last statement of the caller's transaction, so a change and its entry are
committed together, and the organization's chain is locked only briefly. A governed change
increments the policy generation, so the next admission on every host sees it.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from bonobot.core.db import object_version
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.extension_points import ExtensionList
from bonobot.ledger.types import Actor, Outcome


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """The type and outcome of a recorded event, and the columns that only some events have."""

    type: str
    outcome: Outcome = "ok"
    code: str = ""
    decision: str = "allow"
    rule: str = ""
    agent_id: UUID | None = None
    agent_name: str = ""
    server_id: UUID | None = None
    server_name: str = ""
    tool_name: str = ""
    session_id: UUID | None = None
    parent_id: UUID | None = None


CHANGE_EVENT = ChangeEvent("change")


@dataclass(slots=True, kw_only=True)
class AdminChange:
    """A change in progress; its entry can be completed until the block ends."""

    organization_id: UUID
    actor: Actor
    action: str
    resource_type: str
    resource_id: str
    resource_name: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    governed: bool = True
    event: ChangeEvent = CHANGE_EVENT
    id: UUID = field(default_factory=generate_uuid7)


TokenChangeHook = Callable[[AdminChange], None]

# Called in the transaction of each change that a token makes, and of all changes of organizations.
# The chain isn't locked yet.
token_change_hooks: ExtensionList[TokenChangeHook] = ExtensionList()


@dataclass(slots=True)
class _PendingChanges:
    """The entries and generations that a thread's outermost change writes at its end."""

    changes: list[tuple[AdminChange, datetime]] = field(default_factory=list)
    raised_generations: set[UUID] = field(default_factory=set)


class _ThreadState(threading.local):
    # Connections belong to threads, and so do their pending changes.
    pending: _PendingChanges | None = None


_thread = _ThreadState()


def describe_row(resource_type: str, row: Any, name: str | None = None) -> dict[str, Any]:
    """Return the arguments of `record_change` that identify a row, by default with its name."""
    return {
        "organization_id": row.pk if resource_type == "organization" else row.organization_id,
        "resource_type": resource_type,
        "resource_id": str(row.pk),
        "resource_name": row.name if name is None else name,
    }


@contextmanager
def record_change(
    *,
    organization_id: UUID,
    actor: Actor,
    action: str,
    resource_type: str,
    resource_id: str,
    resource_name: str = "",
    details: Mapping[str, Any] | None = None,
    governed: bool = True,
    event: ChangeEvent = CHANGE_EVENT,
) -> Iterator[AdminChange]:
    """Make a change and record it in one transaction; nothing is recorded if the block raises.

    The block may still complete the yielded `AdminChange` and the mapping passed as `details`.
    Nested changes have entries of their own; all are written when the outermost one ends.
    """
    change = AdminChange(
        organization_id=organization_id,
        actor=actor,
        action=action,
        resource_type=resource_type,
        resource_id=resource_id,
        resource_name=resource_name,
        details={} if details is None else details,
        governed=governed,
        event=event,
    )
    with _record_in_transaction(change):
        yield change


def record_finished_change(**fields: Any) -> UUID:
    """Record a change that the caller's transaction has just made; `record_change` has the fields.

    Returns the ID of the entry.
    """
    with record_change(**fields) as change:
        pass
    return change.id


@contextmanager
def record_changes_at_end() -> Iterator[None]:
    """Make several changes in one transaction and write their audit entries at its end.

    Otherwise the chain stays locked from the first change on, and other writers wait for it.
    """
    with _record_in_transaction(None):
        yield


def increment_generation(organization_id: UUID) -> None:
    """Increment the organization's policy generation in the caller's transaction.

    Within a recorded change, this happens once, when the outermost one ends.
    """
    pending = _thread.pending
    if pending is None:
        from bonobot.ledger.audit.write_changes import write_next_generation

        write_next_generation(organization_id)
    else:
        pending.raised_generations.add(organization_id)


@contextmanager
def _record_in_transaction(change: AdminChange | None) -> Iterator[None]:
    outermost = _thread.pending is None
    pending = _thread.pending = _thread.pending or _PendingChanges()
    previous_count = len(pending.changes)
    try:
        with transaction.atomic():
            if outermost:
                object_version.run_checks()
            yield
            if change is not None and (
                change.actor.kind == "token" or change.resource_type == "organization"
            ):
                for hook in token_change_hooks:
                    hook(change)
            if change is not None:
                pending.changes.append((change, datetime.now(UTC)))
                if change.governed:
                    pending.raised_generations.add(change.organization_id)
            if outermost and (pending.changes or pending.raised_generations):
                # Commands that only read rows don't load the ledger's statements.
                from bonobot.ledger.audit.write_changes import write_changes

                write_changes(pending.changes, pending.raised_generations)
    except BaseException:
        del pending.changes[previous_count:]
        raise
    finally:
        if outermost:
            _thread.pending = None
