"""HTTP+SSE transport (2024-11-05).

The first event names the URL that messages are posted to, which must have the same origin as the
stream: our credentials are sent there. Closing the stream ends the session. Data received between
two requests is bounded like a response.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from bonobot.core.http.egress import BodyAllowance
from bonobot.core.http.persistent_client import PersistentClient
from bonobot.core.i18n.messages import format_message
from mcp_servers.client.answer_server_requests import Host, build_declared_capabilities
from mcp_servers.client.change_notifications import OnNotification
from mcp_servers.client.endpoint import ServerEndpoint, Wire
from mcp_servers.client.errors import (
    UpstreamError,
    build_protocol_error,
    build_unreachable_error,
    quote_text,
)
from mcp_servers.client.http_requests import STREAM_BODY_FACTOR, HttpChannel
from mcp_servers.client.jsonrpc import McpRequest, build_notification
from mcp_servers.client.jsonrpc_peer import StreamPeer
from mcp_servers.client.protocol_versions import (
    METHOD_NOT_FOUND,
    HandshakeResult,
    build_initialize_request,
    parse_initialize_result,
)
from mcp_servers.client.task_set import TaskSet

LOST_STATUSES = (400, 404, 410)


class SseSession:
    """The HTTP+SSE session of one holder; one owner task reads its stream."""

    wire: Wire = "sse"

    def __init__(
        self,
        endpoint: ServerEndpoint,
        client: PersistentClient,
        host: Host,
        tasks: TaskSet,
        clock: Callable[[], float],
        on_notification: OnNotification | None = None,
    ) -> None:
        self.handshake: HandshakeResult
        self._endpoint = endpoint
        self._client = client
        self._host = host
        self._tasks = tasks
        self._clock = clock
        self._last_used_at = clock()
        self._allowance = BodyAllowance(STREAM_BODY_FACTOR * endpoint.max_body)
        self._peer = StreamPeer(endpoint, self._send_message, host, tasks, on_notification)
        self._message_channel: HttpChannel | None = None
        self._failure: UpstreamError | None = None
        self._ready = asyncio.Event()
        self._watcher_count = 0
        self._owner_task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Return whether its stream is open."""
        return self._owner_task is not None and not self._owner_task.done()

    async def open(self) -> HandshakeResult:
        """Open the stream and perform the handshake; raises `UpstreamError` and cleans up."""
        self._owner_task = self._tasks.spawn(self._read_stream(), name=f"sse {self._endpoint.name}")
        try:
            channel = await self._wait_for_channel()
            request = build_initialize_request(build_declared_capabilities(self._endpoint))
            result = await self._peer.send_request(request, {})
            self.handshake = parse_initialize_result(self._endpoint, result, self.wire)
            await channel.send_message(build_notification("notifications/initialized"), {})
        except BaseException:
            self.stop_listening()
            raise
        return self.handshake

    async def send_request(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result of a request within the session."""
        self._allowance.used_bytes = 0
        try:
            return await self._peer.send_request(request, {})
        finally:
            self._last_used_at = self._clock()

    async def receive_messages(self, opened_event: asyncio.Event) -> None:
        """Keep the stream open for server messages; raises what ends it."""
        assert self._owner_task is not None  # noqa: S101 - it was opened
        opened_event.set()
        self._watcher_count += 1
        try:
            await asyncio.wait({self._owner_task})
        finally:
            self._watcher_count -= 1
        assert self._failure is not None  # noqa: S101 - the owner ended
        raise self._failure

    def set_host(self, host: Host, on_notification: OnNotification | None) -> None:
        """Set who answers the server's requests and gets its notifications from now on."""
        self._peer.set_host(host, on_notification)

    def keep_open(self) -> None:
        """Do not end the session as idle until `allow_closing`."""
        self._watcher_count += 1

    def allow_closing(self) -> None:
        """End the effect of one `keep_open`."""
        self._watcher_count -= 1

    def is_idle_since(self, time: float) -> bool:
        """Return whether nothing is pending and nothing was requested since `time`."""
        return not (self._peer.busy or self._watcher_count) and self._last_used_at < time

    def is_session_lost(self, error: UpstreamError) -> bool:
        """Return whether the server has lost this session, so the request had no effect."""
        return error.http_status in LOST_STATUSES and error.rpc_code != METHOD_NOT_FOUND

    def stop_listening(self) -> None:
        """Close the stream without waiting."""
        if self._owner_task is not None:
            self._owner_task.cancel()

    async def end_session(self) -> None:
        """Close the stream and wait; this ends the session at the server too."""
        self.stop_listening()
        if self._owner_task is not None:
            await asyncio.wait({self._owner_task})

    async def _read_stream(self) -> None:
        """Read the stream to its end, then fail all pending requests."""
        failure = build_unreachable_error(self._endpoint, "its response stream ended", sent=True)
        try:
            await HttpChannel(self._endpoint, self._client).receive_events(
                self._allowance, self._handle_event
            )
        except UpstreamError as error:
            failure = error
        finally:
            self._failure = failure
            self._peer.fail_all(failure)
            self._ready.set()

    async def _wait_for_channel(self) -> HttpChannel:
        """Wait until the server has named the URL for messages."""
        try:
            async with asyncio.timeout(self._endpoint.start_s):
                await self._ready.wait()
        except TimeoutError:
            raise build_protocol_error(self._endpoint, "it provided no URL for messages") from None
        if self._message_channel is None:
            assert self._failure is not None  # noqa: S101 - the owner ended
            raise self._failure.with_sent(False)
        return self._message_channel

    def _handle_event(self, event: str, data: str) -> None:
        if event == "message" and data:
            self._peer.receive_line(data.encode("utf-8", "replace"))
        elif event == "endpoint" and self._message_channel is None:
            url = self._resolve_address(data.strip())
            self._message_channel = HttpChannel(self._endpoint, self._client, url)
            self._ready.set()

    def _resolve_address(self, address: str) -> str:
        stream_url = httpx2.URL(self._endpoint.url)
        try:
            message_url = stream_url.join(address)
        except (httpx2.InvalidURL, ValueError):
            raise self._build_origin_error(address) from None
        if _get_origin(message_url) != _get_origin(stream_url) or message_url.userinfo:
            raise self._build_origin_error(address)
        return str(message_url)

    def _build_origin_error(self, address: str) -> UpstreamError:
        name, quoted_address = self._endpoint.name, quote_text(self._endpoint, address, 200)
        return UpstreamError(
            format_message(
                "`{name}` requires messages at `{shown}`, which is on a different origin.",
                name=name,
                shown=quoted_address,
            ),
            code="egress_denied",
            server=name,
            remedy="Have the server return a URL on its own origin. Otherwise, credentials would "
            "be sent elsewhere.",
            field="url",
        )

    def _send_message(self, message: Mapping[str, Any]) -> None:
        request_id = message["id"] if "method" in message and "id" in message else None
        self._tasks.spawn(
            self._post_message(message, request_id), name=f"post {self._endpoint.name}"
        )

    async def _post_message(self, message: Mapping[str, Any], request_id: int | None) -> None:
        assert self._message_channel is not None  # noqa: S101 - nothing is sent before
        try:
            async with asyncio.timeout(self._endpoint.read_s):
                await self._message_channel.send_message(message, {})
        except UpstreamError as error:
            if request_id is not None:
                self._peer.fail_request(request_id, error)
        except TimeoutError:
            return  # the response comes on the stream, or the caller's deadline passes


def _get_origin(url: httpx2.URL) -> tuple[str, bytes, int | None]:
    return url.scheme, url.raw_host.lower(), url.port
