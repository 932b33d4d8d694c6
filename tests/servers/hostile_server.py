"""An MCP server over HTTP that is hostile in the way that its path names; `/good` is not.

`python -m tests.servers.hostile_server` prints `PORT <number>` once it listens. It greets like a
modern server; every tool call and every listing meets what the path says. It runs in a process of
its own, so that what it costs itself is nobody's measurement.
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
    Asked,
    RawHttp,
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


async def stream(*parts: bytes, then: bytes = b"", every_s: float = 0.02) -> AsyncIterator[bytes]:
    """Send parts, then something again and again, for ever; with nothing to send, just wait."""
    for part in parts:
        yield part
    while True:
        await asyncio.sleep(every_s if then else 3_600)
        yield then


async def ending(*parts: bytes) -> AsyncIterator[bytes]:
    """Send parts and hang up."""
    for part in parts:
        yield part


def answered(asked: Asked, value: Any = None) -> dict[str, Any]:
    text = {"content": [{"type": "text", "text": "ok"}]}
    return {"jsonrpc": "2.0", "id": asked.id, "result": text if value is None else value}


@cache
def bomb() -> bytes:
    """Return 100 MiB of blanks, a thousandth of that as gzip."""
    return gzip.compress(b'{"jsonrpc": "2.0", "id": 1, "result": {}' + b" " * 100 * MIB + b"}", 1)


def zipped(asked: Asked) -> bytes:
    return response(200, bomb(), Content_Encoding="gzip")


def nested(asked: Asked) -> bytes:
    body = b'{"jsonrpc":"2.0","id":%d,"result":{"a":%s}}' % (asked.id, b"[" * MIB + b"]" * MIB)
    return response(200, body)


def wide(asked: Asked) -> bytes:
    body = b'{"jsonrpc":"2.0","id":%d,"result":{"a":[%s0]}}' % (asked.id, b"[]," * MIB)
    return response(200, body)


def headers(lines: Iterator[bytes]) -> bytes:
    return JSON + b"".join(lines) + b"Content-Length: 2\r\n\r\n{}"


def redirect(asked: Asked, where: str) -> bytes:
    return response(302, kind="", Location=where)


WAYS: dict[str, Callable[[Asked], Answer]] = {
    "good": lambda asked: result(asked, answered(asked)["result"]),
    "hang": lambda asked: stream(),
    "hang_up": lambda asked: ending(),
    "headers_only": lambda asked: stream(JSON + b"Content-Length: 10\r\n\r\n"),
    "cut_body": lambda asked: ending(JSON + b"Content-Length: 1000\r\n\r\n{"),
    "drip_status": lambda asked: stream(LINE, then=b"X"),
    "drip_headers": lambda asked: stream(JSON, then=b"X-A: b\r\n"),
    "drip_body": lambda asked: stream(JSON + b"Content-Length: 99999\r\n\r\n", then=b" "),
    "drip_comments": lambda asked: stream(STREAM, then=b": still here\n\n"),
    "endless_interim": lambda asked: stream(then=b"HTTP/1.1 100 Continue\r\n\r\n", every_s=0.001),
    "endless_header": lambda asked: stream(JSON + b"X-A: ", then=b"a" * 65536, every_s=0),
    "endless_body": lambda asked: stream(JSON + b"\r\n", then=b" " * 65536, every_s=0),
    "endless_chunks": lambda asked: stream(CHUNKED, then=chunk(b": x\n" * 9999), every_s=0),
    "endless_events": lambda asked: stream(
        STREAM,
        then=event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}) * 200,
        every_s=0,
    ),
    "endless_event": lambda asked: stream(STREAM + b"data: ", then=b"x" * 65536, every_s=0),
    "endless_requests": lambda asked: stream(
        STREAM, then=event({"jsonrpc": "2.0", "id": 7, "method": "ping"}) * 200, every_s=0
    ),
    "garbage": lambda asked: ending(GARBAGE),
    "garbage_body": lambda asked: response(200, GARBAGE),
    "garbage_events": lambda asked: ending(STREAM, GARBAGE, b"\ndata: {{{\n\n"),
    "wrong_id": lambda asked: response(200, json.dumps(answered(asked) | {"id": 10**6}).encode()),
    "text_id": lambda asked: response(
        200, json.dumps(answered(asked) | {"id": str(asked.id)}).encode()
    ),
    "repeated_id": lambda asked: ending(STREAM, *[event(answered(asked))] * 9),
    "large_body": lambda asked: response(200, json.dumps(answered(asked, "x" * 10**7)).encode()),
    "large_event": lambda asked: ending(STREAM, event(answered(asked, {"a": "x" * 10**7}))),
    "gzip": zipped,
    "nested": nested,
    "wide": wide,
    "long_number": lambda asked: response(200, b'{"id":1,"result":{"a":%s}}' % (b"9" * MIB)),
    "not_json": lambda asked: response(200, b"<html>hello", "text/html"),
    "no_type": lambda asked: response(200, b"{}", ""),
    "many_headers": lambda asked: headers(b"X-%d: a\r\n" % n for n in range(20_000)),
    "large_header": lambda asked: headers(iter([b"X-A: %s\r\n" % (b"a" * MIB)])),
    "broken_header": lambda asked: headers(iter([b"X-A: a\rSet-Cookie: b\x00\r\n"])),
    "two_lengths": lambda asked: JSON + b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
    "negative_length": lambda asked: JSON + b"Content-Length: -1\r\n\r\n{}",
    "redirect_loop": lambda asked: redirect(asked, asked.path),
    "redirect_inward": lambda asked: redirect(asked, "http://169.254.169.254/latest/meta-data"),
    "large_refusal": lambda asked: response(500, b"x" * 10**7, "text/plain"),
    "large_challenge": lambda asked: response(
        401, kind="", WWW_Authenticate="Bearer " + "x" * 9999
    ),
}


# --- listings


def named(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}, **more} for name in names]


def bombs() -> list[dict[str, Any]]:
    """Return tools whose schemas are built to be compiled or matched for ever."""
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


def listing(way: str, cursor: str | None) -> dict[str, Any]:
    page = int(cursor or 0)
    pages: dict[str, Callable[[], dict[str, Any]]] = {
        "many_tools": lambda: {"tools": named(*(f"t{n}" for n in range(100_000)))},
        "many_pages": lambda: {
            "tools": named(*(f"t{page}-{n}" for n in range(500))),
            "nextCursor": str(page + 1),
        },
        "endless_cursor": lambda: {"tools": [], "nextCursor": str(page + 1)},
        "repeated_cursor": lambda: {"tools": named(f"t{page}"), "nextCursor": "1"},
        "large_cursor": lambda: {"tools": named("a"), "nextCursor": "9" * MIB},
        "bombs": lambda: {"tools": bombs()},
    }
    return pages.get(way, lambda: {"tools": named("echo")})()


def respond(asked: Asked) -> Answer:
    way = asked.path.strip("/")
    if asked.method == "server/discover":
        return raw_http_server.discovery(asked)
    if asked.method == "tools/list":
        params = asked.message.get("params") or {}
        return result(asked, listing(way, params.get("cursor")))
    return WAYS[way](asked)


async def serve() -> None:
    """Serve until the process is ended."""
    async with RawHttp(respond).listening() as server:
        print(f"PORT {server.port}", flush=True)  # noqa: T201 - what callers wait for
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
