"""Headers that bound what browsers and caches may do with our answers, on every one of them.

Pages load nothing from elsewhere, run no inline script and compile none (Content-Security-Policy).
What isn't said to be cacheable is kept by nobody. Middleware sets the headers on Django's answers,
`with_headers` on all of the web process, whoever gives them; a view that needs another policy sets
the header itself.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cache
from inspect import iscoroutinefunction
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
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

Answer = Callable[[HttpRequest], Any]
Send = Callable[[Any], Awaitable[None]]


def policy(directives: dict[str, str]) -> str:
    """Return the header's value."""
    return "; ".join(f"{name} {sources}" for name, sources in directives.items())


def usual_headers() -> dict[str, str]:
    """Return the headers of an answer that says nothing of them itself."""
    found = {
        HEADER: policy(STRICT),
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
    if settings.SECURE_HSTS_SECONDS:  # where the installation's own address is https
        found["Strict-Transport-Security"] = f"max-age={settings.SECURE_HSTS_SECONDS}"
    return found


@sync_and_async_middleware
def browser_policy(get_response: Answer) -> Answer:
    """Give each response the usual headers that its view hasn't set."""
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponseBase:
            return _completed(await get_response(request))

        return answer_async

    def answer(request: HttpRequest) -> HttpResponseBase:
        return _completed(get_response(request))

    return answer


def with_headers(send: Send) -> Send:
    """Return an ASGI `send` that completes the headers of the answer."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = complete(message)
        await send(message)

    return sending


def complete(message: Mapping[str, Any]) -> MutableMapping[str, Any]:
    """Return the start of an ASGI answer with the usual headers that it hasn't."""
    headers = list(message.get("headers", ()))
    present = {name.lower() for name, _ in headers}
    headers += [pair for pair in raw_headers() if pair[0] not in present]
    return {**message, "headers": headers}


@cache
def raw_headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the usual headers as they go over the wire, names in lower case."""
    return tuple((name.lower().encode(), value.encode()) for name, value in usual_headers().items())


def _completed(response: HttpResponseBase) -> HttpResponseBase:
    for name, value in usual_headers().items():
        response.headers.setdefault(name, value)
    return response
