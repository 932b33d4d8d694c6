"""The first account is asked to create the first organization; later accounts aren't."""

import pytest
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.views.join_organization import DEFAULT_SLUG
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
    assert response.redirect_chain[-1][0] == reverse("admin:index")
    assert "Continue: Connect a server" in admin_client.get_text(admin_client.check_page(response))
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
