"""Emails and audit entries about changes of how a person signs in."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.core import mail
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from bonobot.accounts.account_emails import SENTENCES, send_due_emails
from bonobot.accounts.members import save_user
from bonobot.accounts.models import Identity, Organization, Provider, Token, User
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.sso.account_linking import link_identity, resolve_user, unlink_identity
from bonobot.accounts.sso.claims import ProviderUser
from bonobot.accounts.tokens import oauth_grants
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.bonobot.accounts.test_second_factor import PASSWORD, set_up_codes, sign_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("account_mail")]

EMAIL, NEW_EMAIL = "anna@example.com", "anna@new.example.com"
NEW = "another-long-one-for-tests"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    user = User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)
    User.objects.filter(pk=user.pk).update(email=EMAIL)
    return User.objects.get(pk=user.pk)


@contextmanager
def read_mails() -> Iterator[list[tuple[str, str]]]:
    """Yield a list that holds the address and text of each email after the block."""
    mails: list[tuple[str, str]] = []
    mail.outbox.clear()
    yield mails
    send_due_emails()
    mails.extend((message.to[0], str(message.body)) for message in mail.outbox)


def sign_in_again() -> Client:
    """Return a browser that entered the password twice, as changes of the sign-in require."""
    client = sign_in()
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    return client


def change_password(anna: User) -> None:
    passwords = {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW}
    response = sign_in().post(reverse("admin:password_change"), passwords)
    assert response.status_code == 302, response.content.decode()


def change_password_as_administrator(anna: User) -> None:
    factories.create_member(anna.memberships.get().organization, Role.OWNER, "root")
    User.objects.filter(username="root").update(is_superuser=True, is_staff=True)
    passwords = {"usable_password": "true", "password1": NEW, "password2": NEW}
    path = reverse("admin:auth_user_password_change", args=[anna.pk])
    response = sign_in("root").post(path, passwords)
    assert response.status_code == 302, response.content.decode()


def set_email(address: str) -> Callable[[User], object]:
    return lambda anna: call_command("members", "set", "anna", "--email", address, "--org", "acme")


def remove_codes(anna: User) -> None:
    client = sign_in()
    set_up_codes(client)
    mail.outbox.clear()
    client.post(reverse("mfa_deactivate_totp"))


def generate_recovery_codes(anna: User) -> None:
    client = sign_in()
    set_up_codes(client)
    mail.outbox.clear()
    client.post(reverse("mfa_generate_recovery_codes"))


def create_provider(organization: Organization) -> Provider:
    return Provider.objects.create(
        organization=organization, name="Okta", url="https://okta.example.com", client_id="bonobot"
    )


def clear_email(anna: User) -> None:
    """Remove the address as a platform administrator does on the page of the account."""
    anna.email = ""
    principal = factories.build_administrator(anna.memberships.get().organization)
    save_user(principal, anna, ["email"], adding=False)


def link(anna: User) -> Identity:
    provider = create_provider(anna.memberships.get().organization)
    return link_identity(provider, ProviderUser("a", EMAIL, True, "", "", {}), anna)


def unlink(anna: User) -> None:
    identity = link(anna)
    unlink_identity(anna, identity)


CHANGES: dict[str, tuple[Callable[[User], object], str, set[str], str]] = {
    "own password": (change_password, "password_changed", {EMAIL}, "password_changed"),
    "password by an administrator": (
        change_password_as_administrator,
        "password_changed",
        {EMAIL},
        "password_changed",
    ),
    "email": (set_email(NEW_EMAIL), "email_changed", {EMAIL, NEW_EMAIL}, "user_updated"),
    "no email": (clear_email, "email_removed", {EMAIL}, "user_updated"),
    "app": (lambda anna: set_up_codes(sign_in()), "totp_added", {EMAIL}, "second_factor_added"),
    "no app": (remove_codes, "totp_removed", {EMAIL}, "second_factor_removed"),
    "recovery codes": (
        generate_recovery_codes,
        "recovery_codes_added",
        {EMAIL},
        "second_factor_added",
    ),
    "provider": (link, "identity_linked", {EMAIL}, "identity_linked"),
    "no provider": (unlink, "identity_unlinked", {EMAIL}, "identity_unlinked"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_sign_in_is_mailed_and_audited(anna: User, change: str) -> None:
    make, code, addresses, action = CHANGES[change]
    with read_mails() as mails:
        make(anna)
    start = SENTENCES[code].partition("%(name)s")[0].partition("“")[0]
    assert {address for address, text in mails if text.startswith(start)} == addresses, mails
    assert AuditRow.objects.filter(action=action).exists()


def test_a_person_who_joins_by_a_provider_gets_no_email(acme: Organization) -> None:
    provider = create_provider(acme)
    Provider.objects.filter(pk=provider.pk).update(creates=True)
    provider.refresh_from_db()
    with read_mails() as mails:
        resolve_user(provider, ProviderUser("carl", "carl@example.com", True, "", "", {}))
    assert mails == []
    assert Identity.objects.filter(subject="carl").exists()


def test_an_account_that_a_sign_in_links_is_mailed(anna: User) -> None:
    provider = create_provider(anna.memberships.get().organization)
    with read_mails() as mails:
        resolve_user(provider, ProviderUser("anna", EMAIL, True, "", "", {}))
    assert [address for address, _text in mails] == [EMAIL]


def test_an_added_email_address_is_mailed_to_it(anna: User) -> None:
    User.objects.filter(pk=anna.pk).update(email="")
    with read_mails() as mails:
        set_email(NEW_EMAIL)(anna)
    assert [address for address, _text in mails] == [NEW_EMAIL]


@pytest.mark.parametrize(
    ("change", "count"), [(change_password, 1), (change_password_as_administrator, 0)]
)
def test_authorized_clients_end_when_an_administrator_sets_a_password(
    anna: User, acme: Organization, change: Callable[[User], None], count: int
) -> None:
    grant = oauth_grants.create_grant(
        anna,
        acme,
        role=Role.OPERATOR,
        resource="https://bonobot.example.com/mcp",
        client_id="ide",
        client="IDE",
        scopes=[TokenScope.TOOLS],
        agent_ids=[],
    )
    oauth_grants.rotate_grant(grant, first=True)
    change(anna)
    assert Token.objects.active().filter(user=anna).count() == count


def test_a_rejected_password_change_is_neither_mailed_nor_audited(anna: User) -> None:
    passwords = {"old_password": "wrong", "new_password1": NEW, "new_password2": NEW}
    with read_mails() as mails:
        sign_in().post(reverse("admin:password_change"), passwords)
    assert mails == []
    assert not AuditRow.objects.filter(action="password_changed").exists()


def test_nothing_is_queued_when_no_mail_can_be_sent(anna: User, settings: Any) -> None:
    settings.BONOBOT_EMAIL_URL = ""
    with read_mails() as mails:
        change_password(anna)
    assert mails == []


def test_a_name_of_a_provider_shows_hidden_characters(anna: User) -> None:
    with read_mails() as mails:
        organization = anna.memberships.get().organization
        provider = create_provider(organization)
        provider.name = "Okta\u202e\nmoc.live"
        link_identity(provider, ProviderUser("a", EMAIL, True, "", "", {}), anna)
    assert "\u202e" not in mails[0][1]


def request_email_change(client: Client, email: str = NEW_EMAIL) -> str:
    """Request another address and return the link to confirm it."""
    client.post(reverse("admin:profile_email"), {"email": email})
    match = re.search(r"/admin/profile/email/\S+", str(mail.outbox[-1].body))
    assert match
    return match[0]


def test_a_confirmed_email_address_is_mailed_to_both_addresses(anna: User) -> None:
    client = sign_in_again()
    link = request_email_change(client)
    with read_mails() as mails:
        client.post(link)
    assert {address for address, _text in mails} == {EMAIL, NEW_EMAIL}


def test_a_confirmation_link_isnt_valid_again_when_the_old_address_is_restored(anna: User) -> None:
    client = sign_in_again()
    link = request_email_change(client)
    client.post(link)
    set_email(EMAIL)(anna)
    assert client.get(link).status_code == 404
    client.post(link)
    anna.refresh_from_db()
    assert anna.email == EMAIL


def test_a_new_request_invalidates_the_link_of_an_earlier_one(anna: User) -> None:
    client = sign_in_again()
    first, second = request_email_change(client), request_email_change(client, "c@example.com")
    assert client.get(first).status_code == 404
    client.post(second)
    anna.refresh_from_db()
    assert anna.email == "c@example.com"


def test_two_accounts_can_confirm_the_same_address(anna: User, acme: Organization) -> None:
    factories.create_member(acme, Role.MEMBER, "bert")
    User.objects.filter(username="bert").update(email="bert@example.com")
    for client in (sign_in_again(), sign_in("bert")):
        client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
        client.post(request_email_change(client))
    assert User.objects.filter(email=NEW_EMAIL).count() == 2


def test_removing_a_passkey_is_mailed_with_its_name(anna: User) -> None:
    passkey = Authenticator.objects.create(
        user=anna, type=Authenticator.Type.WEBAUTHN, data={"name": "Laptop", "credential": {}}
    )
    client = sign_in_again()
    with read_mails() as mails:
        from allauth.mfa import signals

        signals.authenticator_removed.send(
            sender=Authenticator, request=client, user=anna, authenticator=passkey
        )
    assert [(address, "Laptop" in text) for address, text in mails] == [(EMAIL, True)]
