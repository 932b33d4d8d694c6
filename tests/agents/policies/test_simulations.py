"""Simulating a policy over the audit log, and drafts in shadow mode."""

import json
from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.models import Approval
from agents.policies import simulations
from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec, set_policy
from agents.policies.shadow_mode import delete_draft, enforce_draft, find_draft, set_draft
from agents.policies.simulations import simulate_policy, simulate_shadow_policy
from agents.services import delete_agent
from agents.sessions.services import start_session
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, InvalidInput, NotFound, Problem
from bonobot.ledger.audit.admin_changes import increment_generation
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.services import delete_server
from tests import factories
from tests.agents.audit_history import history

pytestmark = pytest.mark.django_db(transaction=True)

ECHO, ADD = "mcp_workshop_echo", "mcp_workshop_add"
TOKEN = "ghp_" + "a1B2c3D4" * 4
LOUD = RuleSpec(ECHO, {"properties": {"text": {"pattern": "!$"}}})


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


def count_changes(simulation):
    return {
        (change.tool, change.before, change.after): change.calls
        for change in simulation.changed_groups
    }


def get_shadow(row):
    return json.loads(row.opened)["details"].get("shadow")


def get_last_call():
    return AuditRow.objects.filter(event_type="call").order_by("seq").last()


def test_a_simulation_lists_changed_decisions(administrator, helper, workshop, call):
    call(ECHO, {"text": "hello"})
    call(ECHO, {"text": "hello!"})
    call(ADD, {"a": 1, "b": 2})
    with pytest.raises(Problem):
        call("mcp_workshop_nothing")
    with pytest.raises(Problem):
        call(ADD, {"a": "one"})
    simulation = simulate_policy(
        administrator, helper, PolicySpec("denylist", ask=(LOUD,), deny=(ADD,))
    )
    assert count_changes(simulation) == {("echo", "allow", "ask"): 1, ("add", "allow", "deny"): 1}
    assert (
        simulation.rows,
        simulation.unchanged,
        simulation.other_denials,
        simulation.stopped,
    ) == (
        5,
        1,
        2,
        "",
    )
    change = next(change for change in simulation.changed_groups if change.tool == "echo")
    assert (change.server_name, change.agent_name) == ("workshop", helper.name)
    arguments = json.loads(AuditRow.objects.get(pk=change.samples[0]).opened)["details"][
        "arguments"
    ]
    assert arguments == {"text": "hello!"}
    assert "echo" in change.rule


def test_a_simulation_counts_schema_defaults_as_provided_values_like_a_decision(
    administrator, helper, workshop, call
):
    definition = workshop.definitions.get(name="add")
    schema = definition.payload["inputSchema"]
    schema["properties"]["b"]["default"] = 7
    type(definition).objects.filter(pk=definition.pk).update(payload=definition.payload)
    increment_generation(helper.organization_id)
    call(ADD, {"a": 1})
    lucky = RuleSpec(ADD, {"properties": {"b": {"const": 7}}, "required": ["b"]})
    simulation = simulate_policy(administrator, helper, PolicySpec("all", ask=(lucky,)))
    assert count_changes(simulation) == {("add", "allow", "ask"): 1}
    set_policy(administrator, helper, PolicySpec("all", ask=(lucky,)))
    with pytest.raises(Problem) as asked:
        call(ADD, {"a": 1})
    assert asked.value.code == "approval_required"


def test_denials_can_change_too_and_count_with_their_repeats(administrator, helper, workshop, call):
    set_policy(administrator, helper, PolicySpec("none"))
    for _ in range(3):
        with pytest.raises(Problem):
            call(ECHO, {"text": "x"})
    get_writer().close()  # writes the count of repeated denials
    assert count_changes(simulate_policy(administrator, helper, PolicySpec("all"))) == {
        ("echo", "deny", "allow"): 3
    }
    simulation = simulate_policy(administrator, helper, PolicySpec("allowlist", allow=(LOUD,)))
    assert (simulation.unchanged, simulation.undecidable) == (
        1,
        2,
    )  # no arguments are recorded for repeats


def test_a_call_that_needed_approval_counts_once_as_the_rule_decided(
    acme, administrator, helper, workshop, run_to_rest
):
    set_policy(administrator, helper, PolicySpec("all", ask=(ECHO,)))
    reviewer = factories.create_member(acme, Role.REVIEWER)
    for answer in ("approve", "deny"):
        session = start_session(administrator, helper, f'/{ECHO} {{"text": "{answer}"}}')
        run_to_rest(session)
        resolve_approval(reviewer, Approval.objects.get(state="waiting"), answer)
        run_to_rest(session)
    simulation = simulate_policy(administrator, helper, PolicySpec("all"))
    assert (simulation.calls, simulation.other_denials) == (2, 0)
    assert count_changes(simulation) == {("echo", "ask", "allow"): 2}


def test_only_masked_values_are_undecidable(administrator, helper, workshop, call):
    call(ECHO, {"text": TOKEN})
    assert TOKEN not in get_last_call().opened
    simulation = simulate_policy(administrator, helper, PolicySpec("all", ask=(LOUD,)))
    assert (simulation.changed, simulation.undecidable) == (0, 1)
    (undecidable,) = simulation.undecidable_groups
    assert (undecidable.tool, undecidable.before, undecidable.after) == ("echo", "allow", "")
    assert count_changes(simulate_policy(administrator, helper, PolicySpec("none"))) == {
        ("echo", "allow", "deny"): 1
    }


def test_only_the_last_days_of_the_agent_are_read(acme, administrator, helper, workshop, call):
    with time_machine.travel(timezone.now() - timedelta(days=3), tick=True):
        call(ECHO, {"text": "x"})
    other_agent = factories.create_agent(acme, "other")
    assert simulate_policy(administrator, helper, PolicySpec("none"), days=1).rows == 0
    assert simulate_policy(administrator, helper, PolicySpec("none"), days=4).changed == 1
    assert simulate_policy(administrator, other_agent, PolicySpec("none"), days=4).rows == 0


def test_a_simulation_stops_at_its_limits_and_reports_it(administrator, helper, monkeypatch):
    history(helper, 7)
    monkeypatch.setattr(simulations, "PAGE_SIZE", 2)
    assert simulate_policy(administrator, helper, PolicySpec("none")).rows == 7
    simulation = simulate_policy(administrator, helper, PolicySpec("none"), max_rows=3)
    assert (simulation.rows, simulation.stopped, simulation.as_dict()["complete"]) == (
        3,
        "rows",
        False,
    )
    assert simulation.until == AuditRow.objects.order_by("-seq")[2].opened_at
    simulation = simulate_policy(administrator, helper, PolicySpec("none"), max_seconds=0)
    assert (simulation.rows, simulation.stopped) == (2, "time")
    assert simulate_policy(administrator, helper, PolicySpec("none"), max_rows=7).stopped == ""


def test_a_page_takes_three_queries(administrator, helper, workshop, django_assert_num_queries):
    history(helper, 20, workshop, "echo")
    spec = PolicySpec("all", ask=(LOUD,))
    simulate_policy(administrator, helper, spec)  # caches tool names
    rules = 3  # resolving tool names
    policies = 4  # the agent, its rules, its servers, the organization's policy
    with django_assert_num_queries(policies + rules + 3):
        assert simulate_policy(administrator, helper, spec).rows == 20
    history(helper, 200, workshop, "echo")
    with django_assert_num_queries(policies + rules + 3):
        assert simulate_policy(administrator, helper, spec).rows == 220


@pytest.mark.parametrize("days", [0, 367])
def test_invalid_days_are_refused(administrator, helper, days):
    with pytest.raises(InvalidInput) as caught:
        simulate_policy(administrator, helper, PolicySpec("none"), days=days)
    assert (caught.value.code, caught.value.field) == ("bad_days", "days")


def test_a_role_that_cant_view_the_audit_log_cant_simulate(acme, helper):
    with pytest.raises(Forbidden):
        simulate_policy(factories.create_member(acme, Role.MEMBER), helper, PolicySpec("none"))


def test_a_draft_is_recorded_where_it_differs_without_enforcing_it(
    administrator, helper, workshop, call
):
    set_draft(administrator, helper, PolicySpec("denylist", ask=(LOUD,), deny=(ADD,)))
    assert call(ECHO, {"text": "quiet"}).outcome == "ok"
    assert get_shadow(get_last_call()) is None
    assert call(ECHO, {"text": "loud!"}).outcome == "ok"
    assert get_shadow(get_last_call())["decision"] == "ask"
    assert call(ADD, {"a": 1, "b": 2}).outcome == "ok"
    assert get_shadow(get_last_call()) == {
        "decision": "deny",
        "rule": "policy:denylist:deny mcp:add",
    }
    assert get_last_call().decision == "allow"
    with pytest.raises(Problem):
        call(ADD, {"a": "one"})
    assert get_shadow(get_last_call()) is None  # invalid under any policy
    simulation = simulate_shadow_policy(administrator, helper)
    assert count_changes(simulation) == {("echo", "allow", "ask"): 1, ("add", "allow", "deny"): 1}
    assert (simulation.rows, simulation.unchanged, simulation.other_denials) == (4, 1, 1)


def test_a_denial_that_the_draft_would_allow_is_recorded(administrator, helper, workshop, call):
    set_policy(administrator, helper, PolicySpec("none"))
    set_draft(administrator, helper, PolicySpec("all"))
    with pytest.raises(Problem) as caught:
        call(ECHO, {"text": "x"})
    assert caught.value.code == "denied_by_policy"
    assert get_shadow(get_last_call()) == {"decision": "allow", "rule": "policy:all"}


def test_an_enforced_draft_is_removed(administrator, helper, workshop, call):
    spec = PolicySpec("denylist", ask=(LOUD,), deny=(ADD,))
    set_draft(administrator, helper, spec)
    assert find_draft(helper).spec == spec
    enforce_draft(administrator, helper)
    assert (load_policy_spec(helper), find_draft(helper)) == (spec, None)
    with pytest.raises(Problem) as caught:
        call(ADD, {"a": 1, "b": 2})
    assert caught.value.code == "denied_by_policy"
    row = AuditRow.objects.filter(action="tool_policy_updated").latest("seq")
    details = json.loads(row.opened)["details"]
    assert details["mode"] == "denylist"
    assert details["in_shadow_since"]


def test_a_discarded_draft_isnt_recorded_in_later_calls(administrator, helper, workshop, call):
    set_draft(administrator, helper, PolicySpec("none"))
    delete_draft(administrator, helper)
    assert call(ECHO, {"text": "x"}).outcome == "ok"
    assert get_shadow(get_last_call()) is None
    assert simulate_shadow_policy(administrator, helper) is None
    actions = AuditRow.objects.filter(event_type="change").order_by("-seq")
    assert list(actions.values_list("action", flat=True)[:2]) == [
        "tool_policy_draft_discarded",
        "tool_policy_draft_created",
    ]


@pytest.mark.parametrize("operation", [enforce_draft, delete_draft])
def test_without_a_draft_enforcing_and_discarding_are_refused(administrator, helper, operation):
    before = AuditRow.objects.count()
    with pytest.raises(NotFound) as caught:
        operation(administrator, helper)
    assert caught.value.code == "no_draft"
    assert AuditRow.objects.count() == before


def test_an_invalid_draft_is_refused(administrator, helper):
    with pytest.raises(InvalidInput) as caught:
        set_draft(administrator, helper, PolicySpec("sometimes"))
    assert caught.value.code == "unknown_mode"


def test_a_draft_is_kept_after_its_servers_are_deleted(acme, administrator, helper, workshop, call):
    set_draft(administrator, helper, PolicySpec("denylist", deny=(ADD, "read_result")))
    delete_server(administrator, workshop)
    assert find_draft(helper).spec == PolicySpec("denylist", deny=("read_result",))
    enforce_draft(administrator, helper)
    assert load_policy_spec(helper) == PolicySpec("denylist", deny=("read_result",))


@pytest.mark.parametrize("operation", [enforce_draft, delete_draft])
def test_only_roles_that_manage_agents_can_save_drafts(acme, administrator, helper, operation):
    auditor = factories.create_member(acme, Role.AUDITOR)
    set_draft(administrator, helper, PolicySpec("none"))
    with pytest.raises(Forbidden):
        operation(auditor, helper)
    with pytest.raises(Forbidden):
        set_draft(auditor, helper, PolicySpec("all"))


def test_the_organizations_policy_is_simulated_for_all_agents(
    acme, administrator, helper, workshop, call
):
    call(ECHO, {"text": "hello!"})
    call(ADD, {"a": 1, "b": 2})
    call("echo", {"text": "no agent"}, agent_id=None, server_id=workshop.pk)
    simulation = simulate_policy(administrator, acme, PolicySpec("none", deny=(ADD,)))
    # The organization's mode applies only to calls without an agent.
    assert count_changes(simulation) == {("add", "allow", "deny"): 1, ("echo", "allow", "deny"): 1}
    by_tool = {change.tool: change for change in simulation.changed_groups}
    assert (by_tool["echo"].agent_id, by_tool["add"].agent_name) == (None, helper.name)
    assert (simulation.rows, simulation.unchanged) == (3, 1)


def test_calls_of_a_deleted_agent_are_undecidable(acme, administrator, helper, workshop, call):
    call(ECHO, {"text": "hello"})
    delete_agent(administrator, helper)
    simulation = simulate_policy(administrator, acme, PolicySpec("all", deny=(ECHO,)))
    assert (simulation.changed, simulation.undecidable) == (0, 1)


def test_a_draft_of_the_organization_runs_in_shadow_mode_for_all_agents(
    acme, administrator, helper, workshop, call
):
    set_draft(administrator, acme, PolicySpec("none", ask=(ECHO,)))
    set_draft(administrator, helper, PolicySpec("none"))
    assert call(ECHO, {"text": "hello"}).outcome == "ok"
    details = json.loads(get_last_call().opened)["details"]
    assert details["organization_shadow"]["decision"] == "ask"
    assert details["shadow"]["decision"] == "deny"
    call("echo", {"text": "no agent"}, agent_id=None, server_id=workshop.pk)
    assert (
        json.loads(get_last_call().opened)["details"]["organization_shadow"]["decision"] == "deny"
    )
    simulation = simulate_shadow_policy(administrator, acme)
    assert sorted((change.after, change.calls) for change in simulation.changed_groups) == [
        ("ask", 1),
        ("deny", 1),
    ]
    enforce_draft(administrator, acme)
    assert (load_policy_spec(acme).mode, find_draft(acme)) == ("none", None)
    with pytest.raises(Problem) as refused:
        call("echo", {"text": "x"}, agent_id=None, server_id=workshop.pk)
    assert refused.value.code == "denied_by_policy"


def test_a_draft_isnt_applied_when_there_is_no_policy(acme, administrator):
    set_draft(administrator, acme, PolicySpec("none"))
    assert load_policy_spec(acme) == PolicySpec("all")
    delete_draft(administrator, acme)
    assert find_draft(acme) is None


def test_only_roles_that_manage_the_organization_can_draft_its_policy(acme):
    operator = factories.create_member(acme, Role.OPERATOR)
    with pytest.raises(Forbidden):
        set_draft(operator, acme, PolicySpec("none"))
