"""Clients' subscriptions to single resources.

The organization's own resources are polled; for a server's, the server sends notifications
(`mcp_servers.subscriptions.resource_updated`), with the person's own login if sign-in is per
person. Permission to read is required, and is checked at subscription and before each notification.

Servers of the handshake era may send updates only to the connection that asked for them. So once a
client that watches a resource calls its server, the resource is subscribed to on the connection of
that call too, and from then on this connection's updates are the client's. The shared feed is used
before that and after the connection ended.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from agents.calls.connections import resolve_user_endpoint
from agents.calls.resolve import find_resource
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import get_catalog
from agents.gateway.organization_server.resources import load_resource_states
from agents.gateway.routes import GatewayTarget
from bonobot.core.runtime import get_runtime
from mcp_servers.client.change_notifications import MAX_URI_LENGTH, ChangeNotification
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.extension_points import change_notification_listeners
from mcp_servers.subscriptions.resource_updated import (
    HeldConnection,
    Key,
    build_source,
    can_watch_resources,
    find_connection,
    get_resource_watcher,
    subscribe_to_resource,
)

# For this long after the switch to a connection, updates may arrive by the shared feed, too.
OVERLAP_S = 3.0
# Updates of a resource that are reported one by one; more are reported together.
MAX_PENDING = 100


@dataclass(eq=False)
class WatchedResource:
    """A watched resource with the state that the client knows.

    `key` is set for servers' resources, `holder` for those of handshake servers. While `connection`
    is set, its updates count; `feed_count` is the feed's count at the switch to it.
    """

    state: str | None
    key: Key | None = None
    holder: str = ""
    connection: HeldConnection | None = None
    feed_count: int = 0
    update_count: int = 0
    reported_count: int = 0
    overlap_ends_at: float = 0.0

    def switch_to(self, connection: HeldConnection, now: float) -> None:
        """Count the updates of a connection from now on."""
        self.connection = connection
        self.feed_count = int(self.state or 0)
        self.update_count = self.reported_count = 0
        self.overlap_ends_at = now + OVERLAP_S

    def leave_lost_connection(self) -> bool:
        """Use the feed again if the connection was lost, and return whether it was."""
        if self.connection is None or self.connection.alive:
            return False
        self.connection = None
        return True

    def take_update_count(self, feed_count: int, now: float) -> int:
        """Return how many updates of the connection are new; `feed_count` is the feed's."""
        due_count = self.update_count
        if self.overlap_ends_at:
            due_count = max(due_count, feed_count - self.feed_count)
        new_count = due_count - self.reported_count
        self.reported_count = due_count
        if self.overlap_ends_at and now >= self.overlap_ends_at:
            self.overlap_ends_at, self.reported_count = 0.0, self.update_count
        return min(max(new_count, 0), MAX_PENDING)


class ConnectionSubscriptions:
    """The watched resources of this process's clients, by server and holder of connections."""

    def __init__(self) -> None:
        self._watched: dict[tuple[UUID, str], dict[WatchedResource, str]] = {}
        self._locks: dict[tuple[UUID, str], asyncio.Lock] = {}

    def add_resource(self, resource: WatchedResource) -> None:
        """Add a resource of a handshake server."""
        if resource.key is None or not resource.holder:
            return
        source, own_uri = resource.key
        self._watched.setdefault((source.server_id, resource.holder), {})[resource] = own_uri

    def remove_resources(self, resources: Iterable[WatchedResource]) -> None:
        """Remove resources; their connections may be closed when idle."""
        for resource in resources:
            if resource.key is None:
                continue
            key = resource.key[0].server_id, resource.holder
            group = self._watched.get(key, {})
            if group.pop(resource, None) is not None and resource.connection is not None:
                resource.connection.allow_closing()
            if not group:
                self._watched.pop(key, None)
                self._locks.pop(key, None)

    def has_resources(self, server_id: UUID, holder: str) -> bool:
        """Tell whether the holder's clients watch resources of a server."""
        return bool(self._watched) and (server_id, holder) in self._watched

    async def subscribe_connection(self, endpoint: ServerEndpoint, holder: str) -> None:
        """Subscribe the holder's connection to what its clients watch, before a call on it."""
        key = endpoint.server_id, holder
        async with self._locks.setdefault(key, asyncio.Lock()):
            await self._subscribe_missing(endpoint, holder)

    def handle_notification(self, server_id: UUID, notification: ChangeNotification) -> None:
        """Count an update of a resource or a part of one, on the connection of a holder."""
        group = self._watched.get((server_id, notification.holder))
        if not notification.uri or not group:
            return
        for resource, own_uri in group.items():
            is_part = notification.uri.startswith(own_uri.rstrip("/") + "/")
            if resource.connection is not None and (notification.uri == own_uri or is_part):
                resource.update_count += 1
        for listener in tuple(get_resource_watcher().change_listeners):
            listener()

    async def _subscribe_missing(self, endpoint: ServerEndpoint, holder: str) -> None:
        group = self._watched.get((endpoint.server_id, holder), {})
        current = find_connection(endpoint, holder)
        missing = [
            item for item in group if item.connection is None or item.connection is not current
        ]
        known_uris = {
            group[item] for item in group if current is not None and item.connection is current
        }
        for own_uri in dict.fromkeys(group[item] for item in missing):
            with suppress(UpstreamError):  # then the feed's updates count
                connection = (
                    current
                    if own_uri in known_uris
                    else await subscribe_to_resource(endpoint, holder, own_uri)
                )
                now = get_runtime().loop.time()
                for resource in missing:
                    if connection is not None and group.get(resource) == own_uri:
                        if resource.connection is not None:
                            resource.connection.allow_closing()
                        connection.keep_open()
                        resource.switch_to(connection, now)


def get_connection_subscriptions() -> ConnectionSubscriptions:
    """Return this process's subscriptions; only on the loop of `get_runtime()`."""
    services = get_runtime().services
    subscriptions: ConnectionSubscriptions | None = services.get(ConnectionSubscriptions)
    if subscriptions is None:
        subscriptions = services[ConnectionSubscriptions] = ConnectionSubscriptions()
        change_notification_listeners.append(subscriptions.handle_notification)
    return subscriptions


async def watch_resources(
    caller: AuthenticatedClient,
    uris: Collection[str],
    choose_holder: Callable[[ServerEndpoint], str] = lambda _endpoint: "",
) -> dict[str, WatchedResource]:
    """Watch the resources that support it and return them; end with `unwatch_resources`.

    `choose_holder` returns the owner of the connections of the client's calls, blank for none.
    """
    if caller.target.kind == "organization":
        states = await get_runtime().run_orm(load_resource_states, caller.principal, uris)
        return {uri: WatchedResource(states.get(uri)) for uri in uris}
    sources = await get_runtime().run_orm(_find_sources, caller.target, uris)
    by_server: dict[UUID, tuple[ServerEndpoint, dict[str, str]]] = {}
    for uri, (endpoint, own_uri) in sources.items():
        if can_watch_resources(endpoint):
            by_server.setdefault(endpoint.server_id, (endpoint, {}))[1][own_uri] = uri
    watched_resources: dict[str, WatchedResource] = {}

    async def subscribe(endpoint: ServerEndpoint, client_uris: Mapping[str, str]) -> None:
        for own_uri, change_count in (
            await get_resource_watcher().watch_resources(endpoint, client_uris)
        ).items():
            watched_resources[client_uris[own_uri]] = resource = WatchedResource(
                str(change_count),
                (build_source(endpoint), own_uri),
                choose_holder(endpoint) if endpoint.era == "handshake" else "",
            )
            get_connection_subscriptions().add_resource(resource)

    try:
        async with asyncio.TaskGroup() as group:
            for endpoint, client_uris in by_server.values():
                with suppress(UpstreamError):  # per-person sign-in, and the caller is no person
                    user_endpoint = await resolve_user_endpoint(endpoint, caller.principal, None)
                    group.create_task(subscribe(user_endpoint, client_uris))
    except BaseException:
        unwatch_resources(watched_resources.values())
        raise
    return watched_resources


def unwatch_resources(watched_resources: Iterable[WatchedResource]) -> None:
    """Stop watching resources for a client."""
    resources = list(watched_resources)
    get_connection_subscriptions().remove_resources(resources)
    get_resource_watcher().unwatch_resources(
        resource.key for resource in resources if resource.key is not None
    )


async def collect_changed_uris(
    caller: AuthenticatedClient, watched_resources: Mapping[str, WatchedResource]
) -> list[str]:
    """Return the URIs whose state changed, and update the known states.

    A URI is repeated for updates that its server sent on the connection of the client's calls.
    """
    if not watched_resources:
        return []
    changed_uris = []
    now = get_runtime().loop.time()
    for uri, state in (await _load_states(caller, watched_resources)).items():
        if (resource := watched_resources.get(uri)) is None:
            continue
        if resource.leave_lost_connection():
            changed_uris.append(uri)  # updates may have been missed
        elif resource.connection is not None:
            changed_uris += [uri] * resource.take_update_count(int(state), now)
        elif resource.state != state:
            changed_uris += [uri] if resource.state is not None else []
        resource.state = state
    return changed_uris


async def filter_readable_uris(caller: AuthenticatedClient, uris: Collection[str]) -> list[str]:
    """Return the URIs that the client may still read."""
    if caller.target.kind == "organization":
        return list(uris)  # resources that aren't visible have no state
    sources = await get_runtime().run_orm(_find_sources, caller.target, uris)
    return [uri for uri in uris if uri in sources]


async def is_readable(caller: AuthenticatedClient, uri: str) -> bool:
    """Tell whether a client may read a resource at its target."""
    return caller.target.kind == "organization" or bool(await filter_readable_uris(caller, [uri]))


async def _load_states(
    caller: AuthenticatedClient, watched_resources: Mapping[str, WatchedResource]
) -> dict[str, str]:
    if caller.target.kind == "organization":
        return await get_runtime().run_orm(
            load_resource_states, caller.principal, list(watched_resources)
        )
    change_counts = {
        uri: get_resource_watcher().find_change_count(resource.key)
        for uri, resource in watched_resources.items()
        if resource.key
    }
    return {
        uri: str(change_count)
        for uri, change_count in change_counts.items()
        if change_count is not None
    }


def _find_sources(
    target: GatewayTarget, uris: Collection[str]
) -> dict[str, tuple[ServerEndpoint, str]]:
    """Return the endpoints and own URIs of the resources that may currently be read."""
    snapshot = target.load_snapshot()
    catalog = get_catalog(target, snapshot)
    sources = {}
    for uri in uris:
        server_and_uri = catalog.find_resource(uri) if len(uri) <= MAX_URI_LENGTH else None
        definition = find_resource(snapshot, *server_and_uri) if server_and_uri else None
        if server_and_uri and definition is not None and definition.decision.is_callable:
            sources[uri] = snapshot.servers[server_and_uri[0]].endpoint, server_and_uri[1]
    return sources
