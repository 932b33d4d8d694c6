"""External issuers in the admin: only platform administrators can see and manage them."""

import pytest

from bonobot.accounts.models import Issuer
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

FIELDS = {
    "name": "Login",
    "url": "https://login.example.com",
    "subject_claim": "sub",
    "scope_claim": "scope",
    "role": "member",
    "enabled": "on",
}


def test_an_external_issuer_is_created_updated_and_deleted() -> None:
    acme = factories.create_organization()
    agent = factories.create_agent(acme)
    admin = admin_client.sign_in(acme, None)
    assert "Helper" in admin.get("tenancy_issuer_add")
    limits = {"agents": str(agent.pk), "scopes": ["mcp:tools"], "roles": '{"ops": "operator"}'}
    admin.post("tenancy_issuer_add", **FIELDS, **limits)
    row = Issuer.objects.get()
    assert (row.agent_ids, row.scopes) == ([str(agent.pk)], ["mcp:tools"])
    assert (row.roles, row.announced) == ({"ops": "operator"}, False)
    page = admin.post("tenancy_issuer_change", row.pk, **FIELDS | {"url": "http://x.example.com"})
    assert "must start with https" in admin_client.get_text(page)
    assert "disabled" not in admin_client.get_text(admin.get("tenancy_issuer_changelist"))
    admin.post("tenancy_issuer_change", row.pk, **FIELDS | {"enabled": ""})
    row.refresh_from_db()
    assert (row.enabled, row.agent_ids, row.scopes) == (False, [], [])
    assert "disabled" in admin_client.get_text(admin.get("tenancy_issuer_changelist"))
    admin.post("tenancy_issuer_delete", row.pk, post="yes")
    assert not Issuer.objects.exists()


def test_a_duplicate_issuer_is_reported_at_its_field() -> None:
    acme = factories.create_organization()
    factories.create_issuer(factories.create_organization("other"), FIELDS["url"])
    page = admin_client.sign_in(acme, None).post("tenancy_issuer_add", **FIELDS)
    assert "It can belong to only one organization" in admin_client.get_text(page)


def test_an_owner_cant_see_external_issuers() -> None:
    acme = factories.create_organization()
    admin = admin_client.sign_in(acme, Role.OWNER)
    admin.get("tenancy_issuer_changelist", status=403)
    assert "External issuers" not in admin_client.get_text(admin.get("index"))


def test_keys_are_fetched_on_request_and_errors_are_shown() -> None:
    acme = factories.create_organization()
    row = factories.create_issuer(acme, "http://127.0.0.1:9", allow_private=True)
    admin = admin_client.sign_in(acme, None)
    admin.post("tenancy_issuer_changelist", action="check_chosen", _selected_action=str(row.pk))
    assert "Login: The issuer of the token" in admin.messages[0]
