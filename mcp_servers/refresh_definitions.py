"""Repeat the discovery of servers whose definitions may have changed.

Triggers are a server's change notification, a reopened stream, and a call answered as if its tool
were unknown. The first trigger starts a discovery at once, those within the next ten seconds cause
one together; a few servers are discovered concurrently.

Stale marks are stored, so they survive the process that set them. A refresh is claimed by a
conditional UPDATE and not repeated within `INTERVAL`, or within ten times the duration of the last
one: a server that reports changes all the time occupies at most a tenth of one slot.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import perf_counter
from uuid import UUID
from weakref import WeakKeyDictionary

from django.core.exceptions import ObjectDoesNotExist
from django.utils import timezone

from bonobot.core.concurrency_limits import get_concurrency_limit
from bonobot.core.problems import Problem
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.ledger.types import Actor
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.change_notifications import ChangeNotification
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.protocol_versions import HEADER_MISMATCH, INVALID_PARAMS
from mcp_servers.discovery import discover
from mcp_servers.models import Server, Watch

INTERVAL = timedelta(seconds=10)
RUNNING = timedelta(minutes=5)
# The process that got the notification goes first: only its connection may show the change.
GRACE = timedelta(seconds=20)
SHARE = 10


@dataclass(frozen=True)
class RefreshClaim:
    """A claim to refresh now, or how long to wait for one, or neither: nothing to refresh."""

    taken: bool = False
    wait_s: float | None = None
    stale_at: datetime | None = None


def mark(server_id: UUID, *, noticed: bool) -> bool:
    """Mark a server's definitions as stale; return False if the server doesn't exist.

    `noticed` says that the server sent a notification.
    """
    server = Server.objects.enabled().filter(pk=server_id).only("organization_id").first()
    if server is None:
        return False
    now = timezone.now()
    found = {"stale_at": now} | ({"noticed_at": now} if noticed else {})
    if not Watch.objects.filter(server=server).update(**found):
        of = {"organization_id": server.organization_id, **found}
        Watch.objects.get_or_create(server=server, defaults=of)
    return True


def claim_refresh(server_id: UUID, *, anyway: bool = False) -> RefreshClaim:
    """Claim the refresh of a stale server; with `anyway` also if it isn't stale any more."""
    now = timezone.now()
    row = Watch.objects.filter(server_id=server_id).first()
    if row is None or (row.stale_at is None and not anyway):
        return RefreshClaim()
    if row.reread_after is not None and row.reread_after > now:
        return RefreshClaim(wait_s=min(row.reread_after - now, INTERVAL).total_seconds())
    same = Watch.objects.filter(pk=row.pk, reread_after=row.reread_after)
    if not same.update(reread_after=now + RUNNING):
        return RefreshClaim(wait_s=INTERVAL.total_seconds())
    return RefreshClaim(taken=True, stale_at=row.stale_at)


def finish(server_id: UUID, claim: RefreshClaim, *, took_s: float, read: bool) -> None:
    """Record the end of a refresh; a newer stale mark stays."""
    rows = Watch.objects.filter(server_id=server_id)
    rows.update(reread_after=timezone.now() + pause_after(took_s))
    if read and claim.stale_at is not None:
        rows.filter(stale_at=claim.stale_at).update(stale_at=None)


def list_abandoned_servers() -> list[UUID]:
    """Return stale, connected servers that no process refreshes."""
    now = timezone.now()
    waiting = Watch.objects.filter(
        stale_at__lt=now - GRACE, server__enabled=True, server__status=Server.Status.CONNECTED
    ).exclude(reread_after__gt=now)
    return list(waiting.order_by("stale_at").values_list("server_id", flat=True)[:100])


def pause_after(took_s: float) -> timedelta:
    """Return the pause after a refresh that took `took_s` seconds."""
    return max(INTERVAL, timedelta(seconds=SHARE * took_s))


logger = logging.getLogger(__name__)

NOTICED = Actor(kind="system", id="notices", label="change notice")
CAUGHT_UP_S = 5.0


@dataclass
class _RefreshRequest:
    """A server to refresh; `holders` are those whose connections reported a change."""

    noticed: bool
    holders: list[str] = field(default_factory=list)
    again: bool = False
    quiet: asyncio.Event = field(default_factory=asyncio.Event)


class DefinitionRefresher:
    """The refreshes of this process; everything here runs on its loop."""

    def __init__(self) -> None:
        self._wanted: dict[UUID, _RefreshRequest] = {}
        self._crew = TaskSet()

    def want(self, server_id: UUID, holder: str = "", *, noticed: bool = True) -> None:
        """Start the refresh of a server, on the connection of `holder` if it has one.

        Returns at once; requests during a waiting or running refresh only set a flag.
        """
        wanted = self._wanted.get(server_id)
        if wanted is None:
            wanted = self._wanted[server_id] = _RefreshRequest(noticed)
            self._crew.spawn(self._read_all(server_id, wanted), name=f"reread {server_id}")
        wanted.again = True
        wanted.noticed |= noticed
        if holder and holder not in wanted.holders:
            wanted.holders.append(holder)

    async def caught_up(self, holder: str) -> None:
        """Wait until changes reported on `holder`'s connections are refreshed, for 5 s at most.

        Does not wait for a refresh that is paused: a flood must not delay users of the server.
        """
        waiting = [one.quiet for one in self._wanted.values() if holder in one.holders]
        try:
            async with asyncio.timeout(CAUGHT_UP_S):
                for quiet in waiting:
                    await quiet.wait()
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stop; another process refreshes servers that are marked as stale."""
        await self._crew.close()

    async def _read_all(self, server_id: UUID, wanted: _RefreshRequest) -> None:
        try:
            while wanted.again and await self._claimed(server_id, wanted):
                continue
        finally:
            del self._wanted[server_id]
            wanted.quiet.set()

    async def _claimed(self, server_id: UUID, wanted: _RefreshRequest) -> bool:
        """Mark, claim and refresh; return False if there was nothing to refresh."""
        orm = get_runtime().orm
        noticed, wanted.noticed = wanted.noticed, False
        if not await orm(mark, server_id, noticed=noticed):
            return False
        while True:
            claim = await orm(claim_refresh, server_id, anyway=bool(wanted.holders))
            if claim.taken:
                break
            if claim.wait_s is None:
                return False  # another process has refreshed it since
            wanted.quiet.set()
            await asyncio.sleep(claim.wait_s)
        wanted.quiet.clear()
        wanted.again = False
        holder = wanted.holders[-1] if wanted.holders else ""
        await self._read(server_id, holder, claim)
        if not wanted.again:
            wanted.holders.clear()
        return True

    async def _read(self, server_id: UUID, holder: str, claim: RefreshClaim) -> None:
        began, read = perf_counter(), False
        try:
            async with get_concurrency_limit("discovery"):
                began = perf_counter()
                await discover(server_id, actor=NOTICED, of=holder)
                read = True
        except Problem as problem:
            logger.warning("server %s could not be read again: %s", server_id, problem.code)
        except ObjectDoesNotExist:
            logger.info("server %s was removed before it was read again", server_id)
        finally:
            took_s = perf_counter() - began
            await get_runtime().orm(finish, server_id, claim, took_s=took_s, read=read)


_by_runtime: WeakKeyDictionary[Runtime, DefinitionRefresher] = WeakKeyDictionary()


def get_refresher() -> DefinitionRefresher:
    """Return this process's refresher; only on the loop of `get_runtime()`."""
    own = get_runtime()
    if (made := _by_runtime.get(own)) is None:
        made = _by_runtime[own] = DefinitionRefresher()
        own.on_close(made.close)
    return made


def handle_change_notification(server_id: UUID, notice: ChangeNotification) -> None:
    """Refresh a server after a change of its lists; ignore updates of single resources."""
    if not notice.uri:
        get_refresher().want(server_id, notice.holder)


def request_refresh_on_error(server_id: UUID, problem: Problem, holder: str) -> None:
    """Refresh a server whose error suggests that a tool has changed.

    -32602 means an unknown tool, -32020 that mirrored headers do not match.
    """
    if isinstance(problem, UpstreamError) and problem.rpc_code in (INVALID_PARAMS, HEADER_MISMATCH):
        get_refresher().want(server_id, holder, noticed=False)


async def await_refresh_on_error(server_id: UUID, problem: Problem, holder: str) -> None:
    """Call `request_refresh_on_error`, and wait for the refresh for 5 s at most."""
    request_refresh_on_error(server_id, problem, holder)
    await get_refresher().caught_up(holder)


async def take_up(server_ids: Iterable[UUID]) -> None:
    """Refresh stale servers that no process has refreshed."""
    for server_id in server_ids:
        get_refresher().want(server_id, noticed=False)
