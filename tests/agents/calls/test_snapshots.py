"""Cached decisions of a call snapshot equal new ones."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.policies.decisions import (
    AgentServerScope,
    EffectivePolicy,
    PolicyDecision,
    ToolFacts,
    decide_tool_call,
)
from agents.policies.rules import Policy, Rule

SERVER = UUID(int=1)
NAMES = ("send_mail", "read_mail")
CONDITIONS = (
    None,
    {"required": ["to"]},
    {"properties": {"to": {"pattern": "@acme[.]example$"}}},
    {"properties": {"count": {"maximum": 2}}},
    {"not": {"required": ["text"]}},
)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "to": st.sampled_from(["a@acme.example", "b@other.example"]),
        "count": st.integers(0, 4),
        "text": st.sampled_from(["short", "x" * 20_000]),  # the long text can't be checked inline
    },
)
RULES = st.builds(
    Rule,
    st.sampled_from(["allow", "ask", "deny"]),
    st.just("mcp"),
    st.sampled_from([*NAMES, "*_mail", "other"]),
    st.sampled_from([None, SERVER]),
    st.sampled_from(CONDITIONS),
)
POLICIES = st.builds(
    Policy,
    st.sampled_from(["none", "allowlist", "denylist", "all"]),
    st.lists(RULES, max_size=5).map(tuple),
)


def _build_tool(name: str, effective_policy: EffectivePolicy) -> SnapshotTool:
    facts = ToolFacts(source="mcp", own_name=name, label=name, server_id=SERVER)
    conditional = tuple(
        rule for rule in effective_policy.list_tool_rules(facts) if rule.condition is not None
    )
    return SnapshotTool(
        name, facts, decide_tool_call(facts, effective_policy), {}, conditional=conditional
    )


@given(POLICIES, POLICIES, st.lists(ARGUMENTS, min_size=2, max_size=6))
def test_a_cached_decision_equals_a_new_one(
    policy: Policy, organization: Policy, calls: list[dict[str, Any]]
) -> None:
    effective_policy = EffectivePolicy(policy, organization, scopes={SERVER: AgentServerScope()})
    tools = {name: _build_tool(name, effective_policy) for name in NAMES}
    snapshot = CallSnapshot(
        organization_id=UUID(int=2),
        generation=1,
        tools=tools,
        servers={},
        effective_policy=effective_policy,
    )
    for arguments in calls * 2:
        for tool in tools.values():
            expected: PolicyDecision = decide_tool_call(tool.facts, effective_policy, arguments)
            assert snapshot.decide_call(tool, arguments) == expected


def test_a_condition_sees_the_default_of_an_omitted_argument() -> None:
    is_public = {"properties": {"public": {"const": True}}, "required": ["public"]}
    rules = (Rule("deny", "mcp", "send_mail", SERVER, is_public),)
    ruling = EffectivePolicy(
        Policy("all", rules), Policy("all", ()), scopes={SERVER: AgentServerScope()}
    )
    schema = {"type": "object", "properties": {"public": {"type": "boolean", "default": True}}}
    tool = replace(_build_tool("send_mail", ruling), declaration={"inputSchema": schema})
    snapshot = CallSnapshot(
        organization_id=UUID(int=2),
        generation=1,
        tools={tool.name: tool},
        servers={},
        effective_policy=ruling,
    )
    assert snapshot.decide_call(tool, {}).verdict == "deny"
    assert snapshot.decide_call(tool, {"public": False}).verdict == "allow"


@pytest.mark.parametrize(
    ("meta", "is_shown"),
    [
        ({}, True),
        ({"_meta": {"ui": {"resourceUri": "ui://page", "visibility": ["model", "app"]}}}, True),
        ({"_meta": {"ui": {"visibility": ["app"]}}}, False),
        ({"_meta": {"ui": {"visibility": "app"}}}, True),
        ({"_meta": "odd"}, True),
    ],
)
def test_a_tool_for_the_page_of_an_app_is_callable_and_not_shown_to_models(
    meta: dict[str, Any], is_shown: bool
) -> None:
    scopes = {SERVER: AgentServerScope()}
    effective_policy = EffectivePolicy(Policy("all", ()), Policy("all", ()), scopes=scopes)
    tool = replace(_build_tool("refresh", effective_policy), declaration=meta)
    snapshot = CallSnapshot(
        organization_id=UUID(int=2),
        generation=1,
        tools={tool.name: tool},
        servers={},
        effective_policy=effective_policy,
    )
    assert [tool.name for tool in snapshot.list_callable_tools()] == ["refresh"]
    shown_tools = (snapshot.list_shown_tools(()), snapshot.list_searchable_tools())
    assert shown_tools == (([tool], [tool]) if is_shown else ([], []))
