"""Staleness: which catalogues are out of date, and whose turn it is to read one again.

A mark is a row, so it outlives who set it; a reading is claimed by a conditional UPDATE and is not
repeated within `INTERVAL`, nor within ten times as long as the last one took: a server that says
without end that it changed gets a tenth of one place at most.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.utils import timezone

from mcp_servers.models import Server, Watch

INTERVAL = timedelta(seconds=10)
RUNNING = timedelta(minutes=5)
# Whoever heard the notice reads first: it may have the only connection that shows the change.
GRACE = timedelta(seconds=20)
SHARE = 10


@dataclass(frozen=True)
class Claim:
    """The right to read a catalogue now; or how long to wait for one; or nothing to read."""

    taken: bool = False
    wait_s: float | None = None
    stale_at: datetime | None = None


def mark(server_id: UUID, *, noticed: bool) -> bool:
    """Write that a catalogue is out of date; False when there is no such server any more.

    `noticed` says that the server told so itself.
    """
    server = Server.objects.enabled().filter(pk=server_id).only("organization_id").first()
    if server is None:
        return False
    now = timezone.now()
    found = {"stale_at": now} | ({"noticed_at": now} if noticed else {})
    if not Watch.objects.filter(server=server).update(**found):
        of = {"organization_id": server.organization_id, **found}
        Watch.objects.get_or_create(server=server, defaults=of)
    return True


def claim(server_id: UUID, *, anyway: bool = False) -> Claim:
    """Take the right to read a stale catalogue; `anyway` also one that was read meanwhile."""
    now = timezone.now()
    row = Watch.objects.filter(server_id=server_id).first()
    if row is None or (row.stale_at is None and not anyway):
        return Claim()
    if row.reread_after is not None and row.reread_after > now:
        return Claim(wait_s=min(row.reread_after - now, INTERVAL).total_seconds())
    same = Watch.objects.filter(pk=row.pk, reread_after=row.reread_after)
    if not same.update(reread_after=now + RUNNING):
        return Claim(wait_s=INTERVAL.total_seconds())
    return Claim(taken=True, stale_at=row.stale_at)


def finish(server_id: UUID, claim: Claim, *, took_s: float, read: bool) -> None:
    """Write that a reading is over; what was marked since then stays stale."""
    rows = Watch.objects.filter(server_id=server_id)
    rows.update(reread_after=timezone.now() + pause_after(took_s))
    if read and claim.stale_at is not None:
        rows.filter(stale_at=claim.stale_at).update(stale_at=None)


def forgotten() -> list[UUID]:
    """Return stale servers that answer and that nobody reads: the sweep takes them up."""
    now = timezone.now()
    waiting = Watch.objects.filter(
        stale_at__lt=now - GRACE, server__enabled=True, server__status=Server.Status.CONNECTED
    ).exclude(reread_after__gt=now)
    return list(waiting.order_by("stale_at").values_list("server_id", flat=True)[:100])


def pause_after(took_s: float) -> timedelta:
    """Return how long a catalogue is left alone after a reading that took `took_s` seconds."""
    return max(INTERVAL, timedelta(seconds=SHARE * took_s))
