"""Scripted model providers over real sockets: each follows a script and remembers what arrived.

A provider listens on 127.0.0.1 at a free port and runs on the test's own loop. Each request takes
the next answer of the script; how it looks on the wire is the subclass's business.
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

Served = Response


@dataclass(frozen=True)
class Says:
    """An answer: text and calls, whole or in fragments when the request asks for a stream.

    `calls` are (id, name, arguments as text). `usage` is in OpenAI's words, `reasoning` is what the
    model thinks before (with the provider's signature where it has one). `finish` may also be a
    word of the provider, which is sent unchanged. `cut` ends the stream in the middle:
    "closed" breaks the connection, "ended" just stops without a finish reason.
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
        """Return why it ends: "length", "content_filter", "tool_calls", "stop", or another word."""
        return self.finish or ("tool_calls" if self.calls else "stop")


@dataclass(frozen=True)
class Refuses:
    """An error answer."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Streams:
    """A stream of these bytes, whatever they are."""

    pieces: Sequence[bytes]


@dataclass(frozen=True)
class Waits:
    """No answer until the server is told to go on (then the one to give), or the client leaves."""

    release: asyncio.Event = field(default_factory=asyncio.Event)
    then: Says | None = None


@dataclass(frozen=True)
class Said:
    """One thing of a conversation as it arrived: user, model, thought, call, result or image."""

    role: str
    text: str
    id: str = ""
    name: str = ""


@dataclass(frozen=True)
class Arrived:
    """What a request said, whatever its wire."""

    system: str
    tools: dict[str, Any]
    said: list[Said]

    def of(self, *roles: str) -> list[Said]:
        """Return what was said in these roles."""
        return [one for one in self.said if one.role in roles]


# What to say to a request, by its body.
Speaks = Callable[[dict[str, Any]], Says]


@dataclass
class FakeProvider:
    """The script to follow (or, without one, who speaks), and what arrived so far."""

    script: list[Says | Refuses | Streams | Waits] = field(default_factory=list)
    speaks: Speaks | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    base = ""

    def served(self, path: str, said: dict[str, Any], step: Says) -> Served:
        """Return an answer on this wire."""
        raise NotImplementedError

    def read(self, at: int = -1) -> Arrived:
        """Return what a request said."""
        raise NotImplementedError

    async def answer(self, request: Request) -> Response:
        """Remember the request and follow the script."""
        raw = await request.body()
        self.raw.append(raw)
        self.requests.append(json.loads(raw))
        self.headers.append(dict(request.headers))
        self.paths.append(request.scope["raw_path"].decode())
        self.arrived.set()
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
        return self.served(request.url.path, self.requests[-1], step)

    async def _wait(self, request: Request, step: Waits) -> Response:
        released = asyncio.ensure_future(step.release.wait())
        gone = asyncio.ensure_future(request.receive())
        await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
        self.left.set()
        released.cancel()
        gone.cancel()
        return JSONResponse({}, 503)


Fake = TypeVar("Fake", bound=FakeProvider)


@asynccontextmanager
async def serve(fake: Fake) -> AsyncIterator[Fake]:
    """Serve a provider on a free port; its `url` is the base URL to give to an endpoint."""
    app = Starlette(routes=[Route("/{path:path}", fake.answer, methods=["POST"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    # Without uvicorn's main loop, which looks every 0.1 s whether it is to end.
    await server.startup()
    port = server.servers[0].sockets[0].getsockname()[1]
    fake.url = f"http://127.0.0.1:{port}{fake.base}"
    try:
        yield fake
    finally:
        for listening in server.servers:
            listening.close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
        answering = list(server.server_state.tasks)
        for task in answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)


def whole(answer: Any) -> Served:
    """Return an answer as one JSON document."""
    return JSONResponse(answer)


def events(lines: AsyncIterator[bytes], media_type: str = "text/event-stream") -> Served:
    """Return an answer as a stream."""
    return StreamingResponse(lines, media_type=media_type)


def fragments(text: str) -> Sequence[str]:
    """Return a text in pieces of four characters."""
    return [text[start : start + 4] for start in range(0, len(text), 4)]


def cut(pieces: list[Any], how: str) -> list[Any]:
    """Return the pieces of a stream that is cut, without its last third."""
    return pieces[: -len(pieces) // 3] if how else pieces
