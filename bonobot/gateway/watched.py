"""Watched: the single resources that clients want to be told of, wherever they are.

The organization's own are looked at; of a server's, the server tells (`mcp_servers.following`), to
a person with that person's own login where each signs in for themselves. Who may read one may watch
it, which is looked at when it begins and before each notice.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from agents.people import personal
from agents.targets import readable
from bonobot.gateway.bots.resources import states
from bonobot.gateway.places import Place
from bonobot.gateway.shelves import shelf
from bonobot.gateway.visitors import Visitor
from bonobot.lib.runtime import runtime
from mcp_servers.connections.changes import LONGEST_URI
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.following import Key, can_follow, follower, source_of


@dataclass(slots=True)
class Watched:
    """A resource that a client watches: in which state it knows it; `key` is a server's own."""

    state: str | None
    key: Key | None = None


async def watch(visitor: Visitor, uris: Collection[str]) -> dict[str, Watched]:
    """Return those of the resources that the client is told of from now on; to be left."""
    if visitor.place.kind == "organization":
        found = await runtime().orm(states, visitor.principal, uris)
        return {uri: Watched(found.get(uri)) for uri in uris}
    sources = await runtime().orm(_sources, visitor.place, uris)
    by_server: dict[UUID, tuple[Endpoint, dict[str, str]]] = {}
    for uri, (endpoint, own) in sources.items():
        if can_follow(endpoint):
            by_server.setdefault(endpoint.server_id, (endpoint, {}))[1][own] = uri
    watched: dict[str, Watched] = {}

    async def ask(endpoint: Endpoint, named: Mapping[str, str]) -> None:
        for own, changes in (await follower().follow(endpoint, named)).items():
            watched[named[own]] = Watched(str(changes), (source_of(endpoint), own))

    try:
        async with asyncio.TaskGroup() as group:
            for endpoint, named in by_server.values():
                with suppress(UpstreamError):  # each person signs in, and no person asks
                    reached = await personal(endpoint, visitor.principal, None)
                    group.create_task(ask(reached, named))
    except BaseException:
        leave(watched.values())
        raise
    return watched


def leave(watched: Iterable[Watched]) -> None:
    """Take note that a client is told of these no longer."""
    follower().leave(one.key for one in watched if one.key is not None)


async def news(visitor: Visitor, watched: Mapping[str, Watched]) -> list[str]:
    """Return what is another than the client knows it, and take note that it knows."""
    if not watched:
        return []
    changed = []
    for uri, state in (await _states(visitor, watched)).items():
        one = watched.get(uri)
        if one is not None and one.state != state:
            changed += [uri] if one.state is not None else []
            one.state = state
    return changed


async def allowed(visitor: Visitor, uris: Collection[str]) -> list[str]:
    """Return those of the resources that the client may still read."""
    if visitor.place.kind == "organization":
        return list(uris)  # what may not be seen is in no state
    sources = await runtime().orm(_sources, visitor.place, uris)
    return [uri for uri in uris if uri in sources]


async def is_readable(visitor: Visitor, uri: str) -> bool:
    """Tell whether a client may read a resource where it is."""
    return visitor.place.kind == "organization" or bool(await allowed(visitor, [uri]))


async def _states(visitor: Visitor, watched: Mapping[str, Watched]) -> dict[str, str]:
    if visitor.place.kind == "organization":
        return await runtime().orm(states, visitor.principal, list(watched))
    known = {uri: follower().changes(one.key) for uri, one in watched.items() if one.key}
    return {uri: str(changes) for uri, changes in known.items() if changes is not None}


def _sources(place: Place, uris: Collection[str]) -> dict[str, tuple[Endpoint, str]]:
    """Return the servers and own URIs of the resources that may be read here, as of now."""
    snapshot = place.snapshot()
    there = shelf(place, snapshot)
    found = {}
    for uri in uris:
        meant = there.resource(uri) if len(uri) <= LONGEST_URI else None
        offer = readable(snapshot, *meant) if meant else None
        if meant and offer is not None and offer.decision.offered:
            found[uri] = snapshot.servers[meant[0]].endpoint, meant[1]
    return found
