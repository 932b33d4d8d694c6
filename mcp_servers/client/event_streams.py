"""Event streams of servers over HTTP: read them, and resume or reopen those that were lost."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import httpx2

from bonobot.core.http.persistent_client import StreamedResponse
from mcp_servers.client.jsonrpc import McpRequest
from mcp_servers.client.read_throttle import ReadThrottle

EVENT_STREAM = "text/event-stream"
LAST_EVENT_ID = "Last-Event-ID"
MAX_EVENT_FIELDS_BYTES = 64 * 1024  # of an event, without its data
# The pause before a lost stream is resumed, unless the server sends one in `retry`.
DEFAULT_RETRY_S = 1.0
MAX_RESUMES = 8
# The longest pause before a stream is reopened that brings no events.
MAX_PAUSE_S = 60.0

OnMessage = Callable[[dict[str, Any]], Awaitable[None]]
Response = TypeVar("Response")


@dataclass
class StreamState:
    """What identifies a response, and the position in its event stream."""

    request: McpRequest
    request_id: int
    on_message: OnMessage
    resumable: bool
    last_id: str = ""
    retry_s: float = DEFAULT_RETRY_S

    def track_event(self, event: httpx2.ServerSentEvent, *, max_retry_s: float) -> None:
        """Move the position after an event, and set the pause that it requires."""
        self.last_id = event.id or self.last_id
        if event.retry is not None:
            self.retry_s = min(event.retry / 1000, max_retry_s)

    def build_resume_headers(self) -> dict[str, str]:
        """Return the header that continues the stream after its last event."""
        return {LAST_EVENT_ID: self.last_id} if self.last_id else {}


async def resume_stream(
    state: StreamState, read_on: Callable[[Mapping[str, str]], Awaitable[Response | None]]
) -> Response | None:
    """Resume a lost stream after its last event until its response comes, 8 times at most.

    Returns None if it doesn't come, or if the stream can't be resumed.
    """
    for _ in range(MAX_RESUMES):
        if not state.last_id:
            return None
        await asyncio.sleep(state.retry_s)
        if response := await read_on(state.build_resume_headers()):
            return response
    return None


async def reopen_stream(
    state: StreamState, open_stream: Callable[[Mapping[str, str]], Awaitable[bool]]
) -> None:
    """Open a stream again each time it ends, until `open_stream` returns False.

    The pauses grow while nothing comes.
    """
    pause_s = state.retry_s
    while True:
        last_id = state.last_id
        if not await open_stream(state.build_resume_headers()):
            return
        pause_s = state.retry_s if state.last_id != last_id else min(2 * pause_s, MAX_PAUSE_S)
        await asyncio.sleep(pause_s)


async def read_events(
    response: StreamedResponse, url: str, max_body: int
) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
    """Yield the events of a response; only their data counts toward `max_body`."""
    source = httpx2.EventSource(
        httpx2.Response(
            response.status_code,
            headers=response.headers,
            content=response.aiter_raw(),
            request=httpx2.Request("POST", url),
        ),
        max_event_size=max_body + MAX_EVENT_FIELDS_BYTES,
    )
    async with aclosing(aiter(source)) as events:  # type: ignore[type-var]
        async for event in events:
            yield event


async def throttle_stream(throttle: ReadThrottle, started_at: float) -> None:
    """Count the work on one event, and pause reading if the stream takes too much time.

    Buffered events arrive without waiting: many of them would block the loop.
    """
    now = perf_counter()
    if pause_s := throttle.add_work(now - started_at, now):
        await asyncio.sleep(pause_s)
