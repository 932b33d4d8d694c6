"""Decisions about resources and prompts: selected, approved, and independent of names."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policies.decisions import (
    AgentServerScope,
    DefinitionFacts,
    EffectivePolicy,
    KillSwitches,
    can_span_slashes,
    decide_definition,
    evaluate_definition_stages,
    matches_pattern,
)
from agents.policies.rules import Policy

LIBRARY = UUID(int=1)
BOOK = DefinitionFacts(
    kind="resource", own_name="lib://rules", server_id=LIBRARY, server_name="library"
)
TEMPLATE = replace(BOOK, kind="resource_template", own_name="lib://books/{book}")
PROMPT = replace(BOOK, kind="prompt", own_name="review")
ALL = AgentServerScope(resources=("*",), prompts=("*",))
DEFINITIONS = st.builds(
    DefinitionFacts,
    kind=st.sampled_from(["resource", "resource_template", "prompt"]),
    own_name=st.text(min_size=1, max_size=20),
    server_id=st.just(LIBRARY),
    server_enabled=st.booleans(),
    state=st.sampled_from(["approved", "pending", "changed", "refused", "gone"]),
    enabled=st.booleans(),
)
PATTERNS = st.lists(st.text(max_size=8), max_size=3).map(tuple)
SCOPES = st.none() | st.builds(
    AgentServerScope, enabled=st.booleans(), resources=PATTERNS, prompts=PATTERNS, allowed=PATTERNS
)
MODES = st.sampled_from(["none", "allowlist", "denylist", "all"])


def build_policy(mode="all", scope=ALL, *, enabled=True):
    """Build the policy of an agent with the library attached in this scope, or not at all."""
    scopes = {} if scope is None else {LIBRARY: scope}
    return EffectivePolicy(policy=Policy(mode), scopes=scopes, switches=KillSwitches(agent=enabled))


def get_code(definition=BOOK, mode="all", scope=ALL, *, enabled=True):
    """Return the code of a denial, or an empty string."""
    return decide_definition(definition, build_policy(mode, scope, enabled=enabled)).code


def test_only_selected_items_are_allowed():
    assert [get_code(item, scope=AgentServerScope()) for item in (BOOK, TEMPLATE, PROMPT)] == [
        "not_selected"
    ] * 3


def test_selected_items_are_allowed():
    selection = AgentServerScope(resources=("lib://rules", "lib://books/{book}"), prompts=("rev*",))
    assert [get_code(item, scope=selection) for item in (BOOK, TEMPLATE, PROMPT)] == [""] * 3


def test_selected_tools_dont_allow_resources_or_prompts():
    assert get_code(scope=AgentServerScope(allowed=("*",), prompts=("*",))) == "not_selected"
    assert (
        get_code(PROMPT, scope=AgentServerScope(allowed=("*",), resources=("*",))) == "not_selected"
    )


def test_only_mode_none_denies_resources_and_prompts():
    assert get_code(mode="none") == "denied_by_policy"
    assert [get_code(mode=mode) for mode in ("allowlist", "denylist", "all")] == [""] * 3


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (replace(BOOK, state="pending"), "not_approved"),
        (replace(BOOK, state="changed"), "definition_changed"),
        (replace(BOOK, state="refused"), "definition_rejected"),
        (replace(BOOK, state="gone"), "resource_gone"),
        (replace(PROMPT, state="gone"), "prompt_gone"),
        (replace(TEMPLATE, enabled=False), "resource_disabled"),
        (replace(PROMPT, enabled=False), "prompt_disabled"),
        (replace(BOOK, server_enabled=False), "server_disabled"),
    ],
)
def test_only_an_approved_enabled_definition_is_allowed(definition, expected):
    assert get_code(definition) == expected


def test_the_agent_and_its_attachment_are_decided_first():
    assert get_code(enabled=False) == "agent_disabled"
    assert get_code(scope=None) == get_code(scope=replace(ALL, enabled=False)) == "not_attached"


def test_a_uri_pattern_allows_matching_uris_of_a_template():
    requested = replace(TEMPLATE, uri="lib://books/emma")
    assert get_code(requested, scope=AgentServerScope(resources=("lib://books/e*",))) == ""
    assert (
        get_code(requested, scope=AgentServerScope(resources=("lib://books/f*",))) == "not_selected"
    )


def test_only_a_uri_pattern_allows_slashes_in_a_variable():
    uri = "lib://files/a/b"
    assert not can_span_slashes(None, uri)
    assert not can_span_slashes(AgentServerScope(resources=("*", "lib://files/{+path}")), uri)
    assert can_span_slashes(AgentServerScope(resources=("lib://files/a/*",)), uri)


def test_a_uri_with_pattern_characters_matches_itself():
    assert matches_pattern("lib://a?b=[1]", "lib://a?b=[1]")


@given(DEFINITIONS, MODES, SCOPES, st.booleans())
def test_every_allowed_item_passed_every_stage(definition, mode, scope, agent_enabled):
    decision = decide_definition(definition, build_policy(mode, scope, enabled=agent_enabled))
    stages = list(
        evaluate_definition_stages(definition, build_policy(mode, scope, enabled=agent_enabled))
    )
    assert decision.allowed == all(stage.allows for stage in stages)
    assert decision.allowed or (decision.code and decision.remedy and decision.rule)
    if decision.allowed:
        patterns = scope.prompts if definition.kind == "prompt" else scope.resources
        assert any(matches_pattern(pattern, definition.own_name) for pattern in patterns)
        assert (definition.state, definition.enabled, definition.server_enabled) == (
            "approved",
            True,
            True,
        )
        assert mode != "none"
        assert agent_enabled


@given(DEFINITIONS, MODES, SCOPES)
def test_additional_selections_never_deny_more(definition, mode, scope):
    if scope is not None and decide_definition(definition, build_policy(mode, scope)).allowed:
        more = replace(scope, resources=(*scope.resources, "x"), prompts=(*scope.prompts, "x"))
        assert decide_definition(definition, build_policy(mode, more)).allowed


@given(DEFINITIONS, SCOPES)
def test_the_display_name_doesnt_affect_the_decision(definition, scope):
    renamed = replace(definition, server_name="another name")
    assert (
        decide_definition(definition, build_policy("all", scope)).allowed
        == decide_definition(renamed, build_policy("all", scope)).allowed
    )
