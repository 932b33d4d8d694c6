"""The page "What if": a policy is tried, runs in the shadow, is enforced or discarded."""

import pytest

from agents.drafts import draft_of
from agents.tool_policies import PolicyText, RuleText, policy_text
from bonobot.ledger.writer import writer
from bonobot.tenancy.roles import Role
from tests import desk
from tests.agents import casting
from tests.agents.history import history

pytestmark = pytest.mark.django_db(transaction=True)
WHAT_IF = "agents_agent_what_if"
LARGE = 'read_result when {"required":["number"]}'


@pytest.fixture
def agent(acme):
    yield casting.agent(acme, "second")
    writer().close()


def test_a_policy_is_tried_on_past_calls(acme, agent):
    history(agent, 3, secret="hunter2")
    seat = desk.sit(acme, Role.AUDITOR)
    assert "Run in the shadow" not in desk.words(seat.get(WHAT_IF, agent.pk))
    page = desk.words(seat.post(WHAT_IF, agent.pk, mode="all", ask=LARGE, do="try"))
    assert "3 calls: 3 flip" in page
    assert "allow → ask" in page
    assert policy_text(agent) == PolicyText("all")


def test_a_draft_runs_and_is_enforced(acme, agent):
    seat = desk.sit(acme, Role.OPERATOR)
    seat.post(WHAT_IF, agent.pk, mode="all", ask=LARGE, do="shadow")
    wanted = PolicyText("all", ask=(RuleText("read_result", {"required": ["number"]}),))
    assert draft_of(agent).text == wanted
    page = seat.get(WHAT_IF, agent.pk)
    assert "Yes, enforce it" in page
    assert "made no call" in page
    seat.post("agents_agent_enforce_draft", agent.pk)
    assert (policy_text(agent), draft_of(agent)) == (wanted, None)


def test_a_draft_is_discarded(acme, agent):
    seat = desk.sit(acme, Role.OPERATOR)
    seat.post(WHAT_IF, agent.pk, mode="none", do="shadow")
    seat.post("agents_agent_discard_draft", agent.pk)
    assert draft_of(agent) is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "all", "ask": "read_result when nothing"}, "unusable_condition"),
        ({"mode": "sometimes"}, "unknown_mode"),
    ],
)
def test_what_means_nothing_is_told_and_stays_written(acme, agent, fields, code):
    page = desk.sit(acme, Role.OPERATOR).post(WHAT_IF, agent.pk, status=400, do="try", **fields)
    assert code in page
    assert fields.get("ask", "") in page


def test_the_organizations_rules_are_tried_drafted_and_enforced(acme, agent):
    history(agent, 3)
    here = desk.url("organization_what_if")
    owner = desk.sit(acme, Role.OWNER)
    assert here in owner.get("organization_policy")
    page = desk.words(owner.send(here, {"mode": "all", "deny": "read_result", "do": "try"}))
    assert "3 calls: 3 flip" in page
    owner.send(here, {"mode": "all", "deny": "read_result", "do": "shadow"})
    assert draft_of(acme).text == PolicyText("all", deny=("read_result",))
    desk.sit(acme, Role.AUDITOR).send(f"{here}?do=enforce", {}, status=403)
    assert draft_of(acme) is not None, "an auditor enforces nothing"
    assert "Yes, enforce it" in owner.open(here)
    owner.send(f"{here}?do=enforce", {})
    assert (policy_text(acme).deny, draft_of(acme)) == (("read_result",), None)
    owner.send(here, {"mode": "none", "do": "shadow"})
    owner.send(f"{here}?do=discard", {})
    assert draft_of(acme) is None
