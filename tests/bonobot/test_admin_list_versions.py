"""No action of a list changes a row that was changed elsewhere since the list was loaded."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
import pytest_django
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import transaction

from agents.services import delete_agent
from bonobot.accounts.admin_base import ScopedAdmin
from bonobot.accounts.admin_base.list_versions import LIST_VERSION_FIELD
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.admin.theme import site
from bonobot.ledger.audit.admin_changes import record_finished_change
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Actor
from mcp_servers.models import Server
from tests import admin_client, factories, rest
from tests.screens import create_objects, share_rows

HIDDEN = re.compile(rf'name="{LIST_VERSION_FIELD}" value="([^"]+)"')
ELSEWHERE = Actor(kind="user", id="elsewhere", label="bert")


def list_admins() -> Iterator[ScopedAdmin]:
    """Yield the admins of an organization's rows."""
    for model_admin in site._registry.values():
        if isinstance(model_admin, ScopedAdmin) and not model_admin.platform_only:
            yield model_admin


ADMINS = {admin.opts.label_lower: admin for admin in list_admins()}
# Lists with actions; the others change one row at a time.
LISTS = (
    *("agents.accessrequest", "agents.agent", "agents.approval", "mcp_servers.server"),
    "notices.notification",
    *("tenancy.deletion", "tenancy.issuer", "tenancy.membership", "tenancy.provider"),
    "tenancy.token",
)


class FilledOrganization:
    def __init__(self) -> None:
        self.organization = factories.create_organization()
        create_objects(self.organization)
        deleted_agent = factories.create_agent(self.organization, "deleted")
        delete_agent(factories.build_administrator(self.organization), deleted_agent)
        self.browser = admin_client.sign_in(self.organization, None)


@pytest.fixture(scope="module")
def shared_organization(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[FilledOrganization]:
    with share_rows(django_db_blocker):
        yield FilledOrganization()


def change_elsewhere(organization: Organization, row_id: str) -> None:
    record_finished_change(
        organization_id=organization.pk,
        actor=ELSEWHERE,
        action="server_updated",
        resource_type="x",
        resource_id=row_id,
    )


def read_list(filled: FilledOrganization, name: str) -> tuple[str, str, list[str]]:
    """Return the path, the page and the offered actions of a list."""
    admin = ADMINS[name]
    path = admin_client.build_url(f"{admin.opts.app_label}_{admin.opts.model_name}_changelist")
    page = filled.browser.client.get(path).content.decode()
    names = (*(admin.actions or ()), "delete_selected")
    return path, page, [action for action in names if f'value="{action}"' in page]


@pytest.mark.parametrize("name", LISTS)
def test_an_action_is_refused_for_a_row_that_was_changed_since_the_list_was_loaded(
    shared_organization: FilledOrganization, name: str
) -> None:
    filled, admin = shared_organization, ADMINS[name]
    path, page, actions = read_list(filled, name)
    selected = re.findall(rf'name="{ACTION_CHECKBOX_NAME}"\s+value="([^"]+)"', page)[:1]
    version = HIDDEN.search(page)
    assert version
    assert actions
    row = admin.model._base_manager.get(pk=selected[0])
    for action in actions:
        with transaction.atomic():
            for row_id in admin.list_audit_ids(row):
                change_elsewhere(filled.organization, row_id)
            count = AuditRow.objects.count()
            fields = {"action": action, LIST_VERSION_FIELD: version[1], "confirmed": "1"}
            fields |= {"post": "yes", ACTION_CHECKBOX_NAME: selected}
            response = filled.browser.client.post(path, fields)
            text = admin_client.get_text(response.content.decode())
            assert response.status_code == 409, (action, text)
            assert "bert" in text
            assert "version_conflict" in text
            assert AuditRow.objects.count() == count
            transaction.set_rollback(True)


@pytest.mark.parametrize("name", sorted(ADMINS.keys() - {*LISTS}))
def test_other_lists_have_no_actions(shared_organization: FilledOrganization, name: str) -> None:
    _path, _page, actions = read_list(shared_organization, name)
    assert actions == []


@pytest.fixture
def acme(db: None) -> Organization:
    return factories.create_organization()


@pytest.fixture
def owner(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OWNER, "owner")


class ListTab:
    """A browser tab with a list."""

    def __init__(self, browser: admin_client.AdminClient, name: str) -> None:
        self.browser, self.path = browser, admin_client.build_url(name)
        self.load(browser.client.get(self.path))

    def load(self, response: Any) -> None:
        self.page, self.status = response.content.decode(), response.status_code
        if match := HIDDEN.search(self.page):
            self.version = match[1]

    def run(self, action: str, *rows: Any, **fields: str) -> int:
        """Post an action on rows and load the response."""
        data = {"action": action, LIST_VERSION_FIELD: self.version, **fields}
        selected = {ACTION_CHECKBOX_NAME: [str(row.pk) for row in rows]}
        response = self.browser.client.post(self.path, data | selected)
        if response.status_code == 302 and "/confirm/" in response["Location"]:
            response = self.browser.client.get(response["Location"])
        self.load(response)
        return int(self.status)


SERVERS = "mcp_servers_server_changelist"


def test_a_server_that_was_renamed_elsewhere_isnt_deleted_from_a_list(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    servers = [admin_client.create_web_server(acme, f"web{number}") for number in range(2)]
    tab = ListTab(owner, SERVERS)
    path = f"mcp-servers/{servers[0].pk}"
    assert rest.as_administrator().patch(path, {"description": "Used by payroll."}).status == 200
    assert tab.run("remove_chosen", *servers) == 409
    assert "web0" in tab.page
    assert "web1: " not in admin_client.get_text(tab.page)
    assert Server.objects.count() == 2
    assert tab.run("remove_chosen", *servers) == 200  # the current list was shown
    assert tab.run("remove_chosen", *servers, confirmed="1") == 302
    assert not Server.objects.exists()


def test_a_server_that_was_changed_after_the_confirmation_was_shown_isnt_deleted(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    server = admin_client.create_web_server(acme, "web")
    tab = ListTab(owner, SERVERS)
    assert tab.run("remove_chosen", server) == 200
    path = f"mcp-servers/{server.pk}"
    assert rest.as_administrator().patch(path, {"description": "Used by payroll."}).status == 200
    assert tab.run("remove_chosen", server, confirmed="1") == 409
    assert Server.objects.exists()


def test_unchanged_rows_and_requests_without_a_version_are_as_before(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    servers = [admin_client.create_web_server(acme, f"web{number}") for number in range(2)]
    tab = ListTab(owner, SERVERS)
    path = f"mcp-servers/{servers[1].pk}"
    assert rest.as_administrator().patch(path, {"description": "x"}).status == 200
    assert tab.run("remove_chosen", servers[0], confirmed="1") == 302  # the other one changed
    tab.version = "forged"
    assert tab.run("remove_chosen", servers[1], confirmed="1") == 302


RULES = {"mode": "denylist"}


def press(browser: admin_client.AdminClient, page: str, button: str) -> None:
    """Press a button with the version that its page had when it was loaded."""
    forms = re.findall(r'<form method="post"\s+action="([^"]+)".*?</form>', page, re.S)
    (action,) = [unescape(form) for form in forms if button in form]
    version = HIDDEN.search(page)
    assert version
    browser.client.post(action, {LIST_VERSION_FIELD: version[1]})


@pytest.mark.parametrize("owner_kind", ["agent", "organization"])
@pytest.mark.parametrize("button", ["enforce", "discard"])
def test_a_draft_that_another_tab_changed_is_neither_enforced_nor_discarded(
    acme: Organization, owner: admin_client.AdminClient, owner_kind: str, button: str
) -> None:
    agent = factories.create_agent(acme, "helper")
    is_agent = owner_kind == "agent"
    path = "agents/helper/tool-policy" if is_agent else "tool-policy"
    address = admin_client.build_url(
        "agents_agent_simulate" if is_agent else "organization_simulate",
        *([agent.pk] if is_agent else []),
    )
    administrator = rest.as_administrator()
    assert administrator.put(f"{path}/draft", RULES).status == 200
    page = owner.client.get(address).content.decode()
    assert administrator.put(f"{path}/draft", {"mode": "none"}).status == 200
    press(owner, page, button)
    assert '"mode":"none"' in administrator.get(f"{path}/draft").text
    assert administrator.get(path).json["mode"] != "none"
    page = owner.client.get(address).content.decode()
    assert "version_conflict" in page
    press(owner, page, button)
    assert administrator.get(f"{path}/draft").status == 404


@pytest.mark.parametrize("kind", ["agent", "server"])
def test_a_switch_is_refused_if_another_tab_used_it_meanwhile(
    acme: Organization, owner: admin_client.AdminClient, kind: str
) -> None:
    if kind == "agent":
        row: Any = factories.create_agent(acme, "helper")
        page_name, path = "agents_agent_change", "agents/helper"
    else:
        row = admin_client.create_web_server(acme, "web")
        page_name, path = "mcp_servers_server_change", f"mcp-servers/{row.pk}"
    administrator = rest.as_administrator()
    assert administrator.patch(path, {"enabled": False}).status == 200
    page = owner.client.get(admin_client.build_url(page_name, row.pk)).content.decode()
    switch = re.search(r'<form method="post" action="([^"]+/toggle/)".*?</form>', page, re.S)
    assert switch
    version = HIDDEN.search(switch[0])
    assert version
    fields = {LIST_VERSION_FIELD: version[1], "enabled": "1"}
    for enabled in (True, False):
        assert administrator.patch(path, {"enabled": enabled}).status == 200
    owner.send(switch[1], fields)
    assert "version_conflict" in owner.messages[0]
    row.refresh_from_db()
    assert not row.enabled
    owner.send(switch[1], {"enabled": "1"})
    row.refresh_from_db()
    assert row.enabled
