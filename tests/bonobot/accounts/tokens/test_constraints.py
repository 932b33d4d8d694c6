"""Constraints of tokens are validated and never widened."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.accounts.roles import (
    ROLE_ACTIONS,
    SCOPE_ACTIONS,
    Action,
    Role,
    TokenScope,
    is_action_in_scope,
    list_scopes_with_action,
)
from bonobot.accounts.tokens.constraints import clean_constraints, is_in_networks, parse_networks
from bonobot.core.problems import InvalidInput


@pytest.mark.parametrize(
    ("terms", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"scopes": ["mcp:tools", "all"]}, "scopes"),
        ({"networks": ["10.1.2.3/16"]}, "networks"),
        ({"networks": ["example.org"]}, "networks"),
        ({"networks": [f"10.0.0.{n}" for n in range(51)]}, "networks"),
        ({"calls_per_minute": 0}, "calls_per_minute"),
        ({"client": "x" * 65}, "client"),
        ({"role": "owner"}, "role"),
        ({"digest": "0" * 64}, "digest"),
    ],
)
def test_invalid_constraints_are_refused_with_their_field(terms, field):
    with pytest.raises(InvalidInput) as raised:
        clean_constraints(terms)
    assert raised.value.field == field
    assert raised.value.remedy


def test_constraints_are_stored_in_a_fixed_order():
    constraints = clean_constraints(
        {"scopes": ["api", "mcp:tools", "api"], "networks": [" 10.0.0.0/8 ", "::1"]}
    )
    assert constraints == {"scopes": ["mcp:tools", "api"], "networks": ["10.0.0.0/8", "::1/128"]}


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.1.2.3", True),
        ("::ffff:10.1.2.3", True),
        ("11.1.2.3", False),
        ("2001:db8::7", True),
        ("", False),
        ("10.1.2.3, 10.1.2.4", False),
    ],
)
def test_an_address_is_allowed_only_in_the_tokens_networks(address, expected):
    assert is_in_networks(address, parse_networks(["10.0.0.0/8", "2001:db8::/32"])) is expected


@given(st.text())
def test_without_networks_every_address_is_allowed(address):
    assert is_in_networks(address, ())


def test_no_gateway_scope_can_approve_calls():
    gateway_actions = {
        action
        for scope in TokenScope
        if scope not in (TokenScope.API, TokenScope.PLATFORM)
        for action in SCOPE_ACTIONS[scope]
    }
    assert not gateway_actions & {
        Action.APPROVE_CALLS,
        Action.APPROVE_DEFINITIONS,
        Action.MANAGE_TOKENS,
        Action.MANAGE_MEMBERS,
    }


def test_every_action_has_a_scope_that_its_refusal_names():
    for action in Action:
        assert list_scopes_with_action(action)
        assert all(is_action_in_scope({scope}, action) for scope in list_scopes_with_action(action))
        assert is_action_in_scope(None, action)
        assert not is_action_in_scope(frozenset(), action)


def test_the_scope_for_agents_includes_their_tools():
    for role in Role:
        assert (Action.RUN_AGENTS in ROLE_ACTIONS[role]) == (Action.USE_TOOLS in ROLE_ACTIONS[role])
