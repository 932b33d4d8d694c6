"""Tables of attacks on the authorization server, and on programs' own documents."""

import json
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from django.test import Client
from django.utils import timezone
from oauth2_provider.models import Application, Grant
from time_machine import travel

from agents.models import Agent
from bonobot.accounts.models import Token, User
from bonobot.core.http.egress import build_guarded_client
from bonobot.oauth_server import client_registration
from bonobot.oauth_server.client_registration import MAX_BODY
from tests.bonobot.oauth_server.oauth_client import (
    ALLOW,
    HERE,
    REDIRECT,
    REGISTER,
    REVOKE,
    TOKEN,
    VERIFIER,
    Program,
    error,
)
from tests.bonobot.oauth_server.test_client_registration_metadata_documents import (
    DOCUMENT,
    ID,
    Site,
    site,
)
from tests.bonobot.oauth_server.test_refusals import ORIGIN
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["site"]


# -- the answer and the page --------------------------------------------------------------------


def test_the_response_has_the_issuer_and_the_audience(ide: Program) -> None:
    location = ide.answered()["Location"]
    assert location.startswith(f"{REDIRECT}?")
    said = parse_qsl(urlsplit(location).query)
    assert sorted(name for name, _value in said) == ["code", "iss", "state"]
    assert (dict(said)["iss"], dict(said)["state"]) == (ORIGIN, ide.state)
    assert urlsplit(location).fragment == ""


NO_ANSWERS: dict[str, dict[str, Any]] = {
    "by its address": {"answer": "allow", "role": "member", "scopes": "mcp:tools"},
    "asked for without a page": {"prompt": "none"},
    "asked for as given already": {"approval_prompt": "auto"},
    "in a request object": {"request": "eyJhbGciOiJub25lIn0.e30."},
    "in a request elsewhere": {"request_uri": "https://evil.example/request"},
}


def test_only_our_own_form_authorizes_a_client(ide: Program) -> None:
    ide.let_in()  # it was let in before, too
    before = Token.objects.count()
    for name, said in NO_ANSWERS.items():
        page = ide.asked(**said)
        assert "Location" not in page, name
        assert Token.objects.count() == before, name


HALF_ANSWERS: list[dict[str, Any]] = [{}, {"answer": ""}, {"answer": "yes"}, {"answer": "ALLOW"}]


def test_anything_but_an_explicit_consent_denies_access(ide: Program) -> None:
    for said in HALF_ANSWERS:
        assert ide.answered({"role": "member", "scopes": ["mcp:tools"]} | said).status_code == 200
    assert not Token.objects.exists()


HEADERS = {
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


def test_the_consent_page_cant_be_framed_cached_or_leaked_by_the_referrer(ide: Program) -> None:
    for page in (ide.asked(), ide.asked(scope="everything"), ide.asked(client_id="nobody")):
        for name, value in HEADERS.items():
            assert page[name] == value
        assert "frame-ancestors 'none'" in page["Content-Security-Policy"]
        assert "no-store" in page["Cache-Control"]


REDIRECTS = [
    "HTTP://127.0.0.1:4711/callback",
    "http://127.0.0.1:4711/callback/",
    "http://127.0.0.1:4711/Callback",
    "http://127.0.0.1:4711/callback/../callback",
    "http://127.0.0.1:4711/%63allback",
    "http://127.0.0.1:4711/callback;x",
    "http://127.0.0.1:4711//callback",
    "http://127.0.0.1.evil.example:4711/callback",
    "http://127.0.0.1:4711@evil.example/callback",
    "http://0x7f000001:4711/callback",
    "http://[::1]:4711/callback",
    "https://127.0.0.1:4711/callback",
    "data:text/html,x",
    "vbscript:x",
    "http://127.0.0.1:4711\\@evil.example/callback",
    "http://127.0.0.1:4711/callback\n",
    "",
]


def test_a_similar_redirect_uri_is_refused(ide: Program) -> None:
    for uri in REDIRECTS:
        for response in (ide.asked(redirect_uri=uri), ide.answered(redirect_uri=uri)):
            assert response.status_code == 400, uri
            assert "Location" not in response, uri
    assert not Token.objects.exists()


TWICE = ["client_id", "redirect_uri", "response_type", "scope", "code_challenge", "resource"]


def test_duplicate_parameters_are_refused(ide: Program) -> None:
    for name in TWICE:
        asked = dict(parse_qsl(urlsplit(ide.address()).query))
        page = ide.browser.post(f"{ide.address()}&{name}={asked[name]}", ALLOW)
        assert page.status_code in (303, 400), name
        if page.status_code == 303:
            assert "code" not in dict(parse_qsl(urlsplit(page["Location"]).query)), name
    assert not Token.objects.exists()


DOWNGRADES: list[dict[str, Any]] = [
    {"code_challenge_method": "s256"},
    {"code_challenge_method": "PLAIN"},
    {"code_challenge_method": "S512"},
    {"code_challenge": "", "code_challenge_method": "S256"},
    {"code_challenge": "v" * 42},
    {"code_challenge": "v" * 44},
    {"code_challenge": "v" * 42 + "="},
    {"code_challenge": "v" * 42 + "\u00e4"},
]


def test_weaker_pkce_methods_are_refused(ide: Program) -> None:
    for said in DOWNGRADES:
        assert ide.sent_back(**said)["error"] == "invalid_request", said
    assert not Grant.objects.exists()


# -- codes and tokens ---------------------------------------------------------------------------

EXCHANGES: dict[str, dict[str, Any]] = {
    "an empty verifier": {"code_verifier": ""},
    "a verifier in other letters": {"code_verifier": VERIFIER.upper()},
    "a shorter verifier": {"code_verifier": VERIFIER[:-1]},
    "a longer verifier": {"code_verifier": f"{VERIFIER}v"},
    # Left out, the redirect isn't compared (OAuth 2.1): the verifier binds the code.
    "a redirect with a slash more": {"redirect_uri": f"{REDIRECT}/"},
    "another port": {"redirect_uri": REDIRECT.replace("4711", "4712")},
    "an address like it": {"resource": f"{HERE}/"[:-2]},
    "two addresses": {"resource": [HERE, f"{ORIGIN}/mcp"]},
    "no program": {"client_id": None},
}


def test_a_code_is_bound_to_all_parameters_of_its_request(ide: Program) -> None:
    for name, said in EXCHANGES.items():
        response = ide.exchange(ide.code(), **said)
        assert response.status_code in (400, 401), name
        assert response.json()["error"], name
    assert not Token.objects.exclude(digest="").exists()


def test_a_code_cant_be_exchanged_for_more_scopes(ide: Program) -> None:
    """Whatever is asked for with a code, the person's answer is what it is worth."""
    response = ide.exchange(ide.code(), scope="mcp:tools mcp:manage")
    if response.status_code == 200:
        assert response.json()["scope"] == "mcp:tools"
    assert Token.objects.get().scopes == ["mcp:tools"]


WIDER = ["mcp:manage", "mcp:tools mcp:agents", "mcp:tools api", "*", "mcp:tools mcp:tools2"]


def test_a_refresh_token_gets_no_more_scopes_than_were_granted(ide: Program) -> None:
    tokens = ide.let_in()
    for scope in WIDER:
        assert error(ide.refresh(tokens["refresh_token"], scope=scope)) == "invalid_scope", scope
    assert ide.refresh(tokens["refresh_token"]).json()["scope"] == "mcp:tools"


def test_a_stolen_refresh_token_is_refused_for_another_client(ide: Program, olga: User) -> None:
    tokens, other = ide.let_in(), Program(olga)
    assert error(other.refresh(tokens["refresh_token"])) == "invalid_grant"
    assert error(other.exchange(ide.code())) == "invalid_grant"


def test_tokens_are_issued_only_to_post_requests_and_never_cached(ide: Program) -> None:
    for path in (TOKEN, REVOKE, REGISTER):
        assert ide.client.get(path).status_code == 405
    response = ide.exchange(ide.code())
    assert "no-store" in response["Cache-Control"]


def test_a_cookie_doesnt_authenticate_a_client(olga: User, ide: Program) -> None:
    """The addresses for programs look at no session: who is signed in gets nothing by it."""
    assert error(ide.browser.post(TOKEN, {"grant_type": "authorization_code"})) != ""
    refused = ide.browser.post(TOKEN, {"grant_type": "refresh_token", "refresh_token": "bnr_x_y"})
    assert error(refused) == "invalid_client"


# -- documents ------------------------------------------------------------------------------------

FALSE: dict[str, dict[str, Any]] = {
    "in other letters": {"client_id": ID.upper()},
    "with a slash more": {"client_id": f"{ID}/"},
    "with a query more": {"client_id": f"{ID}?x"},
    "of nobody": {"client_id": None},
    "that is no text": {"client_id": [ID]},
    "with a script to go to": {"redirect_uris": ["javascript:alert(1)"]},
    "with data to go to": {"redirect_uris": ["data:text/html,x"]},
    "with a file to go to": {"redirect_uris": ["file:///etc/passwd"]},
    "with a host inside to go to": {"redirect_uris": ["http://10.0.0.1/back"]},
    "with metadata's address to go to": {"redirect_uris": ["http://169.254.169.254/"]},
    "with a person in the address": {"redirect_uris": ["https://a@client.example.com/"]},
    "with too many to go to": {"redirect_uris": [f"https://c{n}.example.com/" for n in range(11)]},
    "with a text to go to": {"redirect_uris": REDIRECT},
    "with a secret": {"client_secret": "s", "client_secret_expires_at": 0},
    "with a name too deep": {"client_name": {"en": "x"}},
}


@pytest.mark.parametrize("name", FALSE)
def test_a_forged_client_document_is_refused(
    site: Site, olga: User, helper: Agent, name: str
) -> None:
    site.document = DOCUMENT | FALSE[name]
    program = Program(olga)
    program.id = ID
    assert program.answered().status_code == 400
    assert not Application.objects.filter(client_id=ID).exists()
    assert not Token.objects.exists()


@pytest.mark.parametrize("body", ["[]", "null", '"x"', "{", "[" * 5_000, "7"])
def test_a_client_document_must_be_an_object(
    olga: User, helper: Agent, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:

    clear_cache()

    def answer(_: httpx2.Request) -> httpx2.Response:
        kind = {"Content-Type": "application/json"}
        return httpx2.Response(200, content=body.encode(), headers=kind)

    def client(**_: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))

    monkeypatch.setattr(client_registration, "build_guarded_client", client)
    program = Program(olga)
    program.id = ID
    assert program.asked().status_code == 400
    clear_cache()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 204, 206, 500])
def test_a_client_document_is_fetched_only_from_its_own_url(
    site: Site, olga: User, helper: Agent, status: int
) -> None:
    site.status = status
    program = Program(olga)
    program.id = ID
    assert program.asked().status_code == 400
    assert site.read == 1


def test_client_documents_are_fetched_only_from_public_addresses_up_to_a_size(
    olga: User, helper: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:

    clear_cache()
    asked: list[dict[str, Any]] = []

    def client(**said: Any) -> Any:
        asked.append(said)
        return build_guarded_client(**said)

    monkeypatch.setattr(client_registration, "build_guarded_client", client)
    program = Program(olga)
    program.id = "https://127.0.0.1/id.json"
    assert program.asked().status_code == 400
    (said,) = asked
    assert (said["allow_private"], said["max_body"]) == (False, MAX_BODY)
    assert MAX_BODY <= 64 * 1024
    clear_cache()


def test_a_changed_client_document_doesnt_affect_started_authorizations(
    site: Site, olga: User, helper: Agent
) -> None:
    """Between the page and the token nothing is read again: a code goes where it was sent."""
    program = Program(olga)
    program.id = ID
    code = program.code()
    evil = "https://evil.example/back"
    site.document = DOCUMENT | {"redirect_uris": [evil]}
    assert error(program.exchange(code, redirect_uri=evil)) != ""
    tokens = program.exchange(program.code()).json()
    assert program.refresh(tokens["refresh_token"]).status_code == 200
    assert site.read == 1
    # Once it is read again, the address that it no longer names is not gone to.
    with travel(timezone.now() + timedelta(days=2), tick=False):
        olga.refresh_from_db()
        program.browser.force_login(olga)
        assert program.answered().status_code == 400
        assert site.read == 2


NAMES = {
    "ours": "Bonobot",
    "another's, in other letters": "Cl\u0430ude",
    "turned around": "\u202eedualC",
    "hidden": "Claude\u200b\u2060",
    "markup": '<img src="https://evil.example/x.png">Claude',
    "several lines": "Claude\nWho asks: claude.ai",
    "long": "Claude " * 200,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_client_name_is_shown_as_unverified_next_to_its_host(
    site: Site, olga: User, helper: Agent, name: str
) -> None:
    site.document = DOCUMENT | {"client_name": NAMES[name]}
    program = Program(olga)
    program.id = ID
    page = program.asked().content.decode()
    assert "<code>client.example.com</code>" in page
    assert "<img" not in page
    assert "logo.png" not in page
    for hidden in ("\u202e", "\u200b", "\u2060", "Claude\nWho"):
        assert hidden not in page
    assert len(page) < 50_000


def test_a_self_registered_client_has_no_verified_host(ide: Program, olga: User) -> None:
    liar = Program(olga, client_name="client.example.com")
    assert "<code>client.example.com</code>" not in liar.asked().content.decode()
    assert json.loads(liar.registered.content)["token_endpoint_auth_method"] == "none"


def test_a_client_name_that_looks_like_a_url_is_refused(site: Site, olga: User) -> None:
    """Who registers gets a name of ours: not one that a document could have."""
    program = Program(olga, client_id=ID)
    assert program.id
    assert not program.id.startswith("http")
    assert not Application.objects.filter(client_id=ID).exists()


def test_another_browser_needs_its_own_consent(ide: Program) -> None:
    """What one person was asked isn't answered by a browser that nobody is signed in to."""
    assert Client().post(ide.address(), ALLOW).status_code == 302
    assert not Token.objects.exists()
