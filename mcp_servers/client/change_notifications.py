"""List_changed, resources/updated, listen streams, reconnect backoff.

In the handshake era each is subscribed to (`resources/subscribe`) in a session, and unsubscribed
from; in the modern era a stream is asked for that names all (`subscriptions/listen`), and another
one, there before the first goes, when they are others. Nothing is replayed: whoever missed some
reads again.

In the modern era they come on a stream that was asked for (`subscriptions/listen`), whose first
frame says what was granted and whose frames all carry its number; in the handshake era they come by
themselves. None is replayed, so whoever missed some reads the lists again (MCP 2026-07-28,
Subscriptions).

A stream that the server ended in order returns; one that broke off, or never came, raises. Whoever
wants another one asks again: nothing is replayed.

Before each next one is a pause. It grows while streams are lost soon, and is spread by chance, so
that not all who lost a server come back to it at once.
"""

import asyncio
from asyncio import sleep
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from random import SystemRandom
from time import monotonic
from typing import Any, Literal, Protocol, get_args
from uuid import UUID

from bonobot.core.i18n.messages import format_message
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error, build_timeout_error
from mcp_servers.client.http_channel import HttpChannel, OnMessage, build_routing_headers
from mcp_servers.client.jsonrpc import McpRequest, build_modern_meta, message_of, parse_result
from mcp_servers.client.protocol_versions import METHOD_NOT_FOUND

Topic = Literal["tools", "prompts", "resources"]

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
WATCHED = "resourceSubscriptions"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
TOPICS: tuple[Topic, ...] = get_args(Topic)
LISTS: dict[str, Topic] = {f"notifications/{topic}/list_changed": topic for topic in TOPICS}
MEMBERS: dict[Topic, str] = {topic: f"{topic}ListChanged" for topic in TOPICS}
LONGEST_URI = 2048
# What a server answers that has no streams for this.
REFUSALS = (404, 405)
# Between two frames of a stream, so that a flood waits at the server instead of taking our loop.
BREATH_S = 0.01


@dataclass(frozen=True)
class ChangeNotification:
    """The list of `topic` changed; with `uri`, that one resource did.

    `holder` is whose connection it came on, where lists may differ between connections; blank
    where it holds for everybody.
    """

    topic: Topic
    uri: str = ""
    holder: str = ""


# Called on the loop and must return at once.
OnNotice = Callable[[UUID, ChangeNotification], None]
Hear = Callable[[ChangeNotification], None]
OnOpen = Callable[[frozenset[Topic]], Awaitable[None]]


_listeners: list[OnNotice] = []


def set_notification_listeners(*listeners: OnNotice) -> None:
    """Have the change notices of this process's connections told to all of `listeners`."""
    _listeners[:] = listeners


def on_notice(server_id: UUID, notice: ChangeNotification) -> None:
    """Tell a change notice to whoever takes those of this process."""
    for listener in _listeners:
        listener(server_id, notice)


def list_notifying_topics(capabilities: Any) -> frozenset[Topic]:
    """Return the lists whose changes a server says that it tells."""
    declared = capabilities if isinstance(capabilities, Mapping) else {}
    return frozenset(topic for topic in TOPICS if _has_flag(declared.get(topic), "listChanged"))


def can_subscribe(capabilities: Any) -> bool:
    """Tell whether a server says that it tells when single resources change."""
    declared = capabilities if isinstance(capabilities, Mapping) else {}
    return _has_flag(declared.get("resources"), "subscribe")


def listen_request(topics: Collection[Topic], uris: Collection[str] = ()) -> McpRequest:
    """Return the request whose answer is a stream of notices about lists and single resources."""
    wanted: dict[str, Any] = {MEMBERS[topic]: True for topic in TOPICS if topic in topics}
    if uris:
        wanted[WATCHED] = list(uris)
    return McpRequest(LISTEN, {"notifications": wanted})


def parse_change_notification(
    message: Mapping[str, Any], holder: str = ""
) -> ChangeNotification | None:
    """Return the change notice that a message is, if it is one."""
    method = str(message.get("method"))
    if method in LISTS:
        return ChangeNotification(LISTS[method], holder=holder)
    params = message.get("params")
    uri = params.get("uri") if method == UPDATED and isinstance(params, Mapping) else None
    if isinstance(uri, str) and 0 < len(uri) <= LONGEST_URI:
        return ChangeNotification("resources", uri, holder)
    return None


def parse_subscription_id(message: Mapping[str, Any]) -> int | None:
    """Return the number of the request whose stream a frame belongs to; None for no frame."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    found = meta.get(SUBSCRIPTION_ID) if isinstance(meta, Mapping) else None
    return found if type(found) is int else None


def is_of(message: Mapping[str, Any], number: int) -> bool:
    """Say whether a frame belongs to the subscription that request `number` asked for."""
    return parse_subscription_id(message) == number


def parse_granted_topics(message: Mapping[str, Any]) -> frozenset[Topic] | None:
    """Return what an acknowledgement grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    honoured = params.get("notifications")
    return frozenset(topic for topic, member in MEMBERS.items() if _has_flag(honoured, member))


def parse_granted_uris(message: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the resources that an acknowledgement grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    honoured = params.get("notifications")
    uris = honoured.get(WATCHED) if isinstance(honoured, Mapping) else None
    return frozenset(uri for uri in uris or () if isinstance(uri, str))


def is_unsupported_error(error: UpstreamError) -> bool:
    """Say whether a server that answers like this has no streams of notices at all."""
    return error.rpc_code == METHOD_NOT_FOUND or error.http_status in REFUSALS


def build_not_offered_error(endpoint: ServerEndpoint) -> UpstreamError:
    """Return the error of a server that tells no changes, whatever it declares."""
    return UpstreamError(
        format_message("`{endpoint}` offers no stream of change notices.", endpoint=endpoint.name),
        code="not_offered",
        server=endpoint.name,
        remedy="What it offers is read again from time to time; refresh it to see a change now.",
    )


def _has_flag(value: Any, name: str) -> bool:
    return isinstance(value, Mapping) and value.get(name) is True


# Some servers send no headers before their first event.
SILENT_OPENING_S = 1.0


class StreamingSession(Protocol):
    """A session of the handshake era, whose stream tells what the server says by itself."""

    async def follow(self, opened: asyncio.Event) -> None:
        """Hand on what comes until the stream ends; set `opened` when it is there."""


async def subscribe(
    endpoint: ServerEndpoint,
    channel: HttpChannel,
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
                kept = _parse_agreed_topics(endpoint, message, topics)
                if kept is not None:
                    await on_open(kept)
            elif (
                notice := parse_change_notification(message)
            ) is not None and notice.topic in kept:
                hear(notice)
        await asyncio.sleep(BREATH_S)

    message = message_of(number, request, build_modern_meta(capabilities))
    found = await channel.ask(request, message, build_routing_headers(request), heard)
    parse_result(endpoint, found.message)
    if kept is None:
        raise build_protocol_error(
            endpoint,
            format_message("it ended `{listen}` without having acknowledged it", listen=LISTEN),
        )


async def watch_session_stream(
    session: StreamingSession, topics: frozenset[Topic], on_open: OnOpen
) -> None:
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


def throttle_messages(on_message: OnMessage) -> OnMessage:
    """Return `on_message` with a pause after each: a flood then waits at the server."""

    async def paced(message: dict[str, Any]) -> None:
        await on_message(message)
        await asyncio.sleep(BREATH_S)

    return paced


def _parse_agreed_topics(
    endpoint: ServerEndpoint, message: Mapping[str, Any], topics: frozenset[Topic]
) -> frozenset[Topic] | None:
    honoured = parse_granted_topics(message)
    if honoured is None:
        return None
    if not honoured & topics:
        raise build_not_offered_error(endpoint)
    return honoured & topics


SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"

# Takes a resource, and whether the server tells of it; must return at once.
Told = Callable[[str, bool], None]
OnFrame = Callable[[Mapping[str, Any]], None]
# Asks for a stream by a request and hands on its frames, until it ends.
OpenStream = Callable[[McpRequest, OnFrame], Awaitable[None]]


class DesiredSubscriptions:
    """The resources of one server that are to be told of, which may become others meanwhile."""

    def __init__(self) -> None:
        self.uris: set[str] = set()
        self.changed = asyncio.Event()

    def add(self, uri: str) -> None:
        """Wish for one more."""
        self.uris.add(uri)
        self.changed.set()

    def discard(self, uri: str) -> None:
        """Wish for one no longer."""
        self.uris.discard(uri)
        self.changed.set()


class SubscribableSession(StreamingSession, Protocol):
    """A session of the handshake era, whose stream can be followed."""

    async def ask(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result of a request within the session; raises `UpstreamError`."""


async def keep_subscribed(
    endpoint: ServerEndpoint, session: SubscribableSession, wish: DesiredSubscriptions, told: Told
) -> None:
    """Subscribe in a session to what is wished for, until its stream ends; raises what ended it."""
    opened = asyncio.Event()

    async def on_open(_: object) -> None:
        opened.set()

    async def subscribing() -> None:
        await opened.wait()
        await subscribe_to(endpoint, session.ask, wish, told)

    await wait_for_first(watch_session_stream(session, frozenset(), on_open), subscribing())


async def subscribe_to(
    endpoint: ServerEndpoint,
    ask: Callable[[McpRequest], Awaitable[dict[str, Any]]],
    wish: DesiredSubscriptions,
    told: Told,
) -> None:
    """Subscribe to what is wished for and unsubscribe from what no longer is, for ever."""
    asked: set[str] = set()

    async def answered(method: str, uri: str) -> bool:
        """Ask for one; False where the server says no; raises where it says nothing."""
        try:
            async with asyncio.timeout(endpoint.read_s):
                await ask(McpRequest(method, {"uri": uri}))
        except TimeoutError:
            raise build_timeout_error(endpoint, method, endpoint.read_s, sent=True) from None
        except UpstreamError as error:
            if error.rpc_code is None:
                raise
            return False
        return True

    while True:
        wish.changed.clear()
        for uri in sorted(wish.uris - asked):
            asked.add(uri)
            told(uri, await answered(SUBSCRIBE, uri))
        for uri in sorted(asked - wish.uris):
            asked.discard(uri)
            await answered(UNSUBSCRIBE, uri)
        await wish.changed.wait()


async def keep_listening(
    endpoint: ServerEndpoint,
    open_stream: OpenStream,
    wish: DesiredSubscriptions,
    told: Told,
    hear: Hear | None,
) -> None:
    """Hold a stream for what is wished for, until it ends in order; raises what else ends it."""
    current: asyncio.Task[None] | None = None
    changed: asyncio.Task[Any] | None = None
    try:
        while True:
            wish.changed.clear()
            if not wish.uris:
                await wish.changed.wait()
                continue
            stream = _ResourceUpdateStream(endpoint, frozenset(wish.uris), hear)
            following = asyncio.ensure_future(stream.run(open_stream))
            before, current = current, following
            try:
                await stream.opened(following, told)
            finally:
                if before is not None:
                    before.cancel()
            changed = asyncio.ensure_future(wish.changed.wait())
            await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                return following.result()
    finally:
        await _cancel_tasks(current, changed)


class _ResourceUpdateStream:
    """One stream that names resources; what comes before its acknowledgement is none of it."""

    def __init__(self, endpoint: ServerEndpoint, uris: frozenset[str], hear: Hear | None) -> None:
        self._endpoint = endpoint
        self._uris = uris
        self._hear = hear
        self._granted: frozenset[str] | None = None
        self._acknowledged = asyncio.Event()

    async def run(self, open_stream: OpenStream) -> None:
        """Ask for it, and hear it to its end."""
        await open_stream(listen_request((), sorted(self._uris)), self._take)
        if self._granted is None:
            raise build_protocol_error(
                self._endpoint, "it ended a stream that it had not acknowledged"
            )

    async def opened(self, running: "asyncio.Task[None]", told: Told) -> None:
        """Wait until it is acknowledged, and tell what is granted; raises what ends it before."""
        acknowledged = asyncio.ensure_future(self._acknowledged.wait())
        try:
            async with asyncio.timeout(self._endpoint.read_s):
                await asyncio.wait({running, acknowledged}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            seconds = self._endpoint.read_s
            raise build_timeout_error(
                self._endpoint, "subscriptions/listen", seconds, sent=True
            ) from None
        finally:
            acknowledged.cancel()
        if self._granted is None:
            running.result()
        for uri in self._uris:
            told(uri, uri in (self._granted or ()))

    def _take(self, frame: Mapping[str, Any]) -> None:
        if self._granted is None:
            self._granted = parse_granted_uris(frame)
            if self._granted is not None:
                self._acknowledged.set()
        elif (
            self._hear is not None
            and (notice := parse_change_notification(frame)) is not None
            and notice.uri
        ):
            self._hear(notice)


async def wait_for_first(*work: Any) -> None:
    """Wait until the first of several ends; raises what ended it, and ends the others."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel_tasks(*tasks)


async def _cancel_tasks(*tasks: "asyncio.Task[Any] | None") -> None:
    left = [task for task in tasks if task is not None]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
# A stream that lived this long was a good one: the next pause is the first again.
STEADY_S = 60.0
# No stream is trusted for longer: a peer that vanished says nothing, a credential may be withdrawn.
RENEWED_S = 3600.0

# Its own: nobody who seeds the one that all share decides when servers are asked.
_CHANCE = SystemRandom()


class ReopenSchedule:
    """Iterated for ever, once for each stream; the pause is where the next one is asked for."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._losses = 0

    def __aiter__(self) -> "ReopenSchedule":
        """Return itself: it is walked through once."""
        return self

    async def __anext__(self) -> None:
        """Wait as long as it takes until a stream may be opened: the first at once."""
        if self._began is not None:
            steady = monotonic() - self._began >= STEADY_S
            self._losses = 0 if steady else self._losses + 1
            await sleep(pause_s(self._losses, _CHANCE.random()))
        self._began = monotonic()


def pause_s(losses: int, luck: float) -> float:
    """Return how long to wait after so many losses in a row; `luck` from 0 to 1 spreads it."""
    longest: float = min(FIRST_PAUSE_S * 2 ** min(max(losses - 1, 0), 20), LONGEST_PAUSE_S)
    return longest * (1 + luck) / 2


def compute_lifetime_s() -> float:
    """Return after how long a stream is opened anew, though nothing is wrong with it."""
    return RENEWED_S * (1 + _CHANCE.random() / 10)
