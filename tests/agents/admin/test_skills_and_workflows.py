"""An agent's tabs for skills and workflows: what it has, and giving it more."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from agents.assignments import list_agent_slugs
from agents.skills.services import SkillSpec, save_skill
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
def seat(acme):
    return admin_client.sit(acme, Role.OPERATOR)


def skill(acme, name="tell", **more):
    boss = factories.build_administrator(acme)
    return save_skill(boss, SkillSpec(name=name, text="Hello", **more))


def test_empty_pages_explain_themselves_and_the_first_step(seat, helper):
    skills = admin_client.words(seat.get("agents_agent_skills", helper.pk))
    assert "A skill is a set of instructions" in skills
    assert "Attach or create one" in skills
    assert "The organization has no other skills" in skills
    workflows = admin_client.words(seat.get("agents_agent_workflows", helper.pk))
    assert "after its current version is approved" in workflows
    assert "Workflows that run as this agent use its tools" in workflows


def test_a_skill_is_attached_and_detached_and_kept(acme, seat, helper):
    other = factories.create_agent(acme, "other")
    tell = skill(acme, agents=[other.slug], description="Says <b>hello</b>.")
    assert "tell" in admin_client.words(seat.get("agents_agent_skills", helper.pk))
    seat.post("agents_agent_give_skill", helper.pk, skill=tell.pk)
    assert list_agent_slugs(tell) == sorted([helper.slug, other.slug])
    page = seat.get("agents_agent_skills", helper.pk)
    assert "Says &lt;b&gt;hello&lt;/b&gt;." in page
    assert "version 1" in admin_client.words(page)
    seat.post("agents_agent_take_skill", helper.pk, skill=tell.pk)
    assert list_agent_slugs(tell) == [other.slug]
    assert AuditRow.objects.filter(action="skill_changed").count() == 2
    tell.refresh_from_db()
    assert tell.version == 1


def test_a_workflow_is_attached_as_a_tool_and_detached(acme, seat, helper):
    other = factories.create_agent(acme, "other")
    flow = factories.create_workflow(other, "weekly")
    seat.post("agents_agent_give_workflow", helper.pk, workflow=flow.pk)
    assert helper.slug in list_agent_slugs(flow)
    words = admin_client.words(seat.get("agents_agent_workflows", helper.pk))
    assert "runs as Other" in words
    own = admin_client.words(seat.get("agents_agent_workflows", other.pk))
    assert own.index("Workflows that run as this agent") < own.rindex("weekly")
    seat.post("agents_agent_take_workflow", helper.pk, workflow=flow.pk)
    assert helper.slug not in list_agent_slugs(flow)


def test_a_skill_or_workflow_can_be_created_for_the_agent(acme, seat, helper):
    page = seat.get("agents_skill_add", agent=helper.slug)
    ticked = page[page.index(f'value="{helper.slug}"') :].split(">")[0]
    assert "checked" in ticked


def test_a_read_only_role_has_no_buttons_and_is_refused(acme, helper):
    reader = admin_client.sit(acme, Role.AUDITOR)
    tell = skill(acme, agents=[helper.slug])
    page = reader.get("agents_agent_skills", helper.pk)
    assert "tell" in page
    assert "take_skill" not in page
    reader.post("agents_agent_take_skill", helper.pk, status=403, skill=tell.pk)
    assert list_agent_slugs(tell) == [helper.slug]


def test_nothing_of_another_organization_is_shown_or_attached(acme, seat, helper):
    foreign = skill(factories.create_organization("other"), "theirs")
    assert "theirs" not in admin_client.words(seat.get("agents_agent_skills", helper.pk))
    seat.post("agents_agent_give_skill", helper.pk, status=404, skill=foreign.pk)
    assert not list_agent_slugs(foreign)


@pytest.mark.parametrize("page", ["agents_agent_skills", "agents_agent_workflows"])
def test_a_tab_uses_the_same_queries_for_any_number_of_rows(acme, seat, helper, page):
    def fill(number: int) -> None:
        skill(acme, f"skill-{number}", agents=[helper.slug])
        factories.create_workflow(helper, f"flow-{number}")

    def queries() -> int:
        with CaptureQueriesContext(connection) as caught:
            seat.get(page, helper.pk)
        return len(caught)

    fill(0)
    queries()
    few = queries()
    for number in range(1, 6):
        fill(number)
    assert queries() == few
    assert few <= 15
