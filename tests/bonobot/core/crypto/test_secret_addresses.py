"""Stored secrets are kept only for the addresses they were entered for."""

import pytest

from bonobot.core.crypto.secret_addresses import check_kept_secrets, normalize_origin
from bonobot.core.problems import InvalidInput


@pytest.mark.parametrize(
    ("url", "other_url", "same"),
    [
        ("https://a.example.com/mcp", "https://a.example.com/other?x", True),
        ("https://a.example.com", "https://A.example.com:443/", True),
        ("https://a.example.com", "https://a.example.com./", True),
        ("https://a.example.com", "http://a.example.com", False),
        ("https://a.example.com", "https://a.example.com:8443", False),
        ("https://a.example.com", "https://b.example.com", False),
        ("https://a.example.com", "https://a.example.com.evil.example", False),
        ("https://a.example.com", "https://a.example.com@evil.example", False),
        ("https://a.example.com", "https://a.example.com:99999999", False),
        ("https://a.example.com", "", False),
    ],
)
def test_origins_are_compared_by_scheme_host_and_port(url: str, other_url: str, same: bool) -> None:
    assert (normalize_origin(url) == normalize_origin(other_url)) == same


def test_a_reentered_secret_can_be_used_for_any_address() -> None:
    check_kept_secrets([], {"url": "https://a"}, {"url": "https://b"})


def test_an_omitted_and_a_blank_address_are_the_same() -> None:
    check_kept_secrets(["secret"], {"issuer": ""}, {})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"url": "https://a"}, {"url": "https://b"}),
        ({"url": "https://a"}, {"url": "https://a", "issuer": "https://b"}),
        ({"url": "https://a", "token_url": "https://b"}, {"url": "https://a"}),
    ],
)
def test_a_kept_secret_is_refused_if_an_address_changes(
    before: dict[str, str], after: dict[str, str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_kept_secrets(["auth_config.client_secret"], before, after)
    assert (caught.value.code, caught.value.field) == (
        "credential_required",
        "auth_config.client_secret",
    )
    assert "https://" not in str(caught.value)
