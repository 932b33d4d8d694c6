"""The first account and organization: with a link of the host, or after `createsuperuser`."""

import pytest
from django.test import Client
from django.urls import reverse

from bonobot.accounts.first_account import DEFAULT_SLUG, build_first_account_path
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
CREATE_PAGE = "account_begin"


@pytest.fixture
def first_client() -> Client:
    """Sign in with the first account."""
    User.objects.create_superuser("first", password="pw-for-tests")
    client = Client()
    data = {"username": "first", "password": "pw-for-tests"}
    response = client.post(reverse("admin:login"), data, follow=True)
    assert response.redirect_chain[-1] == (reverse(CREATE_PAGE), 302)
    return client


def test_the_first_account_creates_an_organization_and_owns_it(first_client: Client) -> None:
    response = first_client.post(reverse(CREATE_PAGE), {"name": "Größe & Co"}, follow=True)
    assert response.redirect_chain[-1][0] == reverse("admin:first_run")
    assert "Add a server" in admin_client.get_text(admin_client.check_page(response))
    organization = Organization.objects.get()
    assert (organization.name, organization.slug) == ("Größe & Co", "groe-co")
    assert Membership.objects.get().role == Role.OWNER
    rows = AuditRow.objects.for_organization(organization.pk).order_by("seq")
    assert [row.action for row in rows] == ["organization_created", "member_added"]


def test_a_name_without_latin_letters_gets_a_slug(first_client: Client) -> None:
    first_client.post(reverse(CREATE_PAGE), {"name": "株式会社"})
    assert Organization.objects.get().slug == DEFAULT_SLUG


def test_a_blank_name_creates_nothing(first_client: Client) -> None:
    page = admin_client.check_page(first_client.post(reverse(CREATE_PAGE), {"name": " "}))
    assert 'data-field="name"' in page
    assert not Organization.objects.exists()


def test_the_form_isnt_shown_if_an_organization_exists() -> None:
    acme = factories.create_organization()
    for admin in (admin_client.sign_in(acme, None), admin_client.sign_in(acme, Role.OWNER)):
        response = admin.client.post(reverse(CREATE_PAGE), {"name": "Another"})
        assert response.headers["Location"] == reverse("admin:index")
    assert Organization.objects.get() == acme


def test_an_account_without_an_organization_sees_an_explanation() -> None:
    factories.create_organization()
    stray = User.objects.create_user("stray", password="pw-for-tests")
    client = Client()
    client.force_login(stray)
    page = admin_client.check_page(client.get(reverse("admin:index"), follow=True))
    assert (
        "You are signed in as stray. You aren't a member of any organization yet."
        in admin_client.get_text(page)
    )


ACCOUNT = {"name": "Acme", "username": "first", "email": "", "password": "pw-for-tests"}


def test_the_link_creates_the_account_with_its_organization_and_signs_in() -> None:
    client = Client()
    sign_in_page = admin_client.check_page(client.get(reverse("admin:login")))
    page = admin_client.check_page(client.get(build_first_account_path(), follow=True))
    assert "bonobot/icon" in sign_in_page
    assert "bonobot/icon" in page.partition("<main")[2]  # the same frame
    assert "Step 1 of 3" in admin_client.get_text(page)
    response = client.post(reverse("account_first"), ACCOUNT, follow=True)
    assert response.redirect_chain[-1][0] == reverse("admin:first_run")
    assert "first in Acme" in admin_client.get_text(admin_client.check_page(response))
    user = User.objects.get()
    assert user.is_superuser
    assert Membership.objects.get().role == Role.OWNER


@pytest.mark.parametrize("change", [{"password": "short"}, {"password": "password"}, {"name": " "}])
def test_an_invalid_account_creates_nothing(change: dict[str, str]) -> None:
    client = Client()
    client.get(build_first_account_path())
    page = admin_client.check_page(client.post(reverse("account_first"), ACCOUNT | change))
    assert "bb-errors" in page
    assert not User.objects.exists()


def test_the_form_needs_the_link() -> None:
    for link in ("", reverse("account_first_link", args=["guessed"])):
        client = Client()
        if link:
            client.get(link)
        response = client.post(reverse("account_first"), ACCOUNT)
        assert response.status_code == 404
        assert not User.objects.exists()


def test_the_link_is_invalid_once_an_account_exists() -> None:
    client = Client()
    client.get(build_first_account_path())
    User.objects.create_user("other")
    assert client.post(reverse("account_first"), ACCOUNT).status_code == 404
    assert User.objects.get().username == "other"


def test_the_sign_in_page_says_how_to_create_the_first_account() -> None:
    url = reverse("admin:login")
    assert "No accounts yet." in admin_client.check_page(Client().get(url))
    User.objects.create_user("other")
    assert "No accounts yet." not in admin_client.check_page(Client().get(url))
