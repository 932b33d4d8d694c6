"""The first organization: whoever makes the first account is led to it, nobody else is."""

import pytest
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.views.join_organization import DEFAULT_SLUG
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
BEGIN = "account_begin"


@pytest.fixture
def first() -> Client:
    """The browser of who made the first account."""
    User.objects.create_superuser("first", password="pw-for-tests")
    client = Client()
    said = {"username": "first", "password": "pw-for-tests"}
    answer = client.post(reverse("admin:login"), said, follow=True)
    assert answer.redirect_chain[-1] == (reverse(BEGIN), 302)
    return client


def test_the_first_account_creates_an_organization_and_owns_it(first: Client) -> None:
    answer = first.post(reverse(BEGIN), {"name": "Größe & Co"}, follow=True)
    assert answer.redirect_chain[-1][0] == reverse("admin:index")
    assert "Continue: Connect a server" in admin_client.words(admin_client.page_of(answer))
    made = Organization.objects.get()
    assert (made.name, made.slug) == ("Größe & Co", "groe-co")
    assert Membership.objects.get().role == Role.OWNER
    rows = AuditRow.objects.for_organization(made.pk).order_by("seq")
    assert [row.action for row in rows] == ["organization_created", "member_added"]


def test_a_name_without_latin_letters_gets_a_slug(first: Client) -> None:
    first.post(reverse(BEGIN), {"name": "株式会社"})
    assert Organization.objects.get().slug == DEFAULT_SLUG


def test_a_blank_name_creates_nothing(first: Client) -> None:
    page = admin_client.page_of(first.post(reverse(BEGIN), {"name": " "}))
    assert 'data-field="name"' in page
    assert not Organization.objects.exists()


def test_the_form_isnt_shown_if_an_organization_exists() -> None:
    acme = factories.create_organization()
    for seat in (admin_client.sit(acme, None), admin_client.sit(acme, Role.OWNER)):
        answer = seat.client.post(reverse(BEGIN), {"name": "Another"})
        assert answer.headers["Location"] == reverse("admin:index")
    assert Organization.objects.get() == acme


def test_an_account_without_an_organization_sees_an_explanation() -> None:
    factories.create_organization()
    stray = User.objects.create_user("stray", password="pw-for-tests")
    client = Client()
    client.force_login(stray)
    page = admin_client.page_of(client.get(reverse("admin:index"), follow=True))
    assert (
        "You are signed in as stray. You aren't a member of any organization yet."
        in admin_client.words(page)
    )
