"""The decision about a tool: order of the stages, the four modes, and identity."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policies.decisions import (
    AgentServerScope,
    EffectivePolicy,
    KillSwitches,
    ToolFacts,
    decide_tool_call,
    evaluate_tool_stages,
)
from agents.policies.rules import Policy, Rule
from mcp_servers.schemas.classify_schema import MAX_DEPTH
from mcp_servers.schemas.validate_arguments import MAX_ARGUMENT_VALUES

GITHUB, OTHER = UUID(int=1), UUID(int=2)
TOOL = ToolFacts(
    source="mcp",
    own_name="create_issue",
    label="mcp_github_create_issue",
    server_id=GITHUB,
    server_name="github",
)
CLOCK = ToolFacts(source="builtin", own_name="read_result", label="read_result")
OPEN = Policy("all")


def ruling(policy=OPEN, scope=AgentServerScope(), *, on=True, **more):  # noqa: B008 - a frozen default
    """Return what rules an agent that has both servers in the same scope, or neither."""
    scopes = {} if scope is None else {GITHUB: scope, OTHER: scope}
    return EffectivePolicy(policy=policy, scopes=scopes, switches=KillSwitches(agent=on), **more)


def code(tool=TOOL, policy=OPEN, scope=AgentServerScope(), arguments=None, **more):  # noqa: B008 - frozen
    """Return the code of a refusal or a question, or nothing."""
    return decide_tool_call(tool, ruling(policy, scope, **more), arguments).code


def allow(pattern, server_id=GITHUB, source="mcp"):
    return Rule("allow", source, pattern, server_id)


def deny(pattern, server_id=GITHUB, source="mcp"):
    return Rule("deny", source, pattern, server_id)


def test_without_a_policy_every_tool_is_denied():
    assert code(policy=Policy()) == "denied_by_policy"
    assert code(CLOCK, policy=Policy()) == "denied_by_policy"


def test_mode_all_allows_everything():
    assert code() == ""
    assert code(CLOCK) == ""


def test_an_allowlist_allows_only_matching_tools():
    policy = Policy("allowlist", (allow("create_*"),))
    assert code(policy=policy) == ""
    assert code(replace(TOOL, own_name="delete_issue"), policy=policy) == "denied_by_policy"


def test_in_an_allowlist_a_deny_rule_wins():
    assert (
        code(policy=Policy("allowlist", (allow("*"), deny("create_issue")))) == "denied_by_policy"
    )


def test_a_denylist_denies_only_matching_tools():
    policy = Policy("denylist", (deny("create_*"),))
    assert code(policy=policy) == "denied_by_policy"
    assert code(replace(TOOL, own_name="list_issues"), policy=policy) == ""


@pytest.mark.parametrize("mode", ["none", "allowlist", "denylist", "all"])
def test_a_deny_rule_denies_in_each_mode(mode):
    policy = Policy(mode, (allow("*"), deny("create_*")))
    assert code(policy=policy) == "denied_by_policy"


def test_builtin_tools_follow_the_same_policy():
    policy = Policy("allowlist", (allow("read_result", None, "builtin"),))
    assert code(CLOCK, policy=policy, scope=None) == ""
    assert code(TOOL, policy=policy) == "denied_by_policy"


def ask(pattern, server_id=GITHUB, condition=None):
    return Rule("ask", "mcp", pattern, server_id, condition)


@pytest.mark.parametrize("mode", ["allowlist", "denylist", "all"])
def test_an_ask_rule_applies_in_each_mode_except_none(mode):
    policy = Policy(mode, (ask("create_*"),))
    decision = decide_tool_call(TOOL, ruling(policy))
    assert (decision.verdict, decision.code) == ("ask", "approval_required")
    assert decision.is_callable
    assert not decision.allowed
    assert code(policy=Policy("none", policy.rules)) == "denied_by_policy"


def test_deny_wins_over_ask_and_ask_over_allow():
    asked = Policy("allowlist", (allow("create_issue"), ask("create_*")))
    assert code(policy=asked) == "approval_required"
    denied = Policy("allowlist", (*asked.rules, deny("create_issue")))
    assert code(policy=denied) == "denied_by_policy"


def test_an_agent_cant_allow_what_the_organization_denies():
    denied = Policy("all", (deny("create_*"),))
    assert code(organization=denied) == "denied_by_organization"
    assert code(policy=Policy("allowlist", (allow("*"),)), organization=denied) == (
        "denied_by_organization"
    )


def test_an_ask_rule_of_the_organization_applies_to_every_agent():
    assert code(organization=Policy("all", (ask("create_*"),))) == "approval_required"
    assert code(organization=Policy("all", (ask("list_*"),))) == ""


def test_the_kill_switch_denies_before_everything_else():
    halted = EffectivePolicy(policy=OPEN, switches=KillSwitches(organization=False, agent=False))
    assert decide_tool_call(TOOL, halted).code == "organization_halted"


LARGE = {"properties": {"amount": {"minimum": 1000}}, "required": ["amount"]}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [({"amount": 5}, ""), ({"amount": 5000}, "approval_required"), ({}, "")],
)
def test_a_conditional_ask_applies_only_to_matching_arguments(arguments, found):
    policy = Policy("all", (ask("*", condition=LARGE),))
    assert code(policy=policy, arguments=arguments) == found


def test_a_conditional_allow_lists_the_tool_and_applies_only_to_matching_arguments():
    small = {"properties": {"amount": {"maximum": 10}}, "required": ["amount"]}
    policy = Policy("allowlist", (Rule("allow", "mcp", "create_issue", GITHUB, small),))
    assert code(policy=policy) == ""
    assert code(policy=policy, arguments={"amount": 5}) == ""
    assert code(policy=policy, arguments={"amount": 50}) == "denied_by_policy"
    assert code(policy=policy, arguments={}) == "denied_by_policy"


def nested(depth):
    return {"amount": nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    "arguments",
    [
        {"amount": 5, "text": "x" * 20_000},
        nested(MAX_DEPTH + 1),
        {"amount": [0] * (MAX_ARGUMENT_VALUES + 1)},
    ],
    ids=["too large here", "too deep", "too many"],
)
@pytest.mark.parametrize(
    ("mode", "effect", "found"),
    [
        ("allowlist", "allow", "denied_by_policy"),
        ("allowlist", "ask", "approval_required"),
        ("all", "ask", "approval_required"),
        ("all", "deny", "denied_by_policy"),
    ],
)
def test_an_undecidable_condition_never_allows_more(mode, effect, found, arguments):
    policy = Policy(mode, (Rule(effect, "mcp", "create_issue", GITHUB, LARGE),))
    assert code(policy=policy, arguments=arguments) == found


def test_a_rule_of_one_server_doesnt_apply_to_another():
    policy = Policy("allowlist", (allow("*", GITHUB),))
    assert code(replace(TOOL, server_id=OTHER), policy=policy) == "denied_by_policy"


def test_an_exact_allow_doesnt_match_a_similar_name():
    policy = Policy("allowlist", (allow("create_issue"),))
    assert code(replace(TOOL, own_name="create-issue"), policy=policy) == "denied_by_policy"


def test_a_denial_matches_the_name_that_models_see():
    policy = Policy("denylist", (deny("create_issue"),))
    assert code(replace(TOOL, own_name="create-issue"), policy=policy) == "denied_by_policy"


def test_the_attachment_is_decided_before_the_policy():
    assert code(scope=AgentServerScope(denied=("create_*",))) == "denied_by_attachment"
    assert code(scope=AgentServerScope(allowed=("list_*",))) == "denied_by_attachment"
    assert code(scope=AgentServerScope(allowed=("create_*",))) == ""


def test_a_server_that_isnt_attached_is_denied():
    assert code(scope=None) == "not_attached"
    assert code(scope=AgentServerScope(enabled=False)) == "not_attached"


def test_a_disabled_agent_server_or_tool_is_denied():
    assert code(on=False) == "agent_disabled"
    assert code(replace(TOOL, server_enabled=False)) == "server_disabled"
    assert code(replace(TOOL, enabled=False)) == "tool_disabled"


def test_only_an_approved_definition_is_allowed():
    codes = {
        "pending": "not_approved",
        "changed": "definition_changed",
        "refused": "definition_refused",
        "gone": "tool_gone",
    }
    assert {state: code(replace(TOOL, state=state)) for state in codes} == codes


def test_every_denial_has_a_remedy():
    for tool in (TOOL, CLOCK):
        for stage in evaluate_tool_stages(
            replace(tool, state="pending", enabled=False, server_enabled=False),
            ruling(Policy(), None, on=False),
        ):
            assert stage.allows or (stage.reason and stage.remedy and stage.rule)


def test_an_explanation_has_every_stage_in_order():
    names = [stage.name for stage in evaluate_tool_stages(TOOL, ruling())]
    assert names == [
        "agent",
        "server",
        "attachment",
        "definition",
        "scope",
        "organization",
        "policy",
    ]


patterns = st.sampled_from(["*", "create_*", "create_issue", "list_*", "x"])
rules = st.builds(
    Rule,
    effect=st.sampled_from(["allow", "ask", "deny"]),
    source=st.sampled_from(["mcp", "builtin"]),
    pattern=patterns,
    server_id=st.sampled_from([None, GITHUB, OTHER]),
)
policies = st.builds(
    Policy,
    mode=st.sampled_from(["none", "allowlist", "denylist", "all"]),
    rules=st.lists(rules, max_size=4).map(tuple),
)
scopes = st.builds(
    AgentServerScope,
    enabled=st.booleans(),
    allowed=st.lists(patterns, max_size=2).map(tuple),
    denied=st.lists(patterns, max_size=2).map(tuple),
)
tools = st.builds(
    ToolFacts,
    source=st.sampled_from(["mcp", "builtin"]),
    own_name=st.sampled_from(["create_issue", "list_issues", "x"]),
    label=st.text(max_size=10),
    server_id=st.sampled_from([GITHUB, OTHER]),
    server_name=st.text(max_size=10),
    server_enabled=st.booleans(),
    state=st.sampled_from(["approved", "pending", "changed", "refused", "gone"]),
    enabled=st.booleans(),
)


NAMES = ["create_issue", "create-issue", "créate_issue", "a*b", "a_b", "x"]
named = st.builds(
    Rule,
    effect=st.sampled_from(["allow", "ask", "deny"]),
    source=st.sampled_from(["mcp", "builtin"]),
    pattern=st.sampled_from([*NAMES, "create_*", "*", "a[*]b", "?"]),
    server_id=st.sampled_from([None, GITHUB, OTHER]),
)


@given(st.lists(named, max_size=8), st.sampled_from(["mcp", "builtin"]), st.sampled_from(NAMES))
def test_matching_rules_of_a_tool_are_found_in_order(rules, source, name):
    about = list(Policy("all", tuple(rules)).list_tool_rules(source, GITHUB, name))
    assert about == [rule for rule in rules if rule.matches(source, GITHUB, name)]


@given(tools, policies, scopes, st.text(max_size=20), st.text(max_size=20))
def test_a_rename_never_changes_a_decision(tool, policy, scope, label, server_name):
    renamed = replace(tool, label=label, server_name=server_name)
    before = decide_tool_call(tool, ruling(policy, scope))
    after = decide_tool_call(renamed, ruling(policy, scope))
    assert (before.verdict, before.code, before.rule) == (after.verdict, after.code, after.rule)


@given(tools, policies, scopes, rules)
def test_an_additional_deny_rule_never_allows_more(tool, policy, scope, rule):
    more = Policy(policy.mode, (*policy.rules, replace(rule, effect="deny")))
    if not decide_tool_call(tool, ruling(policy, scope)).allowed:
        assert not decide_tool_call(tool, ruling(more, scope)).allowed


@given(tools, policies, scopes, st.permutations(range(4)))
def test_the_order_of_rules_never_changes_a_decision(tool, policy, scope, order):
    shuffled = Policy(policy.mode, tuple(policy.rules[i] for i in order if i < len(policy.rules)))
    before = decide_tool_call(tool, ruling(policy, scope))
    after = decide_tool_call(tool, ruling(shuffled, scope))
    assert (before.verdict, before.code) == (after.verdict, after.code)


@given(tools, policies, scopes)
def test_the_decision_is_the_first_denying_stage(tool, policy, scope):
    found = list(evaluate_tool_stages(tool, ruling(policy, scope)))
    asks = "approval_required" if any(stage.asks for stage in found) else ""
    first = next((stage.code for stage in found if not stage.allows), asks)
    assert decide_tool_call(tool, ruling(policy, scope)).code == first


@given(tools, policies, scopes, policies)
def test_the_organizations_rules_never_allow_more(tool, policy, scope, organization):
    free = decide_tool_call(tool, ruling(policy, scope))
    ruled = decide_tool_call(tool, ruling(policy, scope, organization=organization))
    order = ["allow", "ask", "deny"]
    assert order.index(ruled.verdict) >= order.index(free.verdict)


@given(tools, policies, scopes, rules)
def test_an_additional_ask_rule_never_allows_without_approval(tool, policy, scope, rule):
    more = Policy(policy.mode, (*policy.rules, replace(rule, effect="ask")))
    if not decide_tool_call(tool, ruling(policy, scope)).allowed:
        assert not decide_tool_call(tool, ruling(more, scope)).allowed


NOT_APPROVED = {
    "pending": "not_approved",
    "changed": "definition_changed",
    "instructions_changed": "definition_changed",
    "refused": "definition_refused",
    "gone": "tool_gone",
}


@given(policies, st.sampled_from(sorted(NOT_APPROVED)))
def test_an_unapproved_definition_is_never_allowed(policy, state):
    tool = replace(TOOL, state=state)
    assert not decide_tool_call(tool, ruling(policy)).allowed
    assert code() == ""
    assert code(tool) == NOT_APPROVED[state]
