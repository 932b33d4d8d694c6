"""When a server is checked next, and since when its checks are missing."""

from datetime import datetime, timedelta

from django.conf import settings

from mcp_servers.models import Server

BACKOFF_LIMIT = timedelta(hours=1)
# A check may be late by its own pause, and by delays of a busy or restarted worker.
MIN_LATE = timedelta(minutes=10)


def compute_check_delay(server: Server, failures: int) -> timedelta:
    """Return the time until the next check, doubled with each failure up to an hour."""
    over_http = server.transport_type != Server.Transport.STDIO
    seconds = settings.BONOBOT_CHECK_EVERY_S if over_http else settings.BONOBOT_CHECK_STDIO_EVERY_S
    regular = timedelta(seconds=seconds)
    return min(regular * 2 ** min(failures, 10), max(regular, BACKOFF_LIMIT))


def find_unmonitored_since(server: Server, now: datetime) -> datetime | None:
    """Return since when the server is unmonitored; None if its checks are on time."""
    last_check: datetime = server.checked_at or server.created_at
    if not server.enabled:
        return last_check
    allowed_delay = max(2 * compute_check_delay(server, server.failures), MIN_LATE)
    return last_check if now - last_check > allowed_delay else None
