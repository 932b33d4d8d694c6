"""The ASGI application: `uvicorn bonobot.asgi:application`.

Django doesn't support the lifespan protocol, so it is handled here: the server's loop becomes the
process's `Runtime` at startup; connections and child processes are closed at shutdown.
"""

import gc
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from time import perf_counter
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
# What REST framework and the admin's theme import if it is installed, for features that we don't
# use: 17 MB of memory.
UNUSED_PACKAGES = ("django.contrib.postgres.fields", "markdown", "pygments", "requests")


def import_interfaces() -> None:
    """Import REST framework and the theme without `UNUSED_PACKAGES`; others can still use them."""
    hidden = [name for name in UNUSED_PACKAGES if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: can't be imported
    try:
        for name in ("rest_framework.compat", "bonobot.core.admin.theme"):
            import_module(name)
    finally:
        for name in hidden:
            del sys.modules[name]


gc.disable()  # imported objects are permanent: collecting them takes a tenth of the startup time
django_application = get_asgi_application()  # sets up Django for the imports below
import_interfaces()

from agents.gateway.organization_server.management_tools import (  # noqa: E402
    prepare_management_tools,
)
from agents.gateway.transports import GatewayApplication, is_gateway_path  # noqa: E402
from bonobot import urls  # noqa: E402, F401 - loaded at startup
from bonobot.core.http.response_headers import complete_response_start  # noqa: E402
from bonobot.core.runtime import Runtime  # noqa: E402
from bonobot.core.telemetry.logging import request_id, set_new_request_id  # noqa: E402
from bonobot.core.telemetry.metrics import observe_request  # noqa: E402
from bonobot.monitoring import health_endpoints, metrics_endpoint  # noqa: E402 - loaded at startup

gc.freeze()
# A call leaves about nine objects in cycles. At Python's 700, collecting them takes 4% of its time.
gc.set_threshold(10_000, 10, 10)
gc.enable()

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]

gateway = GatewayApplication()
# A request with both headers may be smuggled: a proxy may use the other one for its length.
LENGTH_HEADERS = frozenset({b"content-length", b"transfer-encoding"})
REFUSAL_HEADERS = {"content-type": "text/plain; charset=utf-8", "connection": "close"}
AREAS = frozenset({"admin", "api", "oauth", "static"})


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Handle a connection; add default headers, and respond 500 to unhandled errors.

    The records of a request have its ID, also that of the server about an unhandled error.
    """
    kind = scope["type"]
    if kind == "lifespan":
        await handle_lifespan(receive, send)
    elif kind == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1000})
    else:
        set_new_request_id()
        response = ResponseSender(send)
        try:
            await route_request(scope, receive, response)
        except Exception:
            if not response.has_started:
                response.area = ""
                text = f"The server failed. Its log has the error of request {request_id.get()}.\n"
                await send_refusal(response, 500, text.encode())
            raise  # the server logs it


class ResponseSender:
    """An ASGI `send` that adds default headers and, for an `area`, counts the response."""

    def __init__(self, send: Send) -> None:
        self.area = ""
        self.has_started = False
        self._send = send
        self._started_at = perf_counter()

    async def __call__(self, message: Mapping[str, Any]) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self.has_started = True
            if self.area:
                seconds = perf_counter() - self._started_at
                observe_request(self.area, message["status"], seconds)
            message = complete_response_start(message)
        await self._send(message)


async def route_request(scope: Scope, receive: Receive, send: ResponseSender) -> None:
    """Route a request to health endpoints, the gateway or Django."""
    path = scope["path"]
    if LENGTH_HEADERS.issubset([name for name, _ in scope["headers"]]):
        await reject_ambiguous_length(send)
    elif is_gateway_path(path):
        send.area = "mcp"
        await gateway(scope, receive, send)
    elif path == health_endpoints.LIVENESS_PATH:
        await health_endpoints.respond_healthz(send)
    elif path == health_endpoints.READINESS_PATH:
        await health_endpoints.respond_readyz(scope["query_string"], send)
    elif path == metrics_endpoint.PATH:
        await metrics_endpoint.respond_metrics(scope, send)
    else:
        send.area = classify_path(path)
        await django_application(scope, receive, send)


async def reject_ambiguous_length(send: Send) -> None:
    """Refuse a request with both length headers and close the connection (RFC 9112, 6.1)."""
    text = b"Content-Length and Transfer-Encoding together say two things. Send one of them.\n"
    await send_refusal(send, 400, text)


async def send_refusal(send: Send, status: int, text: bytes) -> None:
    """Respond with plain text and close the connection."""
    headers = [(name.encode(), value.encode()) for name, value in REFUSAL_HEADERS.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


def classify_path(path: str) -> str:
    """Return the area of a path for metrics."""
    segment = path.removeprefix("/").partition("/")[0]  # or `*`, of OPTIONS
    return segment if segment in AREAS else "other"


async def handle_lifespan(receive: Receive, send: Send) -> None:
    """Adopt the loop as the process's `Runtime` at startup and close it at shutdown."""
    await receive()
    runtime = Runtime.adopt()
    # The loaded modules are frozen already; this adds what was created since.
    gc.collect()
    gc.freeze()
    # The first client of /mcp would wait for them.
    runtime.spawn(runtime.run_orm(prepare_management_tools), name="prepare tools")
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await runtime.aclose()
    await send({"type": "lifespan.shutdown.complete"})
