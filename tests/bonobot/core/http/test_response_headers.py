"""The headers that bound what a browser may do with our pages."""

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
    wrap_send_with_default_headers,
)


def through(path: str, response: Any) -> Any:
    handler: Callable[[HttpRequest], Any] = add_browser_policy(lambda _: response)
    return handler(RequestFactory().get(path))


def directives(response: Any) -> dict[str, str]:
    parts = (part.strip().split(" ", 1) for part in response[CSP_HEADER].split(";"))
    return {name: sources for name, sources in parts}  # noqa: C416 - a list of pairs by now


def test_every_page_has_the_strict_content_security_policy() -> None:
    found = directives(through("/somewhere", HttpResponse()))
    assert found == STRICT_POLICY
    assert found["script-src"] == "'self'"
    assert found["frame-ancestors"] == "'none'"
    assert found["object-src"] == "'none'"


def test_the_admin_needs_no_unsafe_eval() -> None:
    found = directives(through(reverse("admin:index"), HttpResponse()))
    assert found == STRICT_POLICY
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
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def answer() -> None:
        own = [(b"Cache-Control", b"public"), (b"x", b"1")]
        sending = wrap_send_with_default_headers(send)
        await sending({"type": "http.response.start", "status": 200, "headers": own})
        await sending({"type": "http.response.body", "body": b""})

    asyncio.run(answer())
    names = [name.lower() for name, _ in sent[0]["headers"]]
    assert len(names) == len(set(names))
    assert {name.lower().encode() for name in build_default_headers()} <= set(names)
    assert dict(sent[0]["headers"])[b"Cache-Control"] == b"public"
    assert sent[1] == {"type": "http.response.body", "body": b""}


def test_a_view_can_set_its_own_policy() -> None:
    response = HttpResponse(headers={CSP_HEADER: "default-src 'none'", "Permissions-Policy": "x"})
    found = through("/x", response)
    assert found[CSP_HEADER] == "default-src 'none'"
    assert found["Permissions-Policy"] == "x"


@pytest.mark.parametrize("response", [HttpResponse(), StreamingHttpResponse(iter(()))])
def test_the_headers_are_the_same_under_asgi(response: Any) -> None:
    async def view(request: HttpRequest) -> Any:
        return response

    async def ask() -> Any:
        return await add_browser_policy(view)(AsyncRequestFactory().get("/x"))

    found = asyncio.run(ask())
    assert directives(found) == STRICT_POLICY
    assert "camera=()" in found["Permissions-Policy"]
