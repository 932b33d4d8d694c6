"""Headers that limit what a browser can do with our pages."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import reverse

from bonobot.core.http.response_headers import (
    CSP_HEADER,
    STRICT_POLICY,
    add_browser_policy,
    build_content_security_policy,
    build_default_headers,
    complete_response_start,
)


def apply_policy(path: str, response: Any) -> Any:
    handler: Callable[[HttpRequest], Any] = add_browser_policy(lambda _: response)
    return handler(RequestFactory().get(path))


def parse_policy(response: Any) -> dict[str, str]:
    parts = (part.strip().split(" ", 1) for part in response[CSP_HEADER].split(";"))
    return {name: sources for name, sources in parts}  # noqa: C416 - a list of pairs by now


def test_every_page_has_the_strict_content_security_policy() -> None:
    policy = parse_policy(apply_policy("/somewhere", HttpResponse()))
    assert policy == STRICT_POLICY
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["object-src"] == "'none'"


def test_the_admin_needs_no_unsafe_eval() -> None:
    policy = parse_policy(apply_policy(reverse("admin:index"), HttpResponse()))
    assert policy == STRICT_POLICY
    assert "unsafe-eval" not in build_content_security_policy(STRICT_POLICY)


def test_no_policy_allows_other_origins_or_inline_scripts() -> None:
    assert "unsafe-inline" not in STRICT_POLICY["script-src"]
    assert "http" not in build_content_security_policy(STRICT_POLICY)
    assert "*" not in build_content_security_policy(STRICT_POLICY)


def test_hsts_is_sent_if_the_installation_uses_https(settings: Any) -> None:
    settings.SECURE_HSTS_SECONDS = 0
    assert "Strict-Transport-Security" not in build_default_headers()
    settings.SECURE_HSTS_SECONDS = 60
    assert build_default_headers()["Strict-Transport-Security"] == "max-age=60"


def test_a_response_from_outside_django_gets_the_headers_once() -> None:
    headers = [(b"Cache-Control", b"public"), (b"x", b"1")]
    start = complete_response_start(
        {"type": "http.response.start", "status": 200, "headers": headers}
    )
    names = [name.lower() for name, _ in start["headers"]]
    assert len(names) == len(set(names))
    assert {name.lower().encode() for name in build_default_headers()} <= set(names)
    assert dict(start["headers"])[b"Cache-Control"] == b"public"


def test_a_view_can_set_its_own_policy() -> None:
    response = HttpResponse(headers={CSP_HEADER: "default-src 'none'", "Permissions-Policy": "x"})
    result = apply_policy("/x", response)
    assert result[CSP_HEADER] == "default-src 'none'"
    assert result["Permissions-Policy"] == "x"


@pytest.mark.parametrize("response", [HttpResponse(), StreamingHttpResponse(iter(()))])
def test_the_headers_are_the_same_under_asgi(response: Any) -> None:
    async def view(request: HttpRequest) -> Any:
        return response

    async def request_page() -> Any:
        return await add_browser_policy(view)(AsyncRequestFactory().get("/x"))

    result = asyncio.run(request_page())
    assert parse_policy(result) == STRICT_POLICY
    assert "camera=()" in result["Permissions-Policy"]
