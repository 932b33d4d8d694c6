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

from bonobot.core.db.transactions import AWAY
from bonobot.core.problems import Problem
from bonobot.core.redis_bus import get_bus
from bonobot.core.runtime import Runtime, get_runtime
from bonobot.ledger.queries import load_policy_generations
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.change_notifications import (
    ChangeNotification,
    DesiredSubscriptions,
    ReopenSchedule,
    can_subscribe,
    compute_lifetime_s,
)
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client.access_tokens import build_person_endpoint, find_person_id
from mcp_servers.subscriptions import leases
from mcp_servers.subscriptions.leases import ResourceUpdateState, UpdateSource

logger = logging.getLogger(__name__)

# Takes a URI, whether its subscription was granted, and whether updates may have been missed.
Told = Callable[[str, bool, bool], None]


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

    def __init__(self, source: UpdateSource, told: Told) -> None:
        self.ids: dict[str, UUID] = {}
        # A separate holder, so that closing this connection closes no other.
        self.holder = f"updates:{uuid4()}"
        self.source = source
        # The policy generation of the last check.
        self.generation = -1
        self._told = told
        self._wish = DesiredSubscriptions()
        self._granted: set[str] = set()
        self._missed: set[str] = set()
        self._running: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._login: PersonLogin | None = None
        self._fingerprint = ""

    @property
    def numbers(self) -> list[UUID]:
        """Return the ids of the rows that this process holds."""
        return list(self.ids.values())

    def add(self, row: ResourceUpdateState) -> None:
        """Add a resource; if another process held it, updates may have been missed."""
        if row.uri not in self.ids and row.state == "granted":
            self._missed.add(row.uri)
        self.ids[row.uri] = row.id
        self._wish.add(row.uri)

    def discard(self, uri: str) -> None:
        """Remove a resource."""
        self.ids.pop(uri, None)
        self._granted.discard(uri)
        self._missed.discard(uri)
        self._wish.discard(uri)

    def grants(self, uri: str) -> bool:
        """Return whether the server has granted the subscription."""
        return uri in self._granted

    def meant_by(self, uri: str) -> list[str]:
        """Return the watched resources that an update of `uri` affects: itself and its parents."""
        return [one for one in self.ids if uri == one or uri.startswith(one.rstrip("/") + "/")]

    def begin(self, crew: TaskSet) -> None:
        """Keep a connection open until the feed or its tasks are stopped."""
        self._running = crew.spawn(self._run(), name=f"follow {self.source.server_id}")

    def end(self) -> None:
        """Close the connection and do not reopen it."""
        if self._running is not None:
            self._running.cancel()

    def renew(self, now: SourceAccess | None) -> None:
        """Reopen the connection if endpoint or login changed; close it without access."""
        if now is None:
            self._close()
            return
        self.generation = now.generation
        other = now.endpoint is not None and self._fingerprint != now.endpoint.fingerprint
        if self._fingerprint and (other or now.login != self._login):
            self._close()

    async def _run(self) -> None:
        async for _ in ReopenSchedule():
            self._opening = asyncio.ensure_future(self._listen())
            try:
                await asyncio.wait({self._opening})
            finally:
                self._opening.cancel()
                await asyncio.wait({self._opening})
            self._missed |= self._granted

    async def _listen(self) -> None:
        """Receive updates on one connection to its end."""
        try:
            now = (await get_runtime().orm(load_source_access, {self.source: -1})).get(self.source)
            if now is None or now.endpoint is None:
                raise ObjectDoesNotExist
            endpoint = now.endpoint
            self.generation, self._login = now.generation, now.login
            self._fingerprint = endpoint.fingerprint
            async with asyncio.timeout(compute_lifetime_s()):
                await get_connection_pool().follow(
                    endpoint, self._wish, self._answered, holder=self.holder
                )
        except TimeoutError:
            return
        except (ObjectDoesNotExist, Problem):
            # Callers waiting for a first result get one; resources granted before are retried.
            for uri in set(self.ids) - self._granted:
                self._told(uri, False, False)
        except Exception:
            # No caller would report it: it is logged and retried later.
            logger.exception("following resources of server %s broke off", self.source.server_id)

    def _answered(self, uri: str, granted: bool) -> None:
        missed = uri in self._missed
        self._missed.discard(uri)
        if granted:
            self._granted.add(uri)
        self._told(uri, granted, missed and granted)

    def _close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()


def load_source_access(known: Mapping[UpdateSource, int]) -> dict[UpdateSource, SourceAccess]:
    """Return the access of sources, given the generations of their last check.

    Leaves out disabled and deleted servers, people whose login has ended, and logins that the
    server no longer uses (3 queries, and 2 if servers may have been changed).
    """
    going = Server.objects.going().filter(pk__in={one.server_id for one in known})
    homes = dict(going.values_list("pk", "organization_id"))
    at = load_policy_generations(set(homes.values()))
    now = {one: at.get(homes[one.server_id], 0) for one in known if one.server_id in homes}
    logins = _load_logins(now)
    # After the generations: rows read before them may be older.
    changed = {one.server_id for one in now if now[one] != known[one]}
    servers = {one.pk: one for one in going.filter(pk__in=changed).prefetch_related("secrets")}
    found = {}
    for source, then in now.items():
        if source.subject is not None and source not in logins:
            continue
        endpoint = None
        if source.server_id in changed:
            endpoint = _find_source_endpoint(servers.get(source.server_id), source)
            if endpoint is None:
                continue
        found[source] = SourceAccess(then, logins.get(source), endpoint)
    return found


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
    people = {one.subject for one in sources if one.subject is not None}
    if not people:
        return {}
    servers = {one.server_id for one in sources}
    rows = OAuthGrant.objects.filter(server__in=servers, subject__in=people)
    return {
        UpdateSource(row.server_id, row.subject): PersonLogin(row.pk, row.signed_in_at)
        for row in rows
        if row.alive()
    }


TICK_S = 1.0
BEAT_S = 5.0
STUCK_S = 5.0
# Maximum wait for the result of a subscription.
GRANT_S = 10.0
FLUSH_S = 0.1
MOST_FOLLOWED = 10_000
# The bus channel that wakes other processes after changes.
PLACE = "followed-resources"

State = leases.State
Key = tuple[UpdateSource, str]


def can_follow(endpoint: ServerEndpoint) -> bool:
    """Return whether resources of a server can be watched."""
    capabilities = (endpoint.discovery or {}).get("capabilities")
    return endpoint.transport in ("http", "stdio") and can_subscribe(capabilities)


def build_source(endpoint: ServerEndpoint) -> UpdateSource:
    """Return the source of an endpoint."""
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
        self.when_changed: set[Callable[[], object]] = set()
        self._wanted: dict[Key, _ResourceWatch] = {}
        self._feeds: dict[UpdateSource, ResourceFeed] = {}
        self._by_holder: dict[str, ResourceFeed] = {}
        self._crew = TaskSet()
        self._soon = asyncio.Event()
        self._attending: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._dirty: set[UUID] = set()
        self._answers: dict[UUID, bool] = {}
        self._beaten_at = 0.0

    async def follow(self, endpoint: ServerEndpoint, uris: Collection[str]) -> dict[str, int]:
        """Watch resources of a server until `unwatch_resources`.

        Returns the granted ones with their change counts. If each person signs in separately,
        `endpoint` is a person's (`oauth_client.access_tokens`).
        """
        room = MOST_FOLLOWED - len(self._wanted)
        source = build_source(endpoint)
        keys = [(source, uri) for uri in list(uris)[: max(room, 0)]]
        for key in keys:
            self._wanted.setdefault(key, _ResourceWatch()).users += 1
        try:
            await self._ask(endpoint.organization_id, source, [uri for _, uri in keys])
        except BaseException:
            self.leave(keys)
            raise
        granted = {key for key in keys if self._wanted[key].state == State.GRANTED}
        found = {key[1]: self._wanted[key].changes for key in granted}
        self.leave(key for key in keys if key not in granted)
        return found

    def leave(self, keys: Iterable[Key]) -> None:
        """Remove one client of each; resources without clients are released soon."""
        for key in keys:
            wanted = self._wanted.get(key)
            if wanted is not None:
                wanted.users -= 1
                if not wanted.users:
                    del self._wanted[key]

    def changes(self, key: Key) -> int | None:
        """Return how often a resource has changed; None if it isn't watched here."""
        wanted = self._wanted.get(key)
        return wanted.changes if wanted is not None else None

    def heard(self, notice: ChangeNotification) -> None:
        """Record an update of a resource or a part of one, on the connection of a feed.

        Updates on other connections are ignored.
        """
        feed = self._by_holder.get(notice.holder)
        if feed is not None:
            self._dirty |= {feed.ids[one] for one in feed.meant_by(notice.uri)}
            self._flush_soon()

    async def stop(self) -> None:
        """Stop watching, and release the leases so that others can claim them."""
        for task in filter(None, (self._attending, self._flushing)):
            task.cancel()
        await self._crew.close()
        self._feeds.clear()
        self._by_holder.clear()
        with suppress(*AWAY):
            await get_runtime().orm(leases.release_resource_leases, self.id)

    async def _ask(self, organization_id: UUID, source: UpdateSource, uris: list[str]) -> None:
        """Add resources, claim those without a holder, and wait for the results."""
        if not uris:
            return
        await self._want(organization_id, source, uris)
        self._attend_on()
        waiting = [self._wanted[source, uri].settled.wait() for uri in uris]
        with suppress(TimeoutError):
            async with asyncio.timeout(GRANT_S):
                await asyncio.gather(*waiting)

    async def _want(self, organization_id: UUID, source: UpdateSource, uris: list[str]) -> None:
        rows = await get_runtime().orm(leases.add_watched_resources, organization_id, source, uris)
        for row in rows:
            if (wanted := self._wanted.get((row.source, row.uri))) is not None:
                wanted.id, wanted.organization_id = row.id, organization_id
            if row.holder is not None:
                self._see(row)
        await self._claim(row.id for row in rows if row.holder is None)

    def _see(self, row: leases.ResourceUpdateState) -> bool:
        """Apply the state of a row; return whether its resource changed."""
        wanted = self._wanted.get((row.source, row.uri))
        if wanted is None:
            return False
        changed = wanted.changes != row.changes
        wanted.changes = row.changes
        if row.holder != self.id:
            wanted.state = row.state
        elif self._grants(row):  # a result in this process may not be written yet
            wanted.state = State.GRANTED
        if wanted.state != State.ASKED:
            wanted.settled.set()
        return changed

    def _grants(self, row: leases.ResourceUpdateState) -> bool:
        """Return whether a subscription of this process is granted."""
        feed = self._feeds.get(row.source)
        return feed is not None and feed.grants(row.uri)

    async def _claim(self, ids: Iterable[UUID]) -> None:
        found = list(ids)
        for row in await get_runtime().orm(leases.claim_resources, self.id, found) if found else ():
            self._see(row)
            self._feed(row).add(row)

    def _feed(self, row: leases.ResourceUpdateState) -> ResourceFeed:
        feed = self._feeds.get(row.source)
        if feed is None:
            feed = ResourceFeed(row.source, partial(self._told, row.source))
            self._feeds[row.source] = self._by_holder[feed.holder] = feed
            feed.begin(self._crew)
        return feed

    def _told(self, source: UpdateSource, uri: str, granted: bool, missed: bool) -> None:
        """Handle the result of a subscription; `missed` counts as a change."""
        feed = self._feeds.get(source)
        number = feed.ids.get(uri) if feed is not None else None
        if feed is None or number is None:
            return
        self._answers[number] = granted
        if missed:
            self._dirty.add(number)
        if not granted:
            self._discard(feed, uri)
        if (wanted := self._wanted.get((source, uri))) is not None:
            wanted.state = State.GRANTED if granted else State.REFUSED
            wanted.settled.set()
        self._flush_soon()

    def _flush_soon(self) -> None:
        if (self._dirty or self._answers) and (self._flushing is None or self._flushing.done()):
            self._flushing = self._crew.spawn(self._flush(), name="write what servers told")

    async def _flush(self) -> None:
        """Write results and changes until there are no more; wake all processes."""
        orm = get_runtime().orm
        while self._dirty or self._answers:
            dirty, self._dirty = self._dirty, set()
            answers, self._answers = self._answers, {}
            try:
                if answers:
                    yes = [number for number, granted in answers.items() if granted]
                    await orm(leases.settle, self.id, yes, list(answers.keys() - set(yes)))
                if dirty:
                    await orm(leases.increment_change_counts, self.id, dirty)
            except AWAY as fault:
                logger.warning("what servers told of resources can't be written: %s", fault)
                self._dirty |= dirty
                self._answers = answers | self._answers
                await asyncio.sleep(TICK_S)
                continue
            get_bus().ring(PLACE)
            self._soon.set()
            await asyncio.sleep(FLUSH_S)

    def _attend_on(self) -> None:
        if self._attending is None or self._attending.done():
            self._attending = self._crew.spawn(self._attend(), name="follow resources")

    async def _attend(self) -> None:
        """Poll the rows while anything is watched or held here."""
        woken = self._soon.set
        await get_bus().listen(PLACE, woken)
        try:
            while self._wanted or self._feeds:
                self._soon.clear()
                with suppress(*AWAY):  # retried if the database is unavailable
                    await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._soon.wait()
        finally:
            get_bus().leave(PLACE, woken)

    async def _look(self) -> None:
        orm = get_runtime().orm
        ids = {wanted.id for wanted in self._wanted.values() if wanted.id is not None}
        if (
            monotonic() - self._beaten_at > BEAT_S
            and monotonic() - get_runtime().ticked_at < STUCK_S
        ):
            self._beaten_at = monotonic()
            await orm(leases.renew_resource_leases, self.id, ids)
            await self._keep({number for feed in self._feeds.values() for number in feed.numbers})
        rows = await orm(leases.load_watched_resources, ids) if ids else []
        changed = [row for row in rows if self._see(row)]
        await self._claim(
            row.id for row in rows if row.holder is None and row.state != State.REFUSED
        )
        await self._want_again(ids - {row.id for row in rows})
        if changed:
            for tell in tuple(self.when_changed):
                tell()

    async def _want_again(self, gone: set[UUID]) -> None:
        """Add resources again that another process deleted as unwanted."""
        for (source, uri), wanted in list(self._wanted.items()):
            if wanted.id in gone and wanted.organization_id is not None:
                wanted.id = None  # stays None if the server is deleted
                await self._want(wanted.organization_id, source, [uri])

    async def _keep(self, mine: set[UUID]) -> None:
        """Remove resources no longer held here, and reopen feeds whose access changed."""
        gone = mine - await get_runtime().orm(leases.load_held_resources, self.id)
        for feed in list(self._feeds.values()):
            for uri in [uri for uri, number in feed.ids.items() if number in gone]:
                self._discard(feed, uri)
        if known := {source: feed.generation for source, feed in self._feeds.items()}:
            now = await get_runtime().orm(load_source_access, known)
            for source in known.keys() & self._feeds.keys():
                self._feeds[source].renew(now.get(source))

    def _discard(self, feed: ResourceFeed, uri: str) -> None:
        feed.discard(uri)
        if not feed.ids and self._feeds.get(feed.source) is feed:
            del self._feeds[feed.source], self._by_holder[feed.holder]
            feed.end()


def handle_change_notification(_server_id: UUID, notice: ChangeNotification) -> None:
    """Handle an update of a resource; ignore changes of lists."""
    if notice.uri:
        get_resource_watcher().heard(notice)


_by_runtime: WeakKeyDictionary[Runtime, ResourceWatcher] = WeakKeyDictionary()


def get_resource_watcher() -> ResourceWatcher:
    """Return this process's watcher; only on the loop of `get_runtime()`."""
    own = get_runtime()
    if (made := _by_runtime.get(own)) is None:
        made = _by_runtime[own] = ResourceWatcher()
        own.on_close(made.stop)
    return made
