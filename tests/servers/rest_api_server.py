"""A shop's REST API on the loopback, without a document, that records its requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class ReceivedRequest:
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


class Shop(ThreadingHTTPServer):
    """The API; `/huge` returns an oversized body, `/away` redirects elsewhere."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.arrived: list[ReceivedRequest] = []

    @property
    def url(self) -> str:
        """Return its base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def open_shop() -> Iterator[Shop]:
    """Run a shop while the block runs."""
    with Shop() as shop:
        thread = threading.Thread(target=shop.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield shop
        shop.shutdown()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Shop

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        request = ReceivedRequest(self.command, self.path, dict(self.headers), body)
        self.server.arrived.append(request)
        if self.path.startswith("/huge"):
            self._send(200, b"x" * (16 * 1024 * 1024))
        elif self.path.startswith("/away"):
            self._send(302, b"", Location="http://169.254.169.254/latest/meta-data")
        else:
            order = {"id": self.path, "state": "open"}
            self._send(200, json.dumps({"data": {"order": order}, "page": 1}).encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        all_headers = {
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }
        for name, value in all_headers.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # the client disconnected

    def log_message(self, *args: Any) -> None:
        """Say nothing."""
