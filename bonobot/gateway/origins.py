"""Browser applications elsewhere: the origins of `BONOBOT_CORS_ORIGINS` may use the gateway.

They sign in with a token like every client; cookies are never looked at here.
"""

from collections.abc import Mapping
from typing import Any

from django.conf import settings

METHODS = "GET, POST, DELETE"
SHOWN = "Mcp-Session-Id, Retry-After, WWW-Authenticate"
REMEMBERED_S = "600"
# What a browser asks to send beside these (`Mcp-Param-…`) is named by the tools themselves.
SENT = (
    "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, "
    "Mcp-Name, Mcp-Session-Id"
)
PARAM = "mcp-param-"


def known(headers: Mapping[str, str]) -> str:
    """Return the origin that a request names, if it is one of ours; else nothing."""
    origin = headers.get("origin", "")
    return origin if origin in settings.BONOBOT_CORS_ORIGINS else ""


def asks_first(method: str, headers: Mapping[str, str]) -> bool:
    """Tell whether this is a browser that asks whether it may send a request."""
    return method == "OPTIONS" and "access-control-request-method" in headers


def allowing(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers that answer a browser which asks first; none for a stranger."""
    if not known(headers):
        return []
    asked = headers.get("access-control-request-headers", "").split(",")
    params = [one.strip() for one in asked if one.strip().lower().startswith(PARAM)]
    sent = {
        "access-control-allow-methods": METHODS,
        "access-control-allow-headers": ", ".join([SENT, *params]),
        "access-control-max-age": REMEMBERED_S,
    }
    told = [(name.encode(), value.encode("latin-1")) for name, value in sent.items()]
    return [*readable(headers), *told]


def readable(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers that let the answer to a known origin be read there."""
    if not (origin := known(headers)):
        return []
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", SHOWN.encode()),
        (b"vary", b"Origin"),
    ]


def letting_read(send: Any, headers: Mapping[str, str]) -> Any:
    """Return a `send` whose answers may be read where the request came from."""
    added = readable(headers)
    if not added:
        return send

    async def send_readable(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_readable
