"""Health: ask servers in the background, each in its own time (FEATURES D9).

A check is cheap where the server was discovered within a day; otherwise it is a discovery. Checks
of different servers run beside each other, so one that hangs delays none.
"""

import asyncio
import logging
from datetime import timedelta
from time import perf_counter
from uuid import UUID

from django.utils import timezone

from bonobot.ledger.actors import Actor
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers.connections.pool import connections
from mcp_servers.discovery import discover
from mcp_servers.endpoints import endpoint_of
from mcp_servers.models import Check, Server
from mcp_servers.status import pause, record_contact, record_failure

logger = logging.getLogger(__name__)

SYSTEM = Actor(kind="system", id="health", label="health check")
REDISCOVER_AFTER = timedelta(hours=24)
BESIDE_EACH_OTHER = 32


def claim_due(limit: int = 500) -> list[UUID]:
    """Return servers whose check is ours: each claim moves `next_check_at` on, once."""
    claimed = []
    for server in Server.objects.due().order_by("next_check_at")[:limit]:
        mine = Server.objects.filter(pk=server.pk, next_check_at=server.next_check_at)
        if mine.update(next_check_at=timezone.now() + pause(server, server.failures)):
            claimed.append(server.pk)
    return claimed


async def check_all(server_ids: list[UUID]) -> None:
    """Check these servers beside each other; failures are recorded, never raised."""
    gate = asyncio.Semaphore(BESIDE_EACH_OTHER)

    async def one(server_id: UUID) -> None:
        async with gate:
            try:
                await check(server_id)
            except Problem as problem:
                logger.warning("check of server %s failed: %s", server_id, problem.code)

    async with asyncio.TaskGroup() as group:
        for server_id in server_ids:
            group.create_task(one(server_id))


async def check(server_id: UUID) -> None:
    """Ask one server whether it is there; discover it again once a day."""
    orm = runtime().orm
    server = await orm(Server.objects.get, pk=server_id)
    seen = server.discovered_at
    if seen is None or timezone.now() - seen > REDISCOVER_AFTER:
        await discover(server_id, actor=SYSTEM)
        return
    method = "server/discover" if server.era == "modern" else "ping"
    began = perf_counter()
    try:
        endpoint = await orm(endpoint_of, server)
        await connections().request(endpoint, method, {}, holder=f"server:{server_id}:health")
    except Problem as problem:
        await orm(record_failure, server_id, Check.Kind.HEALTH, problem)
        raise
    latency_ms = round((perf_counter() - began) * 1000)
    await orm(record_contact, server, Check.Kind.HEALTH, latency_ms)
