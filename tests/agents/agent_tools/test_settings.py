"""Settings of the matrix: what they store, and what is decided then."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.agent_tools.settings import (
    MatrixChanges,
    Setting,
    ToolKey,
    apply_changes,
    find_inherited_rule,
    find_inherited_setting,
    find_overriding_rule,
    find_server_setting,
    find_stricter_rule,
    list_changes,
    read_server_default,
    read_tool_setting,
)
from agents.policies.decisions import (
    AgentServerScope,
    EffectivePolicy,
    ToolFacts,
    decide_tool_call,
)
from agents.policies.rules import Policy, Rule, escape_glob

GITHUB, SLACK = UUID(int=1), UUID(int=2)
# Names that differ from each other also as models see them, some with characters of globs.
NAMES = ("add", "a*b", "send[1]", "delete_all", "q?")
KEYS = (
    *(ToolKey("mcp", server, name) for server in (GITHUB, SLACK) for name in NAMES),
    ToolKey("builtin", None, "read_result"),
)
MODES = st.sampled_from(["none", "allowlist", "denylist", "all"])
SETTINGS = st.sampled_from(list(Setting))
NO_PATTERNS = st.builds(
    lambda mode, rules: Policy(mode, tuple(rules)),
    MODES,
    st.lists(
        st.one_of(
            st.builds(
                lambda key, effect: Rule(
                    effect, key.source, escape_glob(key.own_name), key.server_id
                ),
                st.sampled_from(KEYS),
                st.sampled_from(["allow", "ask", "deny"]),
            ),
            st.builds(
                lambda server, effect: Rule(effect, "mcp", "", server),
                st.sampled_from([GITHUB, SLACK]),
                st.sampled_from(["allow", "ask", "deny"]),
            ),
        ),
        max_size=8,
    ),
)
PATTERNS = st.lists(
    st.builds(
        Rule,
        st.sampled_from(["allow", "ask", "deny"]),
        st.sampled_from(["mcp", "builtin"]),
        st.sampled_from(["*", "a*", "send*", "read_*"]),
        st.sampled_from([None, GITHUB]),
        st.sampled_from([None, {"required": ["x"]}]),
    ),
    max_size=4,
)
SCOPES = st.fixed_dictionaries(
    {
        server: st.builds(
            AgentServerScope,
            allowed=st.sampled_from([(), ("add",), ("a*", "q[?]")]),
            denied=st.sampled_from([(), ("add",), ("a[*]b", "delete_all")]),
        )
        for server in (GITHUB, SLACK)
    }
)
CHANGES = st.builds(
    MatrixChanges,
    st.dictionaries(st.sampled_from(KEYS), SETTINGS, max_size=6),
    st.dictionaries(st.sampled_from([GITHUB, SLACK]), SETTINGS),
)


def decide(key, stored):
    facts = ToolFacts(key.source, key.own_name, key.own_name, key.server_id)
    return decide_tool_call(facts, stored).verdict


def build_policy(policy=Policy(), **scopes):  # noqa: B008 - frozen
    return EffectivePolicy(
        policy=policy,
        scopes={GITHUB: AgentServerScope(**scopes), SLACK: AgentServerScope()},
    )


@given(NO_PATTERNS, SCOPES, CHANGES)
def test_a_setting_is_read_as_it_was_saved_and_decides_the_call(policy, scopes, changes):
    saved = apply_changes(EffectivePolicy(policy=policy, scopes=scopes), changes)
    for key, setting in changes.tools.items():
        assert read_tool_setting(key, saved) == setting
        expected = setting or find_inherited_setting(key, saved.policy)
        assert decide(key, saved) == ("deny" if saved.policy.mode == "none" else expected)
    for server_id, setting in changes.defaults.items():
        assert read_server_default(server_id, saved.policy) == setting


@given(NO_PATTERNS, SCOPES, CHANGES)
def test_a_tool_without_a_setting_inherits_its_servers_default(policy, scopes, changes):
    saved = apply_changes(EffectivePolicy(policy=policy, scopes=scopes), changes)
    for key in KEYS:
        default = (
            read_server_default(key.server_id, saved.policy) if key.server_id else Setting.INHERIT
        )
        if saved.policy.mode != "none":
            inherited = find_inherited_setting(key, saved.policy)
            assert inherited == (default or find_server_setting(saved.policy))


@given(NO_PATTERNS, PATTERNS, SCOPES, CHANGES)
def test_a_change_keeps_other_settings_patterns_and_conditions(policy, patterns, scopes, changes):
    stored = EffectivePolicy(policy=Policy(policy.mode, (*policy.rules, *patterns)), scopes=scopes)
    saved = apply_changes(stored, changes)
    assert all(rule in saved.policy.rules for rule in patterns)
    for key in set(KEYS) - changes.tools.keys():
        assert read_tool_setting(key, saved) == read_tool_setting(key, stored)


@given(NO_PATTERNS, PATTERNS, SCOPES, CHANGES)
def test_a_pattern_can_only_make_the_decision_stricter(policy, patterns, scopes, changes):
    strictness = ["allow", "ask", "deny"]
    restricting = tuple(rule for rule in patterns if rule.effect != "allow")
    stored = EffectivePolicy(
        policy=Policy(policy.mode, (*policy.rules, *restricting)), scopes=scopes
    )
    saved = apply_changes(stored, changes)
    for key, setting in changes.tools.items():
        if setting:
            verdict = decide(key, saved)
            assert strictness.index(verdict) >= strictness.index(setting)


@given(NO_PATTERNS, PATTERNS, SCOPES)
def test_saving_what_is_stored_changes_nothing(policy, patterns, scopes):
    stored = EffectivePolicy(policy=Policy(policy.mode, (*policy.rules, *patterns)), scopes=scopes)
    tools = {key: read_tool_setting(key, stored) for key in KEYS}
    defaults = {server: read_server_default(server, stored.policy) for server in scopes}
    changes = list_changes(stored, tools, defaults)
    assert not changes
    assert apply_changes(stored, changes) == stored


@pytest.mark.parametrize("setting", [Setting.ASK, Setting.ALLOW])
def test_an_allowed_tool_can_be_called_in_an_agent_whose_policy_was_none(setting):
    key = KEYS[0]
    saved = apply_changes(build_policy(), MatrixChanges({key: setting}))
    assert saved.policy.mode == "allowlist"
    assert decide(key, saved) == setting
    assert apply_changes(build_policy(), MatrixChanges({key: Setting.DENY})).policy.mode == "none"


def test_a_default_of_ask_has_exceptions_in_both_directions_and_holds_for_new_tools():
    changes = MatrixChanges({KEYS[0]: Setting.ALLOW, KEYS[1]: Setting.DENY}, {GITHUB: Setting.ASK})
    saved = apply_changes(build_policy(Policy("allowlist")), changes)
    new_tool = ToolKey("mcp", GITHUB, "added_tomorrow")
    assert [decide(key, saved) for key in (*KEYS[:2], new_tool)] == ["allow", "deny", "ask"]


def test_a_tool_that_wasnt_selected_is_selected_when_it_is_set():
    stored = build_policy(Policy("all"), allowed=("add",), denied=("a[*]b", "d*"))
    key = KEYS[1]
    assert read_tool_setting(key, stored) == Setting.DENY
    saved = apply_changes(stored, MatrixChanges({key: Setting.ALLOW}))
    assert saved.scopes[GITHUB].allowed == ("add", "a[*]b")
    assert saved.scopes[GITHUB].denied == ("d*",)
    assert decide(key, saved) == "allow"


def test_a_pattern_that_overrides_a_setting_is_named():
    deny = Rule("deny", "mcp", "a*", GITHUB)
    stored = build_policy(Policy("allowlist", (deny,)))
    saved = apply_changes(stored, MatrixChanges({KEYS[0]: Setting.ALLOW}))
    assert decide(KEYS[0], saved) == "deny"
    assert find_overriding_rule(KEYS[0], saved.policy, "deny") == deny
    saved = apply_changes(saved, MatrixChanges({KEYS[0]: Setting.DENY}))
    assert find_overriding_rule(KEYS[0], saved.policy, "deny") is None
    assert find_overriding_rule(KEYS[2], replace(saved.policy, mode="all"), "deny") is None


ORGANIZATION_RULE = Rule("deny", "mcp", "drop_*")


@pytest.mark.parametrize(
    ("setting", "rule"),
    [(Setting.ALLOW, ORGANIZATION_RULE), (Setting.ASK, ORGANIZATION_RULE), (Setting.DENY, None)],
)
def test_a_stricter_rule_of_the_organization_is_found(setting, rule):
    stored = replace(build_policy(), organization=Policy("all", (ORGANIZATION_RULE,)))
    tool = ToolFacts("mcp", "drop_table", "mcp_web_drop_table", GITHUB)
    assert find_stricter_rule(tool, stored, setting) == rule


def test_a_condition_of_the_organization_overrides_no_setting():
    rule = replace(ORGANIZATION_RULE, condition={"required": ["a"]})
    stored = replace(build_policy(), organization=Policy("all", (rule,)))
    tool = ToolFacts("mcp", "drop_table", "mcp_web_drop_table", GITHUB)
    assert find_stricter_rule(tool, stored, Setting.ALLOW) is None


@pytest.mark.parametrize(
    ("mode", "rules", "expected"),
    [
        ("allowlist", (), None),
        ("none", (Rule("allow", "mcp", "add*", GITHUB),), None),
        ("denylist", (Rule("allow", "mcp", "add*", GITHUB),), None),
        ("allowlist", (Rule("allow", "mcp", "add*", GITHUB),), 0),
        ("allowlist", (Rule("allow", "mcp", "add", GITHUB),), None),
        ("allowlist", (Rule("allow", "mcp", "*"), Rule("ask", "mcp", "a*", GITHUB)), 1),
        ("allowlist", (Rule("ask", "mcp", "", GITHUB),), 0),
        ("allowlist", (Rule("ask", "mcp", "", GITHUB), Rule("allow", "mcp", "*")), 1),
    ],
)
def test_the_rule_of_an_inherited_value_is_found(mode, rules, expected):
    key = ToolKey("mcp", GITHUB, "add")
    rule = find_inherited_rule(key, Policy(mode, rules))
    assert rule == (None if expected is None else rules[expected])
