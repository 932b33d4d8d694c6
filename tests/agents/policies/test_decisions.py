"""Decisions about tools: the order of the stages, the four modes, and names."""

from dataclasses import replace
from functools import partial
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


def build_policy(policy=OPEN, scope=AgentServerScope(), *, enabled=True, **more):  # noqa: B008 - a frozen default
    """Build the policy of an agent with both servers attached in the same scope, or none."""
    scopes = {} if scope is None else {GITHUB: scope, OTHER: scope}
    return EffectivePolicy(
        policy=policy, scopes=scopes, switches=KillSwitches(agent=enabled), **more
    )


def get_code(tool=TOOL, policy=OPEN, scope=AgentServerScope(), arguments=None, **more):  # noqa: B008 - frozen
    """Return the code of a denial or an ask, or an empty string."""
    return decide_tool_call(tool, build_policy(policy, scope, **more), arguments).code


def allow(pattern, server_id=GITHUB, source="mcp"):
    return Rule("allow", source, pattern, server_id)


def deny(pattern, server_id=GITHUB, source="mcp"):
    return Rule("deny", source, pattern, server_id)


def test_without_a_policy_every_tool_is_denied():
    assert get_code(policy=Policy()) == "denied_by_policy"
    assert get_code(CLOCK, policy=Policy()) == "denied_by_policy"


def test_mode_all_allows_everything():
    assert get_code() == ""
    assert get_code(CLOCK) == ""


def test_an_allowlist_allows_only_matching_tools():
    policy = Policy("allowlist", (allow("create_*"),))
    assert get_code(policy=policy) == ""
    assert get_code(replace(TOOL, own_name="delete_issue"), policy=policy) == "denied_by_policy"


def test_in_an_allowlist_a_deny_rule_wins():
    assert (
        get_code(policy=Policy("allowlist", (allow("*"), deny("create_issue"))))
        == "denied_by_policy"
    )


@pytest.mark.parametrize("mode", ["allowlist", "denylist", "all"])
def test_a_servers_default_decides_only_if_no_other_rule_matches(mode):
    default = partial(Rule, source="mcp", pattern="", server_id=GITHUB)
    other_rule = Rule("deny", "mcp", "delete_*", GITHUB)
    for effect, code in (("allow", ""), ("ask", "approval_required"), ("deny", "denied_by_policy")):
        assert get_code(policy=Policy(mode, (default(effect), other_rule))) == code
    ask = default("ask")
    assert get_code(policy=Policy(mode, (ask, allow("create_issue")))) == ""
    assert get_code(policy=Policy(mode, (ask, deny("create_*")))) == "denied_by_policy"
    assert get_code(policy=Policy(mode, (default("allow"), ask))) == "approval_required"
    assert get_code(policy=Policy("none", (default("allow"),))) == "denied_by_policy"


def test_a_servers_default_has_no_effect_on_other_servers_and_built_in_tools():
    policy = Policy("all", (Rule("deny", "mcp", "", GITHUB),))
    assert get_code(replace(TOOL, server_id=OTHER), policy=policy) == ""
    assert get_code(CLOCK, policy=policy) == ""


def test_a_denylist_denies_only_matching_tools():
    policy = Policy("denylist", (deny("create_*"),))
    assert get_code(policy=policy) == "denied_by_policy"
    assert get_code(replace(TOOL, own_name="list_issues"), policy=policy) == ""


@pytest.mark.parametrize("mode", ["none", "allowlist", "denylist", "all"])
def test_a_deny_rule_denies_in_each_mode(mode):
    policy = Policy(mode, (allow("*"), deny("create_*")))
    assert get_code(policy=policy) == "denied_by_policy"


def test_builtin_tools_follow_the_same_policy():
    policy = Policy("allowlist", (allow("read_result", None, "builtin"),))
    assert get_code(CLOCK, policy=policy, scope=None) == ""
    assert get_code(TOOL, policy=policy) == "denied_by_policy"


def ask(pattern, server_id=GITHUB, condition=None):
    return Rule("ask", "mcp", pattern, server_id, condition)


@pytest.mark.parametrize("mode", ["allowlist", "denylist", "all"])
def test_an_ask_rule_applies_in_each_mode_except_none(mode):
    policy = Policy(mode, (ask("create_*"),))
    decision = decide_tool_call(TOOL, build_policy(policy))
    assert (decision.verdict, decision.code) == ("ask", "approval_required")
    assert decision.is_callable
    assert not decision.allowed
    assert get_code(policy=Policy("none", policy.rules)) == "denied_by_policy"


def test_deny_wins_over_ask_and_ask_over_allow():
    with_ask = Policy("allowlist", (allow("create_issue"), ask("create_*")))
    assert get_code(policy=with_ask) == "approval_required"
    with_deny = Policy("allowlist", (*with_ask.rules, deny("create_issue")))
    assert get_code(policy=with_deny) == "denied_by_policy"


def test_an_agent_cant_allow_what_the_organization_denies():
    denied = Policy("all", (deny("create_*"),))
    assert get_code(organization=denied) == "denied_by_organization"
    assert get_code(policy=Policy("allowlist", (allow("*"),)), organization=denied) == (
        "denied_by_organization"
    )


def test_an_ask_rule_of_the_organization_applies_to_every_agent():
    assert get_code(organization=Policy("all", (ask("create_*"),))) == "approval_required"
    assert get_code(organization=Policy("all", (ask("list_*"),))) == ""


def test_the_kill_switch_denies_before_everything_else():
    halted = EffectivePolicy(policy=OPEN, switches=KillSwitches(organization=False, agent=False))
    assert decide_tool_call(TOOL, halted).code == "kill_switch_enabled"


LARGE = {"properties": {"amount": {"minimum": 1000}}, "required": ["amount"]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"amount": 5}, ""), ({"amount": 5000}, "approval_required"), ({}, "")],
)
def test_a_conditional_ask_applies_only_to_matching_arguments(arguments, expected):
    policy = Policy("all", (ask("*", condition=LARGE),))
    assert get_code(policy=policy, arguments=arguments) == expected


def test_a_conditional_allow_lists_the_tool_and_applies_only_to_matching_arguments():
    small = {"properties": {"amount": {"maximum": 10}}, "required": ["amount"]}
    policy = Policy("allowlist", (Rule("allow", "mcp", "create_issue", GITHUB, small),))
    assert get_code(policy=policy) == ""
    assert get_code(policy=policy, arguments={"amount": 5}) == ""
    assert get_code(policy=policy, arguments={"amount": 50}) == "denied_by_policy"
    assert get_code(policy=policy, arguments={}) == "denied_by_policy"


def build_nested(depth):
    return {"amount": build_nested(depth - 1)} if depth else {}


@pytest.mark.parametrize(
    "arguments",
    [
        {"amount": 5, "text": "x" * 20_000},
        build_nested(MAX_DEPTH + 1),
        {"amount": [0] * (MAX_ARGUMENT_VALUES + 1)},
    ],
    ids=["too large here", "too deep", "too many"],
)
@pytest.mark.parametrize(
    ("mode", "effect", "expected"),
    [
        ("allowlist", "allow", "denied_by_policy"),
        ("allowlist", "ask", "approval_required"),
        ("all", "ask", "approval_required"),
        ("all", "deny", "denied_by_policy"),
    ],
)
def test_an_undecidable_condition_never_allows_more(mode, effect, expected, arguments):
    policy = Policy(mode, (Rule(effect, "mcp", "create_issue", GITHUB, LARGE),))
    assert get_code(policy=policy, arguments=arguments) == expected


def test_a_rule_of_one_server_doesnt_apply_to_another():
    policy = Policy("allowlist", (allow("*", GITHUB),))
    assert get_code(replace(TOOL, server_id=OTHER), policy=policy) == "denied_by_policy"


def test_an_exact_allow_doesnt_match_a_similar_name():
    policy = Policy("allowlist", (allow("create_issue"),))
    assert get_code(replace(TOOL, own_name="create-issue"), policy=policy) == "denied_by_policy"


def test_a_denial_matches_the_name_that_models_see():
    policy = Policy("denylist", (deny("create_issue"),))
    assert get_code(replace(TOOL, own_name="create-issue"), policy=policy) == "denied_by_policy"


def test_the_attachment_is_decided_before_the_policy():
    assert get_code(scope=AgentServerScope(denied=("create_*",))) == "denied_by_attachment"
    assert get_code(scope=AgentServerScope(allowed=("list_*",))) == "denied_by_attachment"
    assert get_code(scope=AgentServerScope(allowed=("create_*",))) == ""


def test_a_server_that_isnt_attached_is_denied():
    assert get_code(scope=None) == "not_attached"
    assert get_code(scope=AgentServerScope(enabled=False)) == "not_attached"


def test_a_disabled_agent_server_or_tool_is_denied():
    assert get_code(enabled=False) == "agent_disabled"
    assert get_code(replace(TOOL, server_enabled=False)) == "server_disabled"
    assert get_code(replace(TOOL, enabled=False)) == "tool_disabled"


def test_only_an_approved_definition_is_allowed():
    codes = {
        "pending": "not_approved",
        "changed": "definition_changed",
        "refused": "definition_rejected",
        "gone": "tool_gone",
    }
    assert {state: get_code(replace(TOOL, state=state)) for state in codes} == codes


def test_every_denial_has_a_remedy():
    for tool in (TOOL, CLOCK):
        for stage in evaluate_tool_stages(
            replace(tool, state="pending", enabled=False, server_enabled=False),
            build_policy(Policy(), None, enabled=False),
        ):
            assert stage.allows or (stage.reason and stage.remedy and stage.rule)


def test_an_explanation_has_every_stage_in_order():
    names = [stage.name for stage in evaluate_tool_stages(TOOL, build_policy())]
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
named_rules = st.builds(
    Rule,
    effect=st.sampled_from(["allow", "ask", "deny"]),
    source=st.sampled_from(["mcp", "builtin"]),
    pattern=st.sampled_from([*NAMES, "create_*", "*", "a[*]b", "?"]),
    server_id=st.sampled_from([None, GITHUB, OTHER]),
)


@given(
    st.lists(named_rules, max_size=8), st.sampled_from(["mcp", "builtin"]), st.sampled_from(NAMES)
)
def test_matching_rules_of_a_tool_are_found_in_order(rules, source, name):
    matching = list(Policy("all", tuple(rules)).list_tool_rules(source, GITHUB, name))
    assert matching == [rule for rule in rules if rule.matches(source, GITHUB, name)]


@given(tools, policies, scopes, st.text(max_size=20), st.text(max_size=20))
def test_a_rename_never_changes_a_decision(tool, policy, scope, label, server_name):
    renamed = replace(tool, label=label, server_name=server_name)
    before = decide_tool_call(tool, build_policy(policy, scope))
    after = decide_tool_call(renamed, build_policy(policy, scope))
    assert (before.verdict, before.code, before.rule) == (after.verdict, after.code, after.rule)


@given(tools, policies, scopes, rules)
def test_an_additional_deny_rule_never_allows_more(tool, policy, scope, rule):
    more = Policy(policy.mode, (*policy.rules, replace(rule, effect="deny")))
    if not decide_tool_call(tool, build_policy(policy, scope)).allowed:
        assert not decide_tool_call(tool, build_policy(more, scope)).allowed


@given(tools, policies, scopes, st.permutations(range(4)))
def test_the_order_of_rules_never_changes_a_decision(tool, policy, scope, order):
    shuffled = Policy(policy.mode, tuple(policy.rules[i] for i in order if i < len(policy.rules)))
    before = decide_tool_call(tool, build_policy(policy, scope))
    after = decide_tool_call(tool, build_policy(shuffled, scope))
    assert (before.verdict, before.code) == (after.verdict, after.code)


@given(tools, policies, scopes)
def test_the_decision_is_the_first_denying_stage(tool, policy, scope):
    stages = list(evaluate_tool_stages(tool, build_policy(policy, scope)))
    ask_code = "approval_required" if any(stage.asks for stage in stages) else ""
    first = next((stage.code for stage in stages if not stage.allows), ask_code)
    assert decide_tool_call(tool, build_policy(policy, scope)).code == first


@given(tools, policies, scopes, policies)
def test_the_organizations_rules_never_allow_more(tool, policy, scope, organization):
    unrestricted = decide_tool_call(tool, build_policy(policy, scope))
    restricted = decide_tool_call(tool, build_policy(policy, scope, organization=organization))
    order = ["allow", "ask", "deny"]
    assert order.index(restricted.verdict) >= order.index(unrestricted.verdict)


@given(tools, policies, scopes, rules)
def test_an_additional_ask_rule_never_allows_without_approval(tool, policy, scope, rule):
    more = Policy(policy.mode, (*policy.rules, replace(rule, effect="ask")))
    if not decide_tool_call(tool, build_policy(policy, scope)).allowed:
        assert not decide_tool_call(tool, build_policy(more, scope)).allowed


NOT_APPROVED = {
    "pending": "not_approved",
    "changed": "definition_changed",
    "instructions_changed": "definition_changed",
    "refused": "definition_rejected",
    "gone": "tool_gone",
}


@given(policies, st.sampled_from(sorted(NOT_APPROVED)))
def test_an_unapproved_definition_is_never_allowed(policy, state):
    tool = replace(TOOL, state=state)
    assert not decide_tool_call(tool, build_policy(policy)).allowed
    assert get_code() == ""
    assert get_code(tool) == NOT_APPROVED[state]
