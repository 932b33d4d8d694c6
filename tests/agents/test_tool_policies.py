"""Policies as people write them: an agent's, the organization's, and both as a file."""

import pytest

from agents.models import Agent
from agents.tool_policies import PolicyText, RuleText, is_policy, policy_text, set_policy
from bonobot.lib.problems import Problem
from bonobot.portability.applying import apply
from bonobot.portability.documents import read_wanted
from bonobot.portability.exporting import as_yaml, configuration
from bonobot.tenancy.roles import Role
from tests import desk, rest
from tests.agents import casting

pytestmark = pytest.mark.django_db

LARGE = RuleText("mcp_web_add", {"properties": {"a": {"minimum": 100}}, "required": ["a"]})
FULL = PolicyText("denylist", allow=("mcp_web_a*",), deny=("mcp_web_echo",), ask=(LARGE,))


@pytest.fixture
def acme():
    return casting.organization()


@pytest.fixture
def boss(acme):
    return casting.administrator(acme)


@pytest.fixture
def helper(acme):
    desk.web_server(acme)
    return casting.agent(acme)


@pytest.mark.parametrize("pattern", ["*", "mcp_*", "mcp_web_*", "read_result"])
def test_a_pattern_is_read_as_it_was_written(helper, boss, pattern):
    """Read and written again it must not widen: `mcp_*` means no built-in tool."""
    text = PolicyText("allowlist", allow=(pattern,))
    set_policy(boss, helper, text)
    assert policy_text(helper) == text
    set_policy(boss, helper, policy_text(helper))
    assert is_policy(helper, text)


def test_the_same_rule_twice_is_one(helper, boss):
    set_policy(boss, helper, PolicyText("allowlist", allow=("*", "*", "mcp_*")))
    assert policy_text(helper).allow == ("*",)


def test_an_organization_without_rules_allows_what_agents_may(acme):
    assert policy_text(acme) == PolicyText("all")


def test_an_organizations_policy_is_its_owners_business(acme, helper):
    set_policy(casting.person(acme, Role.OWNER), acme, FULL)
    assert policy_text(acme) == FULL
    with pytest.raises(Problem) as refused:
        set_policy(casting.person(acme, Role.OPERATOR), acme, PolicyText("all"))
    assert refused.value.code == "forbidden"


def test_it_stands_in_rest_in_the_same_words(acme, helper):
    owner = rest.as_role(acme, Role.OWNER)
    put = owner.put("tool-policy", FULL.as_dict())
    assert put.json == owner.get("tool-policy").json
    assert put.json == FULL.as_dict() | {"version": put.json["version"]}
    assert policy_text(acme) == FULL
    bad = owner.put("tool-policy", {"mode": "all", "deny": ["mcp_nowhere_x"]})
    assert (bad.code, bad.json["field"]) == ("rule_unknown_server", "deny[0]")


def test_a_file_carries_questions_conditions_and_the_organizations_policy(acme, helper, boss):
    set_policy(boss, helper, FULL)
    set_policy(boss, acme, PolicyText("all", deny=(LARGE, "mcp_web_echo")))
    text = as_yaml(configuration(boss))
    assert not apply(boss, read_wanted(text, {})).changes
    set_policy(boss, helper, PolicyText("none"))
    set_policy(boss, acme, PolicyText("all"))
    plan = apply(boss, read_wanted(text, {}))
    assert [step.kind for step in plan.changes] == ["organization_policy", "policy"]
    assert policy_text(Agent.objects.get()) == FULL
    assert policy_text(acme) == PolicyText("all", deny=(LARGE, "mcp_web_echo"))


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
def test_a_rule_of_a_file_that_cannot_be_is_named(rule, code):
    wanted = read_wanted(f"policy:\n  mode: all\n  ask:\n    - {rule}\n", {})
    assert wanted.problems[0].code == code
    assert all(problem.field.startswith("policy.ask[0]") for problem in wanted.problems)
