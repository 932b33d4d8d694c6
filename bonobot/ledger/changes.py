"""Changes: administrative events, recorded in the transaction that makes them.

The row is the last statement of the caller's own transaction, on the caller's own connection, so a
change and its record are kept or lost together, and the lock of the organization's chain is held
only for that moment. A governed change raises the policy generation: the very next admission of a
call sees it, on every host.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.db import transaction

from bonobot.ledger import store
from bonobot.ledger.actors import Actor
from bonobot.ledger.chain import Tip
from bonobot.ledger.databases import Database
from bonobot.ledger.entries import Opening, Outcome
from bonobot.ledger.groups import Open, Sealed, open_item
from bonobot.lib import preconditions
from bonobot.lib.ordered_ids import ordered_id


@dataclass(frozen=True, slots=True)
class Event:
    """What kind of event is recorded, and how it came out."""

    type: str
    outcome: Outcome = "ok"
    code: str = ""
    server_id: UUID | None = None
    server_name: str = ""


CHANGE = Event("change")


@dataclass(slots=True, kw_only=True)
class Change:
    """A change in progress: until it ends, what is recorded of it can still be completed."""

    organization_id: UUID
    actor: Actor
    action: str
    resource_type: str
    resource_id: str
    resource_name: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    governed: bool = True
    event: Event = CHANGE
    id: UUID = field(default_factory=ordered_id)


@dataclass(slots=True)
class _Pending:
    """What the outermost change of a thread writes at its end."""

    done: list[tuple[Change, datetime]] = field(default_factory=list)
    bumped: set[UUID] = field(default_factory=set)


class _Thread(threading.local):
    # Connections belong to threads, and so does what waits to be written on them.
    pending: _Pending | None = None


_thread = _Thread()


@contextmanager
def change(
    *,
    organization_id: UUID,
    actor: Actor,
    action: str,
    resource_type: str,
    resource_id: str,
    resource_name: str = "",
    details: Mapping[str, Any] | None = None,
    governed: bool = True,
    event: Event = CHANGE,
) -> Iterator[Change]:
    """Make a change and record it in one transaction; nothing is recorded if the block raises.

    The yielded `Change` may be completed in the block, as may the mapping given as `details`. A
    change within a change is a row of its own; all are written when the outermost one ends.
    """
    one = Change(
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
    with _recorded(one):
        yield one


def record(
    *,
    organization_id: UUID,
    actor: Actor,
    action: str,
    resource_type: str,
    resource_id: str,
    resource_name: str = "",
    details: Mapping[str, Any] | None = None,
    governed: bool = True,
    event: Event = CHANGE,
) -> UUID:
    """Record a change that the caller's transaction has just made, as its last statement."""
    with change(
        organization_id=organization_id,
        actor=actor,
        action=action,
        resource_type=resource_type,
        resource_id=resource_id,
        resource_name=resource_name,
        details=details,
        governed=governed,
        event=event,
    ) as one:
        pass
    return one.id


@contextmanager
def written_last() -> Iterator[None]:
    """Make changes in one transaction and write what is recorded of them at its end.

    Else the organization's chain stays locked from the first of them on, and whoever has locked
    what is written later waits for it.
    """
    with _recorded(None):
        yield


def bump(organization_id: UUID) -> None:
    """Raise the organization's policy generation in the caller's transaction.

    Within a change it is done when the outermost one ends, once for all its writes.
    """
    pending = _thread.pending
    if pending is None:
        store.bump(Database(transaction.get_connection()), organization_id)
    else:
        pending.bumped.add(organization_id)


@contextmanager
def _recorded(one: Change | None) -> Iterator[None]:
    outermost = _thread.pending is None
    pending = _thread.pending = _thread.pending or _Pending()
    before = len(pending.done)
    try:
        with transaction.atomic():
            if outermost:
                preconditions.run_checks()
            yield
            if one is not None:
                pending.done.append((one, datetime.now(UTC)))
                if one.governed:
                    pending.bumped.add(one.organization_id)
            if outermost and (pending.done or pending.bumped):
                _write(pending)
    except BaseException:
        del pending.done[before:]
        raise
    finally:
        if outermost:
            _thread.pending = None


def _write(pending: _Pending) -> None:
    database = Database(transaction.get_connection())
    organizations = {one.organization_id for one, _ in pending.done} | pending.bumped
    tips = store.lock_heads(database, organizations)
    for organization_id in pending.bumped:
        tip = tips[organization_id]
        tips[organization_id] = Tip(tip.seq, tip.digest, tip.generation + 1)
    sealed: list[Sealed] = []
    for one, at in pending.done:
        tip = tips[one.organization_id]
        item = _item(one, at, tip.generation)
        tip = tips[one.organization_id] = tip.extend(item.text)
        sealed.append(Sealed(item, tip.seq, tip.digest))
    if sealed:
        store.write_opened(database, sealed)
    store.write_heads(database, tips)


def _item(one: Change, at: datetime, generation: int) -> Open:
    opening = Opening(
        call_id=one.id,
        organization_id=one.organization_id,
        action=one.action,
        event_type=one.event.type,
        resource_type=one.resource_type,
        resource_id=one.resource_id,
        resource_name=one.resource_name,
        actor=one.actor,
        decision="allow",
        details=one.details,
        code=one.event.code,
        server_id=one.event.server_id,
        server_name=one.event.server_name,
    )
    return open_item(opening, at, outcome=one.event.outcome, generation=generation)
