"""Listening: one stream of change notices from one HTTP server, from its opening to its end.

A stream that the server ended in order returns; one that broke off, or never came, raises. Whoever
wants another one asks again: nothing is replayed.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from bonobot.lib.sayings import say
from mcp_servers.connections.changes import (
    BREATH_S,
    LISTEN,
    Hear,
    OnOpen,
    Topic,
    granted,
    is_of,
    listen_request,
    not_offered,
    notice_in,
)
from mcp_servers.connections.channel import Channel, OnMessage
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import protocol_error
from mcp_servers.connections.mirrors import routing_headers
from mcp_servers.connections.wire import message_of, modern_meta, result_of

# Some servers send no headers before their first event.
SILENT_OPENING_S = 1.0


class Followed(Protocol):
    """A session of the handshake era, whose stream tells what the server says by itself."""

    async def follow(self, opened: asyncio.Event) -> None:
        """Hand on what comes until the stream ends; set `opened` when it is there."""


async def subscribe(
    endpoint: Endpoint,
    channel: Channel,
    number: int,
    topics: frozenset[Topic],
    capabilities: Mapping[str, Any],
    on_open: OnOpen,
    hear: Hear,
) -> None:
    """Ask a modern server for notices about `topics`, as request `number`; `hear` gets them.

    `on_open` is told what was granted. Raises `UpstreamError`: `not_offered` where that is nothing.
    """
    request = listen_request(topics)
    kept: frozenset[Topic] | None = None

    async def heard(message: dict[str, Any]) -> None:
        nonlocal kept
        # Frames of another subscription, or before the acknowledgement, are none of ours.
        if is_of(message, number):
            if kept is None:
                kept = _agreed(endpoint, message, topics)
                if kept is not None:
                    await on_open(kept)
            elif (notice := notice_in(message)) is not None and notice.topic in kept:
                hear(notice)
        await asyncio.sleep(BREATH_S)

    message = message_of(number, request, modern_meta(capabilities))
    found = await channel.ask(request, message, routing_headers(request), heard)
    result_of(endpoint, found.message)
    if kept is None:
        raise protocol_error(
            endpoint, say("it ended `{listen}` without having acknowledged it", listen=LISTEN)
        )


async def stay(session: Followed, topics: frozenset[Topic], on_open: OnOpen) -> None:
    """Follow the stream of a session to its end; a server that keeps silent counts as open."""
    opened = asyncio.Event()
    following = asyncio.ensure_future(session.follow(opened))
    opening = asyncio.ensure_future(opened.wait())
    try:
        await asyncio.wait(
            {following, opening}, timeout=SILENT_OPENING_S, return_when=asyncio.FIRST_COMPLETED
        )
        if opened.is_set() or not following.done():
            await on_open(topics)
        await following
    finally:
        for task in (following, opening):
            task.cancel()
        await asyncio.gather(following, opening, return_exceptions=True)


def slowly(on_message: OnMessage) -> OnMessage:
    """Return `on_message` with a pause after each: a flood then waits at the server."""

    async def paced(message: dict[str, Any]) -> None:
        await on_message(message)
        await asyncio.sleep(BREATH_S)

    return paced


def _agreed(
    endpoint: Endpoint, message: Mapping[str, Any], topics: frozenset[Topic]
) -> frozenset[Topic] | None:
    honoured = granted(message)
    if honoured is None:
        return None
    if not honoured & topics:
        raise not_offered(endpoint)
    return honoured & topics
