"""Close connections to disabled servers."""

import logging
from collections.abc import Collection
from uuid import UUID

from django.db import Error as DatabaseFault
from django.db import transaction

from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server

logger = logging.getLogger(__name__)


async def list_stopped_servers(held: Collection[UUID]) -> set[UUID]:
    """Return those of the servers that must have no connections (one query)."""
    try:
        return await get_runtime().orm(_load_stopped_servers, set(held))
    except DatabaseFault as fault:
        # Calls are rejected without a database anyway; connections are closed when it is back.
        logger.warning("which servers were stopped could not be read: %s", fault)
        return set()


def close_stopped() -> None:
    """Close connections of this process to stopped servers, after the commit.

    Other processes do so themselves within seconds.
    """
    transaction.on_commit(_close_here)


def _close_here() -> None:
    get_runtime().spawn(get_connection_pool().end_stopped(), name="close stopped servers")


def _load_stopped_servers(held: set[UUID]) -> set[UUID]:
    going = Server.objects.going().filter(pk__in=held)
    return held - set(going.values_list("pk", flat=True))
