"""Browser applications elsewhere: origins of `BONOBOT_CORS_ORIGINS` may use /api, and be let in.

They sign in with a token, or read where tokens come from, register and fetch one; to the page that
asks a person only the person's browser goes. Cookies are never taken from another origin, so a
page elsewhere can do nothing in the name of somebody who is signed in here.
"""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_vary_headers
from django.utils.decorators import sync_and_async_middleware

PATHS = ("/api/",)
LETTING_IN = frozenset(
    {
        "/.well-known/oauth-authorization-server",
        "/oauth/register",
        "/oauth/revoke",
        "/oauth/token",
    }
)
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
SENT = (
    "Authorization, Content-Type, Idempotency-Key, If-Match, Last-Event-ID, Bonobot-Organization, "
    "MCP-Protocol-Version"
)
SHOWN = "Allow, ETag, Idempotent-Replayed, Retry-After, WWW-Authenticate"
REMEMBERED_S = "600"

Answer = Callable[[HttpRequest], Any]
R = TypeVar("R", bound=HttpResponseBase)


@sync_and_async_middleware
def cross_origin(get_response: Answer) -> Answer:
    """Answer preflights, and let the answers to known origins be read there."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return preflight(request) or _readable(request, await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return preflight(request) or _readable(request, get_response(request))

    return answer


def preflight(request: HttpRequest) -> HttpResponse | None:
    """Return the answer to a browser that asks whether it may send a request, if this is one."""
    asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    if not asks or not _is_known(request):
        return None
    response = HttpResponse(status=204)
    response["Access-Control-Allow-Methods"] = METHODS
    response["Access-Control-Allow-Headers"] = SENT
    response["Access-Control-Max-Age"] = REMEMBERED_S
    return _allowed(request, response)


def _readable(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if settings.BONOBOT_CORS_ORIGINS and _is_open(request.path):
        patch_vary_headers(response, ["Origin"])
        if _is_known(request):
            response["Access-Control-Expose-Headers"] = SHOWN
            return _allowed(request, response)
    return response


def _allowed(request: HttpRequest, response: R) -> R:
    response["Access-Control-Allow-Origin"] = request.headers["Origin"]
    patch_vary_headers(response, ["Origin"])
    return response


def _is_known(request: HttpRequest) -> bool:
    origin = request.headers.get("Origin")
    return _is_open(request.path) and origin in settings.BONOBOT_CORS_ORIGINS


def _is_open(path: str) -> bool:
    return path.startswith(PATHS) or path in LETTING_IN
