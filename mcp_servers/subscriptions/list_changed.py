"""Listener for list_changed notifications of HTTP servers.

A worker listens to servers that declare such notifications, each under a lease, up to
`BONOBOT_WATCHED_SERVERS`. A lost stream is reopened after a growing pause with jitter, and then the
definitions are refreshed, as missed notifications are not repeated.
"""

import asyncio
import logging
import os
from dataclasses import dataclass
from time import monotonic
from uuid import UUID, uuid4

from django.conf import settings
from django.core.exceptions import ObjectDoesNotExist
from django.db import Error as DatabaseFault

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InternalError, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.change_notifications import ReopenSchedule, Topic, compute_lifetime_s
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.client.task_set import TaskSet
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client.access_tokens import is_per_person
from mcp_servers.refresh_definitions import get_refresher
from mcp_servers.subscriptions import leases

logger = logging.getLogger(__name__)

TICK_S = 2.0
BEAT_S = 5.0
STUCK_S = 5.0


class ListenerLeaseLost(Exception):
    """Another process holds the lease."""


@dataclass(frozen=True)
class StreamConfiguration:
    """What a stream was opened with; a change requires a new stream."""

    fingerprint: str
    asks: str
    grants: tuple[str, ...]


@dataclass
class _ServerStream:
    """The stream of one server, and the policy generation of its configuration."""

    task: asyncio.Task[None]
    generation: int
    configuration: StreamConfiguration | None = None


class ListChangedListener:
    """The streams of this process."""

    def __init__(self) -> None:
        self.id = uuid4()
        self._streams: dict[UUID, _ServerStream] = {}
        self._tasks = TaskSet()
        self._ticker: asyncio.Task[None] | None = None
        self._renewed_at = 0.0

    async def start(self) -> None:
        """Start listening; do nothing if already started."""
        if self._ticker is None and settings.BONOBOT_WATCHED_SERVERS:
            self._ticker = asyncio.create_task(self._run_forever(), name="watch servers")
            get_runtime().on_close(self.stop)

    async def stop(self) -> None:
        """Close every stream and release the leases."""
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        await self._tasks.close()
        self._streams.clear()
        await get_runtime().run_orm(leases.release_change_leases, self.id)

    async def update_streams(self) -> None:
        """Renew the leases, close streams that are no longer needed, open unclaimed ones."""
        orm = get_runtime().run_orm
        if monotonic() - get_runtime().ticked_at > STUCK_S:
            return  # a blocked loop must not keep its leases
        if self._streams and monotonic() - self._renewed_at > BEAT_S:
            self._renewed_at = monotonic()
            await orm(leases.renew_change_leases, self.id)
        leased = {
            lease.server_id: lease for lease in await orm(leases.load_leased_servers, self.id)
        }
        for server_id, stream in list(self._streams.items()):
            lease = leased.get(server_id)
            if (
                lease is None
                or stream.task.done()
                or await self._is_reconfigured(server_id, stream, lease)
            ):
                stream.task.cancel()
                del self._streams[server_id]
        for server_id, lease in leased.items():
            if server_id not in self._streams:
                self._open_stream(server_id, lease.generation)
        if (room := settings.BONOBOT_WATCHED_SERVERS - len(self._streams)) > 0:
            for server_id in await orm(leases.claim_servers, self.id, room):
                self._open_stream(server_id, generation=-1)

    async def _run_forever(self) -> None:
        while True:
            try:
                await self.update_streams()
            except DatabaseFault as fault:
                # While the database is unavailable the leases expire, as they should.
                logger.warning("the servers' change notices could not be looked after: %s", fault)
            await asyncio.sleep(TICK_S)

    def _open_stream(self, server_id: UUID, generation: int) -> None:
        task = self._tasks.spawn(self._watch_server(server_id), name=f"watch {server_id}")
        self._streams[server_id] = _ServerStream(task, generation)

    async def _is_reconfigured(
        self, server_id: UUID, stream: _ServerStream, lease: leases.ServerLease
    ) -> bool:
        """Return whether the server's configuration has changed since its stream was opened."""
        if stream.generation == lease.generation or stream.configuration is None:
            return False
        stream.generation = lease.generation
        try:
            _, configuration = await get_runtime().run_orm(_load_configuration, server_id)
        except (ObjectDoesNotExist, Problem):
            return True
        return configuration != stream.configuration

    async def _watch_server(self, server_id: UUID) -> None:
        """Keep one stream open until canceled or the server refuses."""
        async for _ in ReopenSchedule():
            try:
                problem = await self._listen_once(server_id)
            except (ObjectDoesNotExist, ListenerLeaseLost):
                return
            except Exception:
                # No caller would report it: it is logged, shown at the server, and retried later.
                logger.exception("listening to server %s broke off", server_id)
                problem = InternalError("Listening failed", remedy="Bonobot retries automatically.")
            if problem is not None and problem.code == "not_offered":
                await get_runtime().run_orm(leases.mark_stream_refused, self.id, server_id, problem)
                return
            await get_runtime().run_orm(leases.mark_stream_lost, self.id, server_id, problem)

    async def _listen_once(self, server_id: UUID) -> Problem | None:
        """Receive one stream to its end; return the problem that ended it, or None."""
        try:
            orm = get_runtime().run_orm
            # A server that was disabled closes its stream; the lease is released a moment later.
            if not await orm(leases.is_leased, self.id, server_id):
                raise ListenerLeaseLost
            endpoint, configuration = await orm(_load_configuration, server_id)
            if (stream := self._streams.get(server_id)) is not None:
                stream.configuration = configuration

            async def handle_open(granted_topics: frozenset[Topic]) -> None:
                if not await get_runtime().run_orm(leases.mark_stream_opened, self.id, server_id):
                    raise ListenerLeaseLost
                get_refresher().request_refresh(server_id, noticed=False)

            async with asyncio.timeout(compute_lifetime_s()):
                await get_connection_pool().listen(
                    endpoint, holder=f"watch:{server_id}", on_open=handle_open
                )
        except TimeoutError:
            return None
        except Problem as problem:
            return problem
        return None


def _load_configuration(server_id: UUID) -> tuple[ServerEndpoint, StreamConfiguration]:
    server = Server.objects.select_related("change_subscription").get(pk=server_id)
    endpoint = build_endpoint(server)
    if is_per_person(endpoint):
        raise UpstreamError(
            format_message(
                "Each person signs in to `{server}` separately, so Bonobot can't listen "
                "for everyone.",
                server=server.name,
            ),
            code="not_offered",
            server=server.name,
            remedy="Its definitions are refreshed periodically.",
        )
    grants = OAuthGrant.objects.filter(server=server).order_by("pk").values_list("pk", flat=True)
    configuration = StreamConfiguration(
        endpoint.fingerprint, server.change_subscription.asks, tuple(map(str, grants))
    )
    return endpoint, configuration


_LISTENERS: dict[int, ListChangedListener] = {}


def get_listener() -> ListChangedListener:
    """Return this process's listener (a forked child gets its own)."""
    return _LISTENERS.setdefault(os.getpid(), ListChangedListener())
