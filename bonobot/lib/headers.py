"""Headers that bound what a browser may do with our pages (Content-Security-Policy and kin).

Every page gets the strict policy. The admin's script library compiles the expressions in its
templates, so pages under the admin's path may use `unsafe-eval`; they still load nothing from
elsewhere and run no inline script. A view that needs another policy sets the header itself.
"""

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import NoReverseMatch, reverse
from django.utils.decorators import sync_and_async_middleware

HEADER = "Content-Security-Policy"

STRICT = {
    "default-src": "'self'",
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "object-src": "'none'",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
ADMIN = STRICT | {"script-src": "'self' 'unsafe-eval'"}

Answer = Callable[[HttpRequest], Any]


def policy(directives: dict[str, str]) -> str:
    """Return the header's value."""
    return "; ".join(f"{name} {sources}" for name, sources in directives.items())


@sync_and_async_middleware
def browser_policy(get_response: Answer) -> Answer:
    """Give each response the policy of its path, unless its view has set one."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _with_policy(request, await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return _with_policy(request, get_response(request))

    return answer


def _with_policy(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    if HEADER not in response:
        response[HEADER] = policy(ADMIN if _is_admin(request) else STRICT)
    response.headers.setdefault("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
    return response


def _is_admin(request: HttpRequest) -> bool:
    try:
        return request.path.startswith(reverse("admin:index"))
    except NoReverseMatch:  # a URL configuration without an admin
        return False
