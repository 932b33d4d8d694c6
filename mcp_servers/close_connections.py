"""Close connections to disabled servers, and idle sessions at changed ones."""

import logging
from collections.abc import Collection
from uuid import UUID

from django.db import Error as DatabaseFault
from django.db import transaction

from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server

logger = logging.getLogger(__name__)


async def load_server_versions(server_ids: Collection[UUID]) -> dict[UUID, str] | None:
    """Return those of the servers that may have connections, with a version (one query).

    The version changes with the configuration and the credentials. None without a database.
    """
    try:
        return await get_runtime().run_orm(_load_versions, set(server_ids))
    except DatabaseFault as fault:
        # Calls are rejected without a database anyway; connections are closed when it is back.
        logger.warning("the servers with open connections could not be read: %s", fault)
        return None


def close_outdated_connections() -> None:
    """Close connections of this process to stopped and changed servers, after the commit.

    Other processes do so themselves within seconds.
    """
    transaction.on_commit(_close_in_this_process)


def _close_in_this_process() -> None:
    get_runtime().spawn(
        get_connection_pool().close_outdated_connections(), name="close outdated connections"
    )


def _load_versions(server_ids: set[UUID]) -> dict[UUID, str]:
    # Only changes of the configuration save a row, with its secrets; others update columns.
    running = Server.objects.operational().filter(pk__in=server_ids)
    return {
        pk: updated_at.isoformat() for pk, updated_at in running.values_list("pk", "updated_at")
    }
