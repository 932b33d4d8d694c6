"""A Streamable HTTP endpoint made of raw bytes, for answers that no framework would send.

Tests subclass `RawHttp` or give it a function from a request to the bytes of the answer; it runs
on the test's own loop and keeps what it was asked.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

MODERN = "2026-07-28"


@dataclass(frozen=True)
class Asked:
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


Respond = Callable[[Asked], bytes | AsyncIterator[bytes]]


@dataclass
class RawHttp:
    """A listening endpoint and what it was asked; `gone` counts answers that were cut off."""

    respond: Respond
    asked: list[Asked] = field(default_factory=list)
    gone: int = 0
    port: int = 0
    cut: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def methods(self) -> list[str]:
        """Return what was asked, in order."""
        return [asked.method or asked.verb for asked in self.asked]

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["RawHttp"]:
        """Listen while the block runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await _read(reader)
                self.asked.append(asked)
                await self._answer(asked, reader, writer)
        writer.close()

    async def _answer(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answer = self.respond(asked)
        if isinstance(answer, bytes):
            writer.write(answer)
            await writer.drain()
            if b"connection: close" in answer.lower():
                raise ConnectionError
            return
        # A streamed answer ends when the client hangs up: reading then returns.
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


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    verb, path, _ = first.split()
    return Asked(verb, headers, json.loads(body) if body else None, path)


# --- answers


def response(
    status: int = 200, body: bytes = b"", kind: str = "application/json", **headers: str
) -> bytes:
    """Return a whole HTTP response."""
    lines = [f"HTTP/1.1 {status} Status", f"Content-Length: {len(body)}"]
    if kind:
        lines.append(f"Content-Type: {kind}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def result(asked: Asked, value: Any, **headers: str) -> bytes:
    """Return a JSON-RPC result."""
    message = {"jsonrpc": "2.0", "id": asked.id, "result": value}
    return response(200, json.dumps(message).encode(), **headers)


def error(
    asked: Asked, code: int, status: int = 400, data: Any = None, text: str = "refused"
) -> bytes:
    """Return a JSON-RPC error."""
    told = {"code": code, "message": text, "data": data}
    message = {"jsonrpc": "2.0", "id": asked.id, "error": told}
    return response(status, json.dumps(message).encode())


def event(message: Any, **fields: str) -> bytes:
    """Return one server-sent event."""
    lines = [f"{name}: {value}" for name, value in fields.items()]
    data = message if isinstance(message, str) else json.dumps(message)
    return "\n".join([*lines, f"data: {data}", "", ""]).encode()


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

CHUNKED = STREAM.replace(b"Connection: close", b"Transfer-Encoding: chunked")


def chunk(data: bytes) -> bytes:
    """Return one chunk; a stream of them that has no last one was cut."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def discovery(asked: Asked, **more: Any) -> bytes:
    """Return the discovery of a modern server with tools."""
    return result(asked, {"supportedVersions": [MODERN], "capabilities": {"tools": {}}, **more})


def initialization(asked: Asked, session: str = "", version: str = "2025-11-25") -> bytes:
    """Return the greeting of a handshake-era server with tools."""
    value = {
        "protocolVersion": version,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw"},
    }
    return result(asked, value, **({"Mcp_Session_Id": session} if session else {}))


def text(asked: Asked, value: str = "ok") -> bytes:
    """Return a tool's result with one text."""
    return result(asked, {"content": [{"type": "text", "text": value}]})


# --- whole servers


def modern(respond: Callable[[Asked], Any]) -> RawHttp:
    """Return a modern endpoint whose tool calls `respond` answers."""
    return RawHttp(
        lambda asked: discovery(asked) if asked.method == "server/discover" else respond(asked)
    )


class HandshakeHttp:
    """What a server of the handshake era answers: sessions that it can lose."""

    def __init__(self, respond: Callable[[Asked], Any], *, lost: bytes | None = None) -> None:
        self.known: set[str] = set()
        self.opened = 0
        self._respond = respond
        self._lost = lost

    def __call__(self, asked: Asked) -> Any:
        session = asked.headers.get("mcp-session-id", "")
        if asked.method == "initialize":
            self.opened += 1
            self.known.add(f"s{self.opened}")
            return initialization(asked, f"s{self.opened}")
        if asked.headers.get("mcp-protocol-version") == MODERN:
            return response(400, b"Bad Request: no session", "text/plain")
        if session not in self.known:
            return self._lost or response(404)
        if asked.verb == "DELETE":
            self.known.discard(session)
            return response(204, kind="")
        if asked.id is None:
            return response(202, kind="")
        return self._respond(asked)


class SseHttp:
    """What a server of 2024-11-05 answers: a stream whose first event names where to post.

    `respond` returns the events that a message leads to, or the bytes of its POST's answer.
    """

    def __init__(self, respond: Callable[[Asked], Any], address: str = "/messages?n={}") -> None:
        self.streams: dict[str, asyncio.Queue[bytes | None]] = {}
        self.opened = 0
        self._respond = respond
        self._address = address

    def __call__(self, asked: Asked) -> Any:
        if asked.verb == "GET":
            self.opened += 1
            address = self._address.format(self.opened)
            self.streams[address] = asyncio.Queue()
            return self._stream(address)
        stream = self.streams.get(asked.path)
        if stream is None:
            return response(404 if "?" in asked.path else 405)
        said = self._greeting(asked) if asked.method == "initialize" else self._respond(asked)
        if isinstance(said, bytes) and said.startswith(b"HTTP/"):
            return said
        stream.put_nowait(said)
        return response(202, b"Accepted", "text/plain")

    def hang_up(self) -> None:
        """End every stream."""
        for stream in self.streams.values():
            stream.put_nowait(None)
        self.streams.clear()

    def _greeting(self, asked: Asked) -> bytes:
        value = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}}
        return said(asked, value)

    async def _stream(self, address: str) -> AsyncIterator[bytes]:
        stream = self.streams[address]
        yield STREAM + event(address, event="endpoint")
        while (part := await stream.get()) is not None:
            yield part


def said(asked: Asked, value: Any) -> bytes:
    """Return the event that answers a message; nothing for a notification."""
    if asked.id is None:
        return b""
    return event({"jsonrpc": "2.0", "id": asked.id, "result": value}, event="message")


async def drip(part: bytes, every_s: float = 0.01) -> AsyncIterator[bytes]:
    """Stream `part` again and again, for ever."""
    yield STREAM
    while True:
        yield part
        await asyncio.sleep(every_s)
