"""Tokens: shown once, kept as a digest, refused alike when unknown, revoked or expired."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.lib.problems import Forbidden
from bonobot.tenancy import tokens
from bonobot.tenancy.models import Organization, Token
from bonobot.tenancy.principals import Principal, cli_principal, principal_for_token
from bonobot.tenancy.roles import Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization():
    return Organization.objects.create(name="Acme", slug="acme")


@pytest.fixture
def issued(organization):
    return tokens.issue(cli_principal(organization), name="ci", role=Role.OPERATOR)


def test_the_text_opens_what_was_issued(issued):
    token, text = issued
    assert tokens.authenticate(text).pk == token.pk


def test_the_secret_is_nowhere_in_the_row(issued):
    token, text = issued
    secret = text.split("_", 2)[2]
    stored = " ".join(str(value) for value in vars(Token.objects.get(pk=token.pk)).values())
    assert secret not in stored


@pytest.mark.parametrize("spoil", [lambda t: t[:-1], lambda t: "x" + t, lambda _: "", str.upper])
def test_another_text_is_refused(issued, spoil):
    with pytest.raises(tokens.BadToken):
        tokens.authenticate(spoil(issued[1]))


def test_a_revoked_token_is_refused_at_once(organization, issued):
    token, text = issued
    tokens.revoke(cli_principal(organization), token)
    with pytest.raises(tokens.BadToken):
        tokens.authenticate(text)


def test_an_expired_token_is_refused(organization):
    _, text = tokens.issue(
        cli_principal(organization),
        name="old",
        role=Role.MEMBER,
        expires_at=timezone.now() - timedelta(seconds=1),
    )
    with pytest.raises(tokens.BadToken):
        tokens.authenticate(text)


def test_a_role_that_may_not_make_tokens_makes_none(organization):
    auditor = Principal(
        kind="user", id="u", label="u", organization_id=organization.pk, role=Role.AUDITOR
    )
    with pytest.raises(Forbidden):
        tokens.issue(auditor, name="x", role=Role.OWNER)
    assert not Token.objects.exists()


def test_the_principal_of_a_token_has_its_role_and_organization(organization, issued):
    principal = principal_for_token(issued[0])
    assert (principal.role, principal.organization_id) == (Role.OPERATOR, organization.pk)
    assert not principal.platform_admin
