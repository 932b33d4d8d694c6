"""What a person sees before they authorize a client is where the browser goes."""

import json
from base64 import b64encode
from typing import Any

import pytest

from agents.models import Agent
from bonobot.accounts.models import Token, User
from bonobot.oauth_server.redirect_uris import parse_redirect_uri
from tests.bonobot.oauth_server.oauth_client import OAuthClient
from tests.bonobot.oauth_server.test_client_metadata_documents import (
    DOCUMENT,
    ID,
    Site,
    site,
)

pytestmark = pytest.mark.django_db(transaction=True)

__all__ = ["site"]

# Browsers decode, map, or complete these hosts; the page would show other text than they use.
DISGUISED_HOSTS = {
    "percent-encoded letter": "https://%65vil.example/back",
    "percent-encoded dot": "https://client%2Eexample.com/back",
    "percent-encoded slash": "https://client.example.com%2F.evil.example/back",
    "percent-encoded ideographic full stop": "https://client%E3%80%82example.com/back",
    "percent-encoded at sign": "https://client.example.com%40evil.example/back",
    "percent-encoded soft hyphen": "https://cl%C2%ADient.example.com/back",
    "hexadecimal address": "https://0x7f000001/back",
    "octal address": "https://0177.0.0.1/back",
    "one number": "https://2130706433/back",
    "short address": "https://127.1/back",
    "trailing dot": "https://client.example.com./back",
    "empty label": "https://client..example.com/back",
    "underscore and comma": "https://client,example.com/back",
    "exclamation mark": "https://client.example.com!.evil.example/back",
    "semicolon": "https://client.example.com;.evil.example/back",
    "quotation mark": "https://client.example.com'.evil.example/back",
    "braces": "https://{client.example.com}/back",
    "empty port": "https://client.example.com:/back",
    "no authority": "https:/client.example.com/back",
    "only a path": "https:client.example.com/back",
    "three slashes": "https:///client.example.com/back",
    "backslashes": "https:\\\\client.example.com/back",
    "tab": "https://client.example.com\t.evil.example/back",
    "uppercase scheme and host": "HTTPS://CLIENT.EXAMPLE.COM/back",
    "IPv6 with a zone": "https://[fe80::1%25eth0]/back",
    "vbscript with a dot": "vb.script:x",
}
ACCEPTED = {"uppercase scheme and host": "client.example.com", "vbscript with a dot": "vb.script"}


@pytest.mark.parametrize("name", DISGUISED_HOSTS)
def test_a_redirect_uri_with_a_disguised_host_is_refused(name: str) -> None:
    destination = parse_redirect_uri(DISGUISED_HOSTS[name], ())
    assert (destination.name if destination else None) == ACCEPTED.get(name)


@pytest.mark.parametrize("name", DISGUISED_HOSTS)
def test_a_client_whose_id_has_a_disguised_host_is_unknown(
    site: Site, olga: User, helper: Agent, name: str
) -> None:
    if name == "uppercase scheme and host":
        pytest.skip("it is accepted and shown in lowercase")
    client_id = DISGUISED_HOSTS[name].replace("/back", "/id.json")
    site.document = DOCUMENT | {"client_id": client_id}
    client = OAuthClient(olga)
    client.id = client_id
    response = client.open_consent()
    assert response.status_code == 400
    assert site.reads == 0
    assert not Token.objects.exists()


def test_a_verified_client_that_redirects_to_this_computer_is_shown_with_a_warning(
    site: Site, olga: User, helper: Agent
) -> None:
    """Any program on the computer can use the ID of such a client."""
    client = OAuthClient(olga)
    client.id = ID
    page = client.open_consent().content.decode()
    assert 'data-warning="impersonation"' in page
    page = client.open_consent(redirect_uri="https://client.example.com/back").content.decode()
    assert 'data-warning="impersonation"' not in page


NAMES: dict[str, Any] = {
    "fullwidth": "\uff43laude\uff0eai",
    "combining": "Clau\u0301\u0323de",
    "a domain in other letters": "\u0441laude.ai",
    "a claim": "Claude (verified by Bonobot)",
    "blank": "\u2800\u3164",
    "only a variation selector": "\ufe0f",
    "line separator": "Claude\u2028Requested by: claude.ai",
    "replacement of the quotation": "Claude\u201d? Requested by claude.ai. Authorize \u201cClaude",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_self_reported_name_never_looks_verified(olga: User, helper: Agent, name: str) -> None:
    client = OAuthClient(olga, client_name=NAMES[name])
    if client.registered.status_code != 201:
        assert json.loads(client.registered.content)["error"] == "invalid_client_metadata"
        return
    page = client.open_consent().content.decode()
    assert "unverified client with a self-reported name" in page
    for hidden in ("\u2800", "\u3164", "\ufe0f", "\u2028"):
        assert hidden not in page


CREDENTIALS = {"another client": "other:", "a secret": ":x", "nobody": "nobody:nothing"}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_credentials_in_the_header_dont_replace_the_client_of_a_code(
    ide: OAuthClient, olga: User, name: str
) -> None:
    other_client = OAuthClient(olga)
    text = CREDENTIALS[name].replace("other", other_client.id)
    header = f"Basic {b64encode(text.encode()).decode()}"
    code = ide.code()
    other_client.client.defaults["HTTP_AUTHORIZATION"] = header
    response = other_client.exchange(
        code, client_id=ide.id if name != "a secret" else other_client.id
    )
    tokens = response.json()
    assert response.status_code in (400, 401) or (tokens.get("access_token") and name != "a secret")
    for grant in Token.objects.exclude(digest=""):
        assert grant.client_id == ide.id
