"""How long to wait before the next check of a server."""

from datetime import timedelta

from django.conf import settings

from mcp_servers.models import Server

BACKOFF_LIMIT = timedelta(hours=1)


def compute_check_delay(server: Server, failures: int) -> timedelta:
    """Return the time until the next check, doubled with each failure up to an hour."""
    over_http = server.transport_type != Server.Transport.STDIO
    seconds = settings.BONOBOT_CHECK_EVERY_S if over_http else settings.BONOBOT_CHECK_STDIO_EVERY_S
    regular = timedelta(seconds=seconds)
    return min(regular * 2 ** min(failures, 10), max(regular, BACKOFF_LIMIT))
