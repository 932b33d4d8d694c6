"""A small server that speaks the OpenAI wire over real sockets, and remembers what arrived.

Each request takes the next answer of the script. It listens on 127.0.0.1 at a free port and runs
on the test's own loop.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route


@dataclass(frozen=True)
class Says:
    """An answer: text and calls, whole or in fragments when the request asks for a stream.

    `calls` are (id, name, arguments as text). `cut` ends the stream in the middle: "closed" breaks
    the connection, "ended" just stops without a finish reason.
    """

    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    usage: dict[str, Any] | None = field(
        default_factory=lambda: {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    )
    finish: str | None = None
    reasoning: str = ""
    cut: str = ""


@dataclass(frozen=True)
class Refuses:
    """An error answer."""

    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Waits:
    """No answer until the server is told to go on (then the one to give), or the client leaves."""

    release: asyncio.Event = field(default_factory=asyncio.Event)
    then: Says | None = None


# What to say to a request, by its body.
Speaks = Callable[[dict[str, Any]], Says]


@dataclass
class FakeOpenAI:
    """The script to follow (or, without one, who speaks), and what arrived so far."""

    script: list[Says | Refuses | Waits] = field(default_factory=list)
    speaks: Speaks | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    raw: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    async def answer(self, request: Request) -> Response:
        """Remember the request and follow the script."""
        raw = await request.body()
        self.raw.append(raw)
        self.requests.append(json.loads(raw))
        self.headers.append(dict(request.headers))
        self.arrived.set()
        step = self.speaks(self.requests[-1]) if self.speaks else self.script.pop(0)
        if isinstance(step, Waits):
            refused = await self._wait(request, step)
            if step.then is None:
                return refused
            step = step.then
        if isinstance(step, Refuses):
            if isinstance(step.body, str):
                return PlainTextResponse(step.body, step.status, step.headers)
            return JSONResponse(step.body or {}, step.status, step.headers)
        if self.requests[-1].get("stream"):
            return StreamingResponse(_events(step), media_type="text/event-stream")
        return JSONResponse(_whole(step))

    async def _wait(self, request: Request, step: Waits) -> Response:
        released = asyncio.ensure_future(step.release.wait())
        gone = asyncio.ensure_future(request.receive())
        await asyncio.wait({released, gone}, return_when=asyncio.FIRST_COMPLETED)
        self.left.set()
        released.cancel()
        gone.cancel()
        return JSONResponse({}, 503)


@asynccontextmanager
async def openai_server(*script: Says | Refuses | Waits) -> AsyncIterator[FakeOpenAI]:
    """Serve a script on a free port; `url` is the base URL to give to an endpoint."""
    fake = FakeOpenAI(script=list(script))
    app = Starlette(routes=[Route("/v1/chat/completions", fake.answer, methods=["POST"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    started = asyncio.Event()
    startup = server.startup

    async def starting(sockets: Any = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = starting  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        task = asyncio.create_task(server._serve(), name="fake openai")
        await started.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        fake.url = f"http://127.0.0.1:{port}/v1"
        try:
            yield fake
        finally:
            server.should_exit = True
            await task


def _whole(step: Says) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": step.text or None}
    if step.reasoning:
        message["reasoning_content"] = step.reasoning
    if step.calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in step.calls
        ]
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "fake-1",
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(step)}],
    }
    return answer | ({"usage": step.usage} if step.usage is not None else {})


async def _events(step: Says) -> AsyncIterator[bytes]:
    deltas = [{"reasoning_content": step.reasoning}] if step.reasoning else []
    deltas += [{"role": "assistant", "content": piece} for piece in _fragments(step.text)]
    deltas += _call_deltas(step.calls)
    if step.cut:
        deltas = deltas[: -len(deltas) // 3]
    for delta in deltas:
        yield _event(delta)
    if step.cut == "closed":
        raise ConnectionResetError("the script cuts here")
    if step.cut == "ended":
        return
    yield _event({}, finish=_finish(step))
    if step.usage is not None:
        yield _event(None, usage=step.usage)
    yield b"data: [DONE]\n\n"


def _call_deltas(calls: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Return parallel calls in interleaved fragments, id and name in the first of each only."""
    deltas = [
        {"index": at, "id": id_, "type": "function", "function": {"name": name}}
        for at, (id_, name, _) in enumerate(calls)
    ]
    rest = [_fragments(arguments) for _, _, arguments in calls]
    for turn in range(max(map(len, rest), default=0)):
        deltas += [
            {"index": at, "function": {"arguments": pieces[turn]}}
            for at, pieces in enumerate(rest)
            if turn < len(pieces)
        ]
    return [{"tool_calls": [delta]} for delta in deltas]


def _event(delta: dict[str, Any] | None, finish: str | None = None, usage: Any = None) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    chunk = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "fake-1",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _finish(step: Says) -> str:
    return step.finish or ("tool_calls" if step.calls else "stop")


def _fragments(text: str) -> Sequence[str]:
    return [text[start : start + 4] for start in range(0, len(text), 4)]
