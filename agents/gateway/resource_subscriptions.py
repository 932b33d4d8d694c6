"""Clients' subscriptions to single resources.

The organization's own resources are polled; for a server's, the server sends notifications
(`mcp_servers.subscriptions.resource_updated`), with the person's own login if sign-in is per
person. Permission to read is required, and is checked at subscription and before each notification.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from agents.calls.resolve import find_resource
from agents.calls.user_endpoints import resolve_user_endpoint
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import get_catalog
from agents.gateway.organization_server.resources import load_resource_states
from agents.gateway.routes import GatewayTarget
from bonobot.core.runtime import get_runtime
from mcp_servers.client.change_notifications import LONGEST_URI
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.subscriptions.resource_updated import (
    Key,
    build_source,
    can_follow,
    get_resource_watcher,
)


@dataclass(slots=True)
class WatchedResource:
    """A watched resource with the state that the client knows; `key` is set for servers'."""

    state: str | None
    key: Key | None = None


async def watch(visitor: AuthenticatedClient, uris: Collection[str]) -> dict[str, WatchedResource]:
    """Watch the resources that support it and return them; end with `unwatch_resources`."""
    if visitor.place.kind == "organization":
        found = await get_runtime().orm(load_resource_states, visitor.principal, uris)
        return {uri: WatchedResource(found.get(uri)) for uri in uris}
    sources = await get_runtime().orm(_find_sources, visitor.place, uris)
    by_server: dict[UUID, tuple[ServerEndpoint, dict[str, str]]] = {}
    for uri, (endpoint, own) in sources.items():
        if can_follow(endpoint):
            by_server.setdefault(endpoint.server_id, (endpoint, {}))[1][own] = uri
    watched: dict[str, WatchedResource] = {}

    async def ask(endpoint: ServerEndpoint, named: Mapping[str, str]) -> None:
        for own, changes in (await get_resource_watcher().follow(endpoint, named)).items():
            watched[named[own]] = WatchedResource(str(changes), (build_source(endpoint), own))

    try:
        async with asyncio.TaskGroup() as group:
            for endpoint, named in by_server.values():
                with suppress(UpstreamError):  # per-person sign-in, and the caller is no person
                    reached = await resolve_user_endpoint(endpoint, visitor.principal, None)
                    group.create_task(ask(reached, named))
    except BaseException:
        leave(watched.values())
        raise
    return watched


def leave(watched: Iterable[WatchedResource]) -> None:
    """Stop watching resources for a client."""
    get_resource_watcher().leave(one.key for one in watched if one.key is not None)


async def collect_changed_uris(
    visitor: AuthenticatedClient, watched: Mapping[str, WatchedResource]
) -> list[str]:
    """Return the URIs whose state changed, and update the known states."""
    if not watched:
        return []
    changed = []
    for uri, state in (await _load_states(visitor, watched)).items():
        one = watched.get(uri)
        if one is not None and one.state != state:
            changed += [uri] if one.state is not None else []
            one.state = state
    return changed


async def filter_readable_uris(visitor: AuthenticatedClient, uris: Collection[str]) -> list[str]:
    """Return the URIs that the client may still read."""
    if visitor.place.kind == "organization":
        return list(uris)  # resources that aren't visible have no state
    sources = await get_runtime().orm(_find_sources, visitor.place, uris)
    return [uri for uri in uris if uri in sources]


async def is_readable(visitor: AuthenticatedClient, uri: str) -> bool:
    """Tell whether a client may read a resource at its target."""
    return visitor.place.kind == "organization" or bool(await filter_readable_uris(visitor, [uri]))


async def _load_states(
    visitor: AuthenticatedClient, watched: Mapping[str, WatchedResource]
) -> dict[str, str]:
    if visitor.place.kind == "organization":
        return await get_runtime().orm(load_resource_states, visitor.principal, list(watched))
    known = {
        uri: get_resource_watcher().changes(one.key) for uri, one in watched.items() if one.key
    }
    return {uri: str(changes) for uri, changes in known.items() if changes is not None}


def _find_sources(
    place: GatewayTarget, uris: Collection[str]
) -> dict[str, tuple[ServerEndpoint, str]]:
    """Return the endpoints and own URIs of the resources that may currently be read."""
    snapshot = place.snapshot()
    there = get_catalog(place, snapshot)
    found = {}
    for uri in uris:
        meant = there.resource(uri) if len(uri) <= LONGEST_URI else None
        offer = find_resource(snapshot, *meant) if meant else None
        if meant and offer is not None and offer.decision.offered:
            found[uri] = snapshot.servers[meant[0]].endpoint, meant[1]
    return found
