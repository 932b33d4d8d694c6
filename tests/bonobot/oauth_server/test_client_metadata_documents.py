"""Clients whose ID is the URL of a metadata document, which is fetched through the egress guard."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from django.utils import timezone
from oauth2_provider.cimd import CIMDError
from oauth2_provider.models import Application
from time_machine import travel

from agents.models import Agent
from bonobot.accounts.models import Token, User
from bonobot.oauth_server import client_metadata_documents
from tests.bonobot.oauth_server.oauth_client import REDIRECT, OAuthClient, error
from tests.own_cache import clear_cache

pytestmark = pytest.mark.django_db(transaction=True)

ID = "https://client.example.com/id.json"
DOCUMENT: dict[str, Any] = {
    "client_id": ID,
    "client_name": "Desk",
    "redirect_uris": [REDIRECT, "https://client.example.com/back"],
    "grant_types": ["authorization_code", "refresh_token"],
    "token_endpoint_auth_method": "none",
    "logo_uri": "https://client.example.com/logo.png",
}


class Site:
    """The document at a client's URL, and how often it was read."""

    def __init__(self) -> None:
        self.document: Any = DOCUMENT
        self.status = 200
        self.content_type = "application/json"
        self.reads = 0

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.reads += 1
        content = json.dumps(self.document).encode()
        return httpx2.Response(
            self.status, content=content, headers={"Content-Type": self.content_type}
        )


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Site]:

    clear_cache()
    site = Site()

    def build_client(**_: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(site))

    monkeypatch.setattr(client_metadata_documents, "build_guarded_client", build_client)
    yield site
    clear_cache()


def test_a_client_with_a_metadata_document_is_authorized_under_its_host(
    site: Site, olga: User, helper: Agent
) -> None:
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    page = oauth_client.open_consent().content.decode()
    assert "Desk" in page
    assert "client.example.com" in page
    assert "logo.png" not in page
    tokens = oauth_client.authorize()
    assert oauth_client.refresh(tokens["refresh_token"]).status_code == 200
    assert Token.objects.get().client_id == ID
    assert site.reads == 1  # documents are cached


@pytest.mark.parametrize(
    "changed",
    [
        {"client_id": "https://other.example.com/id.json"},
        {"redirect_uris": ["http://example.com/"]},
        {"redirect_uris": ["javascript:alert(1)"]},
        {"redirect_uris": []},
        {"client_secret": "s"},
        {"token_endpoint_auth_method": "client_secret_post"},
        {"client_name": 7},
        {"grant_types": ["implicit"]},
    ],
)
def test_an_invalid_metadata_document_is_refused(
    site: Site, olga: User, helper: Agent, changed: dict[str, Any]
) -> None:
    site.document = DOCUMENT | changed
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    assert oauth_client.open_consent().status_code == 400
    assert not Application.objects.filter(client_id=ID).exists()


@pytest.mark.parametrize(
    ("status", "content_type"), [(404, "application/json"), (200, "text/html")]
)
def test_a_response_that_isnt_a_metadata_document_is_refused(
    site: Site, olga: User, helper: Agent, status: int, content_type: str
) -> None:
    site.status, site.content_type = status, content_type
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    assert oauth_client.open_consent().status_code == 400
    oauth_client.open_consent()
    assert site.reads == 1  # errors are cached for a minute


def test_a_metadata_document_is_fetched_only_for_a_signed_in_person(site: Site, db: None) -> None:
    oauth_client = OAuthClient()
    oauth_client.id = ID
    assert oauth_client.open_consent().status_code == 302
    assert error(oauth_client.exchange("bnc_x_y")) == "invalid_client"
    assert error(oauth_client.refresh("bnr_x_y")) == "invalid_client"
    oauth_client.revoke("bno_x_y")
    assert site.reads == 0


@pytest.mark.parametrize(
    "address",
    [
        "http://client.example.com/id.json",
        "https://client.example.com",
        "https://client.example.com/../id.json",
        "https://client.example.com/./id.json",
        "https://a@client.example.com/id.json",
        "https://client.example.com/id.json#x",
        "https://client.example.com:99999/id.json",
        "https://client.example.com/i d.json",
        f"https://client.example.com/{'x' * 255}",
    ],
)
def test_an_invalid_document_url_isnt_requested(site: Site, address: str) -> None:
    with pytest.raises(CIMDError):
        client_metadata_documents.ClientMetadataFetcher().fetch(address)
    assert site.reads == 0


@pytest.mark.parametrize(
    "address",
    [
        "https://127.0.0.1/id.json",
        "https://[::1]/id.json",
        "https://169.254.169.254/latest",
        "https://10.0.0.1/id.json",
        "https://localhost/id.json",
        "https://[::ffff:127.0.0.1]/id.json",
    ],
)
def test_private_addresses_arent_requested(address: str) -> None:
    with pytest.raises(CIMDError):
        client_metadata_documents.ClientMetadataFetcher().fetch(address)


def test_an_unreachable_metadata_document_is_explained(site: Site, olga: User) -> None:
    site.status = 404
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    page = oauth_client.open_consent()
    assert page.status_code == 400
    text = page.content.decode()
    assert "<code>document_unreadable</code></a>" in text
    assert ID in text
    assert "BONOBOT_OAUTH_DOCUMENTS" in text


def test_disabled_metadata_documents_arent_fetched_or_advertised(
    site: Site, olga: User, settings: Any, client: Any
) -> None:
    settings.BONOBOT_OAUTH_DOCUMENTS = False
    settings.OAUTH2_PROVIDER = settings.OAUTH2_PROVIDER | {"CIMD_ENABLED": False}
    metadata = client.get("/.well-known/oauth-authorization-server").json()
    assert metadata["client_id_metadata_document_supported"] is False
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    assert b"<code>document_unreadable</code>" in oauth_client.open_consent().content
    assert site.reads == 0


def open_other_consent(person: User) -> Any:
    """Return the consent page of the client in another browser; errors are cached for a minute."""
    clear_cache()
    oauth_client = OAuthClient(person)
    oauth_client.id = ID
    return oauth_client.open_consent()


REMOVALS: dict[str, dict[str, Any]] = {
    "404": {"status": 404},
    "410": {"status": 410},
    "a redirect": {"status": 302},
    "a page": {"content_type": "text/html"},
    "another client": {"document": DOCUMENT | {"client_id": "https://client.example.com/x"}},
    "no redirect URIs": {"document": DOCUMENT | {"redirect_uris": []}},
}


@pytest.mark.parametrize("name", REMOVALS)
def test_a_removed_document_refuses_new_authorizations_and_keeps_existing_ones(
    site: Site, olga: User, helper: Agent, name: str
) -> None:
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    tokens = oauth_client.authorize()
    for field, value in REMOVALS[name].items():
        setattr(site, field, value)
    with travel(timezone.now() + timedelta(days=2), tick=False):
        assert open_other_consent(olga).status_code == 400
        assert oauth_client.refresh(tokens["refresh_token"]).status_code == 200
        site.document, site.status, site.content_type = DOCUMENT, 200, "application/json"
        assert open_other_consent(olga).status_code == 200


@pytest.mark.parametrize(("days", "status"), [(2, 200), (7, 200), (9, 400)])
def test_a_document_is_used_for_a_week_while_its_site_fails(
    site: Site, olga: User, helper: Agent, days: int, status: int
) -> None:
    oauth_client = OAuthClient(olga)
    oauth_client.id = ID
    oauth_client.authorize()
    site.status = 503
    with travel(timezone.now() + timedelta(days=days), tick=False):
        assert open_other_consent(olga).status_code == status
