"""After a session has expired, signing in leads back to the form that was sent."""

from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client
from django.urls import reverse

from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
PAGE = "http://testserver/admin/agents/?q=a"


def read_next(location: str) -> str:
    assert urlsplit(location).path == reverse("admin:login")
    return parse_qs(urlsplit(location).query)["next"][0]


@pytest.mark.parametrize(("referrer", "page"), [(PAGE, "/admin/agents/?q=a"), ("", "/admin/")])
def test_a_post_without_a_session_returns_to_the_page_of_its_form(referrer: str, page: str) -> None:
    url = reverse("admin:tenancy_deletion_restore", args=["00000000-0000-4000-8000-000000000001"])
    answer = Client().post(url, headers={"referer": referrer})
    assert (answer.status_code, read_next(answer["Location"])) == (302, page)


def test_a_get_without_a_session_returns_to_itself() -> None:
    answer = Client().get("/admin/agents/", headers={"referer": PAGE})
    assert read_next(answer["Location"]) == "/admin/agents/"


def test_a_redirect_of_a_signed_in_person_is_unchanged() -> None:
    browser = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    answer = browser.client.post(reverse("admin:logout"), headers={"referer": PAGE})
    assert "login" not in answer.get("Location", "")


def test_the_sign_in_page_says_that_the_session_expired_only_if_it_did() -> None:
    text = "Your session expired. Sign in again to continue."
    browser = admin_client.sign_in(factories.create_organization(), Role.OWNER).client
    browser.session.flush()
    answer = browser.get("/admin/agents/?q=a")
    assert read_next(answer["Location"]) == "/admin/agents/?q=a"
    assert text in browser.get(answer["Location"]).content.decode()

    answer = Client().get("/admin/agents/")
    assert text not in Client().get(answer["Location"]).content.decode()
    assert text not in Client().get(reverse("admin:login"), {"expired": 1}).content.decode()
