"""Issuers in the admin: added and changed by platform administrators, seen by nobody else."""

import pytest

from bonobot.accounts.models import Issuer
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

SAID = {
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
    seat = admin_client.sit(acme, None)
    assert "Helper" in seat.get("tenancy_issuer_add")
    bounds = {"agents": str(agent.pk), "scopes": ["mcp:tools"], "roles": '{"ops": "operator"}'}
    seat.post("tenancy_issuer_add", **SAID, **bounds)
    row = Issuer.objects.get()
    assert (row.agent_ids, row.scopes) == ([str(agent.pk)], ["mcp:tools"])
    assert (row.roles, row.announced) == ({"ops": "operator"}, False)
    page = seat.post("tenancy_issuer_change", row.pk, **SAID | {"url": "http://x.example.com"})
    assert "must start with https" in admin_client.words(page)
    assert "disabled" not in admin_client.words(seat.get("tenancy_issuer_changelist"))
    seat.post("tenancy_issuer_change", row.pk, **SAID | {"enabled": ""})
    row.refresh_from_db()
    assert (row.enabled, row.agent_ids, row.scopes) == (False, [], [])
    assert "disabled" in admin_client.words(seat.get("tenancy_issuer_changelist"))
    seat.post("tenancy_issuer_delete", row.pk, post="yes")
    assert not Issuer.objects.exists()


def test_a_duplicate_issuer_is_reported_at_its_field() -> None:
    acme = factories.create_organization()
    factories.create_issuer(factories.create_organization("other"), SAID["url"])
    page = admin_client.sit(acme, None).post("tenancy_issuer_add", **SAID)
    assert "It can belong to only one organization" in admin_client.words(page)


def test_an_owner_cant_see_external_issuers() -> None:
    acme = factories.create_organization()
    seat = admin_client.sit(acme, Role.OWNER)
    seat.get("tenancy_issuer_changelist", status=403)
    assert "External issuers" not in admin_client.words(seat.get("index"))


def test_keys_are_fetched_on_request_and_errors_are_shown() -> None:
    acme = factories.create_organization()
    row = factories.create_issuer(acme, "http://127.0.0.1:9", allow_private=True)
    seat = admin_client.sit(acme, None)
    seat.post("tenancy_issuer_changelist", action="check_chosen", _selected_action=str(row.pk))
    assert "Login: The issuer of the token" in seat.messages[0]
