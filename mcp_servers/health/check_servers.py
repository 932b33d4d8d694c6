"""Claim and check servers that are due.

A check is a ping while the last discovery is recent, otherwise a discovery. Checks run
concurrently, so a hanging one delays no other, and a process claims only as many as it has slots
for: the rest is left to other workers.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from time import perf_counter
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.utils import timezone

from bonobot.core.concurrency_limits import get_concurrency_limit
from bonobot.core.problems import InternalError, Problem
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.ledger.types import Actor
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.discovery import discover
from mcp_servers.health.services import pause, record_contact, record_failure
from mcp_servers.models import Check, Server
from mcp_servers.oauth_client.access_tokens import build_background_endpoint
from mcp_servers.subscriptions.queries import load_change_notification_status

logger = logging.getLogger(__name__)

SYSTEM = Actor(kind="system", id="health", label="health check")
FRESH_AT_LEAST = timedelta(seconds=60)
FRESH_AT_MOST = timedelta(hours=24)
LANE = "health"


def claim_due(limit: int) -> list[UUID]:
    """Claim servers that are due, by advancing `next_check_at`; return their ids."""
    claimed = []
    for server in Server.objects.due().order_by("next_check_at")[:limit]:
        mine = Server.objects.filter(pk=server.pk, next_check_at=server.next_check_at)
        if mine.update(next_check_at=timezone.now() + pause(server, server.failures)):
            claimed.append(server.pk)
    return claimed


def get_discovery_lifetime(discovery: Mapping[str, Any] | None) -> timedelta:
    """Return how long a discovery is valid: its `ttlMs` within limits, a day by default."""
    ttl_ms = (discovery or {}).get("ttlMs")
    if not isinstance(ttl_ms, int) or isinstance(ttl_ms, bool):
        return FRESH_AT_MOST
    ceiling_ms = FRESH_AT_MOST // timedelta(milliseconds=1)
    return max(FRESH_AT_LEAST, timedelta(milliseconds=max(0, min(ttl_ms, ceiling_ms))))


class HealthCheckRunner:
    """The checks of this process, which claims only as many servers as it has slots."""

    def __init__(self) -> None:
        """Start without checks."""
        self._crew = TaskSet()
        self._ended = asyncio.Event()
        self._feeding = False
        self._again = False

    async def feed(self) -> None:
        """Claim and check until nothing is due; return at once if already running."""
        self._again = True
        if self._feeding:
            return
        self._feeding = True
        try:
            while await self._claimed() or self._again:
                await self._room()
        finally:
            self._feeding = False

    async def close(self) -> None:
        """Stop; claimed servers are due again after their pause."""
        await self._crew.close()

    async def _claimed(self) -> bool:
        self._again = False
        claimed = await get_runtime().aside(
            claim_due, get_concurrency_limit(LANE).most - len(self._crew)
        )
        for server_id in claimed:
            self._crew.spawn(self._check(server_id), name=f"check {server_id}")
        return bool(claimed)

    async def _room(self) -> None:
        while len(self._crew) >= get_concurrency_limit(LANE).most:
            self._ended.clear()
            await self._ended.wait()

    async def _check(self, server_id: UUID) -> None:
        try:
            async with get_concurrency_limit(LANE):
                await check_server_safely(server_id)
        finally:
            # After this task has ended and its slot is free.
            asyncio.get_running_loop().call_soon(self._ended.set)


_by_runtime: WeakKeyDictionary[Runtime, HealthCheckRunner] = WeakKeyDictionary()


async def check_what_is_due() -> None:
    """Claim and check servers in this process until none is due."""
    own = get_runtime()
    if (checks := _by_runtime.get(own)) is None:
        checks = _by_runtime[own] = HealthCheckRunner()
        own.on_close(checks.close)
    await checks.feed()


async def check_server_safely(server_id: UUID) -> None:
    """Check one server; a failure is recorded, never raised."""
    try:
        await check(server_id)
    except Problem as problem:
        logger.warning("check of server %s failed: %s", server_id, problem.code)
    except Server.DoesNotExist:
        logger.info("server %s was removed before it was checked", server_id)
    except Exception:
        # An internal error must not leave the server as connecting.
        logger.exception("check of server %s broke off", server_id)
        fault = InternalError("Checking this server failed", remedy="It is asked again.")
        await get_runtime().aside(record_failure, server_id, Check.Kind.HEALTH, fault)


async def check(server_id: UUID) -> None:
    """Ping one server, or discover it again if the last discovery is too old."""
    orm = get_runtime().aside
    server = await orm(Server.objects.select_related("watch").get, pk=server_id)
    heard = load_change_notification_status(server).state == "listening"
    good_for = FRESH_AT_MOST if heard else get_discovery_lifetime(server.discovery)
    seen = server.discovered_at
    # There is no discovery after its address or selected operations have changed.
    if seen is None or server.discovery is None or timezone.now() - seen > good_for:
        await discover(server_id, actor=SYSTEM)
        return
    method = "server/discover" if server.era == "modern" else "ping"
    began = perf_counter()
    try:
        endpoint = await build_background_endpoint(await orm(build_endpoint, server))
        await get_connection_pool().request(
            endpoint, method, {}, holder=f"server:{server_id}:health"
        )
    except Problem as problem:
        await orm(record_failure, server_id, Check.Kind.HEALTH, problem)
        raise
    latency_ms = round((perf_counter() - began) * 1000)
    await orm(record_contact, server, Check.Kind.HEALTH, latency_ms)
