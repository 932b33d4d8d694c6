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

from mcp_servers.client.answer_server_requests import Host, ServerRequestHandler
from mcp_servers.client.change_notifications import (
    LogNotification,
    OnFrame,
    OnNotification,
    parse_change_notification,
    parse_subscription_id,
)
from mcp_servers.client.child_process import LINE_END_BYTES, OverlongLine
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_protocol_error, build_too_large_error
from mcp_servers.client.jsonrpc import (
    MAX_PROGRESS_LENGTH,
    McpRequest,
    UnreadableJson,
    build_notification,
    build_request_message,
    decode_json,
    deliver_notification,
    is_log_message,
    is_response,
    parse_progress_token,
    parse_result,
)
from mcp_servers.client.task_set import TaskSet

MAX_QUEUED_PROGRESS = 256
# Where servers put the id of a response: the Python SDK first, the TypeScript SDK last.
ID_AT_START = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,')
ID_AT_END = re.compile(rb'"id"\s*:\s*(\d{1,18})\s*\}\s*$')
REQUEST_START = re.compile(rb'\s*\{[^{\[]{0,100}"method"\s*:')

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
        tasks: TaskSet,
        on_notification: OnNotification | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._send = send
        self._request_handler = ServerRequestHandler(endpoint, host, tasks, self._reply)
        self._on_notification = on_notification
        self._request_ids = itertools.count(1)
        self._inboxes: dict[int, Inbox] = {}
        self._pending: dict[int, McpRequest] = {}
        self._streams: dict[int, OnFrame] = {}
        self._standing_count = 0
        self._failure: UpstreamError | None = None

    @property
    def busy(self) -> bool:
        """Return whether requests are pending."""
        return len(self._inboxes) > self._standing_count

    def set_host(self, host: Host, on_notification: OnNotification | None) -> None:
        """Set who answers the server's requests and gets its notifications from now on."""
        self._on_notification = on_notification
        self._request_handler.set_host(host)

    async def send_request(self, request: McpRequest, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the raw result; raises `UpstreamError`. The caller sets the deadline."""
        return await self._await_response(next(self._request_ids), request, meta)

    async def _await_response(
        self, request_id: int, request: McpRequest, meta: Mapping[str, Any]
    ) -> dict[str, Any]:
        message = build_request_message(request_id, request, meta)
        with (
            self._open_inbox(request_id, request) as inbox,
            self._request_handler.track_request(request),
        ):
            self._send(message)
            request.sent = True
            try:
                while True:
                    received = await inbox.get()
                    if isinstance(received, UpstreamError):
                        raise received
                    if is_response(received, request_id):
                        return parse_result(self._endpoint, received, meta)
                    await deliver_notification(request, received)
            except asyncio.CancelledError:
                if request.method != "initialize":  # which must not be canceled
                    self.notify("notifications/cancelled", {"requestId": request_id})
                raise

    async def send_standing_request(self, request: McpRequest, meta: Mapping[str, Any]) -> None:
        """Send a request that stays open and does not count as busy; return when it ends."""
        self._standing_count += 1
        try:
            await self.send_request(request, meta)
        except UpstreamError:
            return  # other requests get their own error
        finally:
            self._standing_count -= 1

    async def receive_frames(
        self, request: McpRequest, meta: Mapping[str, Any], on_frame: OnFrame
    ) -> None:
        """Open a stream and pass on its frames until it ends; raises `UpstreamError`."""
        request_id = next(self._request_ids)
        self._streams[request_id] = on_frame
        self._standing_count += 1
        try:
            await self._await_response(request_id, request, meta)
        finally:
            self._standing_count -= 1
            del self._streams[request_id]

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._send(build_notification(method, params))

    def fail_all(self, failure: UpstreamError) -> None:
        """Fail all pending and future requests with `failure`; the pending ones were sent."""
        self._failure = self._failure or failure
        for request_id in tuple(self._inboxes):
            self._deliver(request_id, failure.with_sent(True))

    def fail_request(self, request_id: int, failure: UpstreamError) -> None:
        """Fail the request `request_id`, which did not reach the server, with `failure`."""
        self._deliver(request_id, failure)

    def receive_line(self, line: bytes | OverlongLine) -> None:
        """Handle one line from the server."""
        limit = self._endpoint.max_body
        if isinstance(line, bytes) and len(line) > limit:
            line = OverlongLine(line[:LINE_END_BYTES], line[-LINE_END_BYTES:])
        if isinstance(line, OverlongLine):
            failure = build_too_large_error(self._endpoint, limit)
            self._fail_unreadable(line.head, line.tail, failure)
            return
        try:
            received = decode_json(line)
        except UnreadableJson as error:
            if line.lstrip().startswith(b"{"):  # meant as a message; anything else is log output
                self._fail_unreadable(
                    line[:256], line[-256:], build_protocol_error(self._endpoint, str(error))
                )
            return
        for message in received if isinstance(received, list) else [received]:
            if isinstance(message, dict):
                self._handle_message(message)

    def _handle_message(self, message: dict[str, Any]) -> None:
        method, message_id = message.get("method"), message.get("id")
        if not isinstance(method, str):
            if type(message_id) is int and is_response(message, message_id):
                self._pending.pop(message_id, None)  # too late for what follows
                self._deliver(message_id, message)
        elif message_id is not None:
            self._request_handler.handle_request(message)
        elif self._request_handler.handle_notification(message):
            return
        elif on_frame := self._streams.get(parse_subscription_id(message) or 0):
            on_frame(message)
        elif (token := parse_progress_token(message)) is not None:
            self._deliver(token, _shorten_progress(message))
        elif is_log_message(message):
            self._deliver_log(message)
        elif (
            self._on_notification is not None
            and (notification := parse_change_notification(message)) is not None
        ):
            self._on_notification(notification)

    def _deliver_log(self, message: dict[str, Any]) -> None:
        """Deliver a log message, which does not name its request, once to each subscriber."""
        delivered: set[str] = set()
        for request_id, request in tuple(self._pending.items()):
            if request.on_log is not None and request.log_subscriber not in delivered:
                delivered.add(request.log_subscriber)
                self._deliver(request_id, message)
        if self._on_notification is not None:
            self._on_notification(LogNotification(message["params"], frozenset(delivered)))

    async def _reply(self, message: dict[str, Any]) -> None:
        self._send(message)

    def _fail_unreadable(self, head: bytes, tail: bytes, failure: UpstreamError) -> None:
        """Fail the request that an unreadable response belongs to, or all if that is unknown."""
        match = ID_AT_START.match(head) or ID_AT_END.search(tail)
        if match and int(match[1]) in self._inboxes:
            self._deliver(int(match[1]), failure)
        elif not REQUEST_START.match(head):
            for request_id in tuple(self._inboxes):
                self._deliver(request_id, failure)

    def _deliver(self, request_id: int, received: dict[str, Any] | UpstreamError) -> None:
        inbox = self._inboxes.get(request_id)
        if inbox is None:
            return
        # Progress that comes faster than it is handled is dropped; responses and errors never are.
        if (
            isinstance(received, UpstreamError)
            or "method" not in received
            or inbox.qsize() < MAX_QUEUED_PROGRESS
        ):
            inbox.put_nowait(received)

    @contextmanager
    def _open_inbox(self, request_id: int, request: McpRequest) -> Iterator[Inbox]:
        if self._failure is not None:
            raise self._failure.with_sent(False)
        inbox: Inbox = asyncio.Queue()
        self._inboxes[request_id], self._pending[request_id] = inbox, request
        try:
            yield inbox
        finally:
            del self._inboxes[request_id]
            self._pending.pop(request_id, None)


def _shorten_progress(message: dict[str, Any]) -> dict[str, Any]:
    # Up to `MAX_QUEUED_PROGRESS` of them are queued for a slow caller, so they must be small.
    params = message["params"]
    text = params.get("message")
    shortened = {name: params.get(name) for name in ("progress", "total")}
    shortened["message"] = text[:MAX_PROGRESS_LENGTH] if isinstance(text, str) else None
    return {"method": message["method"], "params": shortened}
