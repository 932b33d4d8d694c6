"""The headers that bound what a browser may do with our pages."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import reverse

from bonobot.lib.headers import ADMIN, HEADER, STRICT, browser_policy, policy


def through(path: str, response: Any) -> Any:
    handler: Callable[[HttpRequest], Any] = browser_policy(lambda _: response)
    return handler(RequestFactory().get(path))


def directives(response: Any) -> dict[str, str]:
    parts = (part.strip().split(" ", 1) for part in response[HEADER].split(";"))
    return {name: sources for name, sources in parts}  # noqa: C416 - a list of pairs by now


def test_every_page_gets_the_strict_policy() -> None:
    found = directives(through("/somewhere", HttpResponse()))
    assert found == STRICT
    assert found["script-src"] == "'self'"
    assert found["frame-ancestors"] == "'none'"
    assert found["object-src"] == "'none'"


def test_the_admin_may_compile_expressions_and_nothing_more() -> None:
    found = directives(through(reverse("admin:index"), HttpResponse()))
    assert found == ADMIN
    assert found["script-src"] == "'self' 'unsafe-eval'"
    assert {name for name in found if found[name] != STRICT[name]} == {"script-src"}


def test_no_policy_loads_anything_from_elsewhere_or_runs_inline_script() -> None:
    for sources in (STRICT, ADMIN):
        assert "unsafe-inline" not in sources["script-src"]
        assert "http" not in policy(sources)
        assert "*" not in policy(sources)


def test_a_view_may_set_a_policy_of_its_own() -> None:
    response = HttpResponse(headers={HEADER: "default-src 'none'", "Permissions-Policy": "x"})
    found = through("/x", response)
    assert found[HEADER] == "default-src 'none'"
    assert found["Permissions-Policy"] == "x"


@pytest.mark.parametrize("response", [HttpResponse(), StreamingHttpResponse(iter(()))])
def test_the_same_holds_under_asgi(response: Any) -> None:
    async def view(request: HttpRequest) -> Any:
        return response

    async def ask() -> Any:
        return await browser_policy(view)(AsyncRequestFactory().get("/x"))

    found = asyncio.run(ask())
    assert directives(found) == STRICT
    assert "camera=()" in found["Permissions-Policy"]
