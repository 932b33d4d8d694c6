"""Saving the policies of agents and the organization, also over REST and in files."""

import pytest

from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_config, to_yaml
from agents.config_file.read_config import read_config_file
from agents.models import Agent
from agents.policies.services import (
    PolicySpec,
    RuleSpec,
    is_current_policy,
    load_policy_spec,
    set_policy,
)
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from tests import admin_client, factories, rest

pytestmark = pytest.mark.django_db

LARGE = RuleSpec("mcp_web_add", {"properties": {"a": {"minimum": 100}}, "required": ["a"]})
FULL = PolicySpec("denylist", allow=("mcp_web_a*",), deny=("mcp_web_echo",), ask=(LARGE,))


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def helper(acme):
    admin_client.create_web_server(acme)
    return factories.create_agent(acme)


@pytest.mark.parametrize("pattern", ["*", "mcp_*", "mcp_web_*", "read_result"])
def test_a_pattern_is_read_back_unchanged(helper, administrator, pattern):
    # Saving a loaded pattern must not widen it: `mcp_*` excludes built-in tools.
    spec = PolicySpec("allowlist", allow=(pattern,))
    set_policy(administrator, helper, spec)
    assert load_policy_spec(helper) == spec
    set_policy(administrator, helper, load_policy_spec(helper))
    assert is_current_policy(helper, spec)


def test_duplicate_rules_are_stored_once(helper, administrator):
    set_policy(administrator, helper, PolicySpec("allowlist", allow=("*", "*", "mcp_*")))
    assert load_policy_spec(helper).allow == ("*",)


def test_an_organization_without_rules_doesnt_restrict_agents(acme):
    assert load_policy_spec(acme) == PolicySpec("all")


def test_only_owners_can_change_the_organizations_policy(acme, helper):
    set_policy(factories.create_member(acme, Role.OWNER), acme, FULL)
    assert load_policy_spec(acme) == FULL
    with pytest.raises(Problem) as caught:
        set_policy(factories.create_member(acme, Role.OPERATOR), acme, PolicySpec("all"))
    assert caught.value.code == "forbidden"


def test_the_default_of_a_server_is_a_rule_without_a_condition(helper, administrator):
    spec = PolicySpec("allowlist", allow=("mcp_web_add",), ask=("mcp_web:default",))
    set_policy(administrator, helper, spec)
    assert load_policy_spec(helper) == spec
    condition = RuleSpec("mcp_web:default", LARGE.when)
    with pytest.raises(Problem) as caught:
        set_policy(administrator, helper, PolicySpec("all", ask=(condition,)))
    assert (caught.value.code, caught.value.field) == ("unusable_condition", "ask[0].when")


def test_rest_returns_the_same_policy(acme, helper):
    owner = rest.as_role(acme, Role.OWNER)
    response = owner.put("tool-policy", FULL.as_dict())
    assert response.json == owner.get("tool-policy").json
    assert response.json == FULL.as_dict() | {"version": response.json["version"], "warnings": []}
    assert load_policy_spec(acme) == FULL
    rejected = owner.put("tool-policy", {"mode": "all", "deny": ["mcp_nowhere_x"]})
    assert (rejected.code, rejected.json["field"]) == ("rule_unknown_server", "deny[0]")


def test_a_file_has_ask_rules_conditions_and_the_organizations_policy(acme, helper, administrator):
    set_policy(administrator, helper, FULL)
    set_policy(administrator, acme, PolicySpec("all", deny=(LARGE, "mcp_web_echo")))
    text = to_yaml(export_config(administrator))
    assert not apply_config(administrator, read_config_file(text, {})).changes
    set_policy(administrator, helper, PolicySpec("none"))
    set_policy(administrator, acme, PolicySpec("all"))
    plan = apply_config(administrator, read_config_file(text, {}))
    assert [step.kind for step in plan.changes] == ["organization_policy", "policy"]
    assert load_policy_spec(Agent.objects.get()) == FULL
    assert load_policy_spec(acme) == PolicySpec("all", deny=(LARGE, "mcp_web_echo"))


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("{tool: mcp_web_add}", "missing_value"),
        ("{when: {minimum: 1}}", "missing_value"),
        ("{tool: mcp_web_add, when: {minimum: 1}, if: x}", "unknown_field"),
        ("[1]", "bad_value"),
        ("3", "bad_value"),
    ],
)
def test_an_invalid_rule_of_a_file_is_reported(rule, code):
    config = read_config_file(f"policy:\n  mode: all\n  ask:\n    - {rule}\n", {})
    assert config.problems[0].code == code
    assert all(problem.field.startswith("policy.ask[0]") for problem in config.problems)
