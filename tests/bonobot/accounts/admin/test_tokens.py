"""Tokens in the admin: shown once, limited, updated, revoked."""

import re

import pytest

from bonobot.accounts.models import Token
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


def test_a_new_token_is_shown_once() -> None:
    acme = factories.create_organization()
    admin = admin_client.sign_in(acme, Role.OWNER)
    page = admin.post("tenancy_token_add", name="ci", role="operator", lifetime="90")
    token = Token.objects.get()
    assert f"bnb_{token.key}_" in page
    assert token.expires_at is not None
    assert f"bnb_{token.key}_" not in admin.get("tenancy_token_changelist")
    assert token.digest not in admin.get("tenancy_token_change", token.pk)


def test_a_token_can_be_limited_to_an_agent() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    admin = admin_client.sign_in(acme, Role.OWNER)
    assert "Helper" in admin.get("tenancy_token_add")
    admin.post("tenancy_token_add", name="ci", role="member", agents=str(agent.pk), lifetime="")
    assert Token.objects.get().agent_ids == [str(agent.pk)]


def test_a_token_is_updated_except_for_its_role() -> None:
    acme = factories.create_organization()
    agent, administrator = factories.create_agent(acme), factories.build_administrator(acme)
    token, _text = create_token(administrator, name="ci", role=Role.MEMBER, agent_ids=[agent.pk])
    admin = admin_client.sign_in(acme, Role.OWNER)
    fields = {
        "name": "IDE",
        "client": "zed",
        "role": "owner",
        "scopes": ["mcp:tools", "mcp:agents"],
    }
    limits = {"agents": [str(agent.pk)], "networks": "10.0.0.0/8\n::1", "calls_per_minute": "7"}
    admin.post("tenancy_token_change", token.pk, **fields, **limits, lifetime="kept")
    token.refresh_from_db()
    assert (token.name, token.client, token.role) == ("IDE", "zed", "member")
    assert (token.scopes, token.networks) == (
        ["mcp:tools", "mcp:agents"],
        ["10.0.0.0/8", "::1/128"],
    )
    assert (token.agent_ids, token.calls_per_minute) == ([str(agent.pk)], 7)
    page = admin.post(
        "tenancy_token_change", token.pk, **fields, networks="everywhere", lifetime=""
    )
    assert "'everywhere' isn't a network" in admin_client.get_text(page)
    token.refresh_from_db()
    assert len(token.networks) == 2


def test_a_token_keeps_a_deleted_agent() -> None:
    acme = factories.create_organization()
    agent, administrator = factories.create_agent(acme), factories.build_administrator(acme)
    token, _text = create_token(administrator, name="ci", role=Role.MEMBER, agent_ids=[agent.pk])
    agent_id = str(agent.pk)
    agent.delete()
    admin = admin_client.sign_in(acme, Role.OWNER)
    assert f"deleted: {agent_id}" in admin.get("tenancy_token_change", token.pk)
    admin.post("tenancy_token_change", token.pk, name="ci", agents=[agent_id], lifetime="kept")
    token.refresh_from_db()
    assert token.agent_ids == [agent_id]


def test_tokens_are_revoked_and_never_deleted() -> None:
    acme = factories.create_organization()
    token, _text = create_token(factories.build_administrator(acme), name="ci", role=Role.MEMBER)
    admin = admin_client.sign_in(acme, Role.OWNER)
    fields = {"action": "revoke_chosen", "_selected_action": str(token.pk)}
    admin.post("tenancy_token_changelist", **fields)
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert AuditRow.objects.filter(action="token_revoked", actor_id=admin.user.pk).exists()


def test_the_scope_of_platform_administrators_is_offered_to_them_only() -> None:
    acme = factories.create_organization()
    owner, administrator = admin_client.sign_in(acme, Role.OWNER), admin_client.sign_in(acme, None)
    assert 'value="api"' in owner.get("tenancy_token_add")
    assert 'value="platform"' not in owner.get("tenancy_token_add")
    assert 'value="platform"' in administrator.get("tenancy_token_add")
    principal = factories.build_administrator(acme)
    token, _text = create_token(principal, name="ci", role=Role.OWNER, scopes=["platform"])
    # It isn't removed from a token that has it by a form that doesn't show it.
    assert 'value="platform"' in owner.get("tenancy_token_change", token.pk)


def test_a_token_is_revoked_on_its_page_after_a_confirmation() -> None:
    acme = factories.create_organization()
    token, _text = create_token(factories.build_administrator(acme), name="ci", role=Role.MEMBER)
    admin = admin_client.sign_in(acme, Role.OWNER)
    revoke_url = admin_client.build_url("tenancy_token_revoke", token.pk)
    assert revoke_url in admin.get("tenancy_token_change", token.pk)
    assert "Revoke ci?" in admin_client.get_text(admin.get("tenancy_token_revoke", token.pk))
    token.refresh_from_db()
    assert token.revoked_at is None
    page = admin.post("tenancy_token_revoke", token.pk)
    token.refresh_from_db()
    assert token.revoked_at is not None
    assert "The token ci was revoked." in admin_client.get_text(page)
    assert revoke_url not in page


def test_a_token_is_revoked_only_with_permission_and_in_its_organization() -> None:
    acme, other = factories.create_organization(), factories.create_organization("other")
    token, _text = create_token(factories.build_administrator(acme), name="ci", role=Role.MEMBER)
    member = admin_client.sign_in(acme, Role.MEMBER)
    member.post("tenancy_token_revoke", token.pk, status=403)
    admin_client.sign_in(other, Role.OWNER).post("tenancy_token_revoke", token.pk, status=404)
    token.refresh_from_db()
    assert token.revoked_at is None


def test_the_page_of_a_token_links_to_its_calls_in_the_audit_log() -> None:
    acme = factories.create_organization()
    token, _text = create_token(factories.build_administrator(acme), name="ci", role=Role.MEMBER)
    page = admin_client.sign_in(acme, Role.OWNER).get("tenancy_token_change", token.pk)
    assert admin_client.build_url("ledger_auditrow_changelist") + "?actor_label=ci" in page


def test_the_form_of_a_new_token_selects_the_scope_of_tools() -> None:
    admin = admin_client.sign_in(factories.create_organization(), Role.OWNER)
    page = admin.get("tenancy_token_add")
    checked = [tag for tag in re.findall(r"<input[^>]*>", page) if " checked" in tag]
    assert [re.findall(r'value="([^"]*)"', tag) for tag in checked] == [["mcp:tools"]]
