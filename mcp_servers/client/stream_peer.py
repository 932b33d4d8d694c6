"""JSON-RPC peer over stdio or SSE streams.

Each request has its own inbox, so progress reaches the caller in order and in the caller's task.
Unexpected responses (late, repeated, unknown id) are dropped. A canceled request is canceled at the
server too.
"""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.change_notifications import (
    Hear,
    OnFrame,
    parse_change_notification,
    parse_subscription_id,
)
from mcp_servers.client.child_process import OverlongLine
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error, build_too_large_error
from mcp_servers.client.host import Host, ServerRequestHandler
from mcp_servers.client.jsonrpc import (
    PROGRESS_KEPT,
    McpRequest,
    UnreadableJson,
    build_notification,
    decode,
    is_answer,
    is_log,
    message_of,
    parse_progress_token,
    parse_result,
    report,
)

INBOX = 256
# Where servers put the id of a response: the Python SDK first, the TypeScript SDK last.
ID_AT_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
ID_AT_END = re.compile(rb'"id"\s*:\s*(\d{1,18})\s*\}\s*$')
METHOD = re.compile(rb'\s*\{[^{\[]{0,100}"method"\s*:')

Send = Callable[[dict[str, Any]], None]
Inbox = asyncio.Queue[dict[str, Any] | UpstreamError]


class StreamPeer:
    """The pending requests to one server; `send` sends a message to it.

    `on_notification` gets its change notifications in the reading task and must return at once.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        send: Send,
        host: Host,
        crew: TaskSet,
        hear: Hear | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._send = send
        self._desk = ServerRequestHandler(endpoint, host, crew, self._reply)
        self._hear = hear
        self._numbers = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}
        self._streams: dict[int, OnFrame] = {}
        self._standing = 0
        self._failure: UpstreamError | None = None

    @property
    def busy(self) -> bool:
        """Return whether requests are pending."""
        return len(self._inboxes) > self._standing

    async def request(self, request: McpRequest, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. The caller sets the deadline."""
        return await self._answer(next(self._numbers), request, meta)

    async def _answer(
        self, number: int, request: McpRequest, meta: Mapping[str, Any]
    ) -> dict[str, Any]:
        message = message_of(number, request, meta)
        with self._inbox(number) as inbox, self._desk.waiting(request):
            self._send(message)
            request.sent = True
            try:
                while True:
                    received = await inbox.get()
                    if isinstance(received, UpstreamError):
                        raise received
                    if is_answer(received, number):
                        return parse_result(self._endpoint, received, meta)
                    await report(request, received)
            except asyncio.CancelledError:
                if request.method != "initialize":  # which must not be canceled
                    self.notify("notifications/cancelled", {"requestId": number})
                raise

    async def stand(self, request: McpRequest, meta: Mapping[str, Any]) -> None:
        """Send a request that stays open and does not count as busy; return when it ends."""
        self._standing += 1
        try:
            await self.request(request, meta)
        except UpstreamError:
            return  # other requests get their own error
        finally:
            self._standing -= 1

    async def frames(self, request: McpRequest, meta: Mapping[str, Any], on_frame: OnFrame) -> None:
        """Open a stream and pass on its frames until it ends; raises `UpstreamError`."""
        number = next(self._numbers)
        self._streams[number] = on_frame
        self._standing += 1
        try:
            await self._answer(number, request, meta)
        finally:
            self._standing -= 1
            del self._streams[number]

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._send(build_notification(method, params))

    def fail(self, failure: UpstreamError) -> None:
        """Fail all pending and future requests with `failure`."""
        self._failure = self._failure or failure
        for number in tuple(self._inboxes):
            self._put(number, failure)

    def refuse(self, number: int, failure: UpstreamError) -> None:
        """Fail the request `request_id`, which did not reach the server, with `failure`."""
        self._put(number, failure)

    def receive(self, line: bytes | OverlongLine) -> None:
        """Handle one line from the server."""
        if isinstance(line, OverlongLine):
            self._give_up(
                line.head, line.tail, build_too_large_error(self._endpoint, self._endpoint.max_line)
            )
            return
        try:
            received = decode(line)
        except UnreadableJson as error:
            if line.lstrip().startswith(b"{"):  # meant as a message; anything else is log output
                self._give_up(
                    line[:256], line[-256:], build_protocol_error(self._endpoint, str(error))
                )
            return
        for message in received if isinstance(received, list) else [received]:
            if isinstance(message, dict):
                self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        method, number = message.get("method"), message.get("id")
        if not isinstance(method, str):
            if type(number) is int and is_answer(message, number):
                self._put(number, message)
        elif number is not None:
            self._desk.take(message)
        elif self._desk.hears(message):
            return
        elif on_frame := self._streams.get(parse_subscription_id(message) or 0):
            on_frame(message)
        elif (token := parse_progress_token(message)) is not None:
            self._put(token, _shorten_progress(message))
        elif is_log(message):
            # It does not name its request, so every pending request gets it.
            for waiting in tuple(self._inboxes):
                self._put(waiting, message)
        elif self._hear is not None and (notice := parse_change_notification(message)) is not None:
            self._hear(notice)

    async def _reply(self, message: dict[str, Any]) -> None:
        self._send(message)

    def _give_up(self, head: bytes, tail: bytes, failure: UpstreamError) -> None:
        """Fail the request that an unreadable response belongs to, or all if that is unknown."""
        found = ID_AT_START.match(head) or ID_AT_END.search(tail)
        if found and int(found[1]) in self._inboxes:
            self._put(int(found[1]), failure)
        elif not METHOD.match(head):
            for number in tuple(self._inboxes):
                self._put(number, failure)

    def _put(self, number: int, received: dict[str, Any] | UpstreamError) -> None:
        inbox = self._inboxes.get(number)
        if inbox is None:
            return
        # Progress that comes faster than it is handled is dropped; responses and errors never are.
        if isinstance(received, UpstreamError) or "method" not in received or inbox.qsize() < INBOX:
            inbox.put_nowait(received)

    @contextmanager
    def _inbox(self, number: int) -> Iterator[Inbox]:
        if self._failure is not None:
            raise self._failure.unsent()
        inbox: Inbox = asyncio.Queue()
        self._inboxes[number] = inbox
        try:
            yield inbox
        finally:
            del self._inboxes[number]


def _shorten_progress(message: dict[str, Any]) -> dict[str, Any]:
    # Up to `MAX_QUEUED_PROGRESS` of them are queued for a slow caller, so they must be small.
    params = message["params"]
    text = params.get("message")
    kept = {name: params.get(name) for name in ("progress", "total")}
    kept["message"] = text[:PROGRESS_KEPT] if isinstance(text, str) else None
    return {"method": message["method"], "params": kept}
