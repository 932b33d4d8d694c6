"""Listening: clients are told that a list is no longer what it was, or that a resource changed.

What the lists are made of (definitions, policies, bindings, agents, rights) is governed, so every
change of it moves the organization's generation: one query a second looks at those that somebody
listens to, on whichever host the change was made. The organization's own resources are looked at as
often, for those who watch some. A client is told of what *it* would see otherwise, and of nothing
else; a right that was withdrawn ends the stream.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bonobot.gateway.bots.resources import states
from bonobot.gateway.clients import Session
from bonobot.gateway.inbound import Inbound, bad_params, notification
from bonobot.gateway.offerings import Kind
from bonobot.gateway.shelves import Declaration
from bonobot.gateway.visitors import Visitor
from bonobot.ledger.heads import generations
from bonobot.lib.canonical import digest
from bonobot.lib.patience import AWAY
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers.connections.changes import (
    ACKNOWLEDGED,
    LISTS,
    MEMBERS,
    SUBSCRIPTION_ID,
    TOPICS,
    UPDATED,
    Topic,
)

WATCHED = "resourceSubscriptions"
MOST_WATCHED = 1_000
MOST_STREAMS = 1_024
LOOK_EVERY_S = 1.0
# No stream is trusted for longer: tokens expire, and what expires changes nothing.
LONGEST_S = 3_600.0
METHODS: dict[Topic, str] = {topic: method for method, topic in LISTS.items()}
KINDS: dict[Topic, tuple[Kind, ...]] = {
    "tools": ("tools",),
    "prompts": ("prompts",),
    "resources": ("resources", "templates"),
}

Listed = Callable[[Visitor, Kind], Awaitable[tuple[Declaration, ...]]]
# The URIs that a client watches, as they are now.
Watches = Callable[[], Collection[str]]
Notice = tuple[str, dict[str, Any]]


@dataclass
class _Organization:
    """An organization that somebody listens to, and where its rules were when last looked at."""

    generation: int = -1
    streams: int = 0


class Listening:
    """The streams of this process's clients, and one look a second at what they listen to."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._organizations: dict[UUID, _Organization] = {}
        self._looked = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None
        self._streams = 0

    async def listen(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `subscriptions/listen`: say what is granted, then what changes, to the end."""
        meta = {SUBSCRIPTION_ID: inbound.context.request_id}
        granted = _granted(inbound.visitor, inbound.members("notifications"))
        topics = {topic for topic, member in MEMBERS.items() if granted.get(member)}
        uris = granted.get(WATCHED, ())
        notices = self.notices(inbound.visitor, topics, lambda: uris)
        await anext(notices)  # from now on, what changes is told
        await inbound.tell(ACKNOWLEDGED, {"notifications": granted, "_meta": meta})
        async for method, params in notices:
            await inbound.tell(method, {**params, "_meta": meta})
        return {"_meta": meta}

    async def follow(self, visitor: Visitor, session: Callable[[], Session | None]) -> None:
        """Tell a session of the handshake era what changes, as long as its own stream is open."""

        def watched() -> Collection[str]:
            known = session()
            return known.uris if known is not None else ()

        async for method, params in self.notices(visitor, TOPICS, watched):
            known = session()
            if method and known is not None and known.channel is not None:
                await known.channel.send_notification(notification(method, params))

    async def notices(
        self, visitor: Visitor, topics: Collection[Topic], watched: Watches
    ) -> AsyncIterator[Notice]:
        """Yield each notice; first of all a blank one, once changes are looked for."""
        if self._streams >= MOST_STREAMS:
            raise bad_params(f"more than {MOST_STREAMS} streams are open: close one")
        until = runtime().loop.time() + LONGEST_S
        organization = self._organizations.setdefault(
            visitor.principal.organization_id, _Organization()
        )
        self._streams += 1
        organization.streams += 1
        try:
            at = organization.generation
            lists, resources = await self._digests(visitor), await _states(visitor, watched())
            self._keep_looking()
            yield "", {}
            while runtime().loop.time() < until:
                await self._next_look()
                if organization.generation != at:
                    at = organization.generation
                    if not await _may_stay(visitor):
                        return
                    before, lists = lists, await self._digests(visitor)
                    for topic in TOPICS:
                        if topic in topics and lists[topic] != before[topic]:
                            yield METHODS[topic], {}
                old, resources = resources, await _states(visitor, watched())
                for uri, state in resources.items():
                    if uri in old and old[uri] != state:
                        yield UPDATED, {"uri": uri}
        finally:
            self._streams -= 1
            organization.streams -= 1

    def stop(self) -> None:
        """Look no more."""
        if self._looking is not None:
            self._looking.cancel()

    async def _digests(self, visitor: Visitor) -> dict[Topic, str]:
        found: dict[Topic, str] = {}
        for topic, kinds in KINDS.items():
            found[topic] = digest(repr([await self._listed(visitor, kind) for kind in kinds]))
        return found

    async def _next_look(self) -> None:
        async with self._looked:
            await self._looked.wait()

    def _keep_looking(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = runtime().loop.create_task(self._look(), name="gateway looks")

    async def _look(self) -> None:
        while self._streams:
            for key in [key for key, one in self._organizations.items() if not one.streams]:
                del self._organizations[key]
            try:
                found = await runtime().orm(generations, list(self._organizations))
            except AWAY:
                found = {}  # a database that is away comes back; then it is looked at again
            for key, generation in found.items():
                if key in self._organizations:
                    self._organizations[key].generation = generation
            async with self._looked:
                self._looked.notify_all()
            await asyncio.sleep(LOOK_EVERY_S)


async def _may_stay(visitor: Visitor) -> bool:
    try:
        return await visitor.may_stay()
    except Problem:
        return False


async def _states(visitor: Visitor, uris: Collection[str]) -> dict[str, str]:
    """Return what tells the present state of each of the organization's own resources."""
    if not uris or visitor.place.kind != "organization":
        return {}
    return await runtime().orm(states, visitor.principal, list(uris))


def _granted(visitor: Visitor, wanted: Mapping[str, Any]) -> dict[str, Any]:
    granted: dict[str, Any] = {name: True for name in MEMBERS.values() if wanted.get(name) is True}
    uris = wanted.get(WATCHED)
    if isinstance(uris, list) and uris:
        if len(uris) > MOST_WATCHED or not all(isinstance(uri, str) for uri in uris):
            raise bad_params(f"`{WATCHED}` must be at most {MOST_WATCHED} URIs")
        # Servers aren't asked to tell of single resources, so that isn't promised.
        if visitor.place.kind == "organization":
            granted[WATCHED] = list(uris)
    return granted
