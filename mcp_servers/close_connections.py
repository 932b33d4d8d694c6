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


async def list_stopped_servers(server_ids: Collection[UUID]) -> set[UUID]:
    """Return those of the servers that must have no connections (one query)."""
    try:
        return await get_runtime().run_orm(_load_stopped_servers, set(server_ids))
    except DatabaseFault as fault:
        # Calls are rejected without a database anyway; connections are closed when it is back.
        logger.warning("which servers were stopped could not be read: %s", fault)
        return set()


def close_stopped_servers() -> None:
    """Close connections of this process to stopped servers, after the commit.

    Other processes do so themselves within seconds.
    """
    transaction.on_commit(_close_in_this_process)


def _close_in_this_process() -> None:
    get_runtime().spawn(get_connection_pool().close_stopped_servers(), name="close stopped servers")


def _load_stopped_servers(server_ids: set[UUID]) -> set[UUID]:
    running = Server.objects.operational().filter(pk__in=server_ids)
    return server_ids - set(running.values_list("pk", flat=True))
