"""Answer JSON-RPC batches, which only sessions of MCP 2025-03-26 may send.

Each message of a batch is handled as a request of its own. The responses, and what is sent before
them, share one event stream.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from mcp.types import INVALID_REQUEST

from agents.gateway.request_bodies import Receive, Send, replay_messages

BATCH_VERSION = "2025-03-26"
MAX_MESSAGES = 100
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
]

Handle = Callable[[Any, Receive, Send], Awaitable[None]]


def is_batch(body: bytes) -> bool:
    """Tell whether a body is a JSON array."""
    return body.lstrip()[:1] == b"["


def parse_batch(body: bytes) -> list[dict[str, Any]] | str:
    """Return the messages of a batch, or why it is invalid."""
    try:
        messages = json.loads(body)
    except (ValueError, RecursionError):
        return "The batch isn't JSON."
    if not messages or not all(isinstance(message, dict) for message in messages):
        return "A batch consists of JSON-RPC messages."
    if len(messages) > MAX_MESSAGES:
        return f"A batch has at most {MAX_MESSAGES} messages."
    if any(message.get("method") == "initialize" for message in messages):
        return "`initialize` can't be part of a batch."
    request_ids = [str(message["id"]) for message in messages if is_request(message)]
    if len(set(request_ids)) < len(request_ids):
        return "The requests of a batch have different IDs."
    return messages


def is_request(message: Mapping[str, Any]) -> bool:
    """Tell whether a message expects a response."""
    return "method" in message and "id" in message


def build_batch_error(reason: str) -> dict[str, Any]:
    """Return the JSON-RPC error for a batch."""
    return {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": reason}}


class BatchResponse:
    """The response to one batch: an event stream, or 202 without requests."""

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._disconnected = asyncio.Event()
        self._is_started = False
        self._sending = asyncio.Lock()

    async def answer(self, messages: list[dict[str, Any]], handle: Handle) -> None:
        """Handle the messages with `handle`, and send what it sends."""
        watcher = asyncio.ensure_future(self._watch_disconnect())
        try:
            async with asyncio.TaskGroup() as group:
                for message in messages:
                    answering = self._answer_message(message, handle)
                    if is_request(message):
                        group.create_task(answering)
                    else:
                        await answering
        finally:
            watcher.cancel()
        if self._is_started:
            await self._send({"type": "http.response.body", "body": b""})
            return
        start = {"type": "http.response.start", "status": HTTPStatus.ACCEPTED}
        await self._send(start | {"headers": [(b"content-length", b"0")]})
        await self._send({"type": "http.response.body", "body": b""})

    async def _answer_message(self, message: dict[str, Any], handle: Handle) -> None:
        body = json.dumps(message).encode()
        headers = [
            *(item for item in self._scope["headers"] if item[0] != b"content-length"),
            (b"content-length", str(len(body)).encode()),
        ]
        receive = replay_messages(
            [{"type": "http.request", "body": body, "more_body": False}], self._wait_disconnect
        )
        is_stream, remaining_bytes = False, b""

        async def send(part: dict[str, Any]) -> None:
            nonlocal is_stream, remaining_bytes
            if part["type"] == "http.response.start":
                is_stream = _is_event_stream(part["headers"])
                return
            content = part.get("body", b"")
            if is_stream and content:
                await self._send_events(content)
            remaining_bytes += b"" if is_stream else content

        await handle({**self._scope, "headers": headers}, receive, send)
        if remaining_bytes and is_request(message):  # an error in place of a stream
            await self._send_events(_build_event(remaining_bytes, message["id"]))

    async def _send_events(self, content: bytes) -> None:
        async with self._sending:
            if not self._is_started:
                self._is_started = True
                start = {"type": "http.response.start", "status": HTTPStatus.OK}
                await self._send(start | {"headers": STREAM_HEADERS})
            await self._send({"type": "http.response.body", "body": content, "more_body": True})

    async def _watch_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnected.set()

    async def _wait_disconnect(self) -> dict[str, Any]:
        await self._disconnected.wait()
        return {"type": "http.disconnect"}


def _is_event_stream(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )


def _build_event(content: bytes, request_id: Any) -> bytes:
    """Return an error response as an event, with the request's ID."""
    try:
        response = json.loads(content)
    except (ValueError, RecursionError):
        response = build_batch_error(content.decode(errors="replace"))
    data = json.dumps({**response, "id": request_id})
    return f"event: message\r\ndata: {data}\r\n\r\n".encode()
