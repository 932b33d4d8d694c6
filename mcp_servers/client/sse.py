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
from bonobot.core.i18n.messages import format_message
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.change_notifications import Hear
from mcp_servers.client.endpoint import ServerEndpoint, Wire
from mcp_servers.client.errors import (
    UpstreamError,
    build_protocol_error,
    build_unreachable_error,
    quote,
)
from mcp_servers.client.host import Host
from mcp_servers.client.http_channel import STREAMED, HttpChannel
from mcp_servers.client.jsonrpc import McpRequest, build_notification
from mcp_servers.client.protocol_versions import (
    METHOD_NOT_FOUND,
    HandshakeResult,
    build_initialize_request,
    parse_initialize_result,
)
from mcp_servers.client.stream_peer import StreamPeer

LOST_STATUSES = (400, 404, 410)


class SseSession:
    """The HTTP+SSE session of one holder; one owner task reads its stream."""

    wire: Wire = "sse"

    def __init__(
        self,
        endpoint: ServerEndpoint,
        client: httpx2.AsyncClient,
        host: Host,
        crew: TaskSet,
        clock: Callable[[], float],
        hear: Hear | None = None,
    ) -> None:
        self.greeting: HandshakeResult
        self._endpoint = endpoint
        self._client = client
        self._host = host
        self._crew = crew
        self._clock = clock
        self._used_at = clock()
        self._allowance = BodyAllowance(STREAMED * endpoint.max_body)
        self._peer = StreamPeer(endpoint, self._send, host, crew, hear)
        self._messages: HttpChannel | None = None
        self._failure: UpstreamError | None = None
        self._answered = asyncio.Event()
        self._followers = 0
        self._owner: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Return whether its stream is open."""
        return self._owner is not None and not self._owner.done()

    async def open(self) -> HandshakeResult:
        """Open the stream and perform the handshake; raises `UpstreamError` and cleans up."""
        self._owner = self._crew.spawn(self._own(), name=f"sse {self._endpoint.name}")
        try:
            messages = await self._address()
            opening = build_initialize_request(self._host.capabilities(self._endpoint))
            result = await self._peer.request(opening, {})
            self.greeting = parse_initialize_result(self._endpoint, result, self.wire)
            await messages.tell(build_notification("notifications/initialized"), {})
        except BaseException:
            self.leave()
            raise
        return self.greeting

    async def ask(self, request: McpRequest) -> dict[str, Any]:
        """Return the raw result of a request within the session."""
        self._allowance.spent = 0
        try:
            return await self._peer.request(request, {})
        finally:
            self._used_at = self._clock()

    async def follow(self, opened: asyncio.Event) -> None:
        """Keep the stream open for server messages; raises what ends it."""
        assert self._owner is not None  # noqa: S101 - it was opened
        opened.set()
        self._followers += 1
        try:
            await asyncio.wait({self._owner})
        finally:
            self._followers -= 1
        assert self._failure is not None  # noqa: S101 - the owner ended
        raise self._failure

    def idle_since(self, moment: float) -> bool:
        """Return whether nothing is pending and nothing was requested since `time`."""
        return not (self._peer.busy or self._followers) and self._used_at < moment

    def lost(self, error: UpstreamError) -> bool:
        """Return whether the server has lost this session, so the request had no effect."""
        return error.http_status in LOST_STATUSES and error.rpc_code != METHOD_NOT_FOUND

    def leave(self) -> None:
        """Close the stream without waiting."""
        if self._owner is not None:
            self._owner.cancel()

    async def end(self) -> None:
        """Close the stream and wait; this ends the session at the server too."""
        self.leave()
        if self._owner is not None:
            await asyncio.wait({self._owner})

    async def _own(self) -> None:
        """Read the stream to its end, then fail all pending requests."""
        failure = build_unreachable_error(self._endpoint, "its stream of answers ended", sent=True)
        try:
            await HttpChannel(self._endpoint, self._client).events(self._allowance, self._take)
        except UpstreamError as error:
            failure = error
        finally:
            self._failure = failure
            self._peer.fail(failure)
            self._answered.set()

    async def _address(self) -> HttpChannel:
        """Wait until the server has named the URL for messages."""
        try:
            async with asyncio.timeout(self._endpoint.start_s):
                await self._answered.wait()
        except TimeoutError:
            raise build_protocol_error(self._endpoint, "it named no address for messages") from None
        if self._messages is None:
            assert self._failure is not None  # noqa: S101 - the owner ended
            raise self._failure.unsent()
        return self._messages

    def _take(self, kind: str, data: str) -> None:
        if kind == "message" and data:
            self._peer.receive(data.encode("utf-8", "replace"))
        elif kind == "endpoint" and self._messages is None:
            url = self._same_origin(data.strip())
            self._messages = HttpChannel(self._endpoint, self._client, url)
            self._answered.set()

    def _same_origin(self, address: str) -> str:
        own = httpx2.URL(self._endpoint.url)
        try:
            there = own.join(address)
        except (httpx2.InvalidURL, ValueError):
            raise self._misplaced(address) from None
        if _get_origin(there) != _get_origin(own) or there.userinfo:
            raise self._misplaced(address)
        return str(there)

    def _misplaced(self, address: str) -> UpstreamError:
        name, shown = self._endpoint.name, quote(self._endpoint, address, 200)
        return UpstreamError(
            format_message(
                "`{name}` wants its messages at `{shown}`, which is not of its own origin.",
                name=name,
                shown=shown,
            ),
            code="egress_denied",
            server=name,
            remedy="Have the server name an address of its own: credentials would go elsewhere.",
            field="url",
        )

    def _send(self, message: Mapping[str, Any]) -> None:
        number = message["id"] if "method" in message and "id" in message else None
        self._crew.spawn(self._post(message, number), name=f"post {self._endpoint.name}")

    async def _post(self, message: Mapping[str, Any], number: int | None) -> None:
        assert self._messages is not None  # noqa: S101 - nothing is sent before
        try:
            async with asyncio.timeout(self._endpoint.read_s):
                await self._messages.tell(message, {})
        except UpstreamError as error:
            if number is not None:
                self._peer.refuse(number, error)
        except TimeoutError:
            return  # the response comes on the stream, or the caller's deadline passes


def _get_origin(url: httpx2.URL) -> tuple[str, bytes, int | None]:
    return url.scheme, url.raw_host.lower(), url.port
