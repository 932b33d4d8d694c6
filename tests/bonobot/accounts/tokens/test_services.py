"""Tokens: shown once, stored as a digest; unknown, revoked and expired ones get one error."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.models import Organization, Token
from bonobot.accounts.principals import (
    InsufficientScope,
    Principal,
    build_cli_principal,
    build_token_principal,
)
from bonobot.accounts.roles import Action, Role, TokenScope
from bonobot.accounts.tokens import services as tokens
from bonobot.core.problems import Conflict, Forbidden
from bonobot.ledger.models import AuditRow
from bonobot.ledger.policy_generations import load_policy_generation

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization():
    return Organization.objects.create(name="Acme", slug="acme")


@pytest.fixture
def issued_token(organization):
    return tokens.create_token(build_cli_principal(organization), name="ci", role=Role.OPERATOR)


def test_the_secret_authenticates_the_issued_token(issued_token):
    token, text = issued_token
    assert tokens.authenticate_token(text).pk == token.pk


def test_the_row_doesnt_contain_the_secret(issued_token):
    token, text = issued_token
    secret = text.split("_", 2)[2]
    stored = " ".join(str(value) for value in vars(Token.objects.get(pk=token.pk)).values())
    assert secret not in stored


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: "x" + t, lambda _: "", str.upper])
def test_another_secret_is_refused(issued_token, change):
    with pytest.raises(tokens.InvalidToken):
        tokens.authenticate_token(change(issued_token[1]))


def test_a_revoked_token_is_refused_immediately(organization, issued_token):
    token, text = issued_token
    tokens.revoke_token(build_cli_principal(organization), token)
    with pytest.raises(tokens.InvalidToken):
        tokens.authenticate_token(text)


def test_an_expired_token_is_refused(organization):
    _, text = tokens.create_token(
        build_cli_principal(organization),
        name="old",
        role=Role.MEMBER,
        expires_at=timezone.now() - timedelta(seconds=1),
    )
    with pytest.raises(tokens.InvalidToken):
        tokens.authenticate_token(text)


def test_a_role_without_permission_cant_create_tokens(organization):
    auditor = Principal(
        kind="user", id="u", label="u", organization_id=organization.pk, role=Role.AUDITOR
    )
    with pytest.raises(Forbidden):
        tokens.create_token(auditor, name="x", role=Role.OWNER)
    assert not Token.objects.exists()


def test_the_principal_of_a_token_has_its_role_and_organization(organization, issued_token):
    principal = build_token_principal(issued_token[0])
    assert (principal.role, principal.organization_id) == (Role.OPERATOR, organization.pk)
    assert not principal.platform_admin


def test_a_token_has_the_permissions_of_both_its_role_and_scopes(organization):
    administrator = build_cli_principal(organization)
    token, _ = tokens.create_token(
        administrator, name="ide", role=Role.OPERATOR, scopes=[TokenScope.TOOLS]
    )
    principal = build_token_principal(token)
    assert principal.may(Action.CALL_TOOLS)
    with pytest.raises(InsufficientScope) as raised:
        principal.require(Action.RUN_AGENTS)
    assert raised.value.code == "insufficient_scope"
    assert raised.value.as_dict()["scopes"] == ["mcp:agents", "api"]
    with pytest.raises(Forbidden) as forbidden:
        principal.require(Action.MANAGE_MEMBERS)
    assert forbidden.value.rule == "role:manage_members"


def test_a_removed_scope_grants_nothing(organization, issued_token):
    Token.objects.update(scopes=["mcp:everything"])
    principal = build_token_principal(Token.objects.get())
    assert not any(principal.may(action) for action in Action)


def test_an_updated_token_keeps_its_secret(organization, issued_token):
    token, text = issued_token
    tokens.update_token(
        build_cli_principal(organization), token, name="pipeline", scopes=["api"], networks=["::1"]
    )
    changed = tokens.authenticate_token(text, "::1")
    assert (changed.name, changed.scopes, changed.networks) == ("pipeline", ["api"], ["::1/128"])
    details = json.loads(AuditRow.objects.get(action="token_updated").opened)["details"]
    assert details == {"scopes": ["api"], "networks": ["::1/128"]}


def test_an_update_without_changes_isnt_written(organization, issued_token):
    before = load_policy_generation(organization.pk)
    tokens.update_token(build_cli_principal(organization), issued_token[0], name="ci", scopes=[])
    assert load_policy_generation(organization.pk) == before
    assert not AuditRow.objects.filter(action="token_updated").exists()


def test_a_revoked_token_cant_be_updated(organization, issued_token):
    token, _ = issued_token
    tokens.revoke_token(build_cli_principal(organization), token)
    token.refresh_from_db()
    with pytest.raises(Conflict) as raised:
        tokens.update_token(build_cli_principal(organization), token, expires_at=None, name="again")
    assert raised.value.code == "token_revoked"


def test_a_role_without_permission_cant_update_tokens(organization, issued_token):
    operator = build_token_principal(issued_token[0])
    with pytest.raises(Forbidden):
        tokens.update_token(operator, issued_token[0], name="mine")


@pytest.mark.django_db(transaction=True)
def test_a_token_from_another_network_is_refused_as_invalid_and_recorded(organization):
    administrator = build_cli_principal(organization)
    token, text = tokens.create_token(
        administrator, name="ci", role=Role.MEMBER, networks=["192.0.2.0/24"]
    )
    assert tokens.authenticate_token(text, "192.0.2.7").pk == token.pk
    for address in ("198.51.100.1", ""):
        with pytest.raises(tokens.InvalidToken) as elsewhere:
            tokens.authenticate_token(text, address)
    with pytest.raises(tokens.InvalidToken) as unknown:
        tokens.authenticate_token("bnb_0_0")
    assert elsewhere.value.as_dict() == unknown.value.as_dict()
    row = AuditRow.objects.get(action="token_rejected")
    assert (row.resource_id, row.code, row.decision) == (str(token.pk), "token_network", "deny")
    assert json.loads(row.opened)["details"] == {"address": "198.51.100.1"}
