"""Replaying: flips between two policies, and what masked arguments leave undecidable."""

from copy import deepcopy
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.policies.compare_decisions import (
    PolicyComparison,
    VerdictPair,
    compare_policies,
    is_path_relevant,
    list_hidden_paths,
)
from agents.policies.decisions import AgentServerScope, EffectivePolicy, ToolFacts, decide_tool_call
from agents.policies.rules import Policy, Rule, read_policy
from bonobot.core.problems import InvalidInput
from bonobot.core.text.masking import MASK
from mcp_servers.schemas import SchemaVerdict, check_arguments

BANK = UUID(int=1)
TRANSFER = ToolFacts("mcp", "transfer", "transfer", BANK)
LARGE = {"properties": {"amount": {"minimum": 1000}}, "required": ["amount"]}
KEYED = {"properties": {"token": {"const": "hunter2"}}, "required": ["token"]}


def rule(effect, condition=None, pattern="transfer"):
    return Rule(effect, "mcp", pattern, BANK, condition)


def ruling(mode, *rules, organization=()):
    return EffectivePolicy(
        Policy(mode, rules), Policy("all", organization), scopes={BANK: AgentServerScope()}
    )


def kinds(now, changed, arguments=None):
    found = compare_policies(TRANSFER, {} if arguments is None else arguments, now, changed)
    return found.kind, found.before, found.after


def test_stricter_and_looser_policies_change_decisions():
    assert kinds(ruling("all"), ruling("all", rule("ask"))) == ("flip", "allow", "ask")
    assert kinds(ruling("none"), ruling("all")) == ("flip", "deny", "allow")
    assert kinds(ruling("all"), ruling("denylist")) == ("same", "allow", "allow")


def test_a_condition_on_recorded_arguments_is_decided():
    changed = ruling("all", rule("ask", LARGE))
    assert kinds(ruling("all"), changed, {"amount": 5, "token": MASK})[0] == "same"
    assert kinds(ruling("all"), changed, {"amount": 5000, "token": MASK})[2] == "ask"


@pytest.mark.parametrize(
    "arguments", [{"token": MASK}, {"token": f"Bearer {MASK}"}, {f"{MASK}": 1}, None]
)
def test_a_condition_on_a_masked_value_is_undecidable(arguments):
    now, changed = ruling("all"), ruling("all", rule("ask", KEYED))
    assert compare_policies(TRANSFER, arguments, now, changed) == VerdictPair(
        "undecidable", "allow"
    )


def test_a_condition_on_truncated_arguments_is_undecidable():
    cut = {"truncated": '{"amount":', "sha256": "0" * 64, "length": 99999}
    assert kinds(ruling("all"), ruling("all", rule("ask", LARGE)), cut)[0] == "undecidable"


def test_a_decision_that_is_the_same_either_way_is_decidable():
    kept = ruling("all", rule("ask", KEYED))
    same = ruling("all", rule("ask", KEYED), rule("deny", None, "other"))
    assert kinds(kept, same, {"token": MASK}) == ("same", "", "")
    assert kinds(kept, ruling("none"), {"token": MASK})[0] == "undecidable"
    organization = (rule("deny"),)
    assert kinds(ruling("none"), ruling("all", rule("ask", KEYED)), {"token": MASK})[2] == ""
    closed = ruling("all", rule("ask", KEYED), organization=organization)
    assert kinds(ruling("all"), closed, {"token": MASK}) == ("flip", "allow", "deny")


def test_the_same_condition_has_the_same_result_in_both_policies():
    now = ruling("all", rule("ask", KEYED))
    changed = ruling("denylist", rule("ask", dict(reversed(KEYED.items()))))
    assert kinds(now, changed, {"token": MASK})[0] == "same"


def test_too_many_unknown_conditions_are_undecidable():
    rules = [rule("ask", {"properties": {"token": {"const": str(n)}}}) for n in range(7)]
    assert kinds(ruling("all", *rules), ruling("all", *rules), {"token": MASK})[0] == (
        "undecidable"
    )


def test_a_tool_without_conditions_is_decided_once():
    comparison = PolicyComparison(ruling("all"), ruling("all", rule("ask", LARGE)))
    other = ToolFacts("mcp", "list", "list", BANK)
    assert comparison.compare_without_arguments(other) == comparison.compare_call(other, None)
    assert comparison.compare_without_arguments(TRANSFER) is None
    assert comparison.compare_call(TRANSFER, {"amount": 2000}).kind == "flip"


def test_hidden_values_are_found_where_they_are():
    kept = {"a": [1, {"b": MASK}], "c": "open", "d": f"x {MASK} y", "e": {f"k{MASK}": 1}}
    assert set(list_hidden_paths(kept)) == {("a", 1, "b"), ("d",), ("e",)}
    assert list_hidden_paths({"a": [MASK] * 100}) == ((),)


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"properties": {"token": {"minLength": 3}}}, True),
        ({"properties": {"token": {"title": "A token"}}}, False),
        ({"properties": {"amount": {"minimum": 3}}, "required": ["token"]}, False),
        ({"additionalProperties": False}, False),
        ({"additionalProperties": {"type": "string"}}, True),
        ({"patternProperties": {"^t": {"type": "string"}}}, True),
        ({"not": {"properties": {"token": {"const": 1}}}}, True),
        ({"enum": [{"token": 1}]}, True),
        ({"$ref": "#/$defs/x"}, True),
        ({"dependentSchemas": {"a": {"properties": {"token": {"const": 1}}}}}, True),
        ({"dependencies": {"a": ["token"]}}, False),
        ({"items": {"const": 1}}, False),
        ({"neverHeardOf": 1}, True),
    ],
)
def test_the_arguments_used_by_a_condition_are_listed(schema, expected):
    assert is_path_relevant(schema, ("token",)) is expected


SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "hunter2"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abt"), inner, max_size=3)
    ),
    max_leaves=6,
)
LEAVES = st.one_of(
    st.just({}),
    st.builds(lambda kind: {"type": kind}, st.sampled_from(["string", "integer", "object"])),
    st.builds(lambda value: {"const": value}, VALUES),
    st.builds(lambda least: {"minimum": least}, st.integers(-3, 3)),
    st.builds(lambda least: {"minLength": least}, st.integers(0, 3)),
    st.builds(lambda names: {"required": names}, st.lists(st.sampled_from("abt"), unique=True)),
    st.builds(lambda most: {"maxProperties": most}, st.integers(0, 3)),
    st.just({"uniqueItems": True}),
)


def wider(inner):
    members = st.dictionaries(st.sampled_from("abt"), inner, min_size=1, max_size=2)
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.builds(lambda one: {"properties": one}, members),
        st.builds(lambda one: {"patternProperties": {"^[at]$": one}}, inner),
        st.builds(
            lambda one, other: {"properties": one, "additionalProperties": other}, members, inner
        ),
        st.builds(
            lambda one, many: {"anyOf": many, "properties": one, "unevaluatedProperties": False},
            members,
            several,
        ),
        st.builds(lambda word, many: {word: many}, st.sampled_from(["allOf", "oneOf"]), several),
        st.builds(lambda one: {"not": one}, inner),
        st.builds(lambda one, two: {"if": one, "then": two}, inner, inner),
        st.builds(lambda one: {"items": one}, inner),
        st.builds(lambda one: {"contains": one}, inner),
        st.builds(lambda many, one: {"prefixItems": many, "items": one}, several, inner),
        st.builds(lambda one: {"dependentSchemas": {"a": one}}, inner),
    )


SCHEMAS = st.recursive(LEAVES, wider, max_leaves=5).filter(bool)
ARGUMENTS = st.dictionaries(st.sampled_from("abt"), VALUES, min_size=1, max_size=3)
EFFECTS = st.sampled_from(["allow", "ask", "deny"])
MODES = st.sampled_from(["none", "allowlist", "denylist", "all"])


@st.composite
def rulings(draw, conditions):
    some = st.lists(st.builds(rule, EFFECTS, st.none() | st.sampled_from(conditions)), max_size=3)
    return ruling(draw(MODES), *draw(some), organization=tuple(draw(some)))


@st.composite
def masked(draw):
    """Draw arguments as they were, and as the audit keeps them."""
    whole = draw(ARGUMENTS)
    kept = deepcopy(whole)
    for path in draw(st.lists(st.sampled_from(list(places(whole))), max_size=2)):
        hide(kept, path)
    return whole, kept


def places(value, path=()):
    if path:
        yield path
    members = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else ()
    for name, member in (*members, *items):
        yield from places(member, (*path, name))


def hide(value, path):
    *before, last = path
    for name in before:
        if not isinstance(value, dict | list):
            return
        value = value[name]
    if isinstance(value, dict | list):
        value[last] = MASK


@given(st.data(), st.lists(SCHEMAS, min_size=1, max_size=2), masked())
def test_a_decided_comparison_is_true_for_the_original_arguments(data, conditions, arguments):
    whole, kept = arguments
    now, changed = data.draw(rulings(conditions)), data.draw(rulings(conditions))
    found = compare_policies(TRANSFER, kept, now, changed)
    before = decide_tool_call(TRANSFER, now, whole).verdict
    after = decide_tool_call(TRANSFER, changed, whole).verdict
    if found.kind != "undecidable":
        assert (found.kind == "flip") == (before != after)
    assert found.before in ("", before)
    assert found.after in ("", after)
    if whole == kept:
        assert found.kind != "undecidable"


@given(SCHEMAS, masked())
def test_a_condition_without_hidden_arguments_is_the_same_for_both(schema, arguments):
    whole, kept = arguments
    if not any(is_path_relevant(schema, path) for path in list_hidden_paths(kept)):
        assert fits(schema, whole) == fits(schema, kept)


def fits(schema, arguments):
    try:
        check_arguments(schema, arguments, SchemaVerdict("inline", ""))
    except InvalidInput:
        return False
    return True


@given(MODES, st.lists(st.builds(rule, EFFECTS, st.none() | SCHEMAS), max_size=3))
def test_a_serialized_policy_is_read_back_unchanged(mode, rules):
    policy = Policy(mode, tuple(rules))
    assert read_policy(policy.as_dict()) == policy
