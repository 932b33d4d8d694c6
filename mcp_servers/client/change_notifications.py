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
from mcp_servers.client.event_streams import OnMessage
from mcp_servers.client.extension_points import change_notification_listeners, log_listeners
from mcp_servers.client.http_requests import HttpChannel, build_routing_headers
from mcp_servers.client.jsonrpc import (
    McpRequest,
    build_modern_meta,
    build_request_message,
    parse_result,
)
from mcp_servers.client.protocol_versions import METHOD_NOT_FOUND, MODERN_VERSION

Topic = Literal["tools", "prompts", "resources"]

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
RESOURCE_SUBSCRIPTIONS_FIELD = "resourceSubscriptions"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
TOPICS: tuple[Topic, ...] = get_args(Topic)
TOPICS_BY_METHOD: dict[str, Topic] = {
    f"notifications/{topic}/list_changed": topic for topic in TOPICS
}
LIST_CHANGED_FIELDS: dict[Topic, str] = {topic: f"{topic}ListChanged" for topic in TOPICS}
MAX_URI_LENGTH = 2048
# HTTP statuses of servers without such streams.
UNSUPPORTED_STATUSES = (404, 405)
# Pause between two frames of a stream, so that a flood does not block our loop.
FRAME_PAUSE_S = 0.01
OnOpen = Callable[[frozenset[Topic]], Awaitable[None]]
# Some servers send no headers before their first event.
OPEN_TIMEOUT_S = 1.0
SUBSCRIBE, UNSUBSCRIBE = "resources/subscribe", "resources/unsubscribe"
# Takes a URI and whether the server granted its subscription; must return at once.
OnSubscriptionResult = Callable[[str, bool], None]
OnFrame = Callable[[Mapping[str, Any]], None]
# Opens a stream by a request and passes on its frames until it ends.
OpenStream = Callable[[McpRequest, OnFrame], Awaitable[None]]
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
# After a stream that lived this long, the next pause is the shortest again.
STABLE_LIFETIME_S = 60.0
# Streams are reopened after this time: a vanished peer or a revoked credential goes unnoticed.
MAX_STREAM_LIFETIME_S = 3600.0
# Separate from the shared generator, so that seeding that one does not affect the pauses.
_RANDOM = SystemRandom()


@dataclass(frozen=True)
class ChangeNotification:
    """The list of `topic` changed; with `uri`, that resource did.

    `holder` is the holder of the connection it came on, as lists may differ by connection; blank
    if it concerns all.
    """

    topic: Topic
    uri: str = ""
    holder: str = ""


@dataclass(frozen=True)
class LogNotification:
    """A log message on a stream that several requests share; `params` are the message's.

    `delivered` names the subscribers that got it with a pending request.
    """

    params: Mapping[str, Any]
    delivered: frozenset[str] = frozenset()
    holder: str = ""


ServerNotification = ChangeNotification | LogNotification
OnNotification = Callable[[ServerNotification], None]


def dispatch_notification(server_id: UUID, notification: ServerNotification) -> None:
    """Pass a notification to this process's listeners."""
    if isinstance(notification, LogNotification):
        for log_listener in tuple(log_listeners):
            log_listener(server_id, notification)
        return
    for listener in tuple(change_notification_listeners):
        listener(server_id, notification)


def list_notifying_topics(capabilities: Any) -> frozenset[Topic]:
    """Return the topics for which a server declares `listChanged`."""
    capability_objects = capabilities if isinstance(capabilities, Mapping) else {}
    return frozenset(
        topic for topic in TOPICS if _has_flag(capability_objects.get(topic), "listChanged")
    )


def can_subscribe(capabilities: Any) -> bool:
    """Return whether a server declares resource subscriptions."""
    capability_objects = capabilities if isinstance(capabilities, Mapping) else {}
    return _has_flag(capability_objects.get("resources"), "subscribe")


def build_listen_request(topics: Collection[Topic], uris: Collection[str] = ()) -> McpRequest:
    """Return the request that opens a stream about lists and single resources."""
    notifications: dict[str, Any] = {
        LIST_CHANGED_FIELDS[topic]: True for topic in TOPICS if topic in topics
    }
    if uris:
        notifications[RESOURCE_SUBSCRIPTIONS_FIELD] = list(uris)
    return McpRequest(LISTEN, {"notifications": notifications})


def parse_change_notification(message: Mapping[str, Any]) -> ChangeNotification | None:
    """Return the change notification in a message, if it is one."""
    method = str(message.get("method"))
    if method in TOPICS_BY_METHOD:
        return ChangeNotification(TOPICS_BY_METHOD[method])
    params = message.get("params")
    uri = params.get("uri") if method == UPDATED and isinstance(params, Mapping) else None
    if isinstance(uri, str) and 0 < len(uri) <= MAX_URI_LENGTH:
        return ChangeNotification("resources", uri)
    return None


def parse_subscription_id(message: Mapping[str, Any]) -> int | None:
    """Return the id of the request whose stream a frame belongs to; None if it is no frame."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    subscription_id = meta.get(SUBSCRIPTION_ID) if isinstance(meta, Mapping) else None
    return subscription_id if type(subscription_id) is int else None


def is_subscription_frame(message: Mapping[str, Any], request_id: int) -> bool:
    """Return whether a frame belongs to the stream of `request_id`."""
    return parse_subscription_id(message) == request_id


def parse_granted_topics(message: Mapping[str, Any]) -> frozenset[Topic] | None:
    """Return the topics that an acknowledgment grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    granted_topics = params.get("notifications")
    return frozenset(
        topic for topic, field in LIST_CHANGED_FIELDS.items() if _has_flag(granted_topics, field)
    )


def parse_granted_uris(message: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the resources that an acknowledgment grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    granted_topics = params.get("notifications")
    uris = (
        granted_topics.get(RESOURCE_SUBSCRIPTIONS_FIELD)
        if isinstance(granted_topics, Mapping)
        else None
    )
    return frozenset(uri for uri in uris or () if isinstance(uri, str))


def is_unsupported_error(error: UpstreamError) -> bool:
    """Return whether an error means that the server has no notification streams."""
    return error.rpc_code == METHOD_NOT_FOUND or error.http_status in UNSUPPORTED_STATUSES


def build_not_offered_error(endpoint: ServerEndpoint) -> UpstreamError:
    """Return the error of a server without notification streams."""
    return UpstreamError(
        format_message(
            "`{endpoint}` provides no stream of change notifications.", endpoint=endpoint.name
        ),
        code="not_offered",
        server=endpoint.name,
        remedy="Definitions are refreshed periodically. Refresh the server to see a change now.",
    )


def _has_flag(value: Any, name: str) -> bool:
    return isinstance(value, Mapping) and value.get(name) is True


class StreamingSession(Protocol):
    """A session of the handshake era with a stream of server messages."""

    async def receive_messages(self, opened_event: asyncio.Event) -> None:
        """Pass on messages until the stream ends; set `opened_event` when it is open."""


async def receive_list_changes(
    endpoint: ServerEndpoint,
    channel: HttpChannel,
    request_id: int,
    topics: frozenset[Topic],
    capabilities: Mapping[str, Any],
    on_open: OnOpen,
    on_notification: OnNotification,
) -> None:
    """Receive notifications about `topics` from a modern server until it ends the stream.

    `on_open` gets the granted topics. Raises `UpstreamError`, with code `not_offered` if there are
    none.
    """
    request = build_listen_request(topics)
    granted_topics: frozenset[Topic] | None = None

    async def handle_message(message: dict[str, Any]) -> None:
        nonlocal granted_topics
        # Ignore frames of other subscriptions and frames before the acknowledgment.
        if is_subscription_frame(message, request_id):
            if granted_topics is None:
                granted_topics = _parse_agreed_topics(endpoint, message, topics)
                if granted_topics is not None:
                    await on_open(granted_topics)
            elif (
                notification := parse_change_notification(message)
            ) is not None and notification.topic in granted_topics:
                on_notification(notification)
        await asyncio.sleep(FRAME_PAUSE_S)

    message = build_request_message(
        request_id, request, build_modern_meta(MODERN_VERSION, capabilities)
    )
    response = await channel.send_request(
        request, message, build_routing_headers(request), handle_message
    )
    parse_result(endpoint, response.message)
    if granted_topics is None:
        raise build_protocol_error(
            endpoint,
            format_message("it ended `{listen}` without acknowledging it", listen=LISTEN),
        )


async def watch_session_stream(
    session: StreamingSession, topics: frozenset[Topic], on_open: OnOpen
) -> None:
    """Receive a session's stream to its end; a silent server counts as open."""
    opened_event = asyncio.Event()
    receiving = asyncio.ensure_future(session.receive_messages(opened_event))
    opening = asyncio.ensure_future(opened_event.wait())
    try:
        await asyncio.wait(
            {receiving, opening}, timeout=OPEN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
        )
        if opened_event.is_set() or not receiving.done():
            await on_open(topics)
        await receiving
    finally:
        for task in (receiving, opening):
            task.cancel()
        await asyncio.gather(receiving, opening, return_exceptions=True)


def throttle_messages(on_message: OnMessage) -> OnMessage:
    """Return `on_message` with a pause after each message: a flood waits at the server."""

    async def handle_and_pause(message: dict[str, Any]) -> None:
        await on_message(message)
        await asyncio.sleep(FRAME_PAUSE_S)

    return handle_and_pause


def _parse_agreed_topics(
    endpoint: ServerEndpoint, message: Mapping[str, Any], topics: frozenset[Topic]
) -> frozenset[Topic] | None:
    granted_topics = parse_granted_topics(message)
    if granted_topics is None:
        return None
    if not granted_topics & topics:
        raise build_not_offered_error(endpoint)
    return granted_topics & topics


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

    async def send_request(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result of a request within the session; raises `UpstreamError`."""


async def watch_resources_in_session(
    endpoint: ServerEndpoint,
    session: SubscribableSession,
    desired: DesiredSubscriptions,
    on_result: OnSubscriptionResult,
) -> None:
    """Subscribe to desired resources in a session until its stream ends; raises what ended it."""
    opened_event = asyncio.Event()

    async def on_open(_: object) -> None:
        opened_event.set()

    async def subscribe_when_open() -> None:
        await opened_event.wait()
        await sync_subscriptions(endpoint, session.send_request, desired, on_result)

    await wait_for_first(watch_session_stream(session, frozenset(), on_open), subscribe_when_open())


async def sync_subscriptions(
    endpoint: ServerEndpoint,
    send_request: Callable[[McpRequest], Awaitable[dict[str, Any]]],
    desired: DesiredSubscriptions,
    on_result: OnSubscriptionResult,
) -> None:
    """Keep subscriptions in sync with the desired resources until canceled."""
    subscribed: set[str] = set()

    async def send_subscription(method: str, uri: str) -> bool:
        """Send one request; return False if the server refuses; raises if it does not answer."""
        try:
            async with asyncio.timeout(endpoint.read_s):
                await send_request(McpRequest(method, {"uri": uri}))
        except TimeoutError:
            raise build_timeout_error(endpoint, method, endpoint.read_s) from None
        except UpstreamError as error:
            if error.rpc_code is None:
                raise
            return False
        return True

    while True:
        desired.changed.clear()
        for uri in sorted(desired.uris - subscribed):
            subscribed.add(uri)
            on_result(uri, await send_subscription(SUBSCRIBE, uri))
        for uri in sorted(subscribed - desired.uris):
            subscribed.discard(uri)
            await send_subscription(UNSUBSCRIBE, uri)
        await desired.changed.wait()


async def watch_resources_by_stream(
    endpoint: ServerEndpoint,
    open_stream: OpenStream,
    desired: DesiredSubscriptions,
    on_result: OnSubscriptionResult,
    on_notification: OnNotification | None,
) -> None:
    """Keep a stream of desired resources open until the server ends it; raises if it is lost."""
    current: asyncio.Task[None] | None = None
    change: asyncio.Task[Any] | None = None
    try:
        while True:
            desired.changed.clear()
            if not desired.uris:
                await desired.changed.wait()
                continue
            stream = _ResourceUpdateStream(endpoint, frozenset(desired.uris), on_notification)
            receiving = asyncio.ensure_future(stream.run(open_stream))
            previous, current = current, receiving
            try:
                await stream.wait_until_acknowledged(receiving, on_result)
            finally:
                if previous is not None:
                    previous.cancel()
            change = asyncio.ensure_future(desired.changed.wait())
            await asyncio.wait({receiving, change}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                return receiving.result()
    finally:
        await _cancel_tasks(current, change)


class _ResourceUpdateStream:
    """One stream of resource updates; frames before its acknowledgment are ignored."""

    def __init__(
        self, endpoint: ServerEndpoint, uris: frozenset[str], on_notification: OnNotification | None
    ) -> None:
        self._endpoint = endpoint
        self._uris = uris
        self._on_notification = on_notification
        self._granted: frozenset[str] | None = None
        self._acknowledged = asyncio.Event()

    async def run(self, open_stream: OpenStream) -> None:
        """Open the stream and receive it to its end."""
        await open_stream(build_listen_request((), sorted(self._uris)), self._handle_frame)
        if self._granted is None:
            raise build_protocol_error(
                self._endpoint, "it ended a stream that it hadn't acknowledged"
            )

    async def wait_until_acknowledged(
        self, running: "asyncio.Task[None]", on_result: OnSubscriptionResult
    ) -> None:
        """Wait for the acknowledgment and report the grants; raises if the stream ends first."""
        acknowledged = asyncio.ensure_future(self._acknowledged.wait())
        try:
            async with asyncio.timeout(self._endpoint.read_s):
                await asyncio.wait({running, acknowledged}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            seconds = self._endpoint.read_s
            raise build_timeout_error(self._endpoint, "subscriptions/listen", seconds) from None
        finally:
            acknowledged.cancel()
        if self._granted is None:
            running.result()
        for uri in self._uris:
            on_result(uri, uri in (self._granted or ()))

    def _handle_frame(self, frame: Mapping[str, Any]) -> None:
        if self._granted is None:
            self._granted = parse_granted_uris(frame)
            if self._granted is not None:
                self._acknowledged.set()
        elif (
            self._on_notification is not None
            and (notification := parse_change_notification(frame)) is not None
            and notification.uri
        ):
            self._on_notification(notification)


async def wait_for_first(*awaitables: Any) -> None:
    """Wait until the first ends and cancel the others; raises what the first raised."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _cancel_tasks(*tasks)


async def _cancel_tasks(*tasks: "asyncio.Task[Any] | None") -> None:
    pending = [task for task in tasks if task is not None]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


class ReopenSchedule:
    """Endless asynchronous iterator, one step for each stream, with a pause before each."""

    def __init__(self) -> None:
        self._opened_at: float | None = None
        self._losses = 0

    def __aiter__(self) -> "ReopenSchedule":
        """Return itself."""
        return self

    async def __anext__(self) -> None:
        """Wait until the next stream may be opened; the first without a pause."""
        if self._opened_at is not None:
            was_stable = monotonic() - self._opened_at >= STABLE_LIFETIME_S
            self._losses = 0 if was_stable else self._losses + 1
            await sleep(compute_pause_s(self._losses, _RANDOM.random()))
        self._opened_at = monotonic()


def compute_pause_s(losses: int, jitter: float) -> float:
    """Return the pause in seconds after `losses` in a row; `jitter` is from 0 to 1."""
    longest: float = min(FIRST_PAUSE_S * 2 ** min(max(losses - 1, 0), 20), MAX_PAUSE_S)
    return longest * (1 + jitter) / 2


def compute_lifetime_s() -> float:
    """Return after how many seconds a working stream is reopened."""
    return MAX_STREAM_LIFETIME_S * (1 + _RANDOM.random() / 10)
