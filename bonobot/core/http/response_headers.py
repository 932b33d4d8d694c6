"""Security, caching and CORS response headers.

Pages load nothing from other origins and run no inline scripts (Content-Security-Policy); responses
aren't cached by default. Middleware sets the headers on Django's responses,
`complete_response_start` on all responses of the web process; a view that needs another
policy sets the header itself.

CORS opens the REST API, the OAuth endpoints that browser clients call (not the consent page) and
MCP to the configured origins. Clients there use tokens; cookies are never accepted cross-origin.
"""

from collections.abc import Callable, Mapping, MutableMapping
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.decorators import sync_and_async_middleware

from bonobot.core.process_cache import compute_once

CSP_HEADER = "Content-Security-Policy"

STRICT_POLICY = {
    "default-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}

GetResponse = Callable[[HttpRequest], Any]


def build_content_security_policy(directives: dict[str, str]) -> str:
    return "; ".join(f"{name} {sources}" for name, sources in directives.items())


def build_default_headers() -> dict[str, str]:
    headers = {
        CSP_HEADER: build_content_security_policy(STRICT_POLICY),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        # Browsers would resolve the hosts of links, and so tell them to the owners of the names.
        "X-DNS-Prefetch-Control": "off",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    if settings.SECURE_HSTS_SECONDS:  # set if the installation's address is https
        headers["Strict-Transport-Security"] = f"max-age={settings.SECURE_HSTS_SECONDS}"
    return headers


@sync_and_async_middleware
def add_browser_policy(get_response: GetResponse) -> GetResponse:
    """Add the default headers that a view hasn't set."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _add_default_headers(await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return _add_default_headers(get_response(request))

    return answer


def complete_response_start(message: Mapping[str, Any]) -> MutableMapping[str, Any]:
    """Return an ASGI `http.response.start` with missing default headers added."""
    headers = list(message.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    headers += [pair for pair in encode_default_headers() if pair[0] not in present]
    return {**message, "headers": headers}


@compute_once
def encode_default_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the default headers as bytes, names in lower case."""
    return tuple(
        (name.lower().encode(), value.encode()) for name, value in build_default_headers().items()
    )


def _add_default_headers(response: HttpResponseBase) -> HttpResponseBase:
    for name, value in build_default_headers().items():
        response.headers.setdefault(name, value)
    return response


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


R = TypeVar("R", bound=HttpResponseBase)


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


MCP_METHODS = "GET, POST, DELETE"
MCP_EXPOSED_HEADERS = "Mcp-Session-Id, Retry-After, WWW-Authenticate"

# Tools can define further headers (`Mcp-Param-…`), which are allowed as requested.
MCP_ALLOWED_HEADERS = (
    "Accept, Authorization, Content-Type, Last-Event-ID, MCP-Protocol-Version, Mcp-Method, "
    "Mcp-Name, Mcp-Session-Id"
)
PARAM_PREFIX = "mcp-param-"


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
