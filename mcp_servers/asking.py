"""When a server is asked next, and when nobody asked it: without a worker, or switched off."""

from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from mcp_servers.models import Server, Unasked

BACKOFF_LIMIT = timedelta(hours=1)
# A check may be late by its own pause, and by what a busy or restarted worker takes.
LATE_AT_LEAST = timedelta(minutes=10)


def pause(server: Server, failures: int) -> timedelta:
    """Return how long to wait: the regular period, doubled with each failure, up to an hour."""
    over_http = server.transport_type != Server.Transport.STDIO
    seconds = settings.BONOBOT_CHECK_EVERY_S if over_http else settings.BONOBOT_CHECK_STDIO_EVERY_S
    regular = timedelta(seconds=seconds)
    return min(regular * 2 ** min(failures, 10), max(regular, BACKOFF_LIMIT))


def unasked_since(server: Server, now: datetime) -> datetime | None:
    """Return since when nobody asks the server; None while it is asked as it should be."""
    last: datetime = server.checked_at or server.created_at
    if not server.enabled:
        return last
    late = max(2 * pause(server, server.failures), LATE_AT_LEAST)
    return last if now - last > late else None


def end_unasked(server: Server, now: datetime) -> None:
    """Write that nobody asked the server until now, if that is so."""
    since = unasked_since(server, now)
    if since is not None and since < now:
        gap = Unasked(
            organization_id=server.organization_id, server=server, began_at=since, ended_at=now
        )
        # Two contacts at once find the same beginning: one row tells it.
        Unasked.objects.bulk_create([gap], ignore_conflicts=True)


def prune(older_than: timedelta) -> int:
    """Delete gaps that ended long ago; return how many rows."""
    return int(Unasked.objects.filter(ended_at__lt=timezone.now() - older_than).delete()[0])
