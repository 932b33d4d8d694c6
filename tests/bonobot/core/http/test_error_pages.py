"""The error pages that browsers receive, and the answers that programs receive."""

import asyncio
import io
import logging
import re
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import Client, RequestFactory
from django.utils import translation

from bonobot import asgi
from bonobot.accounts.roles import Role
from bonobot.core.http import error_pages
from bonobot.core.telemetry.logging import JSONFormatter, request_id
from tests import admin_client, factories


def test_error_pages_need_no_session_and_no_database() -> None:
    request = RequestFactory().get("/admin/x/")
    answers = {
        "permission": error_pages.show_forbidden(request, PermissionDenied()),
        "Page not found": error_pages.show_not_found(request, Http404()),
        "Something went wrong": error_pages.show_server_error(request),
        "Too many attempts": error_pages.show_too_many_requests(request),
        "This form has expired": error_pages.show_csrf_failure(request, "reason"),
    }
    assert [answer.status_code for answer in answers.values()] == [403, 404, 500, 429, 403]
    for text, answer in answers.items():
        assert text in answer.text
        assert "<script" not in answer.text
        assert 'href="/"' in answer.text


def test_error_pages_are_in_the_active_language() -> None:
    with translation.override("de"):
        answer = error_pages.show_not_found(RequestFactory().get("/admin/x/"), Http404())
    assert "Seite nicht gefunden" in answer.text
    assert '<html lang="de">' in answer.text


def test_a_failed_page_says_what_to_do_and_which_id_to_send() -> None:
    token = request_id.set("0123abcd")
    try:
        answer = error_pages.show_server_error(RequestFactory().get("/admin/x/?q=1&p=2"))
        with translation.override("de"):
            german = error_pages.show_server_error(RequestFactory().get("/admin/x/"))
    finally:
        request_id.reset(token)
    assert "The page couldn&#x27;t be shown because of an unexpected error" in answer.text
    assert "send the request ID to your administrator" in answer.text
    assert "Request ID <code>0123abcd</code>" in answer.text
    assert '<a class="button" href="/admin/x/?q=1&amp;p=2">Try again</a>' in answer.text
    assert '<a href="/">Open the start page</a>' in answer.text
    assert "sende die Anfrage-ID an deinen Administrator" in german.text


def test_a_failed_form_links_to_its_page_and_doesnt_say_that_it_was_saved() -> None:
    headers = {"Referer": "http://testserver/admin/x/1/change/"}
    answer = error_pages.show_server_error(RequestFactory().post("/admin/x/1/", headers=headers))
    assert "may not have been saved" in answer.text
    assert 'href="/admin/x/1/change/">Return to the form</a>' in answer.text
    assert "Try again</a>" not in answer.text
    foreign = RequestFactory().post("/admin/x/1/", headers={**headers, "Host": "unknown host"})
    assert '<a class="button" href="/">' in error_pages.show_server_error(foreign).text


def test_the_error_page_is_shown_when_the_database_fails() -> None:
    # Without the mark `django_db`, each query fails, the first one when the session is loaded.
    client = Client(raise_request_exception=False)
    client.cookies[settings.SESSION_COOKIE_NAME] = "a" * 32
    answer = client.get("/admin/")
    assert answer.status_code == 500
    assert "The page couldn&#x27;t be shown" in answer.text


@pytest.mark.parametrize("path", ["/api/x", "/oauth/token", "/healthz"])
def test_programs_receive_the_plain_answer(path: str) -> None:
    answer = error_pages.show_not_found(RequestFactory().get(path), Http404())
    assert "Bonobot" not in answer.text


@pytest.mark.django_db
def test_an_unknown_address_and_an_outdated_form_show_our_pages() -> None:
    client = Client(enforce_csrf_checks=True)
    assert "Page not found" in client.get("/unknown/").text
    refused = client.post("/admin/login/", {"username": "a"})
    assert refused.status_code == 403
    assert "This form has expired" in refused.text


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/admin/nowhere/", "/admin/mcp_servers/nowhere/1/", "/docs/nowhere"]
)
def test_a_signed_in_person_keeps_the_navigation_at_an_unknown_address(path: str) -> None:
    auditor = admin_client.sign_in(factories.create_organization(), Role.AUDITOR)
    page = auditor.open(path, status=404)
    assert 'id="nav-sidebar"' in page
    assert "Not found" in page


async def test_an_error_page_has_the_id_that_its_log_line_has() -> None:
    parts: list[Any] = []
    requests = [{"type": "http.request"}]

    async def receive() -> dict[str, Any]:
        return requests.pop() if requests else await asyncio.Future()

    async def send(message: Any) -> None:
        parts.append(message)

    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(JSONFormatter())
    logging.getLogger("django.request").addHandler(handler)
    scope = {"type": "http", "method": "GET", "path": "/unknown/", "query_string": b""}
    scope["headers"] = [(b"host", b"testserver")]
    token = request_id.set("")
    try:
        await asgi.application(scope, receive, send)
    finally:
        request_id.reset(token)
        logging.getLogger("django.request").removeHandler(handler)
    page = b"".join(part.get("body", b"") for part in parts).decode()
    shown = re.search(r"Request ID <code>([0-9a-f]{8})</code>", page)
    assert shown
    assert f'"request": "{shown[1]}"' in handler.stream.getvalue()
