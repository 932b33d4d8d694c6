"""Leases on listening: one process at a time hears a server's change notices (DESIGN section 3).

The holder beats while its loop ticks; whoever finds an old beat takes the server over by one
conditional UPDATE. What a former holder still writes changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from bonobot.ledger.heads import generations
from bonobot.lib.problems import Problem
from bonobot.lib.row_locks import update_in_order
from mcp_servers.connections.changes import notifiable
from mcp_servers.models import Server, Watch

LEASE = timedelta(seconds=15)


@dataclass(frozen=True)
class Held:
    """A server that this process listens to, and the policy generation that it stands at."""

    server_id: UUID
    generation: int


def declare(server: Server, capabilities: Mapping[str, Any]) -> None:
    """Write after a discovery what the server says that it tells; a refusal is forgotten."""
    topics = notifiable(capabilities) if server.transport_type == Server.Transport.HTTP else ()
    found = {"asks": " ".join(sorted(topics)), "refused_at": None}
    if not Watch.objects.filter(server=server).update(**found) and topics:
        of = {"organization_id": server.organization_id, **found}
        Watch.objects.get_or_create(server=server, defaults=of)


def listened_to() -> QuerySet[Watch]:
    """Return the watches of servers that somebody should listen to."""
    wanted = Watch.objects.filter(
        server__in=Server.objects.going(),
        server__transport_type=Server.Transport.HTTP,
        refused_at=None,
    )
    return wanted.exclude(asks="")


def deadline() -> datetime:
    """Return the moment before which a beat is too old."""
    return timezone.now() - LEASE


def unheld() -> QuerySet[Watch]:
    """Return the watches that nobody alive holds."""
    return listened_to().filter(Q(holder=None) | Q(beat_at__lt=deadline()))


def claim(holder: UUID, room: int) -> list[UUID]:
    """Take up to `room` servers that nobody alive listens to; return those that are ours now."""
    taken = []
    for pk, server_id in unheld().order_by("created_at").values_list("pk", "server_id")[:room]:
        still_free = Q(holder=None) | Q(beat_at__lt=deadline())
        mine = Watch.objects.filter(still_free, pk=pk).update(
            holder=holder, beat_at=timezone.now(), listening_since=None, code="", detail=""
        )
        if mine:
            taken.append(server_id)
    return taken


def beat(holder: UUID) -> None:
    """Renew the leases of this process."""
    update_in_order(Watch.objects.filter(holder=holder), beat_at=timezone.now())


def held(holder: UUID) -> list[Held]:
    """Return what this process still has to listen to; lets go of what it has not."""
    mine = listened_to().filter(holder=holder)
    found = list(mine.values_list("server_id", "organization_id"))
    let_go(holder, besides=[server_id for server_id, _ in found])
    at = generations({organization_id for _, organization_id in found})
    return [Held(server_id, at.get(organization_id, 0)) for server_id, organization_id in found]


def let_go(holder: UUID, *, besides: list[UUID] | None = None) -> None:
    """Give up everything, or all but `besides`: it is free at once."""
    mine = Watch.objects.filter(holder=holder).exclude(server_id__in=besides or [])
    update_in_order(mine, holder=None, beat_at=None, listening_since=None)


def opened(holder: UUID, server_id: UUID) -> bool:
    """Write that we listen; False when somebody else holds it by now."""
    mine = Watch.objects.filter(server_id=server_id, holder=holder)
    return bool(mine.update(listening_since=timezone.now(), code="", detail=""))


def lost(holder: UUID, server_id: UUID, problem: Problem | None) -> None:
    """Write that the stream is gone, and why; None: the server ended it in order."""
    Watch.objects.filter(server_id=server_id, holder=holder).update(
        listening_since=None,
        code=problem.code if problem else "ended",
        detail=f"{problem} {problem.remedy}".strip() if problem else "",
    )


def refuse(holder: UUID, server_id: UUID, problem: Problem) -> None:
    """Write that there is no stream to be had: it is left until the next discovery."""
    lost(holder, server_id, problem)
    mine = Watch.objects.filter(server_id=server_id, holder=holder)
    mine.update(refused_at=timezone.now(), holder=None, beat_at=None)
