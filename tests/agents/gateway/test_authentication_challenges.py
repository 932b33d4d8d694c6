"""The challenge and the metadata for clients without a valid token."""

import pytest

from agents.gateway.authentication import build_challenge, build_resource_metadata
from bonobot.accounts.principals import InsufficientScope
from bonobot.accounts.roles import TokenScope
from bonobot.accounts.tokens.services import build_invalid_token_error
from bonobot.core.problems import NotFound, Problem

RESOURCE = "https://bonobot.example.com/mcp/agents/helper"
METADATA_URL = "https://bonobot.example.com/.well-known/oauth-protected-resource/mcp/agents/helper"


def test_the_metadata_has_the_resource_its_scopes_and_authorization_servers():
    metadata = build_resource_metadata(RESOURCE, issuers=["https://login.example.com"])
    assert metadata["resource"] == RESOURCE
    assert metadata["authorization_servers"] == ["https://login.example.com"]
    assert metadata["scopes_supported"] == ["mcp:tools", "mcp:agents", "mcp:manage"]


def test_a_resource_without_an_issuer_lists_none():
    assert "authorization_servers" not in build_resource_metadata(RESOURCE)


@pytest.mark.parametrize(
    ("problem", "more"),
    [
        (Problem("No token.", code="not_authenticated", status=401), ""),
        (build_invalid_token_error(), ', error="invalid_token"'),
        (NotFound("Not here."), ""),
        (
            InsufficientScope(TokenScope.TOOLS, TokenScope.API),
            ', error="insufficient_scope", scope="mcp:tools"',
        ),
    ],
)
def test_a_challenge_has_the_required_scope(problem, more):
    assert (
        build_challenge(METADATA_URL, problem) == f'Bearer resource_metadata="{METADATA_URL}"{more}'
    )


def test_a_url_cant_break_out_of_the_challenge_parameter():
    challenge = build_challenge('https://b.example.com/" realm="x\\', build_invalid_token_error())
    assert challenge.startswith(
        'Bearer resource_metadata="https://b.example.com/\\" realm=\\"x\\\\", '
    )
