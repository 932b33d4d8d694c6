"""Leases on following: one process at a time has a server tell of a resource (DESIGN section 3).

Whoever wants it first takes it; the others read how often it changed off the row. The holder beats
while its loop ticks, and whoever wants a resource whose holder's beat is old takes it over by one
conditional UPDATE. Many processes write the same rows, many at once: always in `ORDER`.

Where each person signs in to a server, each has rows of their own, and nobody else's are looked at.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import NamedTuple
from uuid import UUID

from django.db import IntegrityError
from django.db.models import F, Q
from django.utils import timezone

from bonobot.lib.canonical import digest
from bonobot.lib.row_locks import delete_in_order, update_in_order
from mcp_servers.models import Followed

LEASE = timedelta(seconds=15)
# A resource that nobody has said to want for so long is let go of.
UNWANTED = timedelta(seconds=15)
# Rows of processes that ended without a word.
FORGOTTEN = timedelta(hours=1)
ORDER = ("server_id", "digest")
State = Followed.State


class Source(NamedTuple):
    """Who tells: a server, and the person whose login it is asked with; None for all alike."""

    server_id: UUID
    subject: UUID | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """How a followed resource stands; `holder` is None where nobody alive has it told."""

    id: UUID
    source: Source
    organization_id: UUID
    uri: str
    state: str
    changes: int
    holder: UUID | None


def want(organization_id: UUID, source: Source, uris: Collection[str]) -> list[Look]:
    """Write that a client wants to be told of resources; return how they stand (3 queries).

    Of a server that is gone, none.
    """
    now = timezone.now()
    _delete(Followed.objects.filter(wanted_at__lt=now - FORGOTTEN))
    by_digest = {_digest(source, uri): uri for uri in uris}
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
    return look(list(rows.values_list("pk", flat=True)))


def look(ids: Collection[UUID]) -> list[Look]:
    """Return how followed resources stand; those that are there no more are left out (a query)."""
    late = timezone.now() - LEASE
    return [
        Look(
            row.pk,
            Source(row.server_id, row.subject),
            row.organization_id,
            row.uri,
            row.state,
            row.changes,
            row.holder if row.beat_at is not None and row.beat_at >= late else None,
        )
        for row in Followed.objects.filter(pk__in=ids)
    ]


def claim(holder: UUID, ids: Collection[UUID]) -> list[Look]:
    """Take what nobody alive holds; return what is this process's now.

    What its server once refused is asked for again.
    """
    now = timezone.now()
    free = Followed.objects.filter(Q(holder=None) | Q(beat_at__lt=now - LEASE), pk__in=ids)
    _update(free.filter(state=State.REFUSED), state=State.ASKED)
    _update(free, holder=holder, beat_at=now)
    mine = Followed.objects.filter(pk__in=ids, holder=holder)
    return look(list(mine.values_list("pk", flat=True)))


def beat(holder: UUID, wanted: Collection[UUID]) -> None:
    """Renew this process's leases, and say what its clients want (2 queries)."""
    now = timezone.now()
    _update(Followed.objects.filter(holder=holder), beat_at=now)
    _update(Followed.objects.filter(pk__in=wanted), wanted_at=now)


def held(holder: UUID) -> set[UUID]:
    """Return what this process holds and some client wants; the rest is forgotten (2 queries)."""
    mine = Followed.objects.filter(holder=holder)
    _delete(mine.filter(wanted_at__lt=timezone.now() - UNWANTED))
    return set(mine.values_list("pk", flat=True))


def settle(holder: UUID, granted: Collection[UUID], refused: Collection[UUID]) -> None:
    """Write what the server says to telling of resources; what it refuses, nobody holds."""
    mine = Followed.objects.filter(holder=holder)
    _update(mine.filter(pk__in=granted), state=State.GRANTED)
    _update(mine.filter(pk__in=refused), state=State.REFUSED, holder=None, beat_at=None)


def changed(holder: UUID, ids: Collection[UUID]) -> None:
    """Write that resources changed (a query)."""
    mine = Followed.objects.filter(pk__in=ids, holder=holder)
    _update(mine, changes=F("changes") + 1)


def let_go(holder: UUID) -> None:
    """Give up all that this process holds: it is free at once."""
    _update(Followed.objects.filter(holder=holder), holder=None, beat_at=None)


def _digest(source: Source, uri: str) -> str:
    return digest(f"{source.subject} {uri}" if source.subject else uri)


_update = partial(update_in_order, order=ORDER)
_delete = partial(delete_in_order, order=ORDER)
