"""Replay and shadow: a door with a history, another policy over it, a draft that is enforced."""

import json
from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from agents.policies import simulations as replaying
from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec, set_policy
from agents.policies.shadow_mode import delete_draft, enforce_draft, find_draft, set_draft
from agents.policies.simulations import simulate_policy, simulate_shadow_policy
from agents.services import delete_agent
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, InvalidInput, NotFound, Problem
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
def boss(acme):
    return factories.build_administrator(acme)


def said(found):
    return {(one.tool, one.before, one.after): one.calls for one in found.flips}


def shadow_of(row):
    return json.loads(row.opened)["details"].get("shadow")


def last_call():
    return AuditRow.objects.filter(event_type="call").order_by("seq").last()


def test_a_simulation_lists_changed_decisions(boss, helper, workshop, call):
    call(ECHO, {"text": "hello"})
    call(ECHO, {"text": "hello!"})
    call(ADD, {"a": 1, "b": 2})
    with pytest.raises(Problem):
        call("mcp_workshop_nothing")
    with pytest.raises(Problem):
        call(ADD, {"a": "one"})
    found = simulate_policy(boss, helper, PolicySpec("denylist", ask=(LOUD,), deny=(ADD,)))
    assert said(found) == {("echo", "allow", "ask"): 1, ("add", "allow", "deny"): 1}
    assert (found.rows, found.same, found.elsewhere, found.stopped) == (5, 1, 2, "")
    flip = next(one for one in found.flips if one.tool == "echo")
    assert (flip.server_name, flip.agent_name) == ("workshop", helper.name)
    kept = json.loads(AuditRow.objects.get(pk=flip.samples[0]).opened)["details"]["arguments"]
    assert kept == {"text": "hello!"}
    assert "echo" in flip.rule


def test_denials_can_change_too_and_count_with_their_repeats(boss, helper, workshop, call):
    set_policy(boss, helper, PolicySpec("none"))
    for _ in range(3):
        with pytest.raises(Problem):
            call(ECHO, {"text": "x"})
    get_writer().close()  # the count of the flood is written
    assert said(simulate_policy(boss, helper, PolicySpec("all"))) == {("echo", "deny", "allow"): 3}
    found = simulate_policy(boss, helper, PolicySpec("allowlist", allow=(LOUD,)))
    assert (found.same, found.undecidable) == (1, 2)  # of repeats no arguments are kept


def test_only_masked_values_are_undecidable(boss, helper, workshop, call):
    call(ECHO, {"text": TOKEN})
    assert TOKEN not in last_call().opened
    found = simulate_policy(boss, helper, PolicySpec("all", ask=(LOUD,)))
    assert (found.flipped, found.undecidable) == (0, 1)
    (unsure,) = found.unsure
    assert (unsure.tool, unsure.before, unsure.after) == ("echo", "allow", "")
    assert said(simulate_policy(boss, helper, PolicySpec("none"))) == {("echo", "allow", "deny"): 1}


def test_only_the_last_days_of_the_agent_are_read(acme, boss, helper, workshop, call):
    with time_machine.travel(timezone.now() - timedelta(days=3), tick=True):
        call(ECHO, {"text": "x"})
    other = factories.create_agent(acme, "other")
    assert simulate_policy(boss, helper, PolicySpec("none"), days=1).rows == 0
    assert simulate_policy(boss, helper, PolicySpec("none"), days=4).flipped == 1
    assert simulate_policy(boss, other, PolicySpec("none"), days=4).rows == 0


def test_a_simulation_stops_at_its_limits_and_reports_it(boss, helper, monkeypatch):
    history(helper, 7)
    monkeypatch.setattr(replaying, "PAGE_SIZE", 2)
    assert simulate_policy(boss, helper, PolicySpec("none")).rows == 7
    found = simulate_policy(boss, helper, PolicySpec("none"), max_rows=3)
    assert (found.rows, found.stopped, found.as_dict()["complete"]) == (3, "rows", False)
    assert found.until == AuditRow.objects.order_by("-seq")[2].opened_at
    found = simulate_policy(boss, helper, PolicySpec("none"), max_seconds=0)
    assert (found.rows, found.stopped) == (2, "time")
    assert simulate_policy(boss, helper, PolicySpec("none"), max_rows=7).stopped == ""


def test_a_page_takes_two_queries(boss, helper, workshop, django_assert_num_queries):
    history(helper, 20, workshop, "echo")
    text = PolicySpec("all", ask=(LOUD,))
    simulate_policy(boss, helper, text)  # which names the tools
    rules = 3  # what names of tools mean
    policies = 4  # what decides now: the agent, its rules, its servers, the organization's policy
    with django_assert_num_queries(policies + rules + 2):
        assert simulate_policy(boss, helper, text).rows == 20
    history(helper, 200, workshop, "echo")
    with django_assert_num_queries(policies + rules + 2):
        assert simulate_policy(boss, helper, text).rows == 220


@pytest.mark.parametrize("days", [0, 367])
def test_invalid_days_are_refused(boss, helper, days):
    with pytest.raises(InvalidInput) as caught:
        simulate_policy(boss, helper, PolicySpec("none"), days=days)
    assert (caught.value.code, caught.value.field) == ("bad_days", "days")


def test_a_role_that_cant_view_the_audit_log_cant_simulate(acme, helper):
    with pytest.raises(Forbidden):
        simulate_policy(factories.create_member(acme, Role.MEMBER), helper, PolicySpec("none"))


def test_a_draft_is_recorded_where_it_differs_without_enforcing_it(boss, helper, workshop, call):
    set_draft(boss, helper, PolicySpec("denylist", ask=(LOUD,), deny=(ADD,)))
    assert call(ECHO, {"text": "quiet"}).outcome == "ok"
    assert shadow_of(last_call()) is None
    assert call(ECHO, {"text": "loud!"}).outcome == "ok"
    assert shadow_of(last_call())["decision"] == "ask"
    assert call(ADD, {"a": 1, "b": 2}).outcome == "ok"
    assert shadow_of(last_call()) == {
        "decision": "deny",
        "rule": "policy:denylist:deny mcp:add",
    }
    assert last_call().decision == "allow"
    with pytest.raises(Problem):
        call(ADD, {"a": "one"})
    assert shadow_of(last_call()) is None  # no policy would change that
    found = simulate_shadow_policy(boss, helper)
    assert said(found) == {("echo", "allow", "ask"): 1, ("add", "allow", "deny"): 1}
    assert (found.rows, found.same, found.elsewhere) == (4, 1, 1)


def test_a_denial_that_the_draft_would_allow_is_recorded(boss, helper, workshop, call):
    set_policy(boss, helper, PolicySpec("none"))
    set_draft(boss, helper, PolicySpec("all"))
    with pytest.raises(Problem) as caught:
        call(ECHO, {"text": "x"})
    assert caught.value.code == "denied_by_policy"
    assert shadow_of(last_call()) == {"decision": "allow", "rule": "policy:all"}


def test_an_enforced_draft_is_removed(boss, helper, workshop, call):
    text = PolicySpec("denylist", ask=(LOUD,), deny=(ADD,))
    set_draft(boss, helper, text)
    assert find_draft(helper).spec == text
    enforce_draft(boss, helper)
    assert (load_policy_spec(helper), find_draft(helper)) == (text, None)
    with pytest.raises(Problem) as caught:
        call(ADD, {"a": 1, "b": 2})
    assert caught.value.code == "denied_by_policy"
    row = AuditRow.objects.filter(action="tool_policy_changed").latest("seq")
    details = json.loads(row.opened)["details"]
    assert details["mode"] == "denylist"
    assert details["in_shadow_since"]


def test_a_discarded_draft_isnt_recorded_in_later_calls(boss, helper, workshop, call):
    set_draft(boss, helper, PolicySpec("none"))
    delete_draft(boss, helper)
    assert call(ECHO, {"text": "x"}).outcome == "ok"
    assert shadow_of(last_call()) is None
    assert simulate_shadow_policy(boss, helper) is None
    actions = AuditRow.objects.filter(event_type="change").order_by("-seq")
    assert list(actions.values_list("action", flat=True)[:2]) == [
        "tool_policy_draft_discarded",
        "tool_policy_drafted",
    ]


@pytest.mark.parametrize("operation", [enforce_draft, delete_draft])
def test_without_a_draft_enforcing_and_discarding_are_refused(boss, helper, operation):
    before = AuditRow.objects.count()
    with pytest.raises(NotFound) as caught:
        operation(boss, helper)
    assert caught.value.code == "no_draft"
    assert AuditRow.objects.count() == before


def test_an_invalid_draft_is_refused(boss, helper):
    with pytest.raises(InvalidInput) as caught:
        set_draft(boss, helper, PolicySpec("sometimes"))
    assert caught.value.code == "unknown_mode"


def test_a_draft_is_kept_after_its_servers_are_deleted(acme, boss, helper, workshop, call):
    set_draft(boss, helper, PolicySpec("denylist", deny=(ADD, "read_result")))
    delete_server(boss, workshop)
    assert find_draft(helper).spec == PolicySpec("denylist", deny=("read_result",))
    enforce_draft(boss, helper)
    assert load_policy_spec(helper) == PolicySpec("denylist", deny=("read_result",))


@pytest.mark.parametrize("operation", [enforce_draft, delete_draft])
def test_only_roles_that_manage_agents_can_save_drafts(acme, boss, helper, operation):
    auditor = factories.create_member(acme, Role.AUDITOR)
    set_draft(boss, helper, PolicySpec("none"))
    with pytest.raises(Forbidden):
        operation(auditor, helper)
    with pytest.raises(Forbidden):
        set_draft(auditor, helper, PolicySpec("all"))


def test_the_organizations_policy_is_simulated_for_all_agents(acme, boss, helper, workshop, call):
    call(ECHO, {"text": "hello!"})
    call(ADD, {"a": 1, "b": 2})
    call("echo", {"text": "no agent"}, agent_id=None, server_id=workshop.pk)
    found = simulate_policy(boss, acme, PolicySpec("none", deny=(ADD,)))
    # Of the organization only the deny rules hold for agents, its mode for calls without one.
    assert said(found) == {("add", "allow", "deny"): 1, ("echo", "allow", "deny"): 1}
    by_tool = {one.tool: one for one in found.flips}
    assert (by_tool["echo"].agent_id, by_tool["add"].agent_name) == (None, helper.name)
    assert (found.rows, found.same) == (3, 1)


def test_calls_of_a_deleted_agent_are_undecidable(acme, boss, helper, workshop, call):
    call(ECHO, {"text": "hello"})
    delete_agent(boss, helper)
    found = simulate_policy(boss, acme, PolicySpec("all", deny=(ECHO,)))
    assert (found.flipped, found.undecidable) == (0, 1)


def test_a_draft_of_the_organization_runs_in_shadow_mode_for_all_agents(
    acme, boss, helper, workshop, call
):
    set_draft(boss, acme, PolicySpec("none", ask=(ECHO,)))
    set_draft(boss, helper, PolicySpec("none"))
    assert call(ECHO, {"text": "hello"}).outcome == "ok"
    details = json.loads(last_call().opened)["details"]
    assert details["organization_shadow"]["decision"] == "ask"
    assert details["shadow"]["decision"] == "deny"
    call("echo", {"text": "no agent"}, agent_id=None, server_id=workshop.pk)
    assert json.loads(last_call().opened)["details"]["organization_shadow"]["decision"] == "deny"
    found = simulate_shadow_policy(boss, acme)
    assert sorted((one.after, one.calls) for one in found.flips) == [("ask", 1), ("deny", 1)]
    enforce_draft(boss, acme)
    assert (load_policy_spec(acme).mode, find_draft(acme)) == ("none", None)
    with pytest.raises(Problem) as refused:
        call("echo", {"text": "x"}, agent_id=None, server_id=workshop.pk)
    assert refused.value.code == "denied_by_policy"


def test_a_first_draft_doesnt_change_the_missing_policy(acme, boss):
    set_draft(boss, acme, PolicySpec("none"))
    assert load_policy_spec(acme) == PolicySpec("all")
    delete_draft(boss, acme)
    assert find_draft(acme) is None


def test_only_roles_that_manage_the_organization_can_draft_its_policy(acme):
    operator = factories.create_member(acme, Role.OPERATOR)
    with pytest.raises(Forbidden):
        set_draft(operator, acme, PolicySpec("none"))
