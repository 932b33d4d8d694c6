"""Feeds: one server tells one process of the resources that it holds (`following`).

Where each person signs in to the server, a feed is one person's: it is signed with their login
alone, and closed when that is gone.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from django.core.exceptions import ObjectDoesNotExist

from bonobot.ledger.heads import generations
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.pool import connections
from mcp_servers.connections.updates import Wish
from mcp_servers.endpoints import endpoint_of
from mcp_servers.follow_leases import Look, Source
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth.signing import for_person, subject_of
from mcp_servers.reopening import Openings, lifetime_s

logger = logging.getLogger(__name__)

# Takes a resource, whether the server tells of it, and whether something may have been missed.
Told = Callable[[str, bool, bool], None]


@dataclass(frozen=True, slots=True)
class Login:
    """A person's login: another one since then may be another account's."""

    grant: UUID
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Standing:
    """With what a source may be asked: at which policy generation, by which of a person's logins.

    `endpoint` is None where that is the known generation, and so the endpoint the known one.
    """

    generation: int
    login: Login | None
    endpoint: Endpoint | None


class Feed:
    """The resources of a server that this process has told, and the connection for them."""

    def __init__(self, source: Source, told: Told) -> None:
        self.ids: dict[str, UUID] = {}
        # Of one's own: a connection that is being closed must take no other along.
        self.holder = f"updates:{uuid4()}"
        self.source = source
        # The policy generation that it was last looked at.
        self.generation = -1
        self._told = told
        self._wish = Wish()
        self._granted: set[str] = set()
        self._missed: set[str] = set()
        self._running: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._login: Login | None = None
        self._fingerprint = ""

    @property
    def numbers(self) -> list[UUID]:
        """The rows that this process holds."""
        return list(self.ids.values())

    def add(self, row: Look) -> None:
        """Have one more told of; of one that another process held, something may be missed."""
        if row.uri not in self.ids and row.state == "granted":
            self._missed.add(row.uri)
        self.ids[row.uri] = row.id
        self._wish.add(row.uri)

    def discard(self, uri: str) -> None:
        """Have one told of no longer."""
        self.ids.pop(uri, None)
        self._granted.discard(uri)
        self._missed.discard(uri)
        self._wish.discard(uri)

    def grants(self, uri: str) -> bool:
        """Tell whether the server has said that it tells of one."""
        return uri in self._granted

    def meant_by(self, uri: str) -> list[str]:
        """Return the resources that a notice is about: itself, and those that it is a part of."""
        return [one for one in self.ids if uri == one or uri.startswith(one.rstrip("/") + "/")]

    def begin(self, crew: Crew) -> None:
        """Keep a connection open, until the feed is ended, or its crew."""
        self._running = crew.spawn(self._run(), name=f"follow {self.source.server_id}")

    def end(self) -> None:
        """Close the connection, and open none again, also where it is waited for the next."""
        if self._running is not None:
            self._running.cancel()

    def renew(self, now: Standing | None) -> None:
        """Open the connection anew where what it was opened with holds no more."""
        if now is None:
            self._close()
            return
        self.generation = now.generation
        other = now.endpoint is not None and self._fingerprint != now.endpoint.fingerprint
        if self._fingerprint and (other or now.login != self._login):
            self._close()

    async def _run(self) -> None:
        async for _ in Openings():
            self._opening = asyncio.ensure_future(self._listen())
            try:
                await asyncio.wait({self._opening})
            finally:
                self._opening.cancel()
                await asyncio.wait({self._opening})
            self._missed |= self._granted

    async def _listen(self) -> None:
        """Have the server tell on one connection, to its end."""
        try:
            now = (await runtime().orm(standings, {self.source: -1})).get(self.source)
            if now is None or now.endpoint is None:
                raise ObjectDoesNotExist
            endpoint = now.endpoint
            self.generation, self._login = now.generation, now.login
            self._fingerprint = endpoint.fingerprint
            async with asyncio.timeout(lifetime_s()):
                await connections().follow(endpoint, self._wish, self._answered, holder=self.holder)
        except TimeoutError:
            return
        except (ObjectDoesNotExist, Problem):
            # Who waits for a first word has it by this; what was told of before is tried again.
            for uri in set(self.ids) - self._granted:
                self._told(uri, False, False)
        except Exception:
            # Nobody above could tell: it is logged, and tried again late.
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


def standings(known: Mapping[Source, int]) -> dict[Source, Standing]:
    """Return with what sources may be asked, given the generations they were last looked at.

    Left out are those of which nothing may be asked: servers that are off or gone, people whose
    login is over, and whoever's login the server no longer wants (3 queries, and 2 where servers
    may have been configured anew).
    """
    going = Server.objects.going().filter(pk__in={one.server_id for one in known})
    homes = dict(going.values_list("pk", "organization_id"))
    at = generations(set(homes.values()))
    now = {one: at.get(homes[one.server_id], 0) for one in known if one.server_id in homes}
    logins = _logins(now)
    # Behind the generations: what was read before them may be older.
    changed = {one.server_id for one in now if now[one] != known[one]}
    servers = {one.pk: one for one in going.filter(pk__in=changed).prefetch_related("secrets")}
    found = {}
    for source, then in now.items():
        if source.subject is not None and source not in logins:
            continue
        endpoint = None
        if source.server_id in changed:
            endpoint = _reached(servers.get(source.server_id), source)
            if endpoint is None:
                continue
        found[source] = Standing(then, logins.get(source), endpoint)
    return found


def _reached(server: Server | None, source: Source) -> Endpoint | None:
    """Return a server as its source is asked: with the login of that person, or of nobody's."""
    if server is None:
        return None
    try:
        endpoint = for_person(endpoint_of(server), source.subject)
    except Problem:
        return None
    return endpoint if subject_of(endpoint) == source.subject else None


def _logins(sources: Collection[Source]) -> dict[Source, Login]:
    """Return the logins of the people among the sources that are not over."""
    people = {one.subject for one in sources if one.subject is not None}
    if not people:
        return {}
    servers = {one.server_id for one in sources}
    rows = OAuthGrant.objects.filter(server__in=servers, subject__in=people)
    return {
        Source(row.server_id, row.subject): Login(row.pk, row.signed_in_at)
        for row in rows
        if row.alive()
    }
