"""Parsing of `WWW-Authenticate` challenges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_servers.oauth_client.metadata import BearerChallenge, parse_challenge

READ = {
    "nothing": ("", None),
    "another scheme": ('Basic realm="x"', None),
    "bare": ("Bearer", BearerChallenge()),
    "whole": (
        'Bearer error="insufficient_scope", scope="a b", resource_metadata="https://x.example/m"',
        BearerChallenge("https://x.example/m", ("a", "b"), "insufficient_scope"),
    ),
    "two schemes": (
        'Bearer resource_metadata="https://x.example/m", DPoP error="use_dpop_nonce", algs="ES256"',
        BearerChallenge("https://x.example/m", error="use_dpop_nonce", dpop=True),
    ),
    "unquoted, in other case": (
        "bearer ERROR=invalid_token",
        BearerChallenge(error="invalid_token"),
    ),
    "behind another scheme": (
        'Basic realm="a, b", Bearer scope="x"',
        BearerChallenge(scopes=("x",)),
    ),
    "before another scheme": (
        'Bearer scope="x", Digest error="other", scope="y"',
        BearerChallenge(scopes=("x",)),
    ),
    "quoted quotes": (r'Bearer error="a\"b"', BearerChallenge(error='a"b')),
    "the first of two counts": ('Bearer scope="x", scope="y"', BearerChallenge(scopes=("x",))),
}


@pytest.mark.parametrize("name", READ)
def test_a_challenge_is_parsed(name):
    header, expected = READ[name]
    assert parse_challenge(header) == expected


@given(st.text(max_size=500))
def test_any_header_is_parsed_without_an_exception(text):
    parse_challenge(f"Bearer {text}")
