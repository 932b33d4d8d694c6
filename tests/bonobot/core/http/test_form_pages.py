"""The page of a posted form, from what the browser says."""

import pytest
from django.test import RequestFactory

from bonobot.core.http.error_pages import find_form_page


@pytest.mark.parametrize(
    ("referrer", "page"),
    [
        ("http://testserver/admin/x/?tab=1", "/admin/x/?tab=1"),
        ("http://testserver/admin/x/", "/admin/x/"),
        ("http://testserver", "/default/"),
        ("https://evil.example/admin/", "/default/"),
        ("http://testserver.evil.example/admin/", "/default/"),
        ("javascript:alert(1)", "/default/"),
        ("//evil.example/admin/", "/default/"),
        ("", "/default/"),
    ],
)
def test_only_pages_of_this_host_are_returned_to(referrer: str, page: str) -> None:
    request = RequestFactory().post("/admin/y/", headers={"referer": referrer})
    assert find_form_page(request, "/default/") == page


def test_a_path_that_browsers_read_as_another_host_is_not_returned_to() -> None:
    headers = {"referer": "http://testserver//evil.example/"}
    request = RequestFactory().post("/admin/y/", headers=headers)
    assert find_form_page(request, "/default/") == "/default/"
