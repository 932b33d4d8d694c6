"""A table of attacks on passkeys: replay, another page, another key, somebody else's."""

import html
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.second_factor import has_second_factor
from tests import factories
from tests.bonobot.accounts.software_passkey import SecurityKey
from tests.bonobot.accounts.test_second_factor import PASSWORD
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db
ADD, ASK = "mfa_add_webauthn", "mfa_authenticate"


@pytest.fixture(autouse=True)
def _over_tls(settings: Any) -> Iterator[None]:
    """Be asked over TLS, where the page's origin is looked at; forget tries."""
    settings.MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = False
    clear_cache()
    yield
    clear_cache()


@pytest.fixture
def anna() -> User:
    acme: Organization = factories.create_organization()
    return User.objects.get(pk=factories.create_member(acme, Role.OWNER, "anna").id)


def browser(name: str = "anna") -> Client:
    """Return a browser that gave its password."""
    client = Client()
    client.post(reverse("admin:login"), {"username": name, "password": PASSWORD}, secure=True)
    return client


def options(client: Client, name: str) -> dict[str, Any]:
    """Return what a page asks the browser's keys for."""
    page = html.unescape(client.get(reverse(name), secure=True).content.decode())
    for found in re.findall(r">\s*(\{.*?\"publicKey\".*\})\s*</script>", page):
        data = json.loads(found)
        for value in (data, *data.values()):
            if isinstance(value, dict) and "publicKey" in value:
                asked: dict[str, Any] = value
                return asked
    raise AssertionError(page)


def added(key: SecurityKey, name: str = "anna") -> None:
    """Add a key to an account."""
    client = browser(name)
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD}, secure=True)
    said = {"name": "Key", "credential": key.register(options(client, ADD))}
    answer = client.post(reverse(ADD), said, secure=True)
    assert answer.status_code == 302, answer.content.decode()


def is_in(client: Client) -> bool:
    return client.get(reverse("admin:index"), secure=True).status_code == 200


def send(client: Client, credential: str) -> bool:
    """Post a key's answer and tell whether the browser is in."""
    client.post(reverse(ASK), {"credential": credential}, secure=True)
    return is_in(client)


def test_a_passkey_signs_in_and_its_assertion_is_valid_once(anna: User) -> None:
    key = SecurityKey()
    added(key)
    assert has_second_factor(anna)
    client = browser()
    assert not is_in(client)
    said = key.answer(options(client, ASK))
    assert send(client, said)
    again = browser()
    options(again, ASK)
    assert not send(again, said)


def elsewhere(key: SecurityKey, asked: dict[str, Any]) -> str:
    key.origin = "https://testserver.evil.example"
    return key.answer(asked)


def unencrypted(key: SecurityKey, asked: dict[str, Any]) -> str:
    key.origin = "http://testserver"
    return key.answer(asked)


def for_another(key: SecurityKey, asked: dict[str, Any]) -> str:
    key.rp = "evil.example"
    return key.answer(asked)


def of_another_kind(key: SecurityKey, asked: dict[str, Any]) -> str:
    return key.answer(asked, kind="webauthn.create")


def nobody_there(key: SecurityKey, asked: dict[str, Any]) -> str:
    return key.answer(asked, flags=0)


def another_key(key: SecurityKey, asked: dict[str, Any]) -> str:
    other = SecurityKey()
    other.id = key.id
    return other.answer(asked)


def unknown_key(key: SecurityKey, asked: dict[str, Any]) -> str:
    return SecurityKey().answer(asked)


def another_challenge(key: SecurityKey, asked: dict[str, Any]) -> str:
    return key.answer({"publicKey": asked["publicKey"] | {"challenge": "A" * 43}})


def no_answer(key: SecurityKey, asked: dict[str, Any]) -> str:
    return "{}"


FORGED = (
    *(elsewhere, unencrypted, for_another, of_another_kind, nobody_there),
    *(another_key, unknown_key, another_challenge, no_answer),
)


@pytest.mark.parametrize("forged", FORGED)
def test_assertions_for_another_origin_or_challenge_are_refused(
    anna: User, forged: Callable[[SecurityKey, dict[str, Any]], str]
) -> None:
    key = SecurityKey()
    added(key)
    client = browser()
    assert not send(client, forged(key, options(client, ASK)))


def test_a_challenge_is_bound_to_one_browser(anna: User) -> None:
    key = SecurityKey()
    added(key)
    theirs, mine = browser(), browser()
    options(mine, ASK)
    assert not send(mine, key.answer(options(theirs, ASK)))


def test_a_passkey_of_another_account_is_refused(anna: User) -> None:
    acme = Organization.objects.get()
    factories.create_member(acme, Role.MEMBER, "eve")
    hers = SecurityKey()
    added(SecurityKey())
    added(hers, "eve")
    client = browser()
    assert not send(client, hers.answer(options(client, ASK)))


def test_adding_a_passkey_requires_a_recent_password(anna: User) -> None:
    client = browser()
    answer = client.get(reverse(ADD), secure=True)
    assert reverse("account_reauthenticate") in answer["Location"]
    key = SecurityKey()
    made_up = {"publicKey": {"challenge": "A" * 43}}
    said = {"name": "Key", "credential": key.register(made_up)}
    client.post(reverse(ADD), said, secure=True)
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD}, secure=True)
    client.post(reverse(ADD), said, secure=True)  # a challenge that was never given
    assert not Authenticator.objects.exists()
