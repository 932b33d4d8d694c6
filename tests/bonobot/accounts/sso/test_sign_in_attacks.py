"""Tables of attacks on signing in by a provider: mix-up, replay, fixation, false accounts."""

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
from tests.bonobot.accounts.sso.provider_process import (
    ANNA,
    by_password,
    code_of,
    is_in,
    led,
    let_in,
    person,
    running,
    sign_in,
    to_link,
    trust,
)
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as found:
        yield found


@pytest.fixture(autouse=True)
def _nothing_tried(url: str) -> Iterator[None]:
    clear_cache()
    httpx.post(f"{url}/say", json={})
    yield
    clear_cache()


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def login(acme: Organization, url: str) -> Provider:
    return trust(acme, url, creates=True)


def begun(client: Client, login: Provider) -> str:
    """Begin a sign-in and return where the provider sends the browser back to."""
    return let_in(
        login.url, led(client, client.post(reverse("account_sso", args=[login.pk]))), ANNA
    )


def changed(back: str, **said: str | None) -> str:
    """Return an answer of the provider with parameters changed, or left out (None)."""
    parts = urlsplit(back)
    query: dict[str, str | None] = {**dict(parse_qsl(parts.query)), **said}
    kept = {name: value for name, value in query.items() if value is not None}
    return f"{parts.path}?{urlencode(kept)}"


ANSWERS: dict[str, dict[str, str | None]] = {
    "no state": {"state": None},
    "an empty state": {"state": ""},
    "another state": {"state": "x" * 64},
    "a state in other letters": {"state": "\u00e4" * 64},
    "no code": {"code": None},
    "a code that was never given": {"code": "made-up"},
    "a code too long": {"code": "x" * 5_000},
    "another issuer": {"iss": "https://login.example.com"},
    "an issuer with a slash more": {"iss": "/"},
    "an error beside the code": {"error": "access_denied"},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_modified_response_is_refused(login: Provider, name: str) -> None:
    client = Client()
    said = dict(ANSWERS[name])
    if said.get("iss") == "/":
        said["iss"] = f"{login.url}/"
    back = begun(client, login)
    answer = client.get(changed(back, **said))
    assert answer.status_code in (400, 403, 502)
    assert code_of(answer) in ("identity_refused", "provider_refused")
    assert not is_in(client)
    # What was begun is used up: the right answer comes too late.
    assert code_of(client.get(back)) == "sign_in_lost"


def test_a_provider_that_advertises_iss_must_send_it(login: Provider) -> None:
    says = {"authorization_response_iss_parameter_supported": True}
    for issuer, expected in ((None, False), (login.url, True)):
        httpx.post(f"{login.url}/say", json={"metadata": says})
        client = Client()
        page = client.post(reverse("account_sso", args=[login.pk]))
        back = let_in(login.url, led(client, page), ANNA)
        client.get(changed(back, iss=issuer))
        assert is_in(client) is expected


def test_a_code_of_one_provider_is_refused_for_another(acme: Organization, login: Provider) -> None:
    """A browser that began at one, and is sent back with what another gave (mix-up)."""
    with running() as evil_url:
        evil = trust(acme, evil_url, creates=True, name="Evil")
        client, attacker = Client(), Client()
        mine = begun(client, login)
        theirs = begun(attacker, evil)
        code = dict(parse_qsl(urlsplit(theirs).query))["code"]
        answer = client.get(changed(mine, code=code))
        assert code_of(answer) == "provider_refused"
        assert not is_in(client)


def test_a_code_of_another_browser_is_refused(login: Provider) -> None:
    """Who is sent to an attacker's answer isn't signed in as the attacker (login CSRF)."""
    victim, attacker = Client(), Client()
    mine, theirs = begun(victim, login), begun(attacker, login)
    stolen = dict(parse_qsl(urlsplit(theirs).query))["code"]
    assert code_of(victim.get(changed(mine, code=stolen))) != ""
    assert not is_in(victim)
    assert code_of(victim.get(theirs)) == "sign_in_lost"


def test_the_session_key_changes_at_sign_in(login: Provider) -> None:
    client = Client()
    page = client.post(reverse("account_sso", args=[login.pk]))
    planted = client.session.session_key
    client.get(let_in(login.url, led(client, page), ANNA))
    assert is_in(client)
    assert client.session.session_key != planted
    attacker = Client()
    attacker.cookies[settings.SESSION_COOKIE_NAME] = str(planted)
    assert not is_in(attacker)


ONWARD = (
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


@pytest.mark.parametrize("onward", ONWARD)
def test_nobody_is_redirected_to_another_site(login: Provider, onward: str) -> None:
    client = Client()
    page = client.post(reverse("account_sso", args=[login.pk]), {"next": onward})
    answer = client.get(let_in(login.url, led(client, page), ANNA))
    assert is_in(client)
    assert answer["Location"] == reverse("admin:index")


def unverified(user: User) -> dict[str, Any]:
    return {"email_verified": False}


def unsaid(user: User) -> dict[str, Any]:
    return {"email_verified": None}


def in_words(user: User) -> dict[str, Any]:
    return {"email_verified": "true"}


def elsewhere(user: User) -> dict[str, Any]:
    return {"email": "bert@elsewhere.example"}


def look_alike(user: User) -> dict[str, Any]:
    return {"email": "b\u0435rt@example.com"}  # Cyrillic


def two_lines(user: User) -> dict[str, Any]:
    return {"email": "bert@example.com\nx@example.com"}


FALSE_ADDRESSES = (unverified, unsaid, in_words, elsewhere, look_alike, two_lines)


@pytest.mark.parametrize("claims", FALSE_ADDRESSES)
def test_an_unverified_address_cant_take_over_an_account(
    acme: Organization, url: str, claims: Callable[[User], dict[str, Any]]
) -> None:
    bert = person(acme, Role.OWNER, "bert")
    login, client = trust(acme, url, creates=True), Client()
    sign_in(client, login, "eve", claims={"email": "bert@example.com"} | claims(bert))
    assert not Identity.objects.filter(user=bert).exists()
    if is_in(client):
        assert client.get("/api/me").json()["name"] != "bert"


def test_accounts_are_matched_by_subject_and_not_by_address(login: Provider) -> None:
    """An address that another person at the provider has later opens nothing of the first."""
    sign_in(Client(), login)
    first = User.objects.get(email=ANNA)
    client = Client()
    answer = sign_in(client, login, "somebody-else", claims={"email": ANNA})
    assert code_of(answer) != "" or client.get("/api/me").json()["id"] != str(first.pk)
    assert Identity.objects.filter(user=first).count() == 1


def test_an_account_is_linked_only_on_request(acme: Organization, url: str) -> None:
    """What was begun to link doesn't link to whoever is signed in when it comes back."""
    anna, bert = person(acme), person(acme, name="bert")
    login, client = trust(acme, url), by_password("anna")
    back = let_in(login.url, led(client, to_link(client, login)), ANNA)
    client.post(reverse("admin:login"), {"username": "bert", "password": "pw-for-tests"})
    client.get(back)
    assert not Identity.objects.filter(user=bert).exists()
    assert not Identity.objects.filter(user=anna).exists()


def test_another_site_cant_start_a_sign_in_or_link_an_account(login: Provider) -> None:
    """Only a form of ours does (login CSRF)."""
    browser = Client(enforce_csrf_checks=True)
    assert browser.post(reverse("account_sso", args=[login.pk])).status_code == 403
    page = browser.get(reverse("account_sso", args=[login.pk]))
    assert "/authorize" not in page.content.decode()
