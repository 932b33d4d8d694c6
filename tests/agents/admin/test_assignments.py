"""An agent's tabs for skills and workflows: list, attach, detach."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.assignments import list_agent_slugs
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def helper(acme):
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme):
    return admin_client.sign_in(acme, Role.OPERATOR)


def create_skill(acme, name="tell", **fields):
    administrator = factories.build_administrator(acme)
    return save_skill(administrator, SkillSpec(name=name, text="Hello", **fields))


def test_empty_pages_explain_themselves_and_the_first_step(operator, helper):
    page = admin_client.get_text(operator.get("agents_agent_skills", helper.pk))
    assert "A skill is a set of instructions" in page
    assert "Attach or create one" in page
    assert "The organization has no other skills" in page
    page = admin_client.get_text(operator.get("agents_agent_workflows", helper.pk))
    assert "after its current version is approved" in page
    assert "Workflows that run as this agent use its tools" in page


def test_rows_beyond_the_first_page_of_a_tab_are_on_the_next(acme, operator, helper):
    for number in range(31):
        create_skill(acme, f"skill-{number:02}", agents=[helper.slug])
    first_page = admin_client.get_text(operator.get("agents_agent_skills", helper.pk))
    next_page = admin_client.get_text(operator.get("agents_agent_skills", helper.pk, page=2))
    assert "skill-29" in first_page
    assert "skill-30" not in first_page
    assert "skill-30" in next_page
    assert "skill-29" not in next_page


def test_attaching_and_detaching_a_skill_keeps_its_version(acme, operator, helper):
    other_agent = factories.create_agent(acme, "other")
    skill = create_skill(acme, agents=[other_agent.slug], description="Says <b>hello</b>.")
    assert "tell" in admin_client.get_text(operator.get("agents_agent_skills", helper.pk))
    operator.post("agents_agent_assign_skill", helper.pk, row=skill.pk)
    assert list_agent_slugs(skill) == sorted([helper.slug, other_agent.slug])
    page = operator.get("agents_agent_skills", helper.pk)
    assert "Says &lt;b&gt;hello&lt;/b&gt;." in page
    assert "version 1" in admin_client.get_text(page)
    operator.post("agents_agent_unassign_skill", helper.pk, row=skill.pk)
    assert list_agent_slugs(skill) == [other_agent.slug]
    assert AuditRow.objects.filter(action="skill_updated").count() == 2
    skill.refresh_from_db()
    assert skill.version == 1


def test_a_workflow_is_attached_as_a_tool_and_detached(acme, operator, helper):
    other_agent = factories.create_agent(acme, "other")
    workflow = factories.create_workflow(other_agent, "weekly")
    operator.post("agents_agent_assign_workflow", helper.pk, row=workflow.pk)
    assert helper.slug in list_agent_slugs(workflow)
    words = admin_client.get_text(operator.get("agents_agent_workflows", helper.pk))
    assert "runs as Other" in words
    other_words = admin_client.get_text(operator.get("agents_agent_workflows", other_agent.pk))
    assert other_words.index("Workflows that run as this agent") < other_words.rindex("weekly")
    operator.post("agents_agent_unassign_workflow", helper.pk, row=workflow.pk)
    assert helper.slug not in list_agent_slugs(workflow)


def test_a_skill_or_workflow_can_be_created_for_the_agent(acme, operator, helper):
    page = operator.get("agents_skill_add", agent=helper.slug)
    checkbox = page[page.index(f'value="{helper.slug}"') :].split(">")[0]
    assert "checked" in checkbox


def test_a_read_only_role_has_no_buttons_and_is_refused(acme, helper):
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    skill = create_skill(acme, agents=[helper.slug])
    page = auditor.get("agents_agent_skills", helper.pk)
    assert "tell" in page
    assert "unassign_skill" not in page
    auditor.post("agents_agent_unassign_skill", helper.pk, status=403, row=skill.pk)
    assert list_agent_slugs(skill) == [helper.slug]


def test_skills_of_another_organization_arent_shown_or_attached(acme, operator, helper):
    foreign = create_skill(factories.create_organization("other"), "theirs")
    assert "theirs" not in admin_client.get_text(operator.get("agents_agent_skills", helper.pk))
    operator.post("agents_agent_assign_skill", helper.pk, status=404, row=foreign.pk)
    assert not list_agent_slugs(foreign)


@pytest.mark.parametrize("page", ["agents_agent_skills", "agents_agent_workflows"])
def test_a_tab_uses_the_same_queries_for_any_number_of_rows(acme, operator, helper, page):
    def create_rows(number: int) -> None:
        create_skill(acme, f"skill-{number}", agents=[helper.slug])
        factories.create_workflow(helper, f"flow-{number}")

    def count_queries() -> int:
        with CaptureQueriesContext(connection) as caught:
            operator.get(page, helper.pk)
        return len(caught)

    create_rows(0)
    count_queries()
    expected = count_queries()
    for number in range(1, 6):
        create_rows(number)
    assert count_queries() == expected
    assert expected <= 15
