"""`bonobot audit simulate`, and the shadow mode of `bonobot agents policy`."""

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
    result = bonobot("audit", "simulate", "--agent", "helper", "--mode", "none", "--json")
    assert (result.status, result.json["changed"], result.json["complete"]) == (0, 3, True)
    (row,) = result.json["changed_groups"]
    assert (row["tool"], row["before"], row["after"]) == ("read_result", "allow", "deny")
    result = bonobot(
        "audit", "simulate", "--agent", "helper", "--ask", "read_result", "--rows", "2"
    )
    assert "2 calls" in result.out
    assert "newest" in result.out


def test_a_policy_is_read_from_a_file(bonobot, agent, tmp_path):
    condition = {"properties": {"amount": {"minimum": 1000}}}
    file = tmp_path / "policy.json"
    file.write_text(
        json.dumps({"mode": "all", "ask": [{"tool": "read_result", "when": condition}]})
    )
    assert bonobot("agents", "policy", "helper", "--shadow", "--policy", str(file)).status == 0
    assert find_draft(agent).spec == PolicySpec("all", ask=(RuleSpec("read_result", condition),))
    file.write_text("mode: all\nalow: []\n")
    result = bonobot("audit", "simulate", "--agent", "helper", "--policy", str(file), "--json")
    assert (result.status, result.error["code"], result.error["field"]) == (
        1,
        "unusable_file",
        "--policy",
    )
    assert bonobot("audit", "simulate", "--agent", "helper", "--policy", "/nowhere").status == 1


def test_a_draft_runs_in_shadow_mode_and_is_enforced(bonobot, agent):
    result = bonobot("agents", "policy", "helper", "--shadow", "--deny", "read_result", "--json")
    assert (result.json["deny"], result.json["draft"]["deny"]) == ([], ["read_result"])
    assert "Draft in shadow mode since" in bonobot("agents", "policy", "helper").out
    assert bonobot("audit", "simulate", "--agent", "helper", "--shadow", "--json").json["rows"] == 0
    result = bonobot("agents", "policy", "helper", "--enforce", "--json")
    assert (result.json["deny"], result.json["draft"]) == (["read_result"], None)
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
    result = bonobot(*arguments, "--json")
    assert (result.status, result.error["code"]) == (1, code)


def test_the_organizations_draft_runs_in_shadow_mode_and_is_enforced(bonobot, agent, acme):
    history(agent, 2)
    result = bonobot("audit", "simulate", "--organization", "--deny", "read_result", "--json")
    assert result.json["changed"] == 2
    result = bonobot("agents", "policy", "--organization", "--shadow", "--mode", "none", "--json")
    assert (result.json["mode"], result.json["draft"]["mode"]) == ("all", "none")
    assert "audit simulate --organization" in bonobot("agents", "policy", "--organization").out
    assert bonobot("audit", "simulate", "--organization", "--shadow", "--json").json["rows"] == 0
    result = bonobot("agents", "policy", "--organization", "--enforce", "--json")
    assert (result.json["mode"], result.json["draft"]) == ("none", None)
    result = bonobot("agents", "policy", "--organization", "--discard", "--json")
    assert result.error["code"] == "no_draft"
