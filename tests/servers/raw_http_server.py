"""A Streamable HTTP endpoint made of raw bytes, for responses that no framework would send.

Tests subclass `RawHttp` or pass a function from a request to the bytes of the response; it runs on
the test's event loop and keeps the requests.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.loopback_server import serve_connections

MODERN = "2026-07-28"


@dataclass(frozen=True)
class RecordedRequest:
    """One HTTP request."""

    verb: str
    headers: Mapping[str, str]
    message: Any
    path: str = ""

    @property
    def method(self) -> str:
        return str(self.message.get("method", "")) if isinstance(self.message, dict) else ""

    @property
    def id(self) -> Any:
        return self.message.get("id") if isinstance(self.message, dict) else None

    @property
    def tool(self) -> str:
        return str(self.message["params"]["name"])


Respond = Callable[[RecordedRequest], bytes | AsyncIterator[bytes]]


@dataclass
class RawHttp:
    """A listening endpoint and its requests; `gone` counts responses that the client cut off."""

    respond: Respond
    asked: list[RecordedRequest] = field(default_factory=list)
    gone: int = 0
    port: int = 0
    cut: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def methods(self) -> list[str]:
        """Return the methods of the requests, in order."""
        return [request.method or request.verb for request in self.asked]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["RawHttp"]:
        """Listen while the block runs."""
        async with serve_connections(self._serve, port=self.port) as self.port:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await _read(reader)
                self.asked.append(request)
                await self._answer(request, reader, writer)

    async def _answer(
        self, request: RecordedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answer = self.respond(request)
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
            if b"connection: close" in answer.lower():
                raise ConnectionError
            return
        # A streamed response ends when the client disconnects: reading then returns.
        hung_up = asyncio.ensure_future(reader.read(1))
        writing = asyncio.ensure_future(_stream(answer, writer))
        await asyncio.wait({hung_up, writing}, return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            self.gone += 1
            self.cut.set()
        for task in (hung_up, writing):
            task.cancel()
        raise ConnectionError


async def _stream(answer: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    async for part in answer:
        writer.write(part)
        await writer.drain()


async def _read(reader: asyncio.StreamReader) -> RecordedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    verb, path, _ = first.split()
    return RecordedRequest(verb, headers, json.loads(body) if body else None, path)


# --- responses


def response(
    status: int = 200, body: bytes = b"", kind: str = "application/json", **headers: str
) -> bytes:
    """Return a whole HTTP response."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
    if kind:
        lines.append(f"Content-Type: {kind}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def result(request: RecordedRequest, value: Any, **headers: str) -> bytes:
    """Return a JSON-RPC result."""
    message = {"jsonrpc": "2.0", "id": request.id, "result": value}
    return response(200, json.dumps(message).encode(), **headers)


def error(
    request: RecordedRequest, code: int, status: int = 400, data: Any = None, text: str = "refused"
) -> bytes:
    """Return a JSON-RPC error."""
    error_object = {"code": code, "message": text, "data": data}
    message = {"jsonrpc": "2.0", "id": request.id, "error": error_object}
    return response(status, json.dumps(message).encode())


def event(message: Any, **fields: str) -> bytes:
    """Return one server-sent event."""
    lines = [f"{name}: {value}" for name, value in fields.items()]
    data = message if isinstance(message, str) else json.dumps(message)
    return "\n".join([*lines, f"data: {data}", "", ""]).encode()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

CHUNKED = STREAM.replace(b"Connection: close", b"Transfer-Encoding: chunked")


def chunk(data: bytes) -> bytes:
    """Return one chunk; a stream without a last one was cut off."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def discovery(request: RecordedRequest, **more: Any) -> bytes:
    """Return the discovery of a modern server with tools."""
    return result(request, {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, **more})


def initialization(
    request: RecordedRequest,
    session: str = "",
    version: str = "2025-11-25",
    capabilities: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the `initialize` result of a handshake-era server, with tools by default."""
    value = {
        "protocolVersion": version,
        "capabilities": capabilities or {"tools": {}},
        "serverInfo": {"name": "raw"},
    }
    return result(request, value, **({"Mcp_Session_Id": session} if session else {}))


def text(request: RecordedRequest, value: str = "ok") -> bytes:
    """Return a tool's result with one text."""
    return result(request, {"content": [{"type": "text", "text": value}]})


# --- whole servers


def modern(respond: Callable[[RecordedRequest], Any]) -> RawHttp:
    """Return a modern endpoint whose tool calls `respond` answers."""
    return RawHttp(
        lambda request: (
            discovery(request) if request.method == "server/discover" else respond(request)
        )
    )


class HandshakeHttp:
    """Answers like a server of the handshake era, with sessions that it can lose."""

    def __init__(
        self, respond: Callable[[RecordedRequest], Any], *, lost: bytes | None = None
    ) -> None:
        self.known: set[str] = set()
        self.opened = 0
        self.capabilities: Mapping[str, Any] = {}
        self._respond = respond
        self._lost = lost

    def __call__(self, request: RecordedRequest) -> Any:
        session = request.headers.get("mcp-session-id", "")
        if request.method == "initialize":
            self.opened += 1
            self.known.add(f"s{self.opened}")
            return initialization(request, f"s{self.opened}", capabilities=self.capabilities)
        if request.headers.get("mcp-protocol-version") == MODERN:
            return response(400, b"Bad Request: no session", "text/plain")
        if session not in self.known:
            return self._lost or response(404)
        if request.verb == "DELETE":
            self.known.discard(session)
            return response(204, kind="")
        if request.id is None:
            return response(202, kind="")
        return self._respond(request)


class SseHttp:
    """Answers like a server of 2024-11-05: a stream whose first event names the URL to post to.

    `respond` returns the events for a message, or the bytes of its POST's response.
    """

    def __init__(
        self, respond: Callable[[RecordedRequest], Any], address: str = "/messages?n={}"
    ) -> None:
        self.streams: dict[str, asyncio.Queue[bytes | None]] = {}
        self.opened = 0
        self._respond = respond
        self._address = address

    def __call__(self, request: RecordedRequest) -> Any:
        if request.verb == "GET":
            self.opened += 1
            address = self._address.format(self.opened)
            self.streams[address] = asyncio.Queue()
            return self._stream(address)
        stream = self.streams.get(request.path)
        if stream is None:
            return response(404 if "?" in request.path else 405)
        answer = (
            self._greeting(request) if request.method == "initialize" else self._respond(request)
        )
        if isinstance(answer, bytes) and answer.startswith(b"HTTP/"):
            return answer
        stream.put_nowait(answer)
        return response(202, b"Accepted", "text/plain")

    def hang_up(self) -> None:
        """End every stream."""
        for stream in self.streams.values():
            stream.put_nowait(None)
        self.streams.clear()

    def _greeting(self, request: RecordedRequest) -> bytes:
        value = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}
        return build_event(request, value)

    async def _stream(self, address: str) -> AsyncIterator[bytes]:
        stream = self.streams[address]
        yield STREAM + event(address, event="endpoint")
        while (part := await stream.get()) is not None:
            yield part


def build_event(request: RecordedRequest, value: Any) -> bytes:
    """Return the event that answers a message; empty for a notification."""
    if request.id is None:
        return b""
    return event({"jsonrpc": "2.0", "id": request.id, "result": value}, event="message")


async def drip(part: bytes, every_s: float = 0.01) -> AsyncIterator[bytes]:
    """Stream `part` forever."""
    yield STREAM
    while True:
        yield part
        await asyncio.sleep(every_s)
