"""Attacks on passkeys: replay, another origin, another key, another account."""

import html
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.accounts.second_factor import has_second_factor
from tests import factories
from tests.admin_client import is_signed_in
from tests.bonobot.accounts.software_passkey import SecurityKey
from tests.bonobot.accounts.test_second_factor import PASSWORD

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("over_tls")]
ADD, ASK = "mfa_add_webauthn", "mfa_authenticate"


def sign_in(name: str = "anna") -> Client:
    """Return a browser that entered the password."""
    client = Client()
    client.post(reverse("admin:login"), {"username": name, "password": PASSWORD}, secure=True)
    return client


def read_options(client: Client, name: str) -> dict[str, Any]:
    """Return the WebAuthn options of a page."""
    page = html.unescape(client.get(reverse(name), secure=True).content.decode())
    for script in re.findall(r">\s*(\{.*?\"publicKey\".*\})\s*</script>", page):
        data = json.loads(script)
        for value in (data, *data.values()):
            if isinstance(value, dict) and "publicKey" in value:
                options: dict[str, Any] = value
                return options
    raise AssertionError(page)


def add_key(key: SecurityKey, name: str = "anna") -> None:
    """Register a key for an account."""
    client = sign_in(name)
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD}, secure=True)
    data = {"name": "Key", "credential": key.register(read_options(client, ADD))}
    response = client.post(reverse(ADD), data, secure=True)
    assert response.status_code == 302, response.content.decode()


def post_assertion(client: Client, credential: str) -> bool:
    """Post an assertion and return whether the browser is signed in."""
    client.post(reverse(ASK), {"credential": credential}, secure=True)
    return is_signed_in(client, secure=True)


def test_a_passkey_signs_in_and_its_assertion_is_valid_once(anna: User) -> None:
    key = SecurityKey()
    add_key(key)
    assert has_second_factor(anna)
    client = sign_in()
    assert not is_signed_in(client, secure=True)
    assertion = key.answer(read_options(client, ASK))
    assert post_assertion(client, assertion)
    second_client = sign_in()
    read_options(second_client, ASK)
    assert not post_assertion(second_client, assertion)


def from_other_origin(key: SecurityKey, request_options: dict[str, Any]) -> str:
    key.origin = "https://testserver.evil.example"
    return key.answer(request_options)


def from_http(key: SecurityKey, request_options: dict[str, Any]) -> str:
    key.origin = "http://testserver"
    return key.answer(request_options)


def for_other_rp(key: SecurityKey, request_options: dict[str, Any]) -> str:
    key.rp = "evil.example"
    return key.answer(request_options)


def of_registration(key: SecurityKey, request_options: dict[str, Any]) -> str:
    return key.answer(request_options, kind="webauthn.create")


def without_user(key: SecurityKey, request_options: dict[str, Any]) -> str:
    return key.answer(request_options, flags=0)


def with_other_key(key: SecurityKey, request_options: dict[str, Any]) -> str:
    other_key = SecurityKey()
    other_key.id = key.id
    return other_key.answer(request_options)


def with_unknown_key(key: SecurityKey, request_options: dict[str, Any]) -> str:
    return SecurityKey().answer(request_options)


def for_other_challenge(key: SecurityKey, request_options: dict[str, Any]) -> str:
    return key.answer({"publicKey": request_options["publicKey"] | {"challenge": "A" * 43}})


def without_assertion(key: SecurityKey, request_options: dict[str, Any]) -> str:
    return "{}"


FORGED = (
    *(from_other_origin, from_http, for_other_rp, of_registration, without_user),
    *(with_other_key, with_unknown_key, for_other_challenge, without_assertion),
)


@pytest.mark.parametrize("build_assertion", FORGED)
def test_assertions_for_another_origin_or_challenge_are_refused(
    anna: User, build_assertion: Callable[[SecurityKey, dict[str, Any]], str]
) -> None:
    key = SecurityKey()
    add_key(key)
    client = sign_in()
    assert not post_assertion(client, build_assertion(key, read_options(client, ASK)))


def test_a_challenge_is_bound_to_one_browser(anna: User) -> None:
    key = SecurityKey()
    add_key(key)
    other_client, client = sign_in(), sign_in()
    read_options(client, ASK)
    assert not post_assertion(client, key.answer(read_options(other_client, ASK)))


def test_a_passkey_of_another_account_is_refused(anna: User) -> None:
    acme = Organization.objects.get()
    factories.create_member(acme, Role.MEMBER, "eve")
    foreign_key = SecurityKey()
    add_key(SecurityKey())
    add_key(foreign_key, "eve")
    client = sign_in()
    assert not post_assertion(client, foreign_key.answer(read_options(client, ASK)))


def test_adding_a_passkey_requires_a_recent_password(anna: User) -> None:
    client = sign_in()
    response = client.get(reverse(ADD), secure=True)
    assert reverse("account_reauthenticate") in response["Location"]
    key = SecurityKey()
    options = {"publicKey": {"challenge": "A" * 43}}
    data = {"name": "Key", "credential": key.register(options)}
    client.post(reverse(ADD), data, secure=True)
    client.post(reverse("account_reauthenticate"), {"password": PASSWORD}, secure=True)
    client.post(reverse(ADD), data, secure=True)  # a challenge that was never issued
    assert not Authenticator.objects.exists()
