"""Watch resources of servers for gateway clients.

For all clients in all processes there is one subscription per resource, by the process that holds
the row's lease, on a separate connection to the server. Updates are counted in the row, at most
every `FLUSH_S`; every process reads the counts for its clients once a second, or sooner when woken
by the bus. A lost stream is reopened after a growing pause, and then all its resources count as
changed, since servers do not repeat notifications.

If each person signs in to the server separately, there is one subscription per person with their
own login, and other people see neither updates nor subscription. A person's feed is closed when
their login ends.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from time import monotonic
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

from django.core.exceptions import ObjectDoesNotExist

from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.message_bus import get_bus
from bonobot.core.problems import Problem
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.ledger.policy_generations import load_policy_generations
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.change_notifications import (
    SUBSCRIBE,
    ChangeNotification,
    DesiredSubscriptions,
    ReopenSchedule,
    can_subscribe,
    compute_lifetime_s,
)
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import HeldConnection, get_connection_pool
from mcp_servers.client.task_set import TaskSet
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client.access_tokens import (
    build_person_endpoint,
    can_authenticate,
    find_person_id,
)
from mcp_servers.subscriptions import leases
from mcp_servers.subscriptions.leases import ResourceUpdateState, UpdateSource

logger = logging.getLogger(__name__)

# Takes a URI, whether its subscription was granted, and whether updates may have been missed.
OnWatchResult = Callable[[str, bool, bool], None]
TICK_S = 1.0
BEAT_S = 5.0
STUCK_S = 5.0
# Maximum wait for the result of a subscription.
GRANT_TIMEOUT_S = 10.0
FLUSH_S = 0.1
MAX_WATCHED = 10_000
# The bus channel that wakes other processes after changes.
BUS_CHANNEL = "followed-resources"
State = leases.State
Key = tuple[UpdateSource, str]
SUBSCRIBE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class PersonLogin:
    """A person's login; a later one may be for a different account."""

    grant: UUID
    since: datetime | None


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """How a source may be accessed: policy generation, login and endpoint.

    `endpoint` is None if the generation, and therefore the endpoint, is unchanged.
    """

    generation: int
    login: PersonLogin | None
    endpoint: ServerEndpoint | None


class ResourceFeed:
    """The resources of one source that this process subscribes to, and their connection."""

    def __init__(self, source: UpdateSource, on_result: OnWatchResult) -> None:
        self.ids: dict[str, UUID] = {}
        # A separate holder, so that closing this connection closes no other.
        self.holder = f"updates:{uuid4()}"
        self.source = source
        # The policy generation of the last check.
        self.generation = -1
        self._on_result = on_result
        self._desired = DesiredSubscriptions()
        self._granted: set[str] = set()
        self._missed: set[str] = set()
        self._running: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._login: PersonLogin | None = None
        self._fingerprint = ""

    @property
    def row_ids(self) -> list[UUID]:
        """Return the ids of the rows that this process holds."""
        return list(self.ids.values())

    def add_resource(self, row: ResourceUpdateState) -> None:
        """Add a resource; if another process held it, updates may have been missed."""
        if row.uri not in self.ids and row.state == "granted":
            self._missed.add(row.uri)
        self.ids[row.uri] = row.id
        self._desired.add(row.uri)

    def remove_uri(self, uri: str) -> None:
        self.ids.pop(uri, None)
        self._granted.discard(uri)
        self._missed.discard(uri)
        self._desired.discard(uri)

    def is_granted(self, uri: str) -> bool:
        return uri in self._granted

    def list_affected_uris(self, uri: str) -> list[str]:
        """Return the watched resources that an update of `uri` affects: itself and its parents."""
        return [
            watched_uri
            for watched_uri in self.ids
            if uri == watched_uri or uri.startswith(watched_uri.rstrip("/") + "/")
        ]

    def start(self, tasks: TaskSet) -> None:
        """Keep a connection open until the feed or its tasks are stopped."""
        self._running = tasks.spawn(self._keep_open(), name=f"follow {self.source.server_id}")

    def stop(self) -> None:
        """Close the connection and do not reopen it."""
        if self._running is not None:
            self._running.cancel()

    def update_access(self, access: SourceAccess | None) -> None:
        """Reopen the connection if endpoint or login changed; close it without access."""
        if access is None:
            self._close_connection()
            return
        self.generation = access.generation
        is_reconfigured = (
            access.endpoint is not None and self._fingerprint != access.endpoint.fingerprint
        )
        if self._fingerprint and (is_reconfigured or access.login != self._login):
            self._close_connection()

    async def _keep_open(self) -> None:
        async for _ in ReopenSchedule():
            self._opening = asyncio.ensure_future(self._listen_once())
            try:
                await asyncio.wait({self._opening})
            finally:
                self._opening.cancel()
                await asyncio.wait({self._opening})
            self._missed |= self._granted

    async def _listen_once(self) -> None:
        """Receive updates on one connection to its end."""
        try:
            access = (await get_runtime().run_orm(load_source_access, {self.source: -1})).get(
                self.source
            )
            if access is None or access.endpoint is None:
                raise ObjectDoesNotExist
            endpoint = access.endpoint
            self.generation, self._login = access.generation, access.login
            self._fingerprint = endpoint.fingerprint
            async with asyncio.timeout(compute_lifetime_s()):
                await get_connection_pool().watch_resources(
                    endpoint, self._desired, self._handle_result, holder=self.holder
                )
        except TimeoutError:
            return
        except (ObjectDoesNotExist, Problem):
            # Callers waiting for a first result get one; resources granted before are retried.
            for uri in set(self.ids) - self._granted:
                self._on_result(uri, False, False)
        except Exception:
            # No caller would report it: it is logged and retried later.
            logger.exception("following resources of server %s broke off", self.source.server_id)

    def _handle_result(self, uri: str, is_granted: bool) -> None:
        missed = uri in self._missed
        self._missed.discard(uri)
        if is_granted:
            self._granted.add(uri)
        self._on_result(uri, is_granted, missed and is_granted)

    def _close_connection(self) -> None:
        if self._opening is not None:
            self._opening.cancel()


def load_source_access(
    generations_seen: Mapping[UpdateSource, int],
) -> dict[UpdateSource, SourceAccess]:
    """Return the access of sources, given the generations of their last check.

    Leaves out disabled and deleted servers, people whose login has ended, and logins that the
    server no longer uses (3 queries, and 2 if servers may have been changed).
    """
    running = Server.objects.operational().filter(
        pk__in={item.server_id for item in generations_seen}
    )
    organization_ids = dict(running.values_list("pk", "organization_id"))
    generations = load_policy_generations(set(organization_ids.values()))
    current = {
        item: generations.get(organization_ids[item.server_id], 0)
        for item in generations_seen
        if item.server_id in organization_ids
    }
    logins = _load_logins(current)
    # After the generations: rows read before them may be older.
    changed_servers = {
        item.server_id for item in current if current[item] != generations_seen[item]
    }
    servers = {
        item.pk: item for item in running.filter(pk__in=changed_servers).prefetch_related("secrets")
    }
    access = {}
    for source, generation in current.items():
        if source.subject is not None and source not in logins:
            continue
        endpoint = None
        if source.server_id in changed_servers:
            endpoint = _find_source_endpoint(servers.get(source.server_id), source)
            if endpoint is None:
                continue
        access[source] = SourceAccess(generation, logins.get(source), endpoint)
    return access


def _find_source_endpoint(server: Server | None, source: UpdateSource) -> ServerEndpoint | None:
    """Return the endpoint of a server with the source's login, or None."""
    if server is None:
        return None
    try:
        endpoint = build_person_endpoint(build_endpoint(server), source.subject)
    except Problem:
        return None
    return endpoint if find_person_id(endpoint) == source.subject else None


def _load_logins(sources: Collection[UpdateSource]) -> dict[UpdateSource, PersonLogin]:
    """Return the valid logins of the people among the sources."""
    people = {source.subject for source in sources if source.subject is not None}
    if not people:
        return {}
    servers = {source.server_id for source in sources}
    rows = OAuthGrant.objects.filter(server__in=servers, subject__in=people)
    return {
        UpdateSource(row.server_id, row.subject): PersonLogin(row.pk, row.signed_in_at)
        for row in rows
        if can_authenticate(row)
    }


def can_watch_resources(endpoint: ServerEndpoint) -> bool:
    capabilities = (endpoint.discovery or {}).get("capabilities")
    return endpoint.transport in ("http", "stdio") and can_subscribe(capabilities)


def build_source(endpoint: ServerEndpoint) -> UpdateSource:
    return UpdateSource(endpoint.server_id, find_person_id(endpoint))


@dataclass
class _ResourceWatch:
    """A resource that clients of this process watch."""

    users: int = 0
    id: UUID | None = None
    organization_id: UUID | None = None
    state: str = State.ASKED
    changes: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class ResourceWatcher:
    """The resources that clients of this process watch; everything here runs on its loop."""

    def __init__(self) -> None:
        self.id = uuid4()
        self.change_listeners: set[Callable[[], object]] = set()
        self._watches: dict[Key, _ResourceWatch] = {}
        self._feeds: dict[UpdateSource, ResourceFeed] = {}
        self._by_holder: dict[str, ResourceFeed] = {}
        self._tasks = TaskSet()
        self._wake = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._flusher: asyncio.Task[None] | None = None
        self._changed_ids: set[UUID] = set()
        self._results: dict[UUID, bool] = {}
        self._renewed_at = 0.0

    async def watch_resources(
        self, endpoint: ServerEndpoint, uris: Collection[str]
    ) -> dict[str, int]:
        """Watch resources of a server until `unwatch_resources`.

        Returns the granted ones with their change counts. If each person signs in separately,
        `endpoint` is a person's (`oauth_client.access_tokens`).
        """
        room = MAX_WATCHED - len(self._watches)
        source = build_source(endpoint)
        keys = [(source, uri) for uri in list(uris)[: max(room, 0)]]
        for key in keys:
            self._watches.setdefault(key, _ResourceWatch()).users += 1
        try:
            await self._request_resources(
                endpoint.organization_id, source, [uri for _, uri in keys]
            )
        except BaseException:
            self.unwatch_resources(keys)
            raise
        granted_keys = {key for key in keys if self._watches[key].state == State.GRANTED}
        change_counts = {key[1]: self._watches[key].changes for key in granted_keys}
        self.unwatch_resources(key for key in keys if key not in granted_keys)
        return change_counts

    def unwatch_resources(self, keys: Iterable[Key]) -> None:
        """Remove one client of each; resources without clients are released soon."""
        for key in keys:
            watch = self._watches.get(key)
            if watch is not None:
                watch.users -= 1
                if not watch.users:
                    del self._watches[key]

    def find_change_count(self, key: Key) -> int | None:
        """Return how often a resource has changed; None if it isn't watched here."""
        watch = self._watches.get(key)
        return watch.changes if watch is not None else None

    def handle_notification(self, notification: ChangeNotification) -> None:
        """Record an update of a resource or a part of one, on the connection of a feed.

        Updates on other connections are ignored.
        """
        feed = self._by_holder.get(notification.holder)
        if feed is not None:
            self._changed_ids |= {
                feed.ids[uri] for uri in feed.list_affected_uris(notification.uri)
            }
            self._schedule_flush()

    async def stop(self) -> None:
        """Stop watching, and release the leases so that others can claim them."""
        for task in filter(None, (self._poller, self._flusher)):
            task.cancel()
        await self._tasks.close()
        self._feeds.clear()
        self._by_holder.clear()
        with suppress(*UNAVAILABLE_ERRORS):
            await get_runtime().run_orm(leases.release_resource_leases, self.id)

    async def _request_resources(
        self, organization_id: UUID, source: UpdateSource, uris: list[str]
    ) -> None:
        """Add resources, claim those without a holder, and wait for the results."""
        if not uris:
            return
        await self._add_watched_resources(organization_id, source, uris)
        self._start_polling()
        unsettled = [self._watches[source, uri].settled.wait() for uri in uris]
        with suppress(TimeoutError):
            async with asyncio.timeout(GRANT_TIMEOUT_S):
                await asyncio.gather(*unsettled)

    async def _add_watched_resources(
        self, organization_id: UUID, source: UpdateSource, uris: list[str]
    ) -> None:
        rows = await get_runtime().run_orm(
            leases.add_watched_resources, organization_id, source, uris
        )
        for row in rows:
            if (watch := self._watches.get((row.source, row.uri))) is not None:
                watch.id, watch.organization_id = row.id, organization_id
            if row.holder is not None:
                self._apply_state(row)
        await self._claim_resources(row.id for row in rows if row.holder is None)

    def _apply_state(self, row: leases.ResourceUpdateState) -> bool:
        """Apply the state of a row; return whether its resource changed."""
        watch = self._watches.get((row.source, row.uri))
        if watch is None:
            return False
        has_changes = watch.changes != row.changes
        watch.changes = row.changes
        if row.holder != self.id:
            watch.state = row.state
        elif self._is_granted(row):  # a result in this process may not be written yet
            watch.state = State.GRANTED
        if watch.state != State.ASKED:
            watch.settled.set()
        return has_changes

    def _is_granted(self, row: leases.ResourceUpdateState) -> bool:
        feed = self._feeds.get(row.source)
        return feed is not None and feed.is_granted(row.uri)

    async def _claim_resources(self, ids: Iterable[UUID]) -> None:
        claimable = list(ids)
        for row in (
            await get_runtime().run_orm(leases.claim_resources, self.id, claimable)
            if claimable
            else ()
        ):
            self._apply_state(row)
            self._get_feed(row).add_resource(row)

    def _get_feed(self, row: leases.ResourceUpdateState) -> ResourceFeed:
        feed = self._feeds.get(row.source)
        if feed is None:
            feed = ResourceFeed(row.source, partial(self._handle_result, row.source))
            self._feeds[row.source] = self._by_holder[feed.holder] = feed
            feed.start(self._tasks)
        return feed

    def _handle_result(
        self, source: UpdateSource, uri: str, is_granted: bool, missed: bool
    ) -> None:
        """Handle the result of a subscription; `missed` counts as a change."""
        feed = self._feeds.get(source)
        row_id = feed.ids.get(uri) if feed is not None else None
        if feed is None or row_id is None:
            return
        self._results[row_id] = is_granted
        if missed:
            self._changed_ids.add(row_id)
        if not is_granted:
            self._remove_uri(feed, uri)
        if (watch := self._watches.get((source, uri))) is not None:
            watch.state = State.GRANTED if is_granted else State.REFUSED
            watch.settled.set()
        self._schedule_flush()

    def _schedule_flush(self) -> None:
        if (self._changed_ids or self._results) and (self._flusher is None or self._flusher.done()):
            self._flusher = self._tasks.spawn(self._flush(), name="write what servers reported")

    async def _flush(self) -> None:
        """Write results and changes until there are no more; wake all processes."""
        orm = get_runtime().run_orm
        while self._changed_ids or self._results:
            changed_ids, self._changed_ids = self._changed_ids, set()
            results, self._results = self._results, {}
            try:
                if results:
                    granted_ids = [row_id for row_id, is_granted in results.items() if is_granted]
                    await orm(
                        leases.settle_resources,
                        self.id,
                        granted_ids,
                        list(results.keys() - set(granted_ids)),
                    )
                if changed_ids:
                    await orm(leases.increment_change_counts, self.id, changed_ids)
            except UNAVAILABLE_ERRORS as fault:
                logger.warning("updates of resources can't be written: %s", fault)
                self._changed_ids |= changed_ids
                self._results = results | self._results
                await asyncio.sleep(TICK_S)
                continue
            get_bus().queue_wakeup(BUS_CHANNEL)
            self._wake.set()
            await asyncio.sleep(FLUSH_S)

    def _start_polling(self) -> None:
        if self._poller is None or self._poller.done():
            self._poller = self._tasks.spawn(self._run_polling(), name="follow resources")

    async def _run_polling(self) -> None:
        """Poll the rows while anything is watched or held here."""
        wake = self._wake.set
        await get_bus().add_listener(BUS_CHANNEL, wake)
        try:
            while self._watches or self._feeds:
                self._wake.clear()
                with suppress(*UNAVAILABLE_ERRORS):  # retried if the database is unavailable
                    await self._poll_states()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._wake.wait()
        finally:
            get_bus().remove_listener(BUS_CHANNEL, wake)

    async def _poll_states(self) -> None:
        orm = get_runtime().run_orm
        ids = {watch.id for watch in self._watches.values() if watch.id is not None}
        if (
            monotonic() - self._renewed_at > BEAT_S
            and monotonic() - get_runtime().ticked_at < STUCK_S
        ):
            self._renewed_at = monotonic()
            await orm(leases.renew_resource_leases, self.id, ids)
            await self._sync_feeds(
                {row_id for feed in self._feeds.values() for row_id in feed.row_ids}
            )
        rows = await orm(leases.load_watched_resources, ids) if ids else []
        changed_rows = [row for row in rows if self._apply_state(row)]
        await self._claim_resources(
            row.id for row in rows if row.holder is None and row.state != State.REFUSED
        )
        await self._restore_resources(ids - {row.id for row in rows})
        if changed_rows:
            for listener in tuple(self.change_listeners):
                listener()

    async def _restore_resources(self, deleted: set[UUID]) -> None:
        """Add resources again that another process deleted as unwanted."""
        for (source, uri), watch in list(self._watches.items()):
            if watch.id in deleted and watch.organization_id is not None:
                watch.id = None  # stays None if the server is deleted
                await self._add_watched_resources(watch.organization_id, source, [uri])

    async def _sync_feeds(self, held_ids: set[UUID]) -> None:
        """Remove resources no longer held here, and reopen feeds whose access changed."""
        lost_ids = held_ids - await get_runtime().run_orm(leases.load_held_resources, self.id)
        for feed in list(self._feeds.values()):
            for uri in [uri for uri, row_id in feed.ids.items() if row_id in lost_ids]:
                self._remove_uri(feed, uri)
        if generations := {source: feed.generation for source, feed in self._feeds.items()}:
            access = await get_runtime().run_orm(load_source_access, generations)
            for source in generations.keys() & self._feeds.keys():
                self._feeds[source].update_access(access.get(source))

    def _remove_uri(self, feed: ResourceFeed, uri: str) -> None:
        feed.remove_uri(uri)
        if not feed.ids and self._feeds.get(feed.source) is feed:
            del self._feeds[feed.source], self._by_holder[feed.holder]
            feed.stop()


def handle_change_notification(_server_id: UUID, notification: ChangeNotification) -> None:
    """Handle an update of a resource; ignore changes of lists."""
    if notification.uri:
        get_resource_watcher().handle_notification(notification)


_watchers: WeakKeyDictionary[Runtime, ResourceWatcher] = WeakKeyDictionary()


def get_resource_watcher() -> ResourceWatcher:
    """Return this process's watcher; only on the loop of `get_runtime()`."""
    runtime = get_runtime()
    if (watcher := _watchers.get(runtime)) is None:
        watcher = _watchers[runtime] = ResourceWatcher()
        runtime.on_close(watcher.stop)
    return watcher


__all__ = ["HeldConnection", "find_connection", "subscribe_to_resource"]


def find_connection(endpoint: ServerEndpoint, holder: str) -> HeldConnection | None:
    """Return the holder's open connection to a server of the handshake era or a child."""
    return get_connection_pool().find_connection(endpoint, holder)


async def subscribe_to_resource(
    endpoint: ServerEndpoint, holder: str, uri: str
) -> HeldConnection | None:
    """Subscribe the holder's connection to a resource, and return it; raises `UpstreamError`."""
    await get_connection_pool().send_request(
        endpoint, SUBSCRIBE, {"uri": uri}, holder=holder, timeout_s=SUBSCRIBE_TIMEOUT_S
    )
    return find_connection(endpoint, holder)
