"""The simulation page: a policy is simulated, runs in shadow mode, is enforced or discarded."""

import re

import pytest

from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec
from agents.policies.shadow_mode import find_draft
from bonobot.accounts.roles import Role
from bonobot.ledger.writer.writer_thread import get_writer
from tests import admin_client, factories
from tests.agents.admin.test_audit import create_call
from tests.agents.audit_history import history

pytestmark = pytest.mark.django_db(transaction=True)
SIMULATION_PAGE = "agents_agent_simulate"
LARGE = 'read_result when {"required":["number"]}'


@pytest.fixture
def agent(acme):
    yield factories.create_agent(acme, "second")
    get_writer().close()


def test_a_policy_is_simulated_on_past_calls(acme, agent):
    history(agent, 3, secret="hunter2")
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    assert "Run in shadow mode" not in admin_client.get_text(auditor.get(SIMULATION_PAGE, agent.pk))
    html = auditor.post(SIMULATION_PAGE, agent.pk, mode="all", ask=LARGE, do="simulate")
    page = admin_client.get_text(html)
    assert "3 calls: 3 would change" in page
    assert "Allow → schedule Ask" in page
    assert "Current rules check_circle Allow 3 100% schedule Ask 0 0%" in page
    assert "Simulated rules check_circle Allow 0 0% schedule Ask 3 100%" in page
    (url,) = re.findall(r'href="([^"]*tool_name=read_result[^"]*)"', html)
    assert "opened_at_from_0=" in url, "the number of calls leads to those of the simulated time"
    assert load_policy_spec(agent) == PolicySpec("all")


def test_a_draft_runs_in_shadow_mode_and_is_enforced(acme, agent):
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    operator.post(SIMULATION_PAGE, agent.pk, mode="all", ask=LARGE, do="shadow")
    expected = PolicySpec("all", ask=(RuleSpec("read_result", {"required": ["number"]}),))
    assert find_draft(agent).spec == expected
    page = operator.get(SIMULATION_PAGE, agent.pk)
    assert "Enforce draft" in page
    assert "No calls in this period" in page
    operator.post("agents_agent_enforce_draft", agent.pk)
    assert (load_policy_spec(agent), find_draft(agent)) == (expected, None)


def test_a_draft_is_discarded(acme, agent):
    operator = admin_client.sign_in(acme, Role.OPERATOR)
    operator.post(SIMULATION_PAGE, agent.pk, mode="none", do="shadow")
    operator.post("agents_agent_discard_draft", agent.pk)
    assert find_draft(agent) is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"mode": "all", "ask": "read_result when nothing"}, "unusable_condition"),
        ({"mode": "sometimes"}, "unknown_mode"),
    ],
)
def test_an_invalid_policy_is_reported_and_kept_in_the_form(acme, agent, fields, code):
    page = admin_client.sign_in(acme, Role.OPERATOR).post(
        SIMULATION_PAGE, agent.pk, status=400, do="simulate", **fields
    )
    assert code in page
    assert fields.get("ask", "") in page


def test_the_organizations_policy_is_simulated_drafted_and_enforced(acme, agent):
    history(agent, 3)
    url = admin_client.build_url("organization_simulate")
    owner = admin_client.sign_in(acme, Role.OWNER)
    assert url in owner.get("organization_policy")
    page = admin_client.get_text(
        owner.send(url, {"mode": "all", "deny": "read_result", "do": "simulate"})
    )
    assert "3 calls: 3 would change" in page
    owner.send(url, {"mode": "all", "deny": "read_result", "do": "shadow"})
    assert find_draft(acme).spec == PolicySpec("all", deny=("read_result",))
    admin_client.sign_in(acme, Role.AUDITOR).send(f"{url}?do=enforce", {}, status=403)
    assert find_draft(acme) is not None, "an auditor can't enforce a draft"
    assert "Enforce draft" in owner.open(url)
    owner.send(f"{url}?do=enforce", {})
    assert (load_policy_spec(acme).deny, find_draft(acme)) == (("read_result",), None)
    owner.send(url, {"mode": "none", "do": "shadow"})
    owner.send(f"{url}?do=discard", {})
    assert find_draft(acme) is None


def test_unsaved_rules_of_the_organization_are_simulated_without_entering_them_again(acme):
    owner = admin_client.sign_in(acme, Role.OWNER)
    url = admin_client.build_url("organization_simulate")
    preview = owner.post("organization_policy_preview", mode="all", deny="read_result")
    for page in (owner.get("organization_policy"), preview):
        for value in ("simulate", "shadow"):
            assert re.search(rf'value="{value}"\s[^>]*formaction="{url}"', page)
    page = owner.send(url, {"mode": "all", "deny": "read_result", "do": "simulate"})
    assert ">read_result</textarea>" in page
    assert "formaction" not in page
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    assert "formaction" not in auditor.get("organization_policy")


def test_the_organizations_policy_is_simulated_with_the_words_of_its_other_pages(acme):
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = admin_client.get_text(owner.get("organization_simulate"))
    assert "Mode for calls without an agent" in page
    assert "Mode for calls without an agent" in admin_client.get_text(
        owner.get("organization_policy_defaults")
    )
    assert "of the attached servers" not in page
    for name in ("organization_policy", "organization_simulate"):
        assert re.search(r"Per agent \d+", admin_client.get_text(owner.get(name)))
    page = admin_client.get_text(owner.post("organization_policy_preview", mode="none"))
    assert "No agent's tool changes its decision." in page
    page = admin_client.get_text(
        owner.post("organization_policy_preview", mode="all", deny="read_result")
    )
    assert "was decided per agent" in page


@pytest.mark.parametrize("of_organization", [True, False])
def test_shadow_mode_starts_only_with_a_change(acme, agent, of_organization):
    name, args = (
        ("organization_simulate", ()) if of_organization else (SIMULATION_PAGE, (agent.pk,))
    )
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.get(name, *args)
    assert re.search(r'value="shadow"\s+disabled', page)
    assert "To start it, change the mode or a rule first." in page
    stored = load_policy_spec(acme if of_organization else agent)
    page = owner.post(name, *args, status=400, mode=stored.mode, do="shadow")
    assert "This is the current policy" in page
    assert find_draft(acme if of_organization else agent) is None
    url = "organization_policy_preview" if of_organization else "agents_agent_policy_preview"
    page = owner.post(url, *args, mode="none")
    assert not re.search(r'value="shadow"\s+disabled', page)
    assert "To start it" not in page


@pytest.mark.parametrize(
    ("denials", "text"),
    [
        (0, "1 call: 1 would change, 0 would stay the same, 0 can't be determined. "),
        (1, "1 call was denied for reasons other than rules."),
        (2, "2 calls were denied for reasons other than rules."),
    ],
)
def test_calls_that_no_rule_denied_are_counted_only_if_there_are_any(acme, agent, denials, text):
    history(agent, 1)
    for _ in range(denials):
        create_call(acme, agent_id=agent.pk, decision="deny", code="budget_exhausted")
    owner = admin_client.sign_in(acme, Role.OWNER)
    page = owner.post(SIMULATION_PAGE, agent.pk, mode="none", do="simulate")
    page = admin_client.get_text(page)
    assert text in page
    assert ("reasons other than rules" in page) == bool(denials)
