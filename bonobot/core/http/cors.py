"""CORS headers: which other origins may read responses.

CORS opens the REST API, the OAuth endpoints that browser clients call (not the consent page) and
MCP to the configured origins. Clients there use tokens; cookies are never accepted cross-origin.
"""

from collections.abc import Callable, Mapping
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.decorators import sync_and_async_middleware

GetResponse = Callable[[HttpRequest], Any]
R = TypeVar("R", bound=HttpResponseBase)

API_PREFIXES = ("/api/",)
OAUTH_PATHS = frozenset(
    {
        "/.well-known/oauth-authorization-server",
        "/oauth/register",
        "/oauth/revoke",
        "/oauth/token",
    }
)
API_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
API_ALLOWED_HEADERS = (
    "Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID, Bonobot-Organization, "
    "MCP-Protocol-Version"
)
API_EXPOSED_HEADERS = "Allow, ETag, Idempotent-Replayed, Retry-After, WWW-Authenticate"
PREFLIGHT_MAX_AGE_S = "600"

MCP_METHODS = "GET, POST, DELETE"
MCP_EXPOSED_HEADERS = "Mcp-Session-Id, Retry-After, WWW-Authenticate"
# Tools can define further headers (`Mcp-Param-…`), which are allowed as requested.
MCP_ALLOWED_HEADERS = (
    "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, "
    "Mcp-Name, Mcp-Session-Id"
)
PARAM_PREFIX = "mcp-param-"


@sync_and_async_middleware
def handle_cross_origin(get_response: GetResponse) -> GetResponse:
    """Answer preflight requests and add CORS headers for allowed origins."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return answer_preflight(request) or _add_cors_headers(
                request, await get_response(request)
            )

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return answer_preflight(request) or _add_cors_headers(request, get_response(request))

    return answer


def answer_preflight(request: HttpRequest) -> HttpResponse | None:
    """Return the response to a preflight request of an allowed origin, or else None."""
    is_preflight_request = (
        request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    )
    if not is_preflight_request or not _has_allowed_origin(request):
        return None
    response = HttpResponse(status=204)
    response["Access-Control-Allow-Methods"] = API_METHODS
    response["Access-Control-Allow-Headers"] = API_ALLOWED_HEADERS
    response["Access-Control-Max-Age"] = PREFLIGHT_MAX_AGE_S
    return _allow_origin(request, response)


def _add_cors_headers(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if settings.BONOBOT_CORS_ORIGINS and _is_cross_origin_path(request.path):
        patch_vary_headers(response, ["Origin"])
        if _has_allowed_origin(request):
            response["Access-Control-Expose-Headers"] = API_EXPOSED_HEADERS
            return _allow_origin(request, response)
    return response


def _allow_origin(request: HttpRequest, response: R) -> R:
    response["Access-Control-Allow-Origin"] = request.headers["Origin"]
    patch_vary_headers(response, ["Origin"])
    return response


def _has_allowed_origin(request: HttpRequest) -> bool:
    origin = request.headers.get("Origin")
    return _is_cross_origin_path(request.path) and origin in settings.BONOBOT_CORS_ORIGINS


def _is_cross_origin_path(path: str) -> bool:
    return path.startswith(API_PREFIXES) or path in OAUTH_PATHS


def find_allowed_origin(headers: Mapping[str, str]) -> str:
    """Return the request's origin if it is allowed, or else ""."""
    origin = headers.get("origin", "")
    return origin if origin in settings.BONOBOT_CORS_ORIGINS else ""


def is_preflight(method: str, headers: Mapping[str, str]) -> bool:
    """Return whether this is a CORS preflight request."""
    return method == "OPTIONS" and "access-control-request-method" in headers


def build_preflight_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the headers of a preflight response; empty for other origins."""
    if not find_allowed_origin(headers):
        return []
    requested_headers = headers.get("access-control-request-headers", "").split(",")
    params = [
        header.strip()
        for header in requested_headers
        if header.strip().lower().startswith(PARAM_PREFIX)
    ]
    preflight_headers = {
        "access-control-allow-methods": MCP_METHODS,
        "access-control-allow-headers": ", ".join([MCP_ALLOWED_HEADERS, *params]),
        "access-control-max-age": PREFLIGHT_MAX_AGE_S,
    }
    encoded_headers = [
        (name.encode(), value.encode("latin-1")) for name, value in preflight_headers.items()
    ]
    return [*build_cors_headers(headers), *encoded_headers]


def build_cors_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Return the CORS headers of a response; empty for other origins."""
    if not (origin := find_allowed_origin(headers)):
        return []
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", MCP_EXPOSED_HEADERS.encode()),
        (b"vary", b"Origin"),
    ]


def wrap_send_with_cors(send: Any, headers: Mapping[str, str]) -> Any:
    """Return an ASGI `send` that adds CORS headers."""
    cors_headers = build_cors_headers(headers)
    if not cors_headers:
        return send

    async def send_with_cors(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *cors_headers]}
        await send(message)

    return send_with_cors
