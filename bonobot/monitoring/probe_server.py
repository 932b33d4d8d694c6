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
from bonobot.monitoring import health_endpoints, metrics_endpoint

logger = logging.getLogger(__name__)

MAX_PORTS = 10
STUCK_S = 30.0
# Seconds that a client may take to send its request.
CLIENT_TIMEOUT_S = 5.0

_lock = threading.Lock()
_servers: list["ProbeServer"] = []

ProbeResponse = tuple[int, str, bytes]
# Returns the seconds since the process last made progress.
AgeFunction = Callable[[], float]


def measure_loop_age_s() -> float:
    """Return the seconds since this process's event loop last ticked."""
    return time.monotonic() - get_runtime().ticked_at


class ProbeServer:
    """The probe server of one process."""

    def __init__(self, *ages_s: AgeFunction) -> None:
        self._ages_s = [*ages_s]
        self._server: ThreadingHTTPServer | None = None
        self._handlers: Mapping[str, Callable[[Mapping[str, str], str, str], ProbeResponse]] = {
            health_endpoints.LIVENESS_PATH: self._answer_healthz,
            health_endpoints.READINESS_PATH: self._answer_readyz,
            metrics_endpoint.PATH: self._answer_metrics,
        }

    def start(self, host: str, port: int) -> int:
        """Listen on the first free port from `port` on and return it; raises `OSError`."""
        server = _build_http_server(host, port, self.handle_request)
        self._server = server
        threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
        path = health_endpoints.LIVENESS_PATH
        logger.info("Probes at http://%s:%s%s", host, server.server_port, path)
        return int(server.server_port)

    def watch(self, age_s: AgeFunction) -> None:
        """Also report the process as stuck by this function."""
        self._ages_s.append(age_s)

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def handle_request(
        self, target: str, headers: Mapping[str, str], client: str = ""
    ) -> ProbeResponse:
        """Return status, content type and body of a GET request."""
        parts = urlsplit(target)
        handler = self._handlers.get(parts.path)
        if handler is None:
            return _build_json_response(404, {"status": "unknown"})
        return handler(headers, parts.query, client)

    def _answer_metrics(self, headers: Mapping[str, str], query: str, client: str) -> ProbeResponse:
        try:
            return metrics_endpoint.build_response(headers.get("Authorization", ""), client)
        finally:
            close_old_connections()

    def _answer_healthz(self, headers: Mapping[str, str], query: str, client: str) -> ProbeResponse:
        age = max(age_s() for age_s in self._ages_s)
        if age > STUCK_S:
            return _build_json_response(
                503, {"status": "stuck", "detail": f"nothing moved for {age:.0f} s"}
            )
        return _build_json_response(200, {"status": "ok"})

    def _answer_readyz(self, headers: Mapping[str, str], query: str, client: str) -> ProbeResponse:
        try:
            return _build_json_response(
                *health_endpoints.measure_readiness().build_response(
                    include_degraded=query.split("=")[0] == "all"
                )
            )
        finally:
            close_old_connections()


def start_probe_server(age_s: AgeFunction) -> None:
    """Start this process's probe server if `BONOBOT_PROBE_ADDRESS` is set.

    In a worker with a scheduler, the second of them that starts is watched by the same server.
    """
    with _lock:
        if _servers:
            _servers[0].watch(age_s)
        elif address := settings.BONOBOT_PROBE_ADDRESS:
            server = ProbeServer(age_s)
            server.start(*address)
            _servers.append(server)


def _build_json_response(status: int, body: dict[str, Any]) -> ProbeResponse:
    return status, "application/json", json.dumps(body).encode("ascii")


def _build_http_server(
    host: str, port: int, handle_request: Callable[[str, Mapping[str, str], str], ProbeResponse]
) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TIMEOUT_S
        server_version, sys_version = "bonobot", ""

        def do_GET(self) -> None:
            try:
                status, content_type, body = handle_request(
                    self.path, dict(self.headers.items()), self.client_address[0]
                )
            except Exception:
                # Respond in any case; the log has the reason.
                logger.exception("A probe failed")
                status, content_type, body = 500, "text/plain", b"The log says why.\n"
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Do nothing: probes come every few seconds."""

    for number in range(port, port + MAX_PORTS):
        try:
            return ThreadingHTTPServer((host, number), Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {port} to {port + MAX_PORTS - 1} of {host} are in use")
