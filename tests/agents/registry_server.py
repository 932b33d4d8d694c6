"""A registry of MCP servers, with two pages, on this process's loop."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bonobot.core.runtime import get_runtime
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

NAMES = ("io.example/one", "io.example/two", "com.example/three")


def build_entry(name: str) -> dict[str, Any]:
    """Return a server with a remote that needs a token."""
    header = {"name": "X-Token", "isRequired": True, "isSecret": True}
    remote = {"type": "streamable-http", "url": "https://mcp.example.com/mcp", "headers": [header]}
    server = {"name": name, "description": "…", "version": "1.0.0", "remotes": [remote]}
    return {"server": server, "_meta": {}}


def respond(request: RecordedRequest) -> bytes:
    """Return a page, the file, a file that isn't a registry's, or an error."""
    parts = urlsplit(request.path)
    if parts.path == "/server.json":
        return _respond_json(build_entry(NAMES[0])["server"])
    if parts.path == "/endless/v0.1/servers":  # each page is large, and names another
        entry = build_entry(NAMES[0]) | {"_meta": {"x": "x" * 300_000}}
        return _respond_json({"servers": [entry], "metadata": {"nextCursor": "next"}})
    if parts.path == "/client.json":
        return _respond_json({"mcpServers": {"one": {"url": "https://x.example/${ONE_X_TOKEN}"}}})
    if parts.path == "/list/v0.1/servers":
        return _respond_json({"servers": [{"name": "a", "url": "https://x.example/${HOME}"}]})
    if parts.path != "/v0.1/servers":
        return raw_http_server.response(404)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    assert query["version"] == "latest"
    listed = [build_entry(name) for name in NAMES if query.get("search", "") in name]
    if query.get("cursor") == "next":
        return _respond_json({"servers": listed[2:], "metadata": {"count": 1}})
    metadata = {"count": 2, **({"nextCursor": "next"} if len(listed) > 2 else {})}
    return _respond_json({"servers": listed[:2], "metadata": metadata})


def _respond_json(value: Any) -> bytes:
    return raw_http_server.response(200, json.dumps(value).encode())


@contextmanager
def serve_registry() -> Iterator[str]:
    """Listen while the block runs; yield the base URL."""
    http = RawHttp(respond)
    listening = http.listening()
    get_runtime().call(listening.__aenter__)
    try:
        yield http.url.removesuffix("/mcp")
    finally:
        get_runtime().call(listening.__aexit__, None, None, None)
