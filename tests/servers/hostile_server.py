"""An MCP server over HTTP that is hostile in the way its path names, except `/good`.

`python -m tests.servers.hostile_server` prints `PORT <number>` once it listens. It answers
discovery like a modern server; the path decides what happens to every tool call and listing. It
runs in its own process, so that its own cost isn't measured.
"""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any

from tests.servers import raw_http_server
from tests.servers.raw_http_server import (
    CHUNKED,
    STREAM,
    RawHttp,
    RecordedRequest,
    chunk,
    event,
    response,
    result,
)

MIB = 2**20
LINE = b"HTTP/1.1 200 OK\r\n"
JSON = LINE + b"Content-Type: application/json\r\n"
GARBAGE = bytes(range(256)) * 16
Answer = bytes | AsyncIterator[bytes]


async def stream(
    *parts: bytes, repeated: bytes = b"", every_s: float = 0.02
) -> AsyncIterator[bytes]:
    """Send parts, then repeat a value forever; without one, just wait."""
    for part in parts:
        yield part
    while True:
        await asyncio.sleep(every_s if repeated else 3_600)
        yield repeated


async def ending(*parts: bytes) -> AsyncIterator[bytes]:
    """Send parts and close the connection."""
    for part in parts:
        yield part


def build_answer(request: RecordedRequest, value: Any = None) -> dict[str, Any]:
    text = {"content": [{"type": "text", "text": "ok"}]}
    return {"jsonrpc": "2.0", "id": request.id, "result": text if value is None else value}


@cache
def build_gzip_bomb() -> bytes:
    """Return 100 MiB of spaces, a thousandth of that as gzip."""
    return gzip.compress(b'{"jsonrpc": "2.0", "id": 1, "result": {}' + b" " * 100 * MIB + b"}", 1)


def answer_gzip(request: RecordedRequest) -> bytes:
    return response(200, build_gzip_bomb(), Content_Encoding="gzip")


def answer_nested(request: RecordedRequest) -> bytes:
    body = b'{"jsonrpc":"2.0","id":%d,"result":{"a":%s}}' % (request.id, b"[" * MIB + b"]" * MIB)
    return response(200, body)


def answer_wide(request: RecordedRequest) -> bytes:
    body = b'{"jsonrpc":"2.0","id":%d,"result":{"a":[%s0]}}' % (request.id, b"[]," * MIB)
    return response(200, body)


def headers(lines: Iterator[bytes]) -> bytes:
    return JSON + b"".join(lines) + b"Content-Length: 2\r\n\r\n{}"


def redirect(request: RecordedRequest, location: str) -> bytes:
    return response(302, kind="", Location=location)


ANSWERS: dict[str, Callable[[RecordedRequest], Answer]] = {
    "good": lambda request: result(request, build_answer(request)["result"]),
    "hang": lambda request: stream(),
    "hang_up": lambda request: ending(),
    "headers_only": lambda request: stream(JSON + b"Content-Length: 10\r\n\r\n"),
    "cut_body": lambda request: ending(JSON + b"Content-Length: 1000\r\n\r\n{"),
    "drip_status": lambda request: stream(LINE, repeated=b"X"),
    "drip_headers": lambda request: stream(JSON, repeated=b"X-A: b\r\n"),
    "drip_body": lambda request: stream(JSON + b"Content-Length: 99999\r\n\r\n", repeated=b" "),
    "drip_comments": lambda request: stream(STREAM, repeated=b": still here\n\n"),
    "endless_interim": lambda request: stream(
        repeated=b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0.001
    ),
    "endless_header": lambda request: stream(JSON + b"X-A: ", repeated=b"a" * 65536, every_s=0),
    "endless_body": lambda request: stream(JSON + b"\r\n", repeated=b" " * 65536, every_s=0),
    "endless_chunks": lambda request: stream(CHUNKED, repeated=chunk(b": x\n" * 9999), every_s=0),
    "endless_events": lambda request: stream(
        STREAM,
        repeated=event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}) * 200,
        every_s=0,
    ),
    "endless_event": lambda request: stream(STREAM + b"data: ", repeated=b"x" * 65536, every_s=0),
    "endless_requests": lambda request: stream(
        STREAM, repeated=event({"jsonrpc": "2.0", "id": 7, "method": "ping"}) * 200, every_s=0
    ),
    "garbage": lambda request: ending(GARBAGE),
    "garbage_body": lambda request: response(200, GARBAGE),
    "garbage_events": lambda request: ending(STREAM, GARBAGE, b"\ndata: {{{\n\n"),
    "wrong_id": lambda request: response(
        200, json.dumps(build_answer(request) | {"id": 10**6}).encode()
    ),
    "text_id": lambda request: response(
        200, json.dumps(build_answer(request) | {"id": str(request.id)}).encode()
    ),
    "repeated_id": lambda request: ending(STREAM, *[event(build_answer(request))] * 9),
    "large_body": lambda request: response(
        200, json.dumps(build_answer(request, "x" * 10**7)).encode()
    ),
    "large_event": lambda request: ending(STREAM, event(build_answer(request, {"a": "x" * 10**7}))),
    "gzip": answer_gzip,
    "nested": answer_nested,
    "wide": answer_wide,
    "long_number": lambda request: response(200, b'{"id":1,"result":{"a":%s}}' % (b"9" * MIB)),
    "not_json": lambda request: response(200, b"<html>hello", "text/html"),
    "no_type": lambda request: response(200, b"{}", ""),
    "many_headers": lambda request: headers(b"X-%d: a\r\n" % n for n in range(20_000)),
    "large_header": lambda request: headers(iter([b"X-A: %s\r\n" % (b"a" * MIB)])),
    "broken_header": lambda request: headers(iter([b"X-A: a\rSet-Cookie: b\x00\r\n"])),
    "two_lengths": lambda request: JSON + b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
    "negative_length": lambda request: JSON + b"Content-Length: -1\r\n\r\n{}",
    "redirect_loop": lambda request: redirect(request, request.path),
    "redirect_inward": lambda request: redirect(request, "http://169.254.169.254/latest/meta-data"),
    "large_refusal": lambda request: response(500, b"x" * 10**7, "text/plain"),
    "large_challenge": lambda request: response(
        401, kind="", WWW_Authenticate="Bearer " + "x" * 9999
    ),
}


# --- listings


def build_tools(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}, **more} for name in names]


def build_bombs() -> list[dict[str, Any]]:
    """Return tools whose schemas take forever to compile or match."""
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}, "not": {"items": deep}}
        if len(json.dumps(deep)) > 20_000:
            break
    ladder = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 2} for n in range(24)}
    schemas: dict[str, dict[str, Any]] = {
        "loop": {"$ref": "#"},
        "circle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        "doubled": {"$ref": "#/$defs/l0", "$defs": {**ladder, "l24": {"const": 1}}},
        "deep": deep,
        "regex": {"properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}},
        "regexes": {"patternProperties": {"(x+x+)+y" * 50: True}},
        "counted": {"properties": {"a": {"pattern": "(((a{1,99}){1,99}){1,99}){1,99}"}}},
        "remote": {"$ref": "http://169.254.169.254/schema"},
    }
    inputs = [
        {"name": f"in-{name}", "inputSchema": {"type": "object"} | schema}
        for name, schema in schemas.items()
    ]
    outputs = [
        {"name": f"out-{name}", "inputSchema": {"type": "object"}, "outputSchema": schema}
        for name, schema in schemas.items()
    ]
    return [*inputs, *outputs]


def build_listing(name: str, cursor: str | None) -> dict[str, Any]:
    page = int(cursor or 0)
    pages: dict[str, Callable[[], dict[str, Any]]] = {
        "many_tools": lambda: {"tools": build_tools(*(f"t{n}" for n in range(100_000)))},
        "many_pages": lambda: {
            "tools": build_tools(*(f"t{page}-{n}" for n in range(500))),
            "nextCursor": str(page + 1),
        },
        "endless_cursor": lambda: {"tools": [], "nextCursor": str(page + 1)},
        "repeated_cursor": lambda: {"tools": build_tools(f"t{page}"), "nextCursor": "1"},
        "large_cursor": lambda: {"tools": build_tools("a"), "nextCursor": "9" * MIB},
        "bombs": lambda: {"tools": build_bombs()},
    }
    return pages.get(name, lambda: {"tools": build_tools("echo")})()


def respond(request: RecordedRequest) -> Answer:
    name = request.path.strip("/")
    if request.method == "server/discover":
        return raw_http_server.discovery(request)
    if request.method == "tools/list":
        params = request.message.get("params") or {}
        return result(request, build_listing(name, params.get("cursor")))
    return ANSWERS[name](request)


async def serve() -> None:
    """Serve until the process is ended."""
    async with RawHttp(respond).listening() as server:
        print(f"PORT {server.port}", flush=True)  # noqa: T201 - what callers wait for
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
