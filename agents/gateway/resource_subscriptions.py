"""Clients' subscriptions to single resources.

The organization's own resources are polled; for a server's, the server sends notifications
(`mcp_servers.subscriptions.resource_updated`), with the person's own login if sign-in is per
person. Permission to read is required, and is checked at subscription and before each notification.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from uuid import UUID

from agents.calls.connections import resolve_user_endpoint
from agents.calls.resolve import find_resource
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import get_catalog
from agents.gateway.connection_subscriptions import (
    WatchedResource,
    get_connection_subscriptions,
)
from agents.gateway.organization_server.resources import load_resource_states
from agents.gateway.routes import GatewayTarget
from bonobot.core.runtime import get_runtime
from mcp_servers.client.change_notifications import MAX_URI_LENGTH
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.subscriptions.resource_updated import (
    build_source,
    can_watch_resources,
    get_resource_watcher,
)


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
