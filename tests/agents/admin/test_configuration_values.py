"""What people see of an agent's configuration and built-in tools without permission to change."""

import pytest

from agents.budgets.services import BudgetLine, set_budgets
from agents.services import AgentSpec, update_agent
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    agent = factories.create_agent(acme, instructions="Answer politely.")
    administrator = factories.build_administrator(acme)
    set_budgets(administrator, agent, [BudgetLine("calls", "day", 1_500)])
    update_agent(
        administrator, agent, AgentSpec(name=agent.name, builtin_tools={"notes": {}, "fetch": {}})
    )
    return agent


@pytest.fixture
def auditor(acme):
    return admin_client.sign_in(acme, Role.AUDITOR)


def get_content(page: str) -> str:
    """Return the part of a page that belongs to the agent."""
    return page[page.index('class="bb"') :]


def test_the_configuration_is_shown_as_values(auditor, helper):
    page = get_content(auditor.get("agents_agent_configuration", helper.pk))
    for control in ("<input", "<textarea", "<select", "<fieldset"):
        assert control not in page.partition("</main>")[0]
    text = admin_client.get_text(page)
    for value in ("Answer politely.", "0 of 1,500 used", "3,600", "Model Offline"):
        assert value in text


def test_skills_and_servers_are_shown_as_values(auditor, helper, acme):
    administrator = factories.build_administrator(acme)
    skill = save_skill(
        administrator, SkillSpec(name="triage", text="Sort them.", agents=["helper"])
    )
    server = admin_client.create_web_server(acme)
    pages = (
        (auditor.get("agents_skill_edit", skill.pk), ("triage", "Sort them.", "Agents Helper")),
        (
            auditor.get("mcp_servers_server_configuration", server.pk),
            ("Name web", "http://127.0.0.1:9/mcp", "Sign-in None", "Enabled Yes"),
        ),
    )
    for page, values in pages:
        content = get_content(page).partition("</main>")[0]
        for control in ("<input", "<textarea", "<select", "<fieldset"):
            assert control not in content
        for value in values:
            assert value in admin_client.get_text(content)


def test_the_header_says_that_an_agent_is_disabled(auditor, helper, acme):
    assert " disabled Chat " not in admin_client.get_text(
        auditor.get("agents_agent_configuration", helper.pk)
    )
    spec = AgentSpec(name=helper.name, enabled=False)
    update_agent(factories.build_administrator(acme), helper, spec)
    page = get_content(auditor.get("agents_agent_configuration", helper.pk))
    assert " disabled Chat " in admin_client.get_text(page)


def test_toolsets_are_shown_as_values(auditor, helper):
    page = get_content(auditor.get("agents_agent_builtin", helper.pk))
    assert "toolset-notes" not in page
    assert "workspace_mib" not in page
    text = admin_client.get_text(page)
    assert "2 of 7 enabled" in text
    assert "10,000" in text
    assert "Methods GET, HEAD" in text
