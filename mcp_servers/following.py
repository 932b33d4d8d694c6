"""Following: clients are told when single resources of servers are no longer what they were.

However many clients want to be told of a resource, in however many processes, its server is asked
once: by whichever process holds the row's lease, on one connection to the server that is there for
nothing else. What the server tells is counted in the row, at most each `FLUSH_S`; every process
reads the counts that its clients want once a second, sooner where a ring is heard. A stream that
was lost comes back with a growing pause, and then all that it was for counts as changed, since
servers repeat nothing.

A server that each person signs in to is asked once for each of them, with their own login: what one
person is told is nobody else's, and neither is that they follow it.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

from bonobot.lib.bus import bus
from bonobot.lib.patience import AWAY
from bonobot.lib.runtime import Runtime, runtime
from mcp_servers import follow_leases as leases
from mcp_servers.connections.changes import ChangeNotice, tells_updates
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.feeds import Feed, standings
from mcp_servers.follow_leases import Source
from mcp_servers.oauth.signing import subject_of

logger = logging.getLogger(__name__)

TICK_S = 1.0
BEAT_S = 5.0
STUCK_S = 5.0
# A client is told within this time whether a resource is told of.
GRANT_S = 10.0
FLUSH_S = 0.1
MOST_FOLLOWED = 10_000
# Where processes ring when something changed.
PLACE = "followed-resources"

State = leases.State
Key = tuple[Source, str]


def can_follow(endpoint: Endpoint) -> bool:
    """Tell whether a server can be asked to tell of single resources."""
    capabilities = (endpoint.discovery or {}).get("capabilities")
    return endpoint.transport in ("http", "stdio") and tells_updates(capabilities)


def source_of(endpoint: Endpoint) -> Source:
    """Return who tells, where an endpoint is as the one who asks reaches it."""
    return Source(endpoint.server_id, subject_of(endpoint))


@dataclass
class _Wanted:
    """A resource that clients of this process want to be told of."""

    users: int = 0
    id: UUID | None = None
    organization_id: UUID | None = None
    state: str = State.ASKED
    changes: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)


class Follower:
    """What the clients of this process follow; everything here runs on its loop."""

    def __init__(self) -> None:
        self.id = uuid4()
        self.when_changed: set[Callable[[], object]] = set()
        self._wanted: dict[Key, _Wanted] = {}
        self._feeds: dict[Source, Feed] = {}
        self._by_holder: dict[str, Feed] = {}
        self._crew = Crew()
        self._soon = asyncio.Event()
        self._attending: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._dirty: set[UUID] = set()
        self._answers: dict[UUID, bool] = {}
        self._beaten_at = 0.0

    async def follow(self, endpoint: Endpoint, uris: Collection[str]) -> dict[str, int]:
        """Have clients told of resources of a server, each until it is left.

        Returns those that the server tells of, with how often they have changed so far. Where each
        person signs in, `endpoint` is a person's (`oauth.signing.for_person`).
        """
        room = MOST_FOLLOWED - len(self._wanted)
        source = source_of(endpoint)
        keys = [(source, uri) for uri in list(uris)[: max(room, 0)]]
        for key in keys:
            self._wanted.setdefault(key, _Wanted()).users += 1
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
        """Have one client less told of each; what nobody follows is let go of soon."""
        for key in keys:
            wanted = self._wanted.get(key)
            if wanted is not None:
                wanted.users -= 1
                if not wanted.users:
                    del self._wanted[key]

    def changes(self, key: Key) -> int | None:
        """Return how often a followed resource has changed; None where nobody here follows it."""
        wanted = self._wanted.get(key)
        return wanted.changes if wanted is not None else None

    def heard(self, notice: ChangeNotice) -> None:
        """Take note that a server told of a resource, or of a part of one, on a feed's connection.

        What it tells on any other is nobody's.
        """
        feed = self._by_holder.get(notice.holder)
        if feed is not None:
            self._dirty |= {feed.ids[one] for one in feed.meant_by(notice.uri)}
            self._flush_soon()

    async def stop(self) -> None:
        """Have nothing told any more, and let others take over at once."""
        for task in filter(None, (self._attending, self._flushing)):
            task.cancel()
        await self._crew.close()
        self._feeds.clear()
        self._by_holder.clear()
        with suppress(*AWAY):
            await runtime().orm(leases.let_go, self.id)

    async def _ask(self, organization_id: UUID, source: Source, uris: list[str]) -> None:
        """Want resources, take those that nobody has told, and wait for what servers say."""
        if not uris:
            return
        await self._want(organization_id, source, uris)
        self._attend_on()
        waiting = [self._wanted[source, uri].settled.wait() for uri in uris]
        with suppress(TimeoutError):
            async with asyncio.timeout(GRANT_S):
                await asyncio.gather(*waiting)

    async def _want(self, organization_id: UUID, source: Source, uris: list[str]) -> None:
        rows = await runtime().orm(leases.want, organization_id, source, uris)
        for row in rows:
            if (wanted := self._wanted.get((row.source, row.uri))) is not None:
                wanted.id, wanted.organization_id = row.id, organization_id
            if row.holder is not None:
                self._see(row)
        await self._claim(row.id for row in rows if row.holder is None)

    def _see(self, row: leases.Look) -> bool:
        """Take over how a row stands; tell whether its resource changed."""
        wanted = self._wanted.get((row.source, row.uri))
        if wanted is None:
            return False
        changed = wanted.changes != row.changes
        wanted.changes = row.changes
        if row.holder != self.id:
            wanted.state = row.state
        elif self._grants(row):  # what this process is told itself may not be written yet
            wanted.state = State.GRANTED
        if wanted.state != State.ASKED:
            wanted.settled.set()
        return changed

    def _grants(self, row: leases.Look) -> bool:
        """Tell whether a server tells this process of a resource, also one just wanted anew."""
        feed = self._feeds.get(row.source)
        return feed is not None and feed.grants(row.uri)

    async def _claim(self, ids: Iterable[UUID]) -> None:
        found = list(ids)
        for row in await runtime().orm(leases.claim, self.id, found) if found else ():
            self._see(row)
            self._feed(row).add(row)

    def _feed(self, row: leases.Look) -> Feed:
        feed = self._feeds.get(row.source)
        if feed is None:
            feed = Feed(row.source, partial(self._told, row.source))
            self._feeds[row.source] = self._by_holder[feed.holder] = feed
            feed.begin(self._crew)
        return feed

    def _told(self, source: Source, uri: str, granted: bool, missed: bool) -> None:
        """Take a server's word; what it may have told meanwhile, where `missed`, counts as told."""
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
        """Write what servers told, again and again while they go on; then look at it."""
        orm = runtime().orm
        while self._dirty or self._answers:
            dirty, self._dirty = self._dirty, set()
            answers, self._answers = self._answers, {}
            try:
                if answers:
                    yes = [number for number, granted in answers.items() if granted]
                    await orm(leases.settle, self.id, yes, list(answers.keys() - set(yes)))
                if dirty:
                    await orm(leases.changed, self.id, dirty)
            except AWAY as fault:
                logger.warning("what servers told of resources can't be written: %s", fault)
                self._dirty |= dirty
                self._answers = answers | self._answers
                await asyncio.sleep(TICK_S)
                continue
            bus().ring(PLACE)
            self._soon.set()
            await asyncio.sleep(FLUSH_S)

    def _attend_on(self) -> None:
        if self._attending is None or self._attending.done():
            self._attending = self._crew.spawn(self._attend(), name="follow resources")

    async def _attend(self) -> None:
        """Look at the rows while anything is wanted or held here."""
        woken = self._soon.set
        await bus().listen(PLACE, woken)
        try:
            while self._wanted or self._feeds:
                self._soon.clear()
                with suppress(*AWAY):  # a database that is away is looked at again
                    await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(TICK_S):
                        await self._soon.wait()
        finally:
            bus().leave(PLACE, woken)

    async def _look(self) -> None:
        orm = runtime().orm
        ids = {wanted.id for wanted in self._wanted.values() if wanted.id is not None}
        if monotonic() - self._beaten_at > BEAT_S and monotonic() - runtime().ticked_at < STUCK_S:
            self._beaten_at = monotonic()
            await orm(leases.beat, self.id, ids)
            await self._keep({number for feed in self._feeds.values() for number in feed.numbers})
        rows = await orm(leases.look, ids) if ids else []
        changed = [row for row in rows if self._see(row)]
        await self._claim(
            row.id for row in rows if row.holder is None and row.state != State.REFUSED
        )
        await self._want_again(ids - {row.id for row in rows})
        if changed:
            for tell in tuple(self.when_changed):
                tell()

    async def _want_again(self, gone: set[UUID]) -> None:
        """Want anew what another process let go of, which had not heard from this one for long."""
        for (source, uri), wanted in list(self._wanted.items()):
            if wanted.id in gone and wanted.organization_id is not None:
                wanted.id = None  # and that's it, where the server is gone
                await self._want(wanted.organization_id, source, [uri])

    async def _keep(self, mine: set[UUID]) -> None:
        """Let go of what is no longer held here, and open anew what is configured anew."""
        gone = mine - await runtime().orm(leases.held, self.id)
        for feed in list(self._feeds.values()):
            for uri in [uri for uri, number in feed.ids.items() if number in gone]:
                self._discard(feed, uri)
        if known := {source: feed.generation for source, feed in self._feeds.items()}:
            now = await runtime().orm(standings, known)
            for source in known.keys() & self._feeds.keys():
                self._feeds[source].renew(now.get(source))

    def _discard(self, feed: Feed, uri: str) -> None:
        feed.discard(uri)
        if not feed.ids and self._feeds.get(feed.source) is feed:
            del self._feeds[feed.source], self._by_holder[feed.holder]
            feed.end()


def hear(_server_id: UUID, notice: ChangeNotice) -> None:
    """Take a notice about a resource, whose holder says on which connection it came."""
    if notice.uri:
        follower().heard(notice)


_by_runtime: WeakKeyDictionary[Runtime, Follower] = WeakKeyDictionary()


def follower() -> Follower:
    """Return this process's follower; on the loop of `runtime()` only."""
    own = runtime()
    if (made := _by_runtime.get(own)) is None:
        made = _by_runtime[own] = Follower()
        own.on_close(made.stop)
    return made
