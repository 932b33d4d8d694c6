"""Comparing the decisions of two policies, also on masked arguments."""

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


def build_rule(effect, condition=None, pattern="transfer"):
    return Rule(effect, "mcp", pattern, BANK, condition)


def build_policy(mode, *rules, organization=()):
    return EffectivePolicy(
        Policy(mode, rules), Policy("all", organization), scopes={BANK: AgentServerScope()}
    )


def compare(current, changed, arguments=None):
    comparison = compare_policies(
        TRANSFER, {} if arguments is None else arguments, current, changed
    )
    return comparison.kind, comparison.before, comparison.after


def test_stricter_and_looser_policies_change_decisions():
    assert compare(build_policy("all"), build_policy("all", build_rule("ask"))) == (
        "changed",
        "allow",
        "ask",
    )
    assert compare(build_policy("none"), build_policy("all")) == ("changed", "deny", "allow")
    assert compare(build_policy("all"), build_policy("denylist")) == ("unchanged", "allow", "allow")


def test_a_condition_on_recorded_arguments_is_decided():
    changed = build_policy("all", build_rule("ask", LARGE))
    assert compare(build_policy("all"), changed, {"amount": 5, "token": MASK})[0] == "unchanged"
    assert compare(build_policy("all"), changed, {"amount": 5000, "token": MASK})[2] == "ask"


@pytest.mark.parametrize(
    "arguments", [{"token": MASK}, {"token": f"Bearer {MASK}"}, {f"{MASK}": 1}, None]
)
def test_a_condition_on_a_masked_value_is_undecidable(arguments):
    now, changed = build_policy("all"), build_policy("all", build_rule("ask", KEYED))
    assert compare_policies(TRANSFER, arguments, now, changed) == VerdictPair(
        "undecidable", "allow"
    )


def test_a_condition_on_truncated_arguments_is_undecidable():
    truncated = {"truncated": '{"amount":', "sha256": "0" * 64, "length": 99999}
    assert (
        compare(build_policy("all"), build_policy("all", build_rule("ask", LARGE)), truncated)[0]
        == "undecidable"
    )


def test_a_decision_that_is_the_same_either_way_is_decidable():
    policy = build_policy("all", build_rule("ask", KEYED))
    same = build_policy("all", build_rule("ask", KEYED), build_rule("deny", None, "other"))
    assert compare(policy, same, {"token": MASK}) == ("unchanged", "", "")
    assert compare(policy, build_policy("none"), {"token": MASK})[0] == "undecidable"
    organization = (build_rule("deny"),)
    assert (
        compare(
            build_policy("none"), build_policy("all", build_rule("ask", KEYED)), {"token": MASK}
        )[2]
        == ""
    )
    denied = build_policy("all", build_rule("ask", KEYED), organization=organization)
    assert compare(build_policy("all"), denied, {"token": MASK}) == ("changed", "allow", "deny")


def test_the_same_condition_has_the_same_result_in_both_policies():
    now = build_policy("all", build_rule("ask", KEYED))
    changed = build_policy("denylist", build_rule("ask", dict(reversed(KEYED.items()))))
    assert compare(now, changed, {"token": MASK})[0] == "unchanged"


def test_too_many_unknown_conditions_are_undecidable():
    rules = [build_rule("ask", {"properties": {"token": {"const": str(n)}}}) for n in range(7)]
    assert compare(build_policy("all", *rules), build_policy("all", *rules), {"token": MASK})[
        0
    ] == ("undecidable")


def test_a_tool_without_conditions_is_decided_once():
    comparison = PolicyComparison(
        build_policy("all"), build_policy("all", build_rule("ask", LARGE))
    )
    other_tool = ToolFacts("mcp", "list", "list", BANK)
    assert comparison.compare_without_arguments(other_tool) == comparison.compare_call(
        other_tool, None
    )
    assert comparison.compare_without_arguments(TRANSFER) is None
    assert comparison.compare_call(TRANSFER, {"amount": 2000}).kind == "changed"


def test_paths_of_masked_values_are_listed():
    recorded = {"a": [1, {"b": MASK}], "c": "open", "d": f"x {MASK} y", "e": {f"k{MASK}": 1}}
    assert set(list_hidden_paths(recorded)) == {("a", 1, "b"), ("d",), ("e",)}
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


def combine_schemas(inner):
    properties = st.dictionaries(st.sampled_from("abt"), inner, min_size=1, max_size=2)
    schema_lists = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.builds(lambda schema: {"properties": schema}, properties),
        st.builds(lambda schema: {"patternProperties": {"^[at]$": schema}}, inner),
        st.builds(
            lambda schema, other_schema: {
                "properties": schema,
                "additionalProperties": other_schema,
            },
            properties,
            inner,
        ),
        st.builds(
            lambda schema, schemas: {
                "anyOf": schemas,
                "properties": schema,
                "unevaluatedProperties": False,
            },
            properties,
            schema_lists,
        ),
        st.builds(
            lambda word, schemas: {word: schemas}, st.sampled_from(["allOf", "oneOf"]), schema_lists
        ),
        st.builds(lambda schema: {"not": schema}, inner),
        st.builds(lambda schema, other_schema: {"if": schema, "then": other_schema}, inner, inner),
        st.builds(lambda schema: {"items": schema}, inner),
        st.builds(lambda schema: {"contains": schema}, inner),
        st.builds(
            lambda schemas, schema: {"prefixItems": schemas, "items": schema}, schema_lists, inner
        ),
        st.builds(lambda schema: {"dependentSchemas": {"a": schema}}, inner),
    )


SCHEMAS = st.recursive(LEAVES, combine_schemas, max_leaves=5).filter(bool)
ARGUMENTS = st.dictionaries(st.sampled_from("abt"), VALUES, min_size=1, max_size=3)
EFFECTS = st.sampled_from(["allow", "ask", "deny"])
MODES = st.sampled_from(["none", "allowlist", "denylist", "all"])


@st.composite
def build_policies(draw, conditions):
    rules = st.lists(
        st.builds(build_rule, EFFECTS, st.none() | st.sampled_from(conditions)), max_size=3
    )
    return build_policy(draw(MODES), *draw(rules), organization=tuple(draw(rules)))


@st.composite
def mask_arguments(draw):
    """Draw original arguments and their masked form in the audit log."""
    original = draw(ARGUMENTS)
    recorded = deepcopy(original)
    for path in draw(st.lists(st.sampled_from(list(list_paths(original))), max_size=2)):
        mask_value(recorded, path)
    return original, recorded


def list_paths(value, path=()):
    if path:
        yield path
    fields = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else ()
    for key, item in (*fields, *items):
        yield from list_paths(item, (*path, key))


def mask_value(value, path):
    *parents, last = path
    for key in parents:
        if not isinstance(value, dict | list):
            return
        value = value[key]
    if isinstance(value, dict | list):
        value[last] = MASK


@given(st.data(), st.lists(SCHEMAS, min_size=1, max_size=2), mask_arguments())
def test_a_decided_comparison_is_true_for_the_original_arguments(data, conditions, arguments):
    original, recorded = arguments
    now, changed = data.draw(build_policies(conditions)), data.draw(build_policies(conditions))
    comparison = compare_policies(TRANSFER, recorded, now, changed)
    before = decide_tool_call(TRANSFER, now, original).verdict
    after = decide_tool_call(TRANSFER, changed, original).verdict
    if comparison.kind != "undecidable":
        assert (comparison.kind == "changed") == (before != after)
    assert comparison.before in ("", before)
    assert comparison.after in ("", after)
    if original == recorded:
        assert comparison.kind != "undecidable"


@given(SCHEMAS, mask_arguments())
def test_a_condition_without_hidden_arguments_is_the_same_for_both(schema, arguments):
    original, recorded = arguments
    if not any(is_path_relevant(schema, path) for path in list_hidden_paths(recorded)):
        assert fits(schema, original) == fits(schema, recorded)


def fits(schema, arguments):
    try:
        check_arguments(schema, arguments, SchemaVerdict("inline", ""))
    except InvalidInput:
        return False
    return True


@given(MODES, st.lists(st.builds(build_rule, EFFECTS, st.none() | SCHEMAS), max_size=3))
def test_a_serialized_policy_is_read_back_unchanged(mode, rules):
    policy = Policy(mode, tuple(rules))
    assert read_policy(policy.as_dict()) == policy
