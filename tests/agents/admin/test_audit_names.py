"""Names that the filters of the audit log suggest."""

import re

import pytest
from pytest_django import DjangoAssertNumQueries

from agents.admin.audit_names import list_filter_names
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.models import Agent
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.roles import Role
from mcp_servers.models import Definition, Server
from tests import admin_client, factories, large_organization

pytestmark = pytest.mark.django_db
NAMES = "ledger_auditrow_names"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def create_tools(organization: Organization, server: Server, *names: str) -> None:
    Definition.objects.bulk_create(
        Definition(
            organization=organization,
            server=server,
            kind=Definition.Kind.TOOL,
            name=name,
            present=True,
        )
        for name in names
    )


def list_suggestions(page: str) -> dict[str, list[str]]:
    lists = re.findall(r'<datalist id="(\w+)-names">(.*?)</datalist>', page, re.DOTALL)
    return {kind: re.findall(r'value="([^"]*)"', text) for kind, text in lists}


def test_names_of_the_organization_are_suggested_sorted_and_once(acme: Organization) -> None:
    factories.create_agent(acme, "helper")
    factories.create_agent(acme, "accounts")
    for server in large_organization.add_servers(acme, 2):
        create_tools(acme, server, "Search", "pay")
    other = factories.create_organization("other")
    factories.create_agent(other, "foreign")
    create_tools(other, large_organization.add_servers(other, 1, first=7)[0], "foreign_tool")
    suggested = list_suggestions(admin_client.sign_in(acme, Role.AUDITOR).get(NAMES))
    assert suggested["agent"] == ["Accounts", "Helper"]
    assert suggested["server"] == ["Server 00000", "Server 00001"]
    assert [name for name in suggested["tool"] if name not in BUILTIN_TOOLS] == ["pay", "Search"]
    assert set(BUILTIN_TOOLS) < set(suggested["tool"])


def test_a_name_with_hidden_characters_isnt_suggested(acme: Organization) -> None:
    agent = factories.create_agent(acme, "helper")
    Agent.objects.filter(pk=agent.pk).update(name="Hel\u200bper")
    assert list_filter_names(factories.build_administrator(acme))["agent"] == []


def test_hundreds_of_names_are_suggested_in_four_queries(
    acme: Organization, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    template = factories.create_agent(acme, "agent-0")
    Agent.objects.bulk_create(
        Agent(
            organization=acme,
            slug=f"agent-{number}",
            name=f"Agent {number}",
            model_endpoint=template.model_endpoint,
        )
        for number in range(1, 200)
    )
    [server] = large_organization.add_servers(acme, 1)
    create_tools(acme, server, *(f"tool_{number}" for number in range(300)))
    principal = factories.build_administrator(acme)
    with django_assert_num_queries(4):
        names = list_filter_names(principal)
    assert len(names["agent"]) == 200
    assert len(names["tool"]) == 300 + len(BUILTIN_TOOLS)


def test_the_list_loads_the_names_only_when_its_filters_are_opened(acme: Organization) -> None:
    factories.create_agent(acme, "suggested-name")
    page = admin_client.sign_in(acme, Role.AUDITOR).get("ledger_auditrow_changelist", kind="call")
    assert f'data-piece="{admin_client.build_url(NAMES)}"' in page
    assert "Suggested-Name" not in page
    for kind in ("agent", "server", "tool"):
        assert (
            f'name="{kind}_name__icontains" value="" autocomplete="off" list="{kind}-names"' in page
        )


def test_members_are_suggested_as_those_who_acted_or_decided(acme: Organization) -> None:
    mia = User.objects.create_user("mia")
    Membership.objects.create(organization=acme, user=mia, role=Role.MEMBER)
    User.objects.create_user("stranger")
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    suggested = list_suggestions(auditor.get(NAMES))["person"]
    assert "mia" in suggested
    assert "stranger" not in suggested
    page = auditor.get("ledger_auditrow_changelist")
    for name in ("actor_label__icontains", "decided_by"):
        assert f'name="{name}" value="" autocomplete="off" list="person-names"' in page


def test_the_period_is_entered_as_iso_dates(acme: Organization) -> None:
    page = admin_client.sign_in(acme, Role.AUDITOR).get("ledger_auditrow_changelist")
    assert 'type="date"' not in page
    assert page.count('placeholder="YYYY-MM-DD"') == 2


def test_names_arent_suggested_to_members(acme: Organization) -> None:
    admin_client.sign_in(acme, Role.MEMBER).get(NAMES, status=403)
