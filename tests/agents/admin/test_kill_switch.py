"""Kill switches in the admin: confirmation, effect, and the banner on every page."""

import pytest

from agents.models import Session
from agents.services import attach_server
from agents.sessions.services import start_session
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


@pytest.fixture
def session(acme, helper):
    return start_session(factories.build_administrator(acme), helper, "hello")


@pytest.fixture
def owner(acme):
    return admin_client.sign_in(acme, Role.OWNER)


def test_disabling_an_agent_with_sessions_needs_confirmation(helper, session, owner):
    page = admin_client.get_text(owner.post("agents_agent_toggle", helper.pk, enabled="0"))
    assert "1 running session will be canceled" in page
    helper.refresh_from_db()
    assert helper.enabled
    owner.post("agents_agent_toggle", helper.pk, enabled="0", sure="1")
    helper.refresh_from_db()
    session.refresh_from_db()
    assert (helper.enabled, session.status) == (False, Session.Status.CANCELLED)


def test_disabling_a_server_in_use_needs_confirmation(acme, helper, session, owner):
    server = admin_client.create_web_server(acme)
    attach_server(factories.build_administrator(acme), helper, server)
    page = admin_client.get_text(owner.post("mcp_servers_server_toggle", server.pk, enabled="0"))
    assert "1 session of agents with this server is running" in page
    owner.post("mcp_servers_server_toggle", server.pk, enabled="0", sure="1")
    server.refresh_from_db()
    session.refresh_from_db()
    assert (server.enabled, session.status) == (False, Session.Status.QUEUED)


def test_disabling_an_unused_object_needs_no_confirmation(acme, helper, owner):
    server = admin_client.create_web_server(acme)
    owner.post("mcp_servers_server_toggle", server.pk, enabled="0")
    owner.post("agents_agent_toggle", helper.pk, enabled="0")
    server.refresh_from_db()
    helper.refresh_from_db()
    assert (server.enabled, helper.enabled) == (False, False)


def test_the_enabled_kill_switch_is_shown_on_every_page(acme, session, owner):
    page = admin_client.get_text(owner.get("organization_kill_switch"))
    assert "Cancel " not in page  # a page of the navigation asks nothing
    assert "The kill switch is disabled" in page
    assert "Cancels 1 running session" in page
    assert "Kill switch enabled" not in admin_client.get_text(owner.get("index"))
    owner.post("organization_kill_switch", do="halt", reason="drill", sure="1")
    assert Organization.objects.get(pk=acme.pk).halted_at
    for name in ("index", "agents_agent_changelist", "organization_kill_switch"):
        assert "Kill switch enabled for Acme" in admin_client.get_text(owner.get(name)), name
    page = admin_client.get_text(owner.get("organization_kill_switch"))
    assert "The kill switch is enabled" in page
    assert "Reason drill" in page
    owner.post("organization_kill_switch", do="resume", sure="1")
    assert "Kill switch enabled" not in admin_client.get_text(owner.get("index"))


def test_enabling_and_disabling_the_kill_switch_needs_confirmation(acme, session, owner):
    page = owner.post("organization_kill_switch", do="halt")
    assert "Enable kill switch for Acme?" in admin_client.get_text(page)
    assert "Cancels 1 running session" in admin_client.get_text(page)
    assert 'name="reason"' in page
    assert Organization.objects.get(pk=acme.pk).halted_at is None
    owner.post("organization_kill_switch", do="halt", sure="1")
    page = owner.post("organization_kill_switch", do="resume")
    assert "Disable kill switch for Acme?" in admin_client.get_text(page)
    assert 'name="reason"' not in page
    assert Organization.objects.get(pk=acme.pk).halted_at


def test_the_confirmation_of_the_kill_switch_is_a_dialog_with_a_script(owner):
    url = admin_client.build_url("organization_kill_switch")
    response = owner.client.post(url, {"do": "halt"}, headers={FRAGMENT_HEADER: "1"})
    html = response.content.decode()
    assert 'id="confirm-title"' in html
    assert "<html" not in html


def test_without_sessions_the_kill_switch_does_not_offer_to_cancel_any(owner):
    page = admin_client.get_text(owner.get("organization_kill_switch"))
    assert "Denies every call" in page
    assert "Cancels" not in page


def test_other_roles_see_the_kill_switch_and_who_can_use_it(acme):
    reviewer = admin_client.sign_in(acme, Role.REVIEWER)
    page = reviewer.get("organization_kill_switch")
    assert "Can be changed by: owner" in admin_client.get_text(page)
    assert "data-confirms" not in page
    assert "forbidden" in reviewer.post("organization_kill_switch", do="halt", status=403)
    assert Organization.objects.get(pk=acme.pk).halted_at is None


def test_a_member_sees_the_banner_without_a_link(acme, helper):
    Organization.objects.filter(pk=acme.pk).update(halted_at="2026-01-01T00:00:00Z")
    page = admin_client.sign_in(acme, Role.MEMBER).get("agents_agent_changelist")
    assert "Kill switch enabled for Acme" in admin_client.get_text(page)
    assert admin_client.build_url("organization_kill_switch") not in page
