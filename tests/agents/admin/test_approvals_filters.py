"""The filters of the approvals inbox, with the names that they suggest."""

import re

import pytest

from agents.models import Agent
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db

LIST = "agents_approval_changelist"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def reviewer(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.REVIEWER)


def test_the_filters_suggest_the_names_in_the_tab_and_keep_urls_with_a_part_of_a_name(
    acme: Organization, helper: Agent, reviewer: admin_client.AdminClient
) -> None:
    other = factories.create_agent(acme, "billing")
    factories.create_approval(helper, server_name="web", own_name="add")
    factories.create_approval(other, server_name="ledger", own_name="pay")
    factories.create_approval(other, server_name="mail\u202e", own_name="send", state="denied")
    page = reviewer.get(LIST)
    names = {"agent": ["Billing", "Helper"], "server": ["ledger", "web"], "tool": ["add", "pay"]}
    for kind, suggested in names.items():
        assert f'list="{kind}-names"' in page
        datalist = page.partition(f'<datalist id="{kind}-names">')[2].partition("</datalist>")[0]
        assert re.findall(r'value="([^"]*)"', datalist) == suggested
    answered = reviewer.get(LIST, tab="answered")
    assert '<option value="send">' in answered
    assert '<option value="mail' not in answered
    assert "pay" in reviewer.get(LIST, server_name__icontains="edge")
    nothing = reviewer.get(LIST, own_name__icontains="nothing")
    assert "No results" in nothing


def test_a_member_gets_only_the_names_of_own_calls(acme: Organization, helper: Agent) -> None:
    member = admin_client.sign_in(acme, Role.MEMBER)
    factories.create_approval(helper, server_name="ledger", own_name="pay")
    page = member.get(LIST)
    assert 'id="server-names"' in page
    assert "ledger" not in page
