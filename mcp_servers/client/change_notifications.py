"""Change notifications of servers: list_changed, resources/updated, their streams and backoff.

In the modern era notifications arrive on a stream opened by `subscriptions/listen`. Its first frame
says what was granted, and all frames carry its id. When the desired resources change, a new stream
is open before the old one is closed. In the handshake era list changes arrive unrequested, and each
resource is subscribed to with `resources/subscribe`. Nothing is replayed: after a gap the lists and
resources must be read again (MCP 2026-07-28, Subscriptions).

A function that follows a stream returns when the server ends the stream, and raises if it is lost
or never opens.

Before a stream is reopened there is a pause, which grows while streams are lost quickly and has
jitter, so that clients do not reconnect all at once.
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
# HTTP statuses of servers without such streams.
REFUSALS = (404, 405)
# Pause between two frames of a stream, so that a flood does not block our loop.
BREATH_S = 0.01


@dataclass(frozen=True)
class ChangeNotification:
    """The list of `topic` changed; with `uri`, that resource did.

    `holder` is the holder of the connection it came on, as lists may differ by connection; blank
    if it concerns all.
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
    """Set the listeners for change notifications of this process's connections."""
    _listeners[:] = listeners


def on_notice(server_id: UUID, notice: ChangeNotification) -> None:
    """Pass a change notification to this process's listeners."""
    for listener in _listeners:
        listener(server_id, notice)


def list_notifying_topics(capabilities: Any) -> frozenset[Topic]:
    """Return the topics for which a server declares `listChanged`."""
    declared = capabilities if isinstance(capabilities, Mapping) else {}
    return frozenset(topic for topic in TOPICS if _has_flag(declared.get(topic), "listChanged"))


def can_subscribe(capabilities: Any) -> bool:
    """Return whether a server declares resource subscriptions."""
    declared = capabilities if isinstance(capabilities, Mapping) else {}
    return _has_flag(declared.get("resources"), "subscribe")


def listen_request(topics: Collection[Topic], uris: Collection[str] = ()) -> McpRequest:
    """Return the request that opens a stream about lists and single resources."""
    wanted: dict[str, Any] = {MEMBERS[topic]: True for topic in TOPICS if topic in topics}
    if uris:
        wanted[WATCHED] = list(uris)
    return McpRequest(LISTEN, {"notifications": wanted})


def parse_change_notification(
    message: Mapping[str, Any], holder: str = ""
) -> ChangeNotification | None:
    """Return the change notification in a message, if it is one."""
    method = str(message.get("method"))
    if method in LISTS:
        return ChangeNotification(LISTS[method], holder=holder)
    params = message.get("params")
    uri = params.get("uri") if method == UPDATED and isinstance(params, Mapping) else None
    if isinstance(uri, str) and 0 < len(uri) <= LONGEST_URI:
        return ChangeNotification("resources", uri, holder)
    return None


def parse_subscription_id(message: Mapping[str, Any]) -> int | None:
    """Return the id of the request whose stream a frame belongs to; None if it is no frame."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    found = meta.get(SUBSCRIPTION_ID) if isinstance(meta, Mapping) else None
    return found if type(found) is int else None


def is_of(message: Mapping[str, Any], number: int) -> bool:
    """Return whether a frame belongs to the stream of `request_id`."""
    return parse_subscription_id(message) == number


def parse_granted_topics(message: Mapping[str, Any]) -> frozenset[Topic] | None:
    """Return the topics that an acknowledgment grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    honoured = params.get("notifications")
    return frozenset(topic for topic, member in MEMBERS.items() if _has_flag(honoured, member))


def parse_granted_uris(message: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the resources that an acknowledgment grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    honoured = params.get("notifications")
    uris = honoured.get(WATCHED) if isinstance(honoured, Mapping) else None
    return frozenset(uri for uri in uris or () if isinstance(uri, str))


def is_unsupported_error(error: UpstreamError) -> bool:
    """Return whether an error means that the server has no notification streams."""
    return error.rpc_code == METHOD_NOT_FOUND or error.http_status in REFUSALS


def build_not_offered_error(endpoint: ServerEndpoint) -> UpstreamError:
    """Return the error of a server without notification streams."""
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
    """A session of the handshake era with a stream of server messages."""

    async def follow(self, opened: asyncio.Event) -> None:
        """Pass on messages until the stream ends; set `opened` when it is open."""


async def subscribe(
    endpoint: ServerEndpoint,
    channel: HttpChannel,
    number: int,
    topics: frozenset[Topic],
    capabilities: Mapping[str, Any],
    on_open: OnOpen,
    hear: Hear,
) -> None:
    """Receive notifications about `topics` from a modern server until it ends the stream.

    `on_open` gets the granted topics. Raises `UpstreamError`, with code `not_offered` if there are
    none.
    """
    request = listen_request(topics)
    kept: frozenset[Topic] | None = None

    async def heard(message: dict[str, Any]) -> None:
        nonlocal kept
        # Ignore frames of other subscriptions and frames before the acknowledgment.
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
    """Receive a session's stream to its end; a silent server counts as open."""
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
    """Return `on_message` with a pause after each message: a flood waits at the server."""

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

# Takes a URI and whether the server granted its subscription; must return at once.
Told = Callable[[str, bool], None]
OnFrame = Callable[[Mapping[str, Any]], None]
# Opens a stream by a request and passes on its frames until it ends.
OpenStream = Callable[[McpRequest, OnFrame], Awaitable[None]]


class DesiredSubscriptions:
    """The resources of one server to be subscribed to; the set may change at any time."""

    def __init__(self) -> None:
        self.uris: set[str] = set()
        self.changed = asyncio.Event()

    def add(self, uri: str) -> None:
        """Add a resource."""
        self.uris.add(uri)
        self.changed.set()

    def discard(self, uri: str) -> None:
        """Remove a resource."""
        self.uris.discard(uri)
        self.changed.set()


class SubscribableSession(StreamingSession, Protocol):
    """A session of the handshake era that resources can be subscribed to in."""

    async def ask(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result of a request within the session; raises `UpstreamError`."""


async def keep_subscribed(
    endpoint: ServerEndpoint, session: SubscribableSession, wish: DesiredSubscriptions, told: Told
) -> None:
    """Subscribe to desired resources in a session until its stream ends; raises what ended it."""
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
    """Keep subscriptions in sync with the desired resources until canceled."""
    asked: set[str] = set()

    async def answered(method: str, uri: str) -> bool:
        """Send one request; return False if the server refuses; raises if it does not answer."""
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
    """Keep a stream of desired resources open until the server ends it; raises if it is lost."""
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
    """One stream of resource updates; frames before its acknowledgment are ignored."""

    def __init__(self, endpoint: ServerEndpoint, uris: frozenset[str], hear: Hear | None) -> None:
        self._endpoint = endpoint
        self._uris = uris
        self._hear = hear
        self._granted: frozenset[str] | None = None
        self._acknowledged = asyncio.Event()

    async def run(self, open_stream: OpenStream) -> None:
        """Open the stream and receive it to its end."""
        await open_stream(listen_request((), sorted(self._uris)), self._take)
        if self._granted is None:
            raise build_protocol_error(
                self._endpoint, "it ended a stream that it had not acknowledged"
            )

    async def opened(self, running: "asyncio.Task[None]", told: Told) -> None:
        """Wait for the acknowledgment and report the grants; raises if the stream ends first."""
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
    """Wait until the first ends and cancel the others; raises what the first raised."""
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
# After a stream that lived this long, the next pause is the shortest again.
STEADY_S = 60.0
# Streams are reopened after this time: a vanished peer or a revoked credential goes unnoticed.
RENEWED_S = 3600.0

# Separate from the shared generator, so that seeding that one does not affect the pauses.
_CHANCE = SystemRandom()


class ReopenSchedule:
    """Endless asynchronous iterator, one step for each stream, with a pause before each."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._losses = 0

    def __aiter__(self) -> "ReopenSchedule":
        """Return itself."""
        return self

    async def __anext__(self) -> None:
        """Wait until the next stream may be opened; the first without a pause."""
        if self._began is not None:
            steady = monotonic() - self._began >= STEADY_S
            self._losses = 0 if steady else self._losses + 1
            await sleep(pause_s(self._losses, _CHANCE.random()))
        self._began = monotonic()


def pause_s(losses: int, luck: float) -> float:
    """Return the pause in seconds after `losses` in a row; `jitter` is from 0 to 1."""
    longest: float = min(FIRST_PAUSE_S * 2 ** min(max(losses - 1, 0), 20), LONGEST_PAUSE_S)
    return longest * (1 + luck) / 2


def compute_lifetime_s() -> float:
    """Return after how many seconds a working stream is reopened."""
    return RENEWED_S * (1 + _CHANCE.random() / 10)
