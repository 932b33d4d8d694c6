"""The error pages that browsers receive, and the answers that programs receive."""

import pytest
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.test import Client, RequestFactory
from django.utils import translation

from bonobot.core.http import error_pages


def test_error_pages_need_no_session_and_no_database() -> None:
    request = RequestFactory().get("/admin/x/")
    answers = {
        "permission": error_pages.show_forbidden(request, PermissionDenied()),
        "Page not found": error_pages.show_not_found(request, Http404()),
        "Something went wrong": error_pages.show_server_error(request),
        "This form has expired": error_pages.show_csrf_failure(request, "reason"),
    }
    assert [answer.status_code for answer in answers.values()] == [403, 404, 500, 403]
    for text, answer in answers.items():
        assert text in answer.text
        assert "<script" not in answer.text
        assert 'href="/"' in answer.text


def test_error_pages_are_in_the_active_language() -> None:
    with translation.override("de"):
        answer = error_pages.show_not_found(RequestFactory().get("/admin/x/"), Http404())
    assert "Seite nicht gefunden" in answer.text
    assert '<html lang="de">' in answer.text


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
