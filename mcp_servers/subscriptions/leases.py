"""Which process listens to which server or resource.

Whoever wants it first takes it; the others read how often it changed off the row. The holder beats
while its loop ticks, and whoever wants a resource whose holder's beat is old takes it over by one
conditional UPDATE. Many processes write the same rows, many at once: always in `ORDER`.

Where each person signs in to a server, each has rows of their own, and nobody else's are looked at.

The holder beats while its loop ticks; whoever finds an old beat takes the server over by one
conditional UPDATE. What a former holder still writes changes nothing.
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
from bonobot.ledger.queries import load_policy_generations
from mcp_servers.client.change_notifications import list_notifying_topics
from mcp_servers.models import Followed, Server, Watch

LEASE = timedelta(seconds=15)
# A resource that nobody has said to want for so long is let go of.
UNWANTED = timedelta(seconds=15)
# Rows of processes that ended without a word.
FORGOTTEN = timedelta(hours=1)
ORDER = ("server_id", "digest")
State = Followed.State


class UpdateSource(NamedTuple):
    """Who tells: a server, and the person whose login it is asked with; None for all alike."""

    server_id: UUID
    subject: UUID | None = None


@dataclass(frozen=True, slots=True)
class ResourceUpdateState:
    """How a followed resource stands; `holder` is None where nobody alive has it told."""

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
    """Write that a client wants to be told of resources; return how they stand (3 queries).

    Of a server that is gone, none.
    """
    now = timezone.now()
    _delete(Followed.objects.filter(wanted_at__lt=now - FORGOTTEN))
    by_digest = {_compute_digest(source, uri): uri for uri in uris}
    of = {"organization_id": organization_id, "wanted_at": now, **source._asdict()}
    try:
        Followed.objects.bulk_create(
            [Followed(uri=uri, digest=key, **of) for key, uri in sorted(by_digest.items())],
            update_conflicts=True,
            unique_fields=["server", "digest"],
            update_fields=["wanted_at"],
        )
    except IntegrityError:
        return []
    rows = Followed.objects.filter(**source._asdict(), digest__in=by_digest)
    return load_watched_resources(list(rows.values_list("pk", flat=True)))


def load_watched_resources(ids: Collection[UUID]) -> list[ResourceUpdateState]:
    """Return how followed resources stand; those that are there no more are left out (a query)."""
    late = timezone.now() - LEASE
    return [
        ResourceUpdateState(
            row.pk,
            UpdateSource(row.server_id, row.subject),
            row.organization_id,
            row.uri,
            row.state,
            row.changes,
            row.holder if row.beat_at is not None and row.beat_at >= late else None,
        )
        for row in Followed.objects.filter(pk__in=ids)
    ]


def claim_resources(holder: UUID, ids: Collection[UUID]) -> list[ResourceUpdateState]:
    """Take what nobody alive holds; return what is this process's now.

    What its server once refused is asked for again.
    """
    now = timezone.now()
    free = Followed.objects.filter(Q(holder=None) | Q(beat_at__lt=now - LEASE), pk__in=ids)
    _update(free.filter(state=State.REFUSED), state=State.ASKED)
    _update(free, holder=holder, beat_at=now)
    mine = Followed.objects.filter(pk__in=ids, holder=holder)
    return load_watched_resources(list(mine.values_list("pk", flat=True)))


def renew_resource_leases(holder: UUID, wanted: Collection[UUID]) -> None:
    """Renew this process's leases, and say what its clients want (2 queries)."""
    now = timezone.now()
    _update(Followed.objects.filter(holder=holder), beat_at=now)
    _update(Followed.objects.filter(pk__in=wanted), wanted_at=now)


def load_held_resources(holder: UUID) -> set[UUID]:
    """Return what this process holds and some client wants; the rest is forgotten (2 queries)."""
    mine = Followed.objects.filter(holder=holder)
    _delete(mine.filter(wanted_at__lt=timezone.now() - UNWANTED))
    return set(mine.values_list("pk", flat=True))


def settle(holder: UUID, granted: Collection[UUID], refused: Collection[UUID]) -> None:
    """Write what the server says to telling of resources; what it refuses, nobody holds."""
    mine = Followed.objects.filter(holder=holder)
    _update(mine.filter(pk__in=granted), state=State.GRANTED)
    _update(mine.filter(pk__in=refused), state=State.REFUSED, holder=None, beat_at=None)


def increment_change_counts(holder: UUID, ids: Collection[UUID]) -> None:
    """Write that resources changed (a query)."""
    mine = Followed.objects.filter(pk__in=ids, holder=holder)
    _update(mine, changes=F("changes") + 1)


def release_resource_leases(holder: UUID) -> None:
    """Give up all that this process holds: it is free at once."""
    _update(Followed.objects.filter(holder=holder), holder=None, beat_at=None)


def _compute_digest(source: UpdateSource, uri: str) -> str:
    return compute_digest(f"{source.subject} {uri}" if source.subject else uri)


_update = partial(update_in_order, order=ORDER)
_delete = partial(delete_in_order, order=ORDER)


@dataclass(frozen=True)
class ServerLease:
    """A server that this process listens to, and the policy generation that it stands at."""

    server_id: UUID
    generation: int


def store_change_topics(server: Server, capabilities: Mapping[str, Any]) -> None:
    """Write after a discovery what the server says that it tells; a refusal is forgotten."""
    topics = (
        list_notifying_topics(capabilities)
        if server.transport_type == Server.Transport.HTTP
        else ()
    )
    found = {"asks": " ".join(sorted(topics)), "refused_at": None}
    if not Watch.objects.filter(server=server).update(**found) and topics:
        of = {"organization_id": server.organization_id, **found}
        Watch.objects.get_or_create(server=server, defaults=of)


def list_wanted_subscriptions() -> QuerySet[Watch]:
    """Return the watches of servers that somebody should listen to."""
    wanted = Watch.objects.filter(
        server__in=Server.objects.going(),
        server__transport_type=Server.Transport.HTTP,
        refused_at=None,
    )
    return wanted.exclude(asks="")


def compute_lease_deadline() -> datetime:
    """Return the moment before which a beat is too old."""
    return timezone.now() - LEASE


def list_unclaimed_subscriptions() -> QuerySet[Watch]:
    """Return the watches that nobody alive holds."""
    return list_wanted_subscriptions().filter(
        Q(holder=None) | Q(beat_at__lt=compute_lease_deadline())
    )


def claim_servers(holder: UUID, room: int) -> list[UUID]:
    """Take up to `room` servers that nobody alive listens to; return those that are ours now."""
    taken = []
    for pk, server_id in (
        list_unclaimed_subscriptions().order_by("created_at").values_list("pk", "server_id")[:room]
    ):
        still_free = Q(holder=None) | Q(beat_at__lt=compute_lease_deadline())
        mine = Watch.objects.filter(still_free, pk=pk).update(
            holder=holder, beat_at=timezone.now(), listening_since=None, code="", detail=""
        )
        if mine:
            taken.append(server_id)
    return taken


def renew_change_leases(holder: UUID) -> None:
    """Renew the leases of this process."""
    update_in_order(Watch.objects.filter(holder=holder), beat_at=timezone.now())


def load_leased_servers(holder: UUID) -> list[ServerLease]:
    """Return what this process still has to listen to; lets go of what it has not."""
    mine = list_wanted_subscriptions().filter(holder=holder)
    found = list(mine.values_list("server_id", "organization_id"))
    release_change_leases(holder, besides=[server_id for server_id, _ in found])
    at = load_policy_generations({organization_id for _, organization_id in found})
    return [
        ServerLease(server_id, at.get(organization_id, 0)) for server_id, organization_id in found
    ]


def release_change_leases(holder: UUID, *, besides: list[UUID] | None = None) -> None:
    """Give up everything, or all but `besides`: it is free at once."""
    mine = Watch.objects.filter(holder=holder).exclude(server_id__in=besides or [])
    update_in_order(mine, holder=None, beat_at=None, listening_since=None)


def mark_stream_opened(holder: UUID, server_id: UUID) -> bool:
    """Write that we listen; False when somebody else holds it by now."""
    mine = Watch.objects.filter(server_id=server_id, holder=holder)
    return bool(mine.update(listening_since=timezone.now(), code="", detail=""))


def mark_stream_lost(holder: UUID, server_id: UUID, problem: Problem | None) -> None:
    """Write that the stream is gone, and why; None: the server ended it in order."""
    Watch.objects.filter(server_id=server_id, holder=holder).update(
        listening_since=None,
        code=problem.code if problem else "ended",
        detail=f"{problem} {problem.remedy}".strip() if problem else "",
    )


def mark_stream_refused(holder: UUID, server_id: UUID, problem: Problem) -> None:
    """Write that there is no stream to be had: it is left until the next discovery."""
    mark_stream_lost(holder, server_id, problem)
    mine = Watch.objects.filter(server_id=server_id, holder=holder)
    mine.update(refused_at=timezone.now(), holder=None, beat_at=None)
