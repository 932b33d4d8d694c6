"""Attacks on sign-in with a provider by changed providers, mixed claims, and prepared accounts."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Identity, Organization, User
from bonobot.accounts.profiles import request_email_change
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import identity_providers as sso
from tests import factories
from tests.admin_client import is_signed_in
from tests.bonobot.accounts.sso.provider_process import (
    ANNA,
    authorize,
    create_person,
    create_provider,
    read_authorization_request,
    read_code,
    run_provider,
    sign_in,
    sign_in_with_password,
)
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db
NEW_SECRET = "secret-of-the-new-provider"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with run_provider() as address:
        yield address


@pytest.fixture(autouse=True)
def _reset_provider(url: str) -> Iterator[None]:
    clear_cache()
    httpx.post(f"{url}/say", json={})
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.mark.parametrize("changed", ["url", "client_id"])
def test_a_secret_isnt_sent_to_the_provider_of_a_sign_in_that_began_before_a_change(
    acme: Organization, url: str, changed: str
) -> None:
    """The token endpoint is kept in the session; the secret is read at the callback."""
    owner = factories.build_administrator(acme)
    provider, client = create_provider(acme, url, creates=True), Client()
    page = client.post(reverse("account_sso", args=[provider.pk]))
    back = authorize(url, read_authorization_request(client, page), ANNA)
    with run_provider() as new_url:
        changes = {"url": new_url} if changed == "url" else {"client_id": "bonobot-2"}
        sso.update_provider(owner, provider, client_secret=NEW_SECRET, **changes)
        before = len(httpx.get(f"{url}/credentials").json())
        response = client.get(back)
        assert read_code(response) == "identity_rejected"
        assert len(httpx.get(f"{url}/credentials").json()) == before
    assert not is_signed_in(client)


MIXED_CLAIMS: dict[str, dict[str, Any]] = {
    "the token verifies no address": {
        "claims": {"email": None, "email_verified": True},
        "userinfo": {"sub": "eve", "email": "bert@example.com"},
    },
    "the token denies": {
        "claims": {"email": None, "email_verified": False},
        "userinfo": {"sub": "eve", "email": "bert@example.com"},
    },
    "userinfo verifies another address": {
        "claims": {"email": "bert@example.com", "email_verified": None},
        "userinfo": {"sub": "eve", "email": "eve@example.com", "email_verified": True},
    },
    "userinfo of another person": {
        "claims": {"email": None, "email_verified": None},
        "userinfo": {"sub": "bert", "email": "bert@example.com", "email_verified": True},
    },
    "userinfo without a person": {
        "claims": {"email": None, "email_verified": None},
        "userinfo": {"email": "bert@example.com", "email_verified": True},
    },
}


@pytest.mark.parametrize("name", MIXED_CLAIMS)
def test_an_address_is_verified_only_by_its_own_source(
    acme: Organization, url: str, name: str
) -> None:
    bert = create_person(acme, Role.OWNER, "bert")
    provider, client = create_provider(acme, url, creates=True), Client()
    response = sign_in(client, provider, "eve", **MIXED_CLAIMS[name])
    assert read_code(response) in ("sso_email_unverified", "identity_rejected")
    assert not Identity.objects.filter(user=bert).exists()
    assert not is_signed_in(client)


CLAIMED = "administrator@example.com"


def post_profile(client: Client, eve: User) -> None:
    client.post(reverse("admin:profile"), {"email": CLAIMED, "language": "", "time_zone": ""})


def patch_me(client: Client, eve: User) -> None:
    client.patch("/api/me", {"email": CLAIMED}, content_type="application/json")


def request_change(client: Client, eve: User) -> None:
    request_email_change(eve, CLAIMED, "192.0.2.1")


def use_name(client: Client, eve: User) -> None:
    User.objects.filter(pk=eve.pk).update(username=CLAIMED)


@pytest.mark.parametrize("claim", [post_profile, patch_me, request_change, use_name])
def test_a_member_cant_prepare_an_account_for_the_address_of_another_person(
    acme: Organization, url: str, claim: Any, settings: Any
) -> None:
    """Pre-hijacking: the person would sign in to an account whose password a member knows."""
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"
    eve = create_person(acme, Role.MEMBER, "eve")
    claim(sign_in_with_password("eve"), eve)
    provider, client = create_provider(acme, url, creates=True), Client()
    sign_in(client, provider, CLAIMED)
    assert is_signed_in(client)
    assert not Identity.objects.filter(user=eve).exists()
    assert client.get("/api/me").json()["name"] != "eve"


def test_an_account_of_another_organization_with_the_address_isnt_used(
    acme: Organization, url: str
) -> None:
    """The provider of an organization can name any address; no other organization believes it."""
    other_organization = factories.create_organization("other")
    evil = create_provider(other_organization, url, creates=True)
    sign_in(Client(), evil, CLAIMED)
    prepared = User.objects.get(email=CLAIMED)
    provider, client = create_provider(acme, url, creates=True, client_id="bonobot"), Client()
    sign_in(client, provider, CLAIMED)
    assert is_signed_in(client)
    assert not Identity.objects.filter(user=prepared, organization=acme).exists()
