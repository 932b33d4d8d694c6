"""Notify clients of list changes and updated resources.

Every change that affects lists (definitions, policies, attached servers, agents, permissions)
increments the organization's policy generation. One query per second polls the generations of all
organizations with open streams, so changes on other hosts are found too. Watched resources are
checked as often, and when a server reports a change. A client is only notified of changes that it
can see; losing access ends the stream. The lists and resources that a client knows are kept in its
session, so changes while its stream is closed are reported when it opens.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import Declaration
from agents.gateway.client_request import (
    GatewayRequest,
    build_invalid_params_error,
    build_notification,
)
from agents.gateway.client_sessions import GatewaySession
from agents.gateway.handlers import Kind
from agents.gateway.resource_subscriptions import (
    WatchedResource,
    collect_changed_uris,
    filter_readable_uris,
    leave,
    watch,
)
from bonobot.core.db.transactions import AWAY
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_digest
from bonobot.ledger.queries import load_policy_generations
from mcp_servers.client.change_notifications import (
    ACKNOWLEDGED,
    LISTS,
    MEMBERS,
    SUBSCRIPTION_ID,
    TOPICS,
    UPDATED,
    WATCHED,
    Topic,
)
from mcp_servers.subscriptions.resource_updated import get_resource_watcher

MOST_WATCHED = 1_000
MOST_STREAMS = 1_024
LOOK_EVERY_S = 1.0
# Streams end after this time, because an expiring token doesn't change the generation.
LONGEST_S = 3_600.0
METHODS: dict[Topic, str] = {topic: method for method, topic in LISTS.items()}
KINDS: dict[Topic, tuple[Kind, ...]] = {
    "tools": ("tools",),
    "prompts": ("prompts",),
    "resources": ("resources", "templates"),
}

Listed = Callable[[AuthenticatedClient, Kind], Awaitable[tuple[Declaration, ...]]]
# Returns the resources that a client watches now, by URI.
Watches = Callable[[], Mapping[str, WatchedResource]]
Notice = tuple[str, dict[str, Any]]


@dataclass
class _OrganizationStreams:
    """An organization's open streams, and its policy generation at the last poll."""

    generation: int = -1
    streams: int = 0


class ChangeStreams:
    """The streams of this process's clients, and the task that polls for changes."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed
        self._organizations: dict[UUID, _OrganizationStreams] = {}
        self._looked = asyncio.Condition()
        self._looking: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        self._streams = 0

    async def listen(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `subscriptions/listen`: acknowledge the subscriptions, then send notifications."""
        meta = {SUBSCRIPTION_ID: inbound.context.request_id}
        granted = _parse_requested_topics(inbound.members("notifications"))
        topics = {topic for topic, member in MEMBERS.items() if granted.get(member)}
        uris = granted.pop(WATCHED, ())
        watched = await watch(inbound.visitor, uris)
        if watched:
            granted[WATCHED] = [uri for uri in uris if uri in watched]
        try:
            notices = self.notices(inbound.visitor, topics, lambda: watched)
            await anext(notices)  # changes are noticed from here on
            await inbound.tell(ACKNOWLEDGED, {"notifications": granted, "_meta": meta})
            async for method, params in notices:
                await inbound.tell(method, {**params, "_meta": meta})
        finally:
            leave(watched.values())
        return {"_meta": meta}

    async def follow(
        self, visitor: AuthenticatedClient, session: Callable[[], GatewaySession | None]
    ) -> None:
        """Send notifications to a session of the handshake era while its stream is open."""

        def watched() -> Mapping[str, WatchedResource]:
            known = session()
            return known.watched if known is not None else {}

        begun = session()
        lists = begun.lists if begun is not None else {}
        async for method, params in self.notices(visitor, TOPICS, watched, lists):
            known = session()
            if method and known is not None and known.channel is not None:
                await known.channel.send_notification(build_notification(method, params))

    async def notices(
        self,
        visitor: AuthenticatedClient,
        topics: Collection[Topic],
        watched: Watches,
        known: dict[Kind, str] | None = None,
    ) -> AsyncIterator[Notice]:
        """Yield notifications; first an empty one, once changes are being polled.

        `known_lists` are the digests of the lists that the client knows; it is updated in place. A
        list without a digest isn't known to the client yet.
        """
        if self._streams >= MOST_STREAMS:
            raise build_invalid_params_error(
                f"more than {MOST_STREAMS} streams are open: close one"
            )
        until = get_runtime().loop.time() + LONGEST_S
        organization = self._organizations.setdefault(
            visitor.principal.organization_id, _OrganizationStreams()
        )
        self._streams += 1
        organization.streams += 1
        try:
            at = organization.generation
            known = {} if known is None else known
            changed_lists = await self._changed(visitor, known)
            self._keep_looking()
            yield "", {}
            for topic in changed_lists & set(topics):
                yield METHODS[topic], {}
            while get_runtime().loop.time() < until:
                if organization.generation != at:
                    at = organization.generation
                    if not await _may_stay(visitor):
                        return
                    for topic in await self._changed(visitor, known) & set(topics):
                        yield METHODS[topic], {}
                if changed := await collect_changed_uris(visitor, watched()):
                    if not await _may_stay(visitor):
                        return
                    for uri in await filter_readable_uris(visitor, changed):
                        yield UPDATED, {"uri": uri}
                await self._next_look()
        finally:
            self._streams -= 1
            organization.streams -= 1

    def stop(self) -> None:
        """Stop polling."""
        if self._looking is not None:
            self._looking.cancel()

    async def _changed(self, visitor: AuthenticatedClient, known: dict[Kind, str]) -> set[Topic]:
        """Return the topics whose lists changed, and update the known digests."""
        changed: set[Topic] = set()
        for topic, kinds in KINDS.items():
            for kind in kinds:
                now = as_known(await self._listed(visitor, kind))
                if known.setdefault(kind, now) != now:
                    changed.add(topic)
                known[kind] = now
        return changed

    async def _next_look(self) -> None:
        async with self._looked:
            await self._looked.wait()

    def _keep_looking(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = get_runtime().begin(self._look(), name="gateway looks")

    async def _look(self) -> None:
        get_resource_watcher().when_changed.add(self._soon.set)
        try:
            await self._look_on()
        finally:
            get_resource_watcher().when_changed.discard(self._soon.set)

    async def _look_on(self) -> None:
        while self._streams:
            self._soon.clear()
            for key in [key for key, one in self._organizations.items() if not one.streams]:
                del self._organizations[key]
            try:
                found = await get_runtime().orm(load_policy_generations, list(self._organizations))
            except AWAY:
                found = {}  # the database is unavailable; try again at the next poll
            for key, generation in found.items():
                if key in self._organizations:
                    self._organizations[key].generation = generation
            async with self._looked:
                self._looked.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._soon.wait()


def as_known(listed: tuple[Declaration, ...]) -> str:
    """Return the digest of a list, to detect changes."""
    return compute_digest(repr(listed))


async def _may_stay(visitor: AuthenticatedClient) -> bool:
    try:
        return await visitor.may_stay()
    except Problem:
        return False


def _parse_requested_topics(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requested subscriptions that are supported; raises `MCPError`."""
    granted: dict[str, Any] = {name: True for name in MEMBERS.values() if wanted.get(name) is True}
    uris = wanted.get(WATCHED)
    if isinstance(uris, list) and uris:
        if len(uris) > MOST_WATCHED or not all(isinstance(uri, str) for uri in uris):
            raise build_invalid_params_error(f"`{WATCHED}` must be at most {MOST_WATCHED} URIs")
        granted[WATCHED] = list(dict.fromkeys(uris))
    return granted
