"""The page "What if": a policy is tried, runs in the shadow, is enforced or discarded."""

import pytest

from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec
from agents.policies.shadow_mode import find_draft
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.agents.audit_history import history

pytestmark = pytest.mark.django_db(transaction=True)
WHAT_IF = "agents_agent_what_if"
LARGE = 'read_result when {"required":["number"]}'


@pytest.fixture
def agent(acme):
    yield factories.create_agent(acme, "second")
    get_writer().close()


def test_a_policy_is_simulated_on_past_calls(acme, agent):
    history(agent, 3, secret="hunter2")
    seat = admin_client.sit(acme, Role.AUDITOR)
    assert "Run in shadow mode" not in admin_client.words(seat.get(WHAT_IF, agent.pk))
    page = admin_client.words(seat.post(WHAT_IF, agent.pk, mode="all", ask=LARGE, do="try"))
    assert "3 calls: 3 would change" in page
    assert "allow → ask" in page
    assert load_policy_spec(agent) == PolicySpec("all")


def test_a_draft_runs_in_shadow_mode_and_is_enforced(acme, agent):
    seat = admin_client.sit(acme, Role.OPERATOR)
    seat.post(WHAT_IF, agent.pk, mode="all", ask=LARGE, do="shadow")
    wanted = PolicySpec("all", ask=(RuleSpec("read_result", {"required": ["number"]}),))
    assert find_draft(agent).spec == wanted
    page = seat.get(WHAT_IF, agent.pk)
    assert "Enforce draft" in page
    assert "No calls in this period" in page
    seat.post("agents_agent_enforce_draft", agent.pk)
    assert (load_policy_spec(agent), find_draft(agent)) == (wanted, None)


def test_a_draft_is_discarded(acme, agent):
    seat = admin_client.sit(acme, Role.OPERATOR)
    seat.post(WHAT_IF, agent.pk, mode="none", do="shadow")
    seat.post("agents_agent_discard_draft", agent.pk)
    assert find_draft(agent) is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "all", "ask": "read_result when nothing"}, "unusable_condition"),
        ({"mode": "sometimes"}, "unknown_mode"),
    ],
)
def test_an_invalid_policy_is_reported_and_kept_in_the_form(acme, agent, fields, code):
    page = admin_client.sit(acme, Role.OPERATOR).post(
        WHAT_IF, agent.pk, status=400, do="try", **fields
    )
    assert code in page
    assert fields.get("ask", "") in page


def test_the_organizations_policy_is_simulated_drafted_and_enforced(acme, agent):
    history(agent, 3)
    here = admin_client.url("organization_what_if")
    owner = admin_client.sit(acme, Role.OWNER)
    assert here in owner.get("organization_policy")
    page = admin_client.words(owner.send(here, {"mode": "all", "deny": "read_result", "do": "try"}))
    assert "3 calls: 3 would change" in page
    owner.send(here, {"mode": "all", "deny": "read_result", "do": "shadow"})
    assert find_draft(acme).spec == PolicySpec("all", deny=("read_result",))
    admin_client.sit(acme, Role.AUDITOR).send(f"{here}?do=enforce", {}, status=403)
    assert find_draft(acme) is not None, "an auditor enforces nothing"
    assert "Enforce draft" in owner.open(here)
    owner.send(f"{here}?do=enforce", {})
    assert (load_policy_spec(acme).deny, find_draft(acme)) == (("read_result",), None)
    owner.send(here, {"mode": "none", "do": "shadow"})
    owner.send(f"{here}?do=discard", {})
    assert find_draft(acme) is None
