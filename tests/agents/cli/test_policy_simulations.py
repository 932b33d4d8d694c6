"""`bonobot audit simulate`, and the shadow of `bonobot agents policy`."""

import json

import pytest

from agents.policies.services import PolicySpec, RuleSpec, load_policy_spec
from agents.policies.shadow_mode import find_draft
from tests import factories
from tests.agents.audit_history import history

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def agent(acme):
    return factories.create_agent(acme, "helper")


def test_a_simulation_counts_changed_decisions(bonobot, agent):
    history(agent, 3)
    ran = bonobot("audit", "simulate", "--agent", "helper", "--mode", "none", "--json")
    assert (ran.status, ran.json["flipped"], ran.json["complete"]) == (0, 3, True)
    (flip,) = ran.json["flips"]
    assert (flip["tool"], flip["before"], flip["after"]) == ("read_result", "allow", "deny")
    ran = bonobot("audit", "simulate", "--agent", "helper", "--ask", "read_result", "--rows", "2")
    assert "2 calls" in ran.out
    assert "newest" in ran.out


def test_a_policy_is_read_from_a_file(bonobot, agent, tmp_path):
    when = {"properties": {"amount": {"minimum": 1000}}}
    file = tmp_path / "policy.json"
    file.write_text(json.dumps({"mode": "all", "ask": [{"tool": "read_result", "when": when}]}))
    assert bonobot("agents", "policy", "helper", "--shadow", "--policy", str(file)).status == 0
    assert find_draft(agent).spec == PolicySpec("all", ask=(RuleSpec("read_result", when),))
    file.write_text("mode: all\nalow: []\n")
    ran = bonobot("audit", "simulate", "--agent", "helper", "--policy", str(file), "--json")
    assert (ran.status, ran.error["code"], ran.error["field"]) == (1, "unusable_file", "--policy")
    assert bonobot("audit", "simulate", "--agent", "helper", "--policy", "/nowhere").status == 1


def test_a_draft_runs_in_shadow_mode_and_is_enforced(bonobot, agent):
    ran = bonobot("agents", "policy", "helper", "--shadow", "--deny", "read_result", "--json")
    assert (ran.json["deny"], ran.json["draft"]["deny"]) == ([], ["read_result"])
    assert "Draft in shadow mode since" in bonobot("agents", "policy", "helper").out
    assert bonobot("audit", "simulate", "--agent", "helper", "--shadow", "--json").json["rows"] == 0
    ran = bonobot("agents", "policy", "helper", "--enforce", "--json")
    assert (ran.json["deny"], ran.json["draft"]) == (["read_result"], None)
    assert load_policy_spec(agent).deny == ("read_result",)


def test_a_draft_is_discarded(bonobot, agent):
    bonobot("agents", "policy", "helper", "--shadow", "--mode", "none")
    assert bonobot("agents", "policy", "helper", "--discard", "--json").json["draft"] is None
    assert bonobot("agents", "policy", "helper", "--discard", "--json").error["code"] == "no_draft"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("audit", "simulate", "--agent", "helper"), "no_policy"),
        (("audit", "simulate", "--agent", "nobody", "--mode", "all"), "not_found"),
        (("audit", "simulate", "--agent", "helper", "--shadow"), "no_draft"),
        (("audit", "simulate", "--agent", "helper", "--mode", "all", "--days", "0"), "bad_days"),
        (("agents", "policy", "helper", "--shadow"), "no_policy"),
        (("agents", "policy", "helper", "--enforce"), "no_draft"),
    ],
)
def test_impossible_actions_are_explained(bonobot, agent, arguments, code):
    ran = bonobot(*arguments, "--json")
    assert (ran.status, ran.error["code"]) == (1, code)


def test_the_organizations_draft_runs_in_shadow_mode_and_is_enforced(bonobot, agent, acme):
    history(agent, 2)
    ran = bonobot("audit", "simulate", "--organization", "--deny", "read_result", "--json")
    assert ran.json["flipped"] == 2
    ran = bonobot("agents", "policy", "--organization", "--shadow", "--mode", "none", "--json")
    assert (ran.json["mode"], ran.json["draft"]["mode"]) == ("all", "none")
    assert "audit simulate --organization" in bonobot("agents", "policy", "--organization").out
    assert bonobot("audit", "simulate", "--organization", "--shadow", "--json").json["rows"] == 0
    ran = bonobot("agents", "policy", "--organization", "--enforce", "--json")
    assert (ran.json["mode"], ran.json["draft"]) == ("none", None)
    ran = bonobot("agents", "policy", "--organization", "--discard", "--json")
    assert ran.error["code"] == "no_draft"
