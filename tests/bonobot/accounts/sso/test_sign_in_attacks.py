"""Attacks on sign-in with a provider: mix-up, replay, fixation, forged accounts."""

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx
import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from bonobot.accounts.models import Identity, Organization, Provider, User
from bonobot.accounts.roles import Role
from tests import factories
from tests.admin_client import is_signed_in
from tests.bonobot.accounts.sso.provider_process import (
    ANNA,
    authorize,
    create_person,
    create_provider,
    open_link_page,
    read_authorization_request,
    read_code,
    run_provider,
    sign_in,
    sign_in_with_password,
)
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db


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


@pytest.fixture
def login(acme: Organization, url: str) -> Provider:
    return create_provider(acme, url, creates=True)


def start_sign_in(client: Client, login: Provider) -> str:
    """Start a sign-in and return the callback path that the provider redirects to."""
    return authorize(
        login.url,
        read_authorization_request(client, client.post(reverse("account_sso", args=[login.pk]))),
        ANNA,
    )


def change_callback(back: str, **changes: str | None) -> str:
    """Return a callback path with parameters changed, or removed (None)."""
    parts = urlsplit(back)
    query: dict[str, str | None] = {**dict(parse_qsl(parts.query)), **changes}
    parameters = {name: value for name, value in query.items() if value is not None}
    return f"{parts.path}?{urlencode(parameters)}"


CHANGES: dict[str, dict[str, str | None]] = {
    "no state": {"state": None},
    "an empty state": {"state": ""},
    "another state": {"state": "x" * 64},
    "a non-ASCII state": {"state": "\u00e4" * 64},
    "no code": {"code": None},
    "a code that was never issued": {"code": "made-up"},
    "a code that is too long": {"code": "x" * 5_000},
    "another issuer": {"iss": "https://login.example.com"},
    "an issuer with a trailing slash": {"iss": "/"},
    "an error in addition to the code": {"error": "access_denied"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_modified_response_is_refused(login: Provider, name: str) -> None:
    client = Client()
    changes = dict(CHANGES[name])
    if changes.get("iss") == "/":
        changes["iss"] = f"{login.url}/"
    back = start_sign_in(client, login)
    response = client.get(change_callback(back, **changes))
    assert response.status_code in (400, 403, 502)
    assert read_code(response) in ("identity_rejected", "provider_denied")
    assert not is_signed_in(client)
    # The pending sign-in was consumed: even the valid response is refused.
    assert read_code(client.get(back)) == "sign_in_expired"


def test_a_provider_that_advertises_iss_must_send_it(login: Provider) -> None:
    metadata = {"authorization_response_iss_parameter_supported": True}
    for issuer, expected in ((None, False), (login.url, True)):
        httpx.post(f"{login.url}/say", json={"metadata": metadata})
        client = Client()
        page = client.post(reverse("account_sso", args=[login.pk]))
        back = authorize(login.url, read_authorization_request(client, page), ANNA)
        client.get(change_callback(back, iss=issuer))
        assert is_signed_in(client) is expected


def test_a_code_of_one_provider_is_refused_for_another(acme: Organization, login: Provider) -> None:
    """Mix-up: the browser started at one provider and returns with the code of another."""
    with run_provider() as evil_url:
        evil = create_provider(acme, evil_url, creates=True, name="Evil")
        client, attacker = Client(), Client()
        callback = start_sign_in(client, login)
        attacker_callback = start_sign_in(attacker, evil)
        code = dict(parse_qsl(urlsplit(attacker_callback).query))["code"]
        response = client.get(change_callback(callback, code=code))
        assert read_code(response) == "provider_denied"
        assert not is_signed_in(client)


def test_a_code_of_another_browser_is_refused(login: Provider) -> None:
    """Login CSRF: a victim isn't signed in as the attacker."""
    victim, attacker = Client(), Client()
    callback, attacker_callback = start_sign_in(victim, login), start_sign_in(attacker, login)
    stolen_code = dict(parse_qsl(urlsplit(attacker_callback).query))["code"]
    assert read_code(victim.get(change_callback(callback, code=stolen_code))) != ""
    assert not is_signed_in(victim)
    assert read_code(victim.get(attacker_callback)) == "sign_in_expired"


def test_the_session_key_changes_at_sign_in(login: Provider) -> None:
    client = Client()
    page = client.post(reverse("account_sso", args=[login.pk]))
    old_key = client.session.session_key
    client.get(authorize(login.url, read_authorization_request(client, page), ANNA))
    assert is_signed_in(client)
    assert client.session.session_key != old_key
    attacker = Client()
    attacker.cookies[settings.SESSION_COOKIE_NAME] = str(old_key)
    assert not is_signed_in(attacker)


EXTERNAL_URLS = (
    "//evil.example/",
    "https://evil.example/",
    "https:evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "///evil.example",
    "javascript:alert(1)",
    "http://testserver@evil.example/",
    " //evil.example",
    "\t//evil.example",
    "/\n/evil.example",
)


@pytest.mark.parametrize("next_url", EXTERNAL_URLS)
def test_nobody_is_redirected_to_another_site(login: Provider, next_url: str) -> None:
    client = Client()
    page = client.post(reverse("account_sso", args=[login.pk]), {"next": next_url})
    response = client.get(authorize(login.url, read_authorization_request(client, page), ANNA))
    assert is_signed_in(client)
    assert response["Location"] == reverse("admin:index")


def unverified(user: User) -> dict[str, Any]:
    return {"email_verified": False}


def unstated(user: User) -> dict[str, Any]:
    return {"email_verified": None}


def verified_as_text(user: User) -> dict[str, Any]:
    return {"email_verified": "true"}


def other_domain(user: User) -> dict[str, Any]:
    return {"email": "bert@elsewhere.example"}


def lookalike(user: User) -> dict[str, Any]:
    return {"email": "b\u0435rt@example.com"}  # Cyrillic


def multiline(user: User) -> dict[str, Any]:
    return {"email": "bert@example.com\nx@example.com"}


FALSE_ADDRESSES = (unverified, unstated, verified_as_text, other_domain, lookalike, multiline)


@pytest.mark.parametrize("claims", FALSE_ADDRESSES)
def test_an_unverified_address_cant_take_over_an_account(
    acme: Organization, url: str, claims: Callable[[User], dict[str, Any]]
) -> None:
    bert = create_person(acme, Role.OWNER, "bert")
    login, client = create_provider(acme, url, creates=True), Client()
    sign_in(client, login, "eve", claims={"email": "bert@example.com"} | claims(bert))
    assert not Identity.objects.filter(user=bert).exists()
    if is_signed_in(client):
        assert client.get("/api/me").json()["name"] != "bert"


def test_accounts_are_matched_by_subject_and_not_by_address(login: Provider) -> None:
    """A reused email address gives no access to the account of its former owner."""
    sign_in(Client(), login)
    first = User.objects.get(email=ANNA)
    client = Client()
    response = sign_in(client, login, "somebody-else", claims={"email": ANNA})
    assert read_code(response) != "" or client.get("/api/me").json()["id"] != str(first.pk)
    assert Identity.objects.filter(user=first).count() == 1


def test_an_account_is_linked_only_on_request(acme: Organization, url: str) -> None:
    """A pending link doesn't apply to another person who signed in meanwhile."""
    anna, bert = create_person(acme), create_person(acme, name="bert")
    login, client = create_provider(acme, url), sign_in_with_password("anna")
    back = authorize(
        login.url, read_authorization_request(client, open_link_page(client, login)), ANNA
    )
    client.post(reverse("admin:login"), {"username": "bert", "password": "pw-for-tests"})
    client.get(back)
    assert not Identity.objects.filter(user=bert).exists()
    assert not Identity.objects.filter(user=anna).exists()


def test_another_site_cant_start_a_sign_in_or_link_an_account(login: Provider) -> None:
    """Login CSRF: only our own form does."""
    browser = Client(enforce_csrf_checks=True)
    assert browser.post(reverse("account_sso", args=[login.pk])).status_code == 403
    page = browser.get(reverse("account_sso", args=[login.pk]))
    assert "/authorize" not in page.content.decode()
