"""Leases: which process listens to which server or resource.

The first process that needs a server or resource claims it; the others read the change counts from
the row. The holder renews its leases while its loop runs, and another process takes over an expired
lease by one conditional UPDATE. Later writes of the former holder have no effect. Many processes
update many of the same rows at once, so always in `ORDER`.

If each person signs in to a server separately, each person has separate rows.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from bonobot.core.db.transactions import delete_in_order, update_in_order
from bonobot.core.problems import Problem
from bonobot.core.text.canonical_json import compute_digest
from bonobot.ledger.policy_generations import load_policy_generations
from mcp_servers.client.change_notifications import list_notifying_topics
from mcp_servers.models import ChangeSubscription, ResourceSubscription, Server

LEASE = timedelta(seconds=15)
# A resource that no process has wanted for this long is released.
UNWANTED_AFTER = timedelta(seconds=15)
# Rows of processes that ended without releasing them are deleted after this time.
FORGOTTEN_AFTER = timedelta(hours=1)
ORDER = ("server_id", "digest")
State = ResourceSubscription.State


class UpdateSource(NamedTuple):
    """A server, and the person whose login is used; None if it is the same for all."""

    server_id: UUID
    subject: UUID | None = None


@dataclass(frozen=True, slots=True)
class ResourceUpdateState:
    """The state of a watched resource; `holder` is None without a live holder."""

    id: UUID
    source: UpdateSource
    organization_id: UUID
    uri: str
    state: str
    changes: int
    holder: UUID | None


def add_watched_resources(
    organization_id: UUID, source: UpdateSource, uris: Collection[str]
) -> list[ResourceUpdateState]:
    """Record that a client watches resources; return their states (3 queries).

    Returns an empty list if the server no longer exists.
    """
    now = timezone.now()
    _delete(ResourceSubscription.objects.filter(last_requested_at__lt=now - FORGOTTEN_AFTER))
    by_digest = {_compute_digest(source, uri): uri for uri in uris}
    columns = {"organization_id": organization_id, "last_requested_at": now, **source._asdict()}
    try:
        ResourceSubscription.objects.bulk_create(
            [
                ResourceSubscription(uri=uri, digest=key, **columns)
                for key, uri in sorted(by_digest.items())
            ],
            update_conflicts=True,
            unique_fields=["server", "digest"],
            update_fields=["last_requested_at"],
        )
    except IntegrityError:
        return []
    rows = ResourceSubscription.objects.filter(**source._asdict(), digest__in=by_digest)
    return load_watched_resources(list(rows.values_list("pk", flat=True)))


def load_watched_resources(ids: Collection[UUID]) -> list[ResourceUpdateState]:
    """Return the states of watched resources that still exist (1 query)."""
    deadline = timezone.now() - LEASE
    return [
        ResourceUpdateState(
            row.pk,
            source=UpdateSource(row.server_id, row.subject),
            organization_id=row.organization_id,
            uri=row.uri,
            state=row.state,
            changes=row.changes,
            holder=row.holder
            if row.heartbeat_at is not None and row.heartbeat_at >= deadline
            else None,
        )
        for row in ResourceSubscription.objects.filter(pk__in=ids)
    ]


def claim_resources(holder: UUID, ids: Collection[UUID]) -> list[ResourceUpdateState]:
    """Claim resources without a live holder; return those that this process holds now.

    Resources that their server refused before are requested again.
    """
    now = timezone.now()
    free = ResourceSubscription.objects.filter(
        Q(holder=None) | Q(heartbeat_at__lt=now - LEASE), pk__in=ids
    )
    _update(free.filter(state=State.REFUSED), state=State.ASKED)
    _update(free, holder=holder, heartbeat_at=now)
    claimed_rows = ResourceSubscription.objects.filter(pk__in=ids, holder=holder)
    return load_watched_resources(list(claimed_rows.values_list("pk", flat=True)))


def renew_resource_leases(holder: UUID, wanted_ids: Collection[UUID]) -> None:
    """Renew this process's leases, and record what its clients have subscribed to (2 queries)."""
    now = timezone.now()
    _update(ResourceSubscription.objects.filter(holder=holder), heartbeat_at=now)
    _update(ResourceSubscription.objects.filter(pk__in=wanted_ids), last_requested_at=now)


def load_held_resources(holder: UUID) -> set[UUID]:
    """Return the wanted resources of this process; delete the others (2 queries)."""
    held_rows = ResourceSubscription.objects.filter(holder=holder)
    _delete(held_rows.filter(last_requested_at__lt=timezone.now() - UNWANTED_AFTER))
    return set(held_rows.values_list("pk", flat=True))


def settle_resources(
    holder: UUID, granted_ids: Collection[UUID], refused_ids: Collection[UUID]
) -> None:
    """Record granted and refused subscriptions; refused ones lose their holder."""
    held_rows = ResourceSubscription.objects.filter(holder=holder)
    _update(held_rows.filter(pk__in=granted_ids), state=State.GRANTED)
    _update(
        held_rows.filter(pk__in=refused_ids), state=State.REFUSED, holder=None, heartbeat_at=None
    )


def increment_change_counts(holder: UUID, ids: Collection[UUID]) -> None:
    """Record that resources changed (1 query)."""
    held_rows = ResourceSubscription.objects.filter(pk__in=ids, holder=holder)
    _update(held_rows, changes=F("changes") + 1)


def release_resource_leases(holder: UUID) -> None:
    _update(ResourceSubscription.objects.filter(holder=holder), holder=None, heartbeat_at=None)


def _compute_digest(source: UpdateSource, uri: str) -> str:
    return compute_digest(f"{source.subject} {uri}" if source.subject else uri)


_update = partial(update_in_order, order=ORDER)
_delete = partial(delete_in_order, order=ORDER)


@dataclass(frozen=True)
class ServerLease:
    """A server that this process listens to, and its current policy generation."""

    server_id: UUID
    generation: int


def store_change_topics(server: Server, capabilities: Mapping[str, Any]) -> None:
    """Store the topics that a discovered server declares, and clear a refusal."""
    topics = (
        list_notifying_topics(capabilities)
        if server.transport_type == Server.Transport.HTTP
        else ()
    )
    columns = {"asks": " ".join(sorted(topics)), "refused_at": None}
    if not ChangeSubscription.objects.filter(server=server).update(**columns) and topics:
        defaults = {"organization_id": server.organization_id, **columns}
        ChangeSubscription.objects.get_or_create(server=server, defaults=defaults)


def query_wanted_subscriptions() -> QuerySet[ChangeSubscription]:
    """Return the watches of servers that a process should listen to."""
    watches = ChangeSubscription.objects.filter(
        server__in=Server.objects.operational(),
        server__transport_type=Server.Transport.HTTP,
        refused_at=None,
    )
    return watches.exclude(asks="")


def compute_lease_deadline() -> datetime:
    """Return the time before which a lease has expired."""
    return timezone.now() - LEASE


def query_unclaimed_subscriptions() -> QuerySet[ChangeSubscription]:
    """Return the watches without a live holder."""
    return query_wanted_subscriptions().filter(
        Q(holder=None) | Q(heartbeat_at__lt=compute_lease_deadline())
    )


def claim_servers(holder: UUID, limit: int) -> list[UUID]:
    """Claim up to `limit` servers without a live holder; return their ids."""
    claimed_servers = []
    for pk, server_id in (
        query_unclaimed_subscriptions()
        .order_by("created_at")
        .values_list("pk", "server_id")[:limit]
    ):
        still_free = Q(holder=None) | Q(heartbeat_at__lt=compute_lease_deadline())
        updated = ChangeSubscription.objects.filter(still_free, pk=pk).update(
            holder=holder, heartbeat_at=timezone.now(), listening_since=None, code="", detail=""
        )
        if updated:
            claimed_servers.append(server_id)
    return claimed_servers


def renew_change_leases(holder: UUID) -> None:
    update_in_order(ChangeSubscription.objects.filter(holder=holder), heartbeat_at=timezone.now())


def load_leased_servers(holder: UUID) -> list[ServerLease]:
    """Return the servers that this process must listen to; release the others."""
    held_rows = query_wanted_subscriptions().filter(holder=holder)
    servers = list(held_rows.values_list("server_id", "organization_id"))
    release_change_leases(holder, excluded_ids=[server_id for server_id, _ in servers])
    generations = load_policy_generations({organization_id for _, organization_id in servers})
    return [
        ServerLease(server_id, generations.get(organization_id, 0))
        for server_id, organization_id in servers
    ]


def is_leased(holder: UUID, server_id: UUID) -> bool:
    """Return whether this process must listen to a server."""
    return query_wanted_subscriptions().filter(holder=holder, server_id=server_id).exists()


def release_change_leases(holder: UUID, *, excluded_ids: list[UUID] | None = None) -> None:
    """Release all servers of this process except `besides`."""
    held_rows = ChangeSubscription.objects.filter(holder=holder).exclude(
        server_id__in=excluded_ids or []
    )
    update_in_order(held_rows, holder=None, heartbeat_at=None, listening_since=None)


def mark_stream_opened(holder: UUID, server_id: UUID) -> bool:
    """Record that the stream is open; return False if another process holds the lease."""
    held_rows = ChangeSubscription.objects.filter(server_id=server_id, holder=holder)
    return bool(held_rows.update(listening_since=timezone.now(), code="", detail=""))


def mark_stream_lost(holder: UUID, server_id: UUID, problem: Problem | None) -> None:
    """Record that the stream ended, and why; None if the server ended it."""
    ChangeSubscription.objects.filter(server_id=server_id, holder=holder).update(
        listening_since=None,
        code=problem.code if problem else "ended",
        detail=f"{problem} {problem.remedy}".strip() if problem else "",
    )


def mark_stream_refused(holder: UUID, server_id: UUID, problem: Problem) -> None:
    """Record that the server has no stream; it is not retried before the next discovery."""
    mark_stream_lost(holder, server_id, problem)
    held_rows = ChangeSubscription.objects.filter(server_id=server_id, holder=holder)
    held_rows.update(refused_at=timezone.now(), holder=None, heartbeat_at=None)
