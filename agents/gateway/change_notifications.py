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
from agents.gateway.forwarded_requests import Kind
from agents.gateway.resource_subscriptions import (
    WatchedResource,
    collect_changed_uris,
    filter_readable_uris,
    unwatch_resources,
    watch_resources,
)
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_digest
from bonobot.ledger.policy_generations import load_policy_generations
from mcp_servers.client.change_notifications import (
    ACKNOWLEDGED,
    LIST_CHANGED_FIELDS,
    RESOURCE_SUBSCRIPTIONS_FIELD,
    SUBSCRIPTION_ID,
    TOPICS,
    TOPICS_BY_METHOD,
    UPDATED,
    Topic,
)
from mcp_servers.subscriptions.resource_updated import get_resource_watcher

MAX_WATCHED_RESOURCES = 1_000
MAX_STREAMS = 1_024
POLL_INTERVAL_S = 1.0
# Streams end after this time, because an expiring token doesn't change the generation.
MAX_STREAM_S = 3_600.0
METHODS_BY_TOPIC: dict[Topic, str] = {topic: method for method, topic in TOPICS_BY_METHOD.items()}
KINDS_BY_TOPIC: dict[Topic, tuple[Kind, ...]] = {
    "tools": ("tools",),
    "prompts": ("prompts",),
    "resources": ("resources", "templates", "skills"),
}

DeclarationLister = Callable[[AuthenticatedClient, Kind], Awaitable[tuple[Declaration, ...]]]
# Returns the resources that a client watches now, by URI.
WatchedResourcesGetter = Callable[[], Mapping[str, WatchedResource]]
Notification = tuple[str, dict[str, Any]]


@dataclass
class _OrganizationStreams:
    """An organization's open streams, and its policy generation at the last poll."""

    generation: int = -1
    stream_count: int = 0


class ChangeStreams:
    """The streams of this process's clients, and the task that polls for changes."""

    def __init__(self, list_declarations: DeclarationLister) -> None:
        self._list_declarations = list_declarations
        self._organizations: dict[UUID, _OrganizationStreams] = {}
        self._polled = asyncio.Condition()
        self._polling: asyncio.Task[None] | None = None
        self._wake_event = asyncio.Event()
        self._stream_count = 0

    async def listen(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `subscriptions/listen`: acknowledge the subscriptions, then send notifications."""
        meta = {SUBSCRIPTION_ID: inbound.context.request_id}
        granted_topics = _parse_requested_topics(inbound.get_object("notifications"))
        topics = {
            topic
            for topic, field_name in LIST_CHANGED_FIELDS.items()
            if granted_topics.get(field_name)
        }
        uris = granted_topics.pop(RESOURCE_SUBSCRIPTIONS_FIELD, ())
        watched_resources = await watch_resources(inbound.caller, uris, inbound.choose_holder)
        if watched_resources:
            granted_topics[RESOURCE_SUBSCRIPTIONS_FIELD] = [
                uri for uri in uris if uri in watched_resources
            ]
        try:
            notifications = self.iterate_notifications(
                inbound.caller, topics, lambda: watched_resources
            )
            await anext(notifications)  # changes are noticed from here on
            await inbound.send_notification(
                ACKNOWLEDGED, {"notifications": granted_topics, "_meta": meta}
            )
            async for method, params in notifications:
                await inbound.send_notification(method, {**params, "_meta": meta})
        finally:
            unwatch_resources(watched_resources.values())
        return {"_meta": meta}

    async def notify_session(
        self, caller: AuthenticatedClient, find_session: Callable[[], GatewaySession | None]
    ) -> None:
        """Send notifications to a session of the handshake era while its stream is open."""

        def get_watched_resources() -> Mapping[str, WatchedResource]:
            current_session = find_session()
            return current_session.watched if current_session is not None else {}

        initial_session = find_session()
        known_lists = initial_session.list_digests if initial_session is not None else {}
        async for method, params in self.iterate_notifications(
            caller, TOPICS, get_watched_resources, known_lists
        ):
            current_session = find_session()
            if (
                method
                and current_session is not None
                and current_session.server_session is not None
            ):
                await current_session.server_session.send_notification(
                    build_notification(method, params)
                )

    async def iterate_notifications(
        self,
        caller: AuthenticatedClient,
        topics: Collection[Topic],
        get_watched_resources: WatchedResourcesGetter,
        known_lists: dict[Kind, str] | None = None,
    ) -> AsyncIterator[Notification]:
        """Yield notifications; first an empty one, once changes are being polled.

        `known_lists` are the digests of the lists that the client knows; it is updated in place. A
        list without a digest isn't known to the client yet.
        """
        if self._stream_count >= MAX_STREAMS:
            raise build_invalid_params_error(f"more than {MAX_STREAMS} streams are open: close one")
        deadline = get_runtime().loop.time() + MAX_STREAM_S
        organization = self._organizations.setdefault(
            caller.principal.organization_id, _OrganizationStreams()
        )
        self._stream_count += 1
        organization.stream_count += 1
        try:
            seen_generation = organization.generation
            known_lists = {} if known_lists is None else known_lists
            changed_lists = await self._find_changed_topics(caller, known_lists)
            self._ensure_polling()
            yield "", {}
            for topic in changed_lists & set(topics):
                yield METHODS_BY_TOPIC[topic], {}
            while get_runtime().loop.time() < deadline:
                if organization.generation != seen_generation:
                    seen_generation = organization.generation
                    if not await _has_same_access(caller):
                        return
                    for topic in await self._find_changed_topics(caller, known_lists) & set(topics):
                        yield METHODS_BY_TOPIC[topic], {}
                if changed_uris := await collect_changed_uris(caller, get_watched_resources()):
                    if not await _has_same_access(caller):
                        return
                    for uri in await filter_readable_uris(caller, changed_uris):
                        yield UPDATED, {"uri": uri}
                await self._wait_for_poll()
        finally:
            self._stream_count -= 1
            organization.stream_count -= 1

    def stop(self) -> None:
        """Stop polling."""
        if self._polling is not None:
            self._polling.cancel()

    async def _find_changed_topics(
        self, caller: AuthenticatedClient, known_lists: dict[Kind, str]
    ) -> set[Topic]:
        """Return the topics whose lists changed, and update the known digests."""
        changed_topics: set[Topic] = set()
        for topic, kinds in KINDS_BY_TOPIC.items():
            for kind in kinds:
                digest = compute_list_digest(await self._list_declarations(caller, kind))
                if known_lists.setdefault(kind, digest) != digest:
                    changed_topics.add(topic)
                known_lists[kind] = digest
        return changed_topics

    async def _wait_for_poll(self) -> None:
        async with self._polled:
            await self._polled.wait()

    def _ensure_polling(self) -> None:
        if self._polling is None or self._polling.done():
            self._polling = get_runtime().create_task(self._watch_changes(), name="gateway looks")

    async def _watch_changes(self) -> None:
        get_resource_watcher().change_listeners.add(self._wake_event.set)
        try:
            await self._poll_changes()
        finally:
            get_resource_watcher().change_listeners.discard(self._wake_event.set)

    async def _poll_changes(self) -> None:
        while self._stream_count:
            self._wake_event.clear()
            for key in [
                key for key, streams in self._organizations.items() if not streams.stream_count
            ]:
                del self._organizations[key]
            try:
                generations = await get_runtime().run_orm(
                    load_policy_generations, list(self._organizations)
                )
            except UNAVAILABLE_ERRORS:
                generations = {}  # the database is unavailable; try again at the next poll
            for key, generation in generations.items():
                if key in self._organizations:
                    self._organizations[key].generation = generation
            async with self._polled:
                self._polled.notify_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._wake_event.wait()


def compute_list_digest(declarations: tuple[Declaration, ...]) -> str:
    """Return the digest of a list, to detect changes."""
    return compute_digest(repr(declarations))


async def _has_same_access(caller: AuthenticatedClient) -> bool:
    try:
        return await caller.has_same_access()
    except Problem:
        return False


def _parse_requested_topics(requested: Mapping[str, Any]) -> dict[str, Any]:
    """Return the requested subscriptions that are supported; raises `MCPError`."""
    granted_topics: dict[str, Any] = {
        name: True for name in LIST_CHANGED_FIELDS.values() if requested.get(name) is True
    }
    uris = requested.get(RESOURCE_SUBSCRIPTIONS_FIELD)
    if isinstance(uris, list) and uris:
        if len(uris) > MAX_WATCHED_RESOURCES or not all(isinstance(uri, str) for uri in uris):
            raise build_invalid_params_error(
                f"`{RESOURCE_SUBSCRIPTIONS_FIELD}` must be at most {MAX_WATCHED_RESOURCES} URIs"
            )
        granted_topics[RESOURCE_SUBSCRIPTIONS_FIELD] = list(dict.fromkeys(uris))
    return granted_topics
