"""Endpoints have fingerprints and don't reveal their secrets."""

from dataclasses import replace
from uuid import UUID

import pytest

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError, build_reauth_error, quote_text

ENDPOINT = ServerEndpoint(
    server_id=UUID(int=7),
    name="files",
    organization_id=UUID(int=1),
    transport="http",
    url="https://example.com/mcp?key=url-secret",
    args=("--token", "arg-secret"),
    env={"TOKEN": "env-secret"},
    headers={"Authorization": "Bearer header-secret"},
)


def test_the_repr_of_an_endpoint_contains_no_secrets():
    assert "secret" not in repr(ENDPOINT)
    assert "files" in repr(ENDPOINT)


@pytest.mark.parametrize(
    "change",
    [
        {"url": "https://example.com/other"},
        {"headers": {}},
        {"env": {}},
        {"args": ()},
        {"allow_private": True},
        {"read_s": 5},
    ],
)
def test_another_configuration_has_another_fingerprint(change: dict[str, object]):
    assert replace(ENDPOINT, **change).fingerprint != ENDPOINT.fingerprint  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"era": "modern"}, {"discovery": {}}, {"name": "renamed"}])
def test_the_era_and_the_name_dont_change_the_fingerprint(change: dict[str, object]):
    assert replace(ENDPOINT, **change).fingerprint == ENDPOINT.fingerprint  # type: ignore[arg-type]


def test_a_server_that_repeats_our_secrets_is_quoted_without_them():
    quote = quote_text(ENDPOINT, "token header-secret of env-secret\x1b[0m" + "x" * 10_000)
    assert "secret" not in quote.replace("********", "")
    assert "⟨U+001B⟩" in quote
    assert len(quote) < 600


def test_a_challenge_is_kept_without_our_secrets():
    error = build_reauth_error(
        ENDPOINT, 401, 'Bearer resource_metadata="https://a/b", x="header-secret"'
    )
    challenge = error.extra["challenge"]
    assert challenge.startswith('Bearer resource_metadata="https://a/b"')
    assert "header-secret" not in challenge
    assert "challenge" not in build_reauth_error(ENDPOINT, 401, "").extra


def test_an_error_shared_by_several_requests_is_copied_for_each():
    error = UpstreamError("gone", code="server_crashed", server="files", remedy="look")
    copied = error.with_sent(False)
    assert (copied.sent, error.sent) == (False, True)
    assert copied.as_dict() == error.as_dict()
    assert str(copied) == "gone"
    assert copied.status == 503
