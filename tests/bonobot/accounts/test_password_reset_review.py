"""The link that is mailed after a password reset: what it shows, what it ends, and its limits."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from allauth.mfa.models import Authenticator
from django.core import mail
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from time_machine import travel

from bonobot.accounts.account_emails import send_due_emails
from bonobot.accounts.models import Identity, Organization, User
from bonobot.accounts.password_reset import build_reset_link, build_review_link
from bonobot.accounts.roles import Role
from bonobot.accounts.sso.account_linking import link_identity
from bonobot.accounts.sso.claims import ProviderUser
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories
from tests.bonobot.accounts.test_account_emails_sign_in_changes import create_provider
from tests.bonobot.accounts.test_sign_in_attacks import NEW, is_link_valid, reset_password

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("account_mail")]

EMAIL = "anna@example.com"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    user = User.objects.get(pk=factories.create_member(acme, Role.OPERATOR, "anna").id)
    User.objects.filter(pk=user.pk).update(email=EMAIL)
    return User.objects.get(pk=user.pk)


@pytest.fixture
def identity(acme: Organization, anna: User) -> Identity:
    """Link the account of an intruder."""
    provider_user = ProviderUser("eve", "eve@example.com", True, "", "", {})
    return link_identity(create_provider(acme), provider_user, anna)


def reset(anna: User) -> str:
    """Reset the password and return the path of the mailed link."""
    send_due_emails()  # those about earlier changes
    mail.outbox.clear()
    reset_password(build_reset_link(User.objects.get(pk=anna.pk)))
    send_due_emails()
    (message,) = mail.outbox
    assert message.to == [EMAIL]
    match = re.search(r"/admin/account/review/\S+", str(message.body))
    assert match
    return match[0]


def sign_in(password: str = NEW) -> Client:
    client = Client()
    client.post(reverse("admin:login"), {"username": "anna", "password": password})
    return client


def test_the_email_names_what_stays_after_a_reset(anna: User, identity: Identity) -> None:
    reset(anna)
    assert "1 linked account" in str(mail.outbox[0].body)
    assert Identity.objects.filter(pk=identity.pk).exists()


def test_the_link_shows_and_ends_what_an_intruder_added(anna: User, identity: Identity) -> None:
    Authenticator.objects.create(user=anna, type=Authenticator.Type.TOTP, data={})
    link = reset(anna)
    Authenticator.objects.filter(user=anna).update(data={"secret": ""})
    page = admin_client.get_text(admin_client.check_page(Client().get(link)))
    assert "eve@example.com" in page
    assert "TOTP" in page or "app" in page.lower()
    assert Identity.objects.filter(pk=identity.pk).exists()  # mail scanners open links too
    Client().post(link, {"identity": [str(identity.pk)]})
    assert not Identity.objects.filter(user=anna).exists()
    assert AuditRow.objects.filter(action="identity_unlinked", actor_label="anna").exists()


def test_the_link_ends_sessions_that_began_after_the_reset(anna: User) -> None:
    link = reset(anna)
    client = sign_in()
    assert client.get(reverse("admin:profile")).status_code == 200
    Client().post(link)
    assert client.get(reverse("admin:profile")).status_code == 302


def test_the_link_never_removes_a_second_factor_or_signs_in(anna: User) -> None:
    """Access to the mailbox alone must not be enough to sign in."""
    Authenticator.objects.create(user=anna, type=Authenticator.Type.TOTP, data={})
    client = Client()
    link = reset(anna)
    client.post(link, {"factor": "totp"})
    assert Authenticator.objects.filter(user=anna).exists()
    assert client.get(reverse("admin:profile")).status_code == 302


def test_an_unchecked_account_stays_linked(anna: User, identity: Identity) -> None:
    Client().post(reset(anna))
    assert Identity.objects.filter(pk=identity.pk).exists()


def test_the_link_reaches_no_account_of_somebody_else(acme: Organization, anna: User) -> None:
    bert = User.objects.get(pk=factories.create_member(acme, Role.OWNER, "bert").id)
    foreign = link_identity(
        create_provider(acme), ProviderUser("b", "b@example.com", True, "", "", {}), bert
    )
    Client().post(reset(anna), {"identity": [str(foreign.pk)]})
    assert Identity.objects.filter(pk=foreign.pk).exists()


def change_password(anna: User) -> None:
    anna.refresh_from_db()
    anna.set_password("yet-another-for-tests")
    anna.save()


ENDINGS: dict[str, Callable[[User], object]] = {
    "another password": change_password,
    "disabled": lambda anna: User.objects.filter(pk=anna.pk).update(is_active=False),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_review_link_ends(anna: User, ending: str) -> None:
    link = reset(anna)
    ENDINGS[ending](anna)
    assert Client().get(link).status_code == 404


def test_a_forged_or_expired_review_link_is_refused(anna: User) -> None:
    link = reset(anna)
    assert Client().get(link[:-3] + "xx/").status_code == 404
    assert Client().get(reverse("account_review", args=["x"])).status_code == 404
    with travel(datetime.now(UTC) + timedelta(days=7, seconds=1), tick=False):
        assert Client().get(link).status_code == 404


def test_a_review_link_is_valid_while_nothing_changed(anna: User) -> None:
    assert Client().get("/" + build_review_link(anna).split("/", 3)[3]).status_code == 200


def test_a_reset_link_isnt_valid_again_when_the_old_address_is_restored(anna: User) -> None:
    link = build_reset_link(anna)
    for address in ("eve@example.com", EMAIL):
        call_command("members", "set", "anna", "--email", address, "--org", "acme")
    assert not is_link_valid(link)
    assert is_link_valid(build_reset_link(User.objects.get(pk=anna.pk)))
