"""What remains valid after a password reset: nothing that an intruder may have created."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import mail
from django.test import Client
from django.urls import reverse

from bonobot.accounts.known_devices import find_device
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.password_reset import build_reset_link
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens import oauth_grants
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.bonobot.accounts.test_sign_in_attacks import NEW, is_link_valid, reset_password
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db

PASSWORD = "pw-for-tests"


@pytest.fixture(autouse=True)
def _mail(settings: Any) -> Iterator[None]:
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def anna(acme: Organization) -> User:
    user = User.objects.get(pk=factories.create_member(acme, Role.OPERATOR, "anna").id)
    User.objects.filter(pk=user.pk).update(email="anna@example.com")
    return User.objects.get(pk=user.pk)


def sign_in(password: str = PASSWORD) -> Client:
    client = Client()
    client.post(reverse("admin:login"), {"username": "anna", "password": password})
    return client


def reset(user: User) -> None:
    reset_password(build_reset_link(User.objects.get(pk=user.pk)))


def test_the_clients_of_an_intruder_lose_their_access(acme: Organization, anna: User) -> None:
    factories.create_member(acme, Role.OPERATOR, "bert")
    for name in ("anna", "bert"):
        oauth_grants.create_grant(
            User.objects.get(username=name),
            acme,
            role=Role.OPERATOR,
            resource="https://bonobot.example.com/mcp",
            client_id="ide",
            client="IDE",
            scopes=[TokenScope.TOOLS],
            agent_ids=[],
        )
    grant = Token.objects.get(user=anna)
    oauth_grants.rotate_grant(grant, first=True)
    oauth_grants.rotate_grant(Token.objects.get(user__username="bert"), first=True)
    reset(anna)
    assert [grant.user.get_username() for grant in Token.objects.active()] == ["bert"]
    entry = AuditRow.objects.get(action="client_access_revoked")
    assert entry.actor_label == "anna"
    assert "password_reset" in entry.opened


def test_an_authorization_that_isnt_finished_is_refused(acme: Organization, anna: User) -> None:
    """A code that was issued before the reset gives no token afterward."""
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
    reset(anna)
    grant.refresh_from_db()
    assert oauth_grants.rotate_grant(grant, first=True) is None


def test_a_requested_email_address_cant_be_confirmed_any_more(anna: User) -> None:
    client = sign_in()
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD})
    client.post(reverse("admin:profile_email"), {"email": "eve@example.com"})
    match = re.search(r"/admin/profile/email/\S+", str(mail.outbox[-1].body))
    assert match
    reset(anna)
    client = sign_in(NEW)
    client.post(match[0])
    anna.refresh_from_db()
    assert anna.email == "anna@example.com"


def test_all_devices_are_signed_out_and_unknown(anna: User, rf: Any) -> None:
    clients = [sign_in(), sign_in()]
    reset(anna)
    for client in clients:
        assert client.get(reverse("admin:profile")).status_code == 302
        request = rf.get("/")
        request.COOKIES = {name: morsel.value for name, morsel in client.cookies.items()}
        assert find_device(request, "anna") == ""


def test_other_reset_links_and_open_forms_are_invalid(anna: User) -> None:
    link, other_link = build_reset_link(anna), build_reset_link(anna)
    intruder = Client()
    form = intruder.get("/" + link.split("/", 3)[3])["Location"]
    reset(anna)
    intruder.post(
        form, {"new_password1": "of-the-intruder-1", "new_password2": "of-the-intruder-1"}
    )
    anna.refresh_from_db()
    assert anna.check_password(NEW)
    assert not is_link_valid(link)
    assert not is_link_valid(other_link)


def test_the_form_of_a_link_cant_be_opened_in_another_browser(anna: User) -> None:
    form = Client().get("/" + build_reset_link(anna).split("/", 3)[3])["Location"]
    Client().post(form, {"new_password1": NEW, "new_password2": NEW})
    anna.refresh_from_db()
    assert anna.check_password(PASSWORD)
