"""Scripted model providers over real sockets, which record the requests they receive.

A provider listens on a free port of 127.0.0.1 and runs on the test's own event loop. Each request
takes the next answer of the script; subclasses encode it in the format of their provider.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass(frozen=True)
class Says:
    """An answer: text and calls, whole or in fragments when the request asks for a stream.

    `calls` are (id, name, arguments as text). `usage` has OpenAI's keys, and `cached_tokens` and
    `cache_write_tokens` for the parts of the prompt read from a cache and written to one.
    `reasoning` comes before the text, with the provider's signature if it has one. `finish` may
    also be a finish reason of the provider, which is sent unchanged. `cut` truncates the stream:
    "closed" breaks the connection, "ended" ends it without a finish reason.
    """

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    )
    finish: str | None = None
    reasoning: str = ""
    cut: str = ""
    image: bytes = b""

    @property
    def reason(self) -> str:
        """Return the finish reason: "length", "content_filter", "tool_calls", "stop" or another."""
        return self.finish or ("tool_calls" if self.calls else "stop")


@dataclass(frozen=True)
class Refuses:
    """An error answer."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Streams:
    """A stream of arbitrary bytes."""

    pieces: Sequence[bytes]


@dataclass(frozen=True)
class Waits:
    """No answer until `release` is set (then the answer is `then`) or the client disconnects."""

    release: asyncio.Event = field(default_factory=asyncio.Event)
    then: Says | None = None


@dataclass(frozen=True)
class ParsedMessage:
    """A part of a received conversation: user, model, thought, call, result, image or
    document."""

    role: str
    text: str
    id: str = ""
    name: str = ""


@dataclass(frozen=True)
class ParsedRequest:
    """A received request in a form common to all providers."""

    system: str
    tools: dict[str, Any]
    messages: list[ParsedMessage]

    def with_role(self, *roles: str) -> list[ParsedMessage]:
        """Return the messages with these roles."""
        return [message for message in self.messages if message.role in roles]


# Builds the answer to a request from its body.
Speaks = Callable[[dict[str, Any]], Says]


@dataclass
class FakeProvider:
    """A script to follow, or a function that builds each answer, and the received requests."""

    script: list[Says | Refuses | Streams | Waits] = field(default_factory=list)
    speaks: Speaks | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    request_received: asyncio.Event = field(default_factory=asyncio.Event)
    client_left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    base = ""

    def respond(self, path: str, request: dict[str, Any], step: Says) -> Response:
        """Return an answer in the format of this provider."""
        raise NotImplementedError

    def read(self, at: int = -1) -> ParsedRequest:
        """Return a received request in a common form."""
        raise NotImplementedError

    async def answer(self, request: Request) -> Response:
        """Record the request and follow the script."""
        raw = await request.body()
        self.raw.append(raw)
        self.requests.append(json.loads(raw))
        self.headers.append(dict(request.headers))
        self.paths.append(request.scope["raw_path"].decode())
        self.request_received.set()
        step = self.speaks(self.requests[-1]) if self.speaks else self.script.pop(0)
        if isinstance(step, Waits):
            refused = await self._wait(request, step)
            if step.then is None:
                return refused
            step = step.then
        if isinstance(step, Streams):
            return StreamingResponse(iter(step.pieces), media_type="text/event-stream")
        if isinstance(step, Refuses):
            if isinstance(step.body, str):
                return PlainTextResponse(step.body, step.status, step.headers)
            return JSONResponse(step.body or {}, step.status, step.headers)
        return self.respond(request.url.path, self.requests[-1], step)

    async def wait_until_abandoned(self) -> None:
        """Wait until the client has closed its request.

        After a timeout it may have done so before the request arrived.
        """
        if self.request_received.is_set():
            await self.client_left.wait()

    async def _wait(self, request: Request, step: Waits) -> Response:
        released = asyncio.ensure_future(step.release.wait())
        disconnected = asyncio.ensure_future(request.receive())
        await asyncio.wait({released, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        self.client_left.set()
        released.cancel()
        disconnected.cancel()
        return JSONResponse({}, 503)


Fake = TypeVar("Fake", bound=FakeProvider)


@asynccontextmanager
async def serve(fake: Fake) -> AsyncIterator[Fake]:
    """Serve a provider on a free port; its `url` is the base URL of its endpoint."""
    app = Starlette(routes=[Route("/{path:path}", fake.answer, methods=["POST"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Without uvicorn's main loop, which checks for the exit flag only every 0.1 s.
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    fake.url = f"http://127.0.0.1:{port}{fake.base}"
    try:
        yield fake
    finally:
        for socket_server in server.servers:
            socket_server.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        tasks = list(server.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def json_response(answer: Any) -> Response:
    """Return an answer as one JSON document."""
    return JSONResponse(answer)


def stream_response(lines: AsyncIterator[bytes], media_type: str = "text/event-stream") -> Response:
    """Return an answer as a stream."""
    return StreamingResponse(lines, media_type=media_type)


def fragments(text: str) -> Sequence[str]:
    """Split a text into pieces of four characters."""
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def cut_stream(pieces: list[Any], how: str) -> list[Any]:
    """Remove the last third of the pieces of a stream that is cut."""
    return pieces[: -len(pieces) // 3] if how else pieces
