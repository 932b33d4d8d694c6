"""The HTTP server for probes and metrics of worker and beat.

It listens at `BONOBOT_PROBE_ADDRESS`, if set. Processes that share the setting on one host
(`bonobot up`, several workers) use the next free port, of ten at most; the log says which. It runs
in a thread, so that it can report an event loop that is stuck.
"""

import errno
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import close_old_connections

from bonobot.core.runtime import get_runtime
from bonobot.monitoring import health, metrics_endpoint

logger = logging.getLogger(__name__)

PORTS = 10
STUCK_S = 30.0
# Seconds that a client may take to send its request.
PATIENCE_S = 5.0

Answer = tuple[int, str, bytes]
# Returns the seconds since the process last made progress.
Age = Callable[[], float]


def measure_loop_age_s() -> float:
    """Return the seconds since this process's event loop last ticked."""
    return time.monotonic() - get_runtime().ticked_at


class ProbeServer:
    """The probe server of one process."""

    def __init__(self, age_s: Age) -> None:
        self._age_s = age_s
        self._server: ThreadingHTTPServer | None = None
        self._ways: Mapping[str, Callable[[Mapping[str, str], str, str], Answer]] = {
            health.LIVENESS_PATH: self._healthz,
            health.READINESS_PATH: self._readyz,
            metrics_endpoint.PATH: self._metrics,
        }

    def begin(self, host: str, port: int) -> int:
        """Listen on the first free port from `port` on and return it; raises `OSError`."""
        server = _build_http_server(host, port, self.answer)
        self._server = server
        threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
        logger.info("Probes at http://%s:%s%s", host, server.server_port, health.LIVENESS_PATH)
        return int(server.server_port)

    def end(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def answer(self, target: str, headers: Mapping[str, str], client: str = "") -> Answer:
        """Return status, content type and body of a GET request."""
        parts = urlsplit(target)
        way = self._ways.get(parts.path)
        if way is None:
            return _build_json_answer(404, {"status": "unknown"})
        return way(headers, parts.query, client)

    def _metrics(self, headers: Mapping[str, str], query: str, client: str) -> Answer:
        try:
            return metrics_endpoint.answer(headers.get("Authorization", ""), client)
        finally:
            close_old_connections()

    def _healthz(self, headers: Mapping[str, str], query: str, client: str) -> Answer:
        age = self._age_s()
        if age > STUCK_S:
            return _build_json_answer(
                503, {"status": "stuck", "detail": f"nothing moved for {age:.0f} s"}
            )
        return _build_json_answer(200, {"status": "ok"})

    def _readyz(self, headers: Mapping[str, str], query: str, client: str) -> Answer:
        try:
            return _build_json_answer(
                *health.measure().answer(everything=query.split("=")[0] == "all")
            )
        finally:
            close_old_connections()


def begin(age_s: Age) -> None:
    """Start a probe server if `BONOBOT_PROBE_ADDRESS` is set."""
    if address := settings.BONOBOT_PROBE_ADDRESS:
        ProbeServer(age_s).begin(*address)


def _build_json_answer(status: int, body: dict[str, Any]) -> Answer:
    return status, "application/json", json.dumps(body).encode("ascii")


def _build_http_server(
    host: str, port: int, answer: Callable[[str, Mapping[str, str], str], Answer]
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE_S
        server_version, sys_version = "bonobot", ""

        def do_GET(self) -> None:
            try:
                status, kind, body = answer(
                    self.path, dict(self.headers.items()), self.client_address[0]
                )
            except Exception:
                # Respond in any case; the log has the reason.
                logger.exception("A probe failed")
                status, kind, body = 500, "text/plain", b"The log says why.\n"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do nothing: probes come every few seconds."""

    for number in range(port, port + PORTS):
        try:
            return ThreadingHTTPServer((host, number), Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {port} to {port + PORTS - 1} of {host} are in use")
