"""Repeat the discovery of servers whose definitions may have changed, or are too old.

Triggers are a server's change notification, a reopened stream, a call answered as if its tool were
unknown, and the start of a session with an expired catalog. The first trigger starts a discovery at
once, those within the next ten seconds cause one together; a few servers are discovered
concurrently.

Stale marks are stored, so they survive the process that set them. A refresh is claimed by a
conditional UPDATE and not repeated within `INTERVAL`, or within ten times the duration of the last
one: a server that reports changes all the time occupies at most a tenth of one slot.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.core.exceptions import ObjectDoesNotExist
from django.utils import timezone

from bonobot.core.concurrency_limits import get_concurrency_limit
from bonobot.core.problems import Problem
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.ledger.types import Actor
from mcp_servers.client.change_notifications import ChangeNotification
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.protocol_versions import HEADER_MISMATCH, INVALID_PARAMS
from mcp_servers.client.task_set import TaskSet
from mcp_servers.discovery import run_discovery
from mcp_servers.models import ChangeSubscription, Server
from mcp_servers.subscriptions.change_notification_status import load_change_notification_status

INTERVAL = timedelta(seconds=10)
CLAIM_LIFETIME = timedelta(minutes=5)
# The process that got the notification goes first: only its connection may show the change.
PICKUP_DELAY = timedelta(seconds=20)
PAUSE_FACTOR = 10


MIN_DISCOVERY_LIFETIME = timedelta(seconds=60)
MAX_DISCOVERY_LIFETIME = timedelta(hours=24)
logger = logging.getLogger(__name__)
MAX_WAIT_S = 5.0
CHANGE_NOTIFICATION_ACTOR = Actor(kind="system", id="notices", label="change notice")


@dataclass(frozen=True)
class RefreshClaim:
    """A claim to refresh now, or how long to wait for one, or neither: nothing to refresh."""

    acquired: bool = False
    wait_s: float | None = None
    stale_at: datetime | None = None


def mark_stale(server_id: UUID, *, noticed: bool) -> bool:
    """Mark a server's definitions as stale; return False if the server doesn't exist.

    `noticed` says that the server sent a notification.
    """
    server = Server.objects.enabled().filter(pk=server_id).only("organization_id").first()
    if server is None:
        return False
    now = timezone.now()
    columns = {"stale_at": now} | ({"notified_at": now} if noticed else {})
    if not ChangeSubscription.objects.filter(server=server).update(**columns):
        defaults = {"organization_id": server.organization_id, **columns}
        ChangeSubscription.objects.get_or_create(server=server, defaults=defaults)
    return True


def claim_refresh(server_id: UUID, *, anyway: bool = False) -> RefreshClaim:
    """Claim the refresh of a stale server; with `anyway` also if it isn't stale any more."""
    now = timezone.now()
    row = ChangeSubscription.objects.filter(server_id=server_id).first()
    if row is None or (row.stale_at is None and not anyway):
        return RefreshClaim()
    if row.refresh_after is not None and row.refresh_after > now:
        return RefreshClaim(wait_s=min(row.refresh_after - now, INTERVAL).total_seconds())
    unchanged = ChangeSubscription.objects.filter(pk=row.pk, refresh_after=row.refresh_after)
    if not unchanged.update(refresh_after=now + CLAIM_LIFETIME):
        return RefreshClaim(wait_s=INTERVAL.total_seconds())
    return RefreshClaim(acquired=True, stale_at=row.stale_at)


def finish_refresh(server_id: UUID, claim: RefreshClaim, *, took_s: float, read: bool) -> None:
    """Record the end of a refresh; a newer stale mark stays."""
    rows = ChangeSubscription.objects.filter(server_id=server_id)
    rows.update(refresh_after=timezone.now() + compute_pause(took_s))
    if read and claim.stale_at is not None:
        rows.filter(stale_at=claim.stale_at).update(stale_at=None)


def list_abandoned_servers() -> list[UUID]:
    """Return stale, connected servers that no process refreshes."""
    now = timezone.now()
    stale = ChangeSubscription.objects.filter(
        stale_at__lt=now - PICKUP_DELAY,
        server__enabled=True,
        server__status=Server.Status.CONNECTED,
    ).exclude(refresh_after__gt=now)
    return list(stale.order_by("stale_at").values_list("server_id", flat=True)[:100])


def compute_pause(took_s: float) -> timedelta:
    """Return the pause after a refresh that took `took_s` seconds."""
    return max(INTERVAL, timedelta(seconds=PAUSE_FACTOR * took_s))


@dataclass
class _RefreshRequest:
    """A server to refresh; `holders` are those whose connections reported a change."""

    noticed: bool
    actor: Actor
    holders: list[str] = field(default_factory=list)
    repeat: bool = False
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class DefinitionRefresher:
    """The refreshes of this process; everything here runs on its loop."""

    def __init__(self) -> None:
        self._requests: dict[UUID, _RefreshRequest] = {}
        self._tasks = TaskSet()

    def request_refresh(
        self,
        server_id: UUID,
        holder: str = "",
        *,
        noticed: bool = True,
        actor: Actor = CHANGE_NOTIFICATION_ACTOR,
    ) -> asyncio.Event:
        """Start the refresh of a server, on the connection of `holder` if it has one.

        Returns at once, with the event that is set when the refresh ended or has to wait; requests
        during a waiting or running refresh only set a flag.
        """
        request = self._requests.get(server_id)
        if request is None:
            request = self._requests[server_id] = _RefreshRequest(noticed, actor)
            self._tasks.spawn(self._run_refreshes(server_id, request), name=f"reread {server_id}")
        request.repeat = True
        request.noticed |= noticed
        if holder and holder not in request.holders:
            request.holders.append(holder)
        return request.settled

    async def wait_until_refreshed(self, holder: str) -> None:
        """Wait until changes reported on `holder`'s connections are refreshed, for 5 s at most.

        Does not wait for a refresh that is paused: a flood must not delay users of the server.
        """
        pending = [
            request.settled for request in self._requests.values() if holder in request.holders
        ]
        try:
            async with asyncio.timeout(MAX_WAIT_S):
                for settled in pending:
                    await settled.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stop; another process refreshes servers that are marked as stale."""
        await self._tasks.close()

    async def _run_refreshes(self, server_id: UUID, request: _RefreshRequest) -> None:
        try:
            while request.repeat and await self._claim_and_refresh(server_id, request):
                continue
        finally:
            del self._requests[server_id]
            request.settled.set()

    async def _claim_and_refresh(self, server_id: UUID, request: _RefreshRequest) -> bool:
        """Mark, claim and refresh; return False if there was nothing to refresh."""
        orm = get_runtime().run_orm
        noticed, request.noticed = request.noticed, False
        if not await orm(mark_stale, server_id, noticed=noticed):
            return False
        while True:
            claim = await orm(claim_refresh, server_id, anyway=bool(request.holders))
            if claim.acquired:
                break
            if claim.wait_s is None:
                return False  # another process has refreshed it since
            request.settled.set()
            await asyncio.sleep(claim.wait_s)
        request.settled.clear()
        request.repeat = False
        holder = request.holders[-1] if request.holders else ""
        await self._refresh(server_id, holder, claim, request.actor)
        if not request.repeat:
            request.holders.clear()
        return True

    async def _refresh(
        self, server_id: UUID, holder: str, claim: RefreshClaim, actor: Actor
    ) -> None:
        started_at, succeeded = perf_counter(), False
        try:
            async with get_concurrency_limit("discovery"):
                started_at = perf_counter()
                await run_discovery(server_id, actor=actor, preferred_holder=holder)
                succeeded = True
        except Problem as problem:
            logger.warning("server %s could not be read again: %s", server_id, problem.code)
        except ObjectDoesNotExist:
            logger.info("server %s was removed before it was read again", server_id)
        finally:
            took_s = perf_counter() - started_at
            await get_runtime().run_orm(
                finish_refresh, server_id, claim, took_s=took_s, read=succeeded
            )


_refreshers: WeakKeyDictionary[Runtime, DefinitionRefresher] = WeakKeyDictionary()


def get_refresher() -> DefinitionRefresher:
    """Return this process's refresher; only on the loop of `get_runtime()`."""
    runtime = get_runtime()
    if (refresher := _refreshers.get(runtime)) is None:
        refresher = _refreshers[runtime] = DefinitionRefresher()
        runtime.on_close(refresher.close)
    return refresher


def handle_change_notification(server_id: UUID, notification: ChangeNotification) -> None:
    """Refresh a server after a change of its lists; ignore updates of single resources."""
    if not notification.uri:
        get_refresher().request_refresh(server_id, notification.holder)


def request_refresh_on_error(server_id: UUID, problem: Problem, holder: str) -> None:
    """Refresh a server whose error suggests that a tool has changed.

    -32602 means an unknown tool, -32020 that mirrored headers do not match.
    """
    if isinstance(problem, UpstreamError) and problem.rpc_code in (INVALID_PARAMS, HEADER_MISMATCH):
        get_refresher().request_refresh(server_id, holder, noticed=False)


async def await_refresh_on_error(server_id: UUID, problem: Problem, holder: str) -> None:
    """Call `request_refresh_on_error`, and wait for the refresh for 5 s at most."""
    request_refresh_on_error(server_id, problem, holder)
    await get_refresher().wait_until_refreshed(holder)


async def refresh_abandoned_servers(server_ids: Iterable[UUID]) -> None:
    """Refresh stale servers that no process has refreshed."""
    for server_id in server_ids:
        get_refresher().request_refresh(server_id, noticed=False)


def get_discovery_lifetime(discovery: Mapping[str, Any] | None) -> timedelta:
    """Return how long a discovery is valid: its `ttlMs` within limits, a day by default."""
    ttl_ms = (discovery or {}).get("ttlMs")
    if not isinstance(ttl_ms, int) or isinstance(ttl_ms, bool):
        return MAX_DISCOVERY_LIFETIME
    ceiling_ms = MAX_DISCOVERY_LIFETIME // timedelta(milliseconds=1)
    return max(MIN_DISCOVERY_LIFETIME, timedelta(milliseconds=max(0, min(ttl_ms, ceiling_ms))))


def is_catalog_expired(server: Server) -> bool:
    """Return whether a server has to be discovered again (one query unless joined).

    There is no discovery after its address or selected operations have changed.
    """
    if server.discovered_at is None or server.discovery is None:
        return True
    is_listening = load_change_notification_status(server).state == "listening"
    lifetime = MAX_DISCOVERY_LIFETIME if is_listening else get_discovery_lifetime(server.discovery)
    return bool(timezone.now() - server.discovered_at > lifetime)
