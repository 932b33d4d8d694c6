"""Claim and check servers that are due.

A check is a ping while the last discovery is recent, otherwise a discovery. Checks run
concurrently, so a hanging one delays no other, and a process claims only as many as it has slots
for: the rest is left to other workers.
"""

import asyncio
import logging
from time import perf_counter
from uuid import UUID
from weakref import WeakKeyDictionary

from django.utils import timezone

from bonobot.core.concurrency_limits import get_concurrency_limit
from bonobot.core.problems import InternalError, Problem
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.ledger.types import Actor
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.client.task_set import TaskSet
from mcp_servers.discovery import run_discovery
from mcp_servers.health.check_delays import compute_check_delay
from mcp_servers.health.server_status import record_contact, record_failure
from mcp_servers.models import HealthCheck, Server
from mcp_servers.oauth_client.access_tokens import build_background_endpoint
from mcp_servers.refresh_definitions import is_catalog_expired

logger = logging.getLogger(__name__)

SYSTEM = Actor(kind="system", id="health", label="health check")
CONCURRENCY_LIMIT = "health"


def claim_due_servers(limit: int) -> list[UUID]:
    """Claim servers that are due, by advancing `next_check_at`; return their ids."""
    claimed_servers = []
    for server in Server.objects.due_for_check().order_by("next_check_at")[:limit]:
        rows = Server.objects.filter(pk=server.pk, next_check_at=server.next_check_at)
        if rows.update(next_check_at=timezone.now() + compute_check_delay(server, server.failures)):
            claimed_servers.append(server.pk)
    return claimed_servers


class HealthCheckRunner:
    """The checks of this process, which claims only as many servers as it has slots."""

    def __init__(self) -> None:
        """Start without checks."""
        self._tasks = TaskSet()
        self._ended = asyncio.Event()
        self._running = False
        self._repeat = False

    async def run_due_checks(self) -> None:
        """Claim and check until nothing is due; return at once if already running."""
        self._repeat = True
        if self._running:
            return
        self._running = True
        try:
            while await self._claim_due() or self._repeat:
                await self._wait_for_slot()
        finally:
            self._running = False

    async def close(self) -> None:
        """Stop; claimed servers are due again after their pause."""
        await self._tasks.close()

    async def _claim_due(self) -> bool:
        self._repeat = False
        claimed_servers = await get_runtime().run_background_orm(
            claim_due_servers, get_concurrency_limit(CONCURRENCY_LIMIT).limit - len(self._tasks)
        )
        for server_id in claimed_servers:
            self._tasks.spawn(self._run_check(server_id), name=f"check {server_id}")
        return bool(claimed_servers)

    async def _wait_for_slot(self) -> None:
        while len(self._tasks) >= get_concurrency_limit(CONCURRENCY_LIMIT).limit:
            self._ended.clear()
            await self._ended.wait()

    async def _run_check(self, server_id: UUID) -> None:
        try:
            async with get_concurrency_limit(CONCURRENCY_LIMIT):
                await check_server_safely(server_id)
        finally:
            # After this task has ended and its slot is free.
            asyncio.get_running_loop().call_soon(self._ended.set)


_runners: WeakKeyDictionary[Runtime, HealthCheckRunner] = WeakKeyDictionary()


async def check_due_servers() -> None:
    """Claim and check servers in this process until none is due."""
    runtime = get_runtime()
    if (runner := _runners.get(runtime)) is None:
        runner = _runners[runtime] = HealthCheckRunner()
        runtime.on_close(runner.close)
    await runner.run_due_checks()


async def check_server_safely(server_id: UUID) -> None:
    """Check one server; a failure is recorded, never raised."""
    try:
        await check_server(server_id)
    except Problem as problem:
        logger.warning("check of server %s failed: %s", server_id, problem.code)
    except Server.DoesNotExist:
        logger.info("server %s was removed before it was checked", server_id)
    except Exception:
        if not await get_runtime().run_background_orm(Server.objects.filter(pk=server_id).exists):
            logger.info("server %s was removed while it was checked", server_id)
            return
        # An internal error must not leave the server as connecting.
        logger.exception("check of server %s broke off", server_id)
        fault = InternalError("Server check failed", remedy="The check is retried automatically.")
        await get_runtime().run_background_orm(
            record_failure, server_id, HealthCheck.Kind.HEALTH, fault
        )


async def check_server(server_id: UUID) -> None:
    """Ping one server, or discover it again if the last discovery is too old."""
    orm = get_runtime().run_background_orm
    server = await orm(Server.objects.select_related("change_subscription").get, pk=server_id)
    if is_catalog_expired(server):
        await run_discovery(server_id, actor=SYSTEM)
        return
    method = "server/discover" if server.era == "modern" else "ping"
    started_at = perf_counter()
    try:
        endpoint = await build_background_endpoint(await orm(build_endpoint, server))
        await get_connection_pool().send_request(
            endpoint, method, {}, holder=f"server:{server_id}:health"
        )
    except Problem as problem:
        await orm(record_failure, server_id, HealthCheck.Kind.HEALTH, problem)
        raise
    latency_ms = round((perf_counter() - started_at) * 1000)
    await orm(record_contact, server, HealthCheck.Kind.HEALTH, latency_ms)
