"""An npm registry with one package, an MCP server; a test can delay its downloads."""

import hashlib
import io
import json
import tarfile
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "hello-mcp"
SERVER = """#!/usr/bin/env node
const answers = {
  initialize: () => ({ protocolVersion: "2025-06-18", capabilities: { tools: {} },
    serverInfo: { name: "hello", version: process.env.npm_lifecycle_event ?? "installed" } }),
  "tools/list": () => ({ tools: [{ name: "hello", inputSchema: { type: "object" } }] }),
  "tools/call": () => ({ content: [{ type: "text", text: process.argv.slice(2).join(" ") }] }),
};
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { id, method } = JSON.parse(line);
  if (id === undefined) return;
  const said = method in answers ? { result: answers[method]() }
    : { error: { code: -32601, message: "unknown" } };
  console.log(JSON.stringify({ jsonrpc: "2.0", id, ...said }));
});
"""


@dataclass
class Registry:
    """The requested paths, and whether packages are sent."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    sends: threading.Event = field(default_factory=threading.Event)
    packed: threading.Event = field(default_factory=threading.Event)  # a package was requested
    is_broken: bool = False  # packages are not found
    versions: tuple[str, ...] = ("1.0.0", "1.1.0")


def pack(version: str) -> bytes:
    """Return the package as npm packs it."""
    manifest = {"name": NAME, "version": version, "bin": {NAME: "index.js"}}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (("package.json", json.dumps(manifest)), ("index.js", SERVER)):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size, entry.mode = len(text), 0o755
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def _build_metadata(registry: Registry, packed: dict[str, bytes]) -> dict[str, Any]:
    def build_version(version: str) -> dict[str, Any]:
        digest = b64encode(hashlib.sha512(packed[version]).digest()).decode()
        tarball = f"{registry.url}/{NAME}/-/{NAME}-{version}.tgz"
        return {
            "name": NAME,
            "version": version,
            "bin": {NAME: "index.js"},
            "dist": {"tarball": tarball, "integrity": f"sha512-{digest}"},
        }

    versions = {version: build_version(version) for version in registry.versions}
    return {"name": NAME, "dist-tags": {"latest": registry.versions[-1]}, "versions": versions}


@contextmanager
def open_registry() -> Iterator[Registry]:
    """Serve the package on the loopback."""
    registry = Registry()
    registry.sends.set()
    packed = {version: pack(version) for version in registry.versions}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            body = b"{}"
            if self.path == f"/{NAME}":
                body = json.dumps(_build_metadata(registry, packed)).encode()
            elif self.path.endswith(".tgz"):
                registry.packed.set()
                registry.sends.wait(60)
                if not registry.is_broken:
                    body = packed[self.path.rpartition("-")[2].removesuffix(".tgz")]
            self.send_response(404 if body == b"{}" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.sends.set()
        server.shutdown()
        server.server_close()
