"""Security and caching headers of responses; for other origins see `cors`.

Pages load nothing from other origins and run no inline scripts (Content-Security-Policy); responses
aren't cached by default. Middleware sets the headers on Django's responses,
`complete_response_start` on all responses of the web process; a view that needs another
policy sets the header itself.
"""

from collections.abc import Callable, Mapping, MutableMapping
from inspect import iscoroutinefunction
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponseBase
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
