"""Attacks on the authorization server and on client metadata documents."""

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
from bonobot.oauth_server import client_metadata_documents
from bonobot.oauth_server.client_metadata_documents import MAX_BODY
from tests.bonobot.oauth_server.oauth_client import (
    ALLOW,
    REDIRECT,
    REGISTER,
    RESOURCE,
    REVOKE,
    TOKEN,
    VERIFIER,
    OAuthClient,
    error,
)
from tests.bonobot.oauth_server.test_client_metadata_documents import (
    DOCUMENT,
    ID,
    Site,
    site,
)
from tests.bonobot.oauth_server.test_refusals import ORIGIN
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["site"]


# -- the consent page --------------------------------------------------------------------


def test_the_response_has_the_issuer_and_the_audience(ide: OAuthClient) -> None:
    location = ide.submit_consent()["Location"]
    assert location.startswith(f"{REDIRECT}?")
    parameters = parse_qsl(urlsplit(location).query)
    assert sorted(name for name, _value in parameters) == ["code", "iss", "state"]
    assert (dict(parameters)["iss"], dict(parameters)["state"]) == (ORIGIN, ide.state)
    assert urlsplit(location).fragment == ""


NON_CONSENTS: dict[str, dict[str, Any]] = {
    "answer in the URL": {"answer": "allow", "role": "member", "scopes": "mcp:tools"},
    "prompt=none": {"prompt": "none"},
    "approval_prompt=auto": {"approval_prompt": "auto"},
    "request object": {"request": "eyJhbGciOiJub25lIn0.e30."},
    "request URI": {"request_uri": "https://evil.example/request"},
}


def test_only_our_own_form_authorizes_a_client(ide: OAuthClient) -> None:
    ide.authorize()  # it was authorized before, too
    before = Token.objects.count()
    for name, parameters in NON_CONSENTS.items():
        page = ide.open_consent(**parameters)
        assert "Location" not in page, name
        assert Token.objects.count() == before, name


OTHER_ANSWERS: list[dict[str, Any]] = [{}, {"answer": ""}, {"answer": "yes"}, {"answer": "ALLOW"}]


def test_anything_but_an_explicit_consent_denies_access(ide: OAuthClient) -> None:
    for answer in OTHER_ANSWERS:
        assert (
            ide.submit_consent({"role": "member", "scopes": ["mcp:tools"]} | answer).status_code
            == 200
        )
    assert not Token.objects.exists()


HEADERS = {
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
    "X-Content-Type-Options": "nosniff",
}


def test_the_consent_page_cant_be_framed_cached_or_leaked_by_the_referrer(ide: OAuthClient) -> None:
    for page in (
        ide.open_consent(),
        ide.open_consent(scope="everything"),
        ide.open_consent(client_id="nobody"),
    ):
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


def test_a_similar_redirect_uri_is_refused(ide: OAuthClient) -> None:
    for uri in REDIRECTS:
        for response in (ide.open_consent(redirect_uri=uri), ide.submit_consent(redirect_uri=uri)):
            assert response.status_code == 400, uri
            assert "Location" not in response, uri
    assert not Token.objects.exists()


DUPLICATES = ["client_id", "redirect_uri", "response_type", "scope", "code_challenge", "resource"]


def test_duplicate_parameters_are_refused(ide: OAuthClient) -> None:
    for name in DUPLICATES:
        query = dict(parse_qsl(urlsplit(ide.build_authorize_url()).query))
        page = ide.browser.post(f"{ide.build_authorize_url()}&{name}={query[name]}", ALLOW)
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


def test_weaker_pkce_methods_are_refused(ide: OAuthClient) -> None:
    for parameters in DOWNGRADES:
        assert ide.read_redirect(**parameters)["error"] == "invalid_request", parameters
    assert not Grant.objects.exists()


# -- codes and tokens ---------------------------------------------------------------------------

EXCHANGES: dict[str, dict[str, Any]] = {
    "an empty verifier": {"code_verifier": ""},
    "a verifier in uppercase": {"code_verifier": VERIFIER.upper()},
    "a shorter verifier": {"code_verifier": VERIFIER[:-1]},
    "a longer verifier": {"code_verifier": f"{VERIFIER}v"},
    # A missing redirect URI isn't compared (OAuth 2.1): the verifier binds the code.
    "a redirect URI with a trailing slash": {"redirect_uri": f"{REDIRECT}/"},
    "another port": {"redirect_uri": REDIRECT.replace("4711", "4712")},
    "a similar resource": {"resource": f"{RESOURCE}/"[:-2]},
    "two resources": {"resource": [RESOURCE, f"{ORIGIN}/mcp"]},
    "no client": {"client_id": None},
}


def test_a_code_is_bound_to_all_parameters_of_its_request(ide: OAuthClient) -> None:
    for name, parameters in EXCHANGES.items():
        response = ide.exchange(ide.code(), **parameters)
        assert response.status_code in (400, 401), name
        assert response.json()["error"], name
    assert not Token.objects.exclude(digest="").exists()


def test_a_code_cant_be_exchanged_for_more_scopes(ide: OAuthClient) -> None:
    """A code is worth what the person consented to, whatever scopes are requested with it."""
    response = ide.exchange(ide.code(), scope="mcp:tools mcp:manage")
    if response.status_code == 200:
        assert response.json()["scope"] == "mcp:tools"
    assert Token.objects.get().scopes == ["mcp:tools"]


WIDER = ["mcp:manage", "mcp:tools mcp:agents", "mcp:tools api", "*", "mcp:tools mcp:tools2"]


def test_a_refresh_token_gets_no_more_scopes_than_were_granted(ide: OAuthClient) -> None:
    tokens = ide.authorize()
    for scope in WIDER:
        assert error(ide.refresh(tokens["refresh_token"], scope=scope)) == "invalid_scope", scope
    assert ide.refresh(tokens["refresh_token"]).json()["scope"] == "mcp:tools"


def test_a_stolen_refresh_token_is_refused_for_another_client(ide: OAuthClient, olga: User) -> None:
    tokens, other_client = ide.authorize(), OAuthClient(olga)
    assert error(other_client.refresh(tokens["refresh_token"])) == "invalid_grant"
    assert error(other_client.exchange(ide.code())) == "invalid_grant"


def test_tokens_are_issued_only_to_post_requests_and_never_cached(ide: OAuthClient) -> None:
    for path in (TOKEN, REVOKE, REGISTER):
        assert ide.client.get(path).status_code == 405
    response = ide.exchange(ide.code())
    assert "no-store" in response["Cache-Control"]


def test_a_cookie_doesnt_authenticate_a_client(olga: User, ide: OAuthClient) -> None:
    """The endpoints for clients ignore sessions."""
    assert error(ide.browser.post(TOKEN, {"grant_type": "authorization_code"})) != ""
    response = ide.browser.post(TOKEN, {"grant_type": "refresh_token", "refresh_token": "bnr_x_y"})
    assert error(response) == "invalid_client"


# -- client metadata documents
# ------------------------------------------------------------------------------------

INVALID: dict[str, dict[str, Any]] = {
    "ID in uppercase": {"client_id": ID.upper()},
    "ID with a trailing slash": {"client_id": f"{ID}/"},
    "ID with a query": {"client_id": f"{ID}?x"},
    "no ID": {"client_id": None},
    "ID isn't a string": {"client_id": [ID]},
    "redirect to a script": {"redirect_uris": ["javascript:alert(1)"]},
    "redirect to data": {"redirect_uris": ["data:text/html,x"]},
    "redirect to a file": {"redirect_uris": ["file:///etc/passwd"]},
    "redirect to a private address": {"redirect_uris": ["http://10.0.0.1/back"]},
    "redirect to the metadata service": {"redirect_uris": ["http://169.254.169.254/"]},
    "redirect with a user name": {"redirect_uris": ["https://a@client.example.com/"]},
    "too many redirect URIs": {"redirect_uris": [f"https://c{n}.example.com/" for n in range(11)]},
    "redirect URIs aren't an array": {"redirect_uris": REDIRECT},
    "secret": {"client_secret": "s", "client_secret_expires_at": 0},
    "name isn't a string": {"client_name": {"en": "x"}},
}


@pytest.mark.parametrize("name", INVALID)
def test_a_forged_client_document_is_refused(
    site: Site, olga: User, helper: Agent, name: str
) -> None:
    site.document = DOCUMENT | INVALID[name]
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    assert oauth_client.submit_consent().status_code == 400
    assert not Application.objects.filter(client_id=ID).exists()
    assert not Token.objects.exists()


@pytest.mark.parametrize("body", ["[]", "null", '"x"', "{", "[" * 5_000, "7"])
def test_a_client_document_must_be_an_object(
    olga: User, helper: Agent, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:

    clear_cache()

    def respond(_: httpx2.Request) -> httpx2.Response:
        headers = {"Content-Type": "application/json"}
        return httpx2.Response(200, content=body.encode(), headers=headers)

    def build_client(**_: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(respond))

    monkeypatch.setattr(client_metadata_documents, "build_guarded_client", build_client)
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    assert oauth_client.open_consent().status_code == 400
    clear_cache()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 204, 206, 500])
def test_a_client_document_is_fetched_only_from_its_own_url(
    site: Site, olga: User, helper: Agent, status: int
) -> None:
    site.status = status
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    assert oauth_client.open_consent().status_code == 400
    assert site.reads == 1


def test_client_documents_are_fetched_only_from_public_addresses_up_to_a_size(
    olga: User, helper: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:

    clear_cache()
    calls: list[dict[str, Any]] = []

    def build_client(**options: Any) -> Any:
        calls.append(options)
        return build_guarded_client(**options)

    monkeypatch.setattr(client_metadata_documents, "build_guarded_client", build_client)
    oauth_client = OAuthClient(olga)
    oauth_client.id = "https://127.0.0.1/id.json"
    assert oauth_client.open_consent().status_code == 400
    (options,) = calls
    assert (options["allow_private"], options["max_body"]) == (False, MAX_BODY)
    assert MAX_BODY <= 64 * 1024
    clear_cache()


def test_a_changed_client_document_doesnt_affect_started_authorizations(
    site: Site, olga: User, helper: Agent
) -> None:
    """The document isn't read between consent and token: a code is valid for its redirect URI."""
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    code = oauth_client.code()
    evil = "https://evil.example/back"
    site.document = DOCUMENT | {"redirect_uris": [evil]}
    assert error(oauth_client.exchange(code, redirect_uri=evil)) != ""
    tokens = oauth_client.exchange(oauth_client.code()).json()
    assert oauth_client.refresh(tokens["refresh_token"]).status_code == 200
    assert site.reads == 1
    # After the document is read again, a removed redirect URI is refused.
    with travel(timezone.now() + timedelta(days=2), tick=False):
        olga.refresh_from_db()
        oauth_client.browser.force_login(olga)
        assert oauth_client.submit_consent().status_code == 400
        assert site.reads == 2


NAMES = {
    "ours": "Bonobot",
    "similar letters": "Cl\u0430ude",
    "right to left": "\u202eedualC",
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
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    page = oauth_client.open_consent().content.decode()
    assert "<code>client.example.com</code>" in page
    assert "<img" not in page
    assert "logo.png" not in page
    for hidden in ("\u202e", "\u200b", "\u2060", "Claude\nWho"):
        assert hidden not in page
    assert len(page) < 50_000


def test_a_self_registered_client_has_no_verified_host(ide: OAuthClient, olga: User) -> None:
    other_client = OAuthClient(olga, client_name="client.example.com")
    assert "<code>client.example.com</code>" not in other_client.open_consent().content.decode()
    assert json.loads(other_client.registered.content)["token_endpoint_auth_method"] == "none"


def test_a_client_name_that_looks_like_a_url_is_refused(site: Site, olga: User) -> None:
    """A registered client gets a generated ID that can't be a document URL."""
    oauth_client = OAuthClient(olga, client_id=ID)
    assert oauth_client.id
    assert not oauth_client.id.startswith("http")
    assert not Application.objects.filter(client_id=ID).exists()


def test_another_browser_needs_its_own_consent(ide: OAuthClient) -> None:
    """A browser that isn't signed in can't answer the consent page of a person."""
    assert Client().post(ide.build_authorize_url(), ALLOW).status_code == 302
    assert not Token.objects.exists()
