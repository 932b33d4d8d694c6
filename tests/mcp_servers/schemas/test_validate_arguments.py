"""Arguments are checked against the tool's schema, and the error says what to send."""

import json
import time
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_specifications import REGISTRY

from bonobot.core.problems import Problem
from mcp_servers.schemas import (
    InvalidArguments,
    SchemaVerdict,
    SubprocessNeeded,
    check_arguments,
    classify_schema,
    find_violation,
)

FORECAST: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2, "maxLength": 64},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "unit": {"enum": ["C", "F"]},
        "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        "spots": {"type": "array", "items": {"type": "object", "required": ["x y"]}},
        "token": {"type": "integer"},
        "kind": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "once": {"type": "array", "uniqueItems": True},
    },
    "required": ["city"],
    "additionalProperties": False,
}
INLINE = SchemaVerdict("inline")


def refusal(arguments: Any, schema: Any = FORECAST) -> InvalidArguments:
    with pytest.raises(InvalidArguments) as caught:
        check_arguments(schema, arguments, classify_schema(schema))
    return caught.value


def test_valid_arguments_pass() -> None:
    check_arguments(FORECAST, {"city": "Köln", "days": 3, "unit": "C"}, INLINE)


@pytest.mark.parametrize(
    ("arguments", "field", "text"),
    [
        ({}, "$.city", "`city` is missing"),
        ({"city": 5}, "$.city", "must be a string, got `5`"),
        ({"city": "x"}, "$.city", "at least 2 characters"),
        ({"city": "Bonn", "days": "3"}, "$.days", "an integer, got a string of 1 characters"),
        ({"city": "Bonn", "days": 1.5}, "$.days", "an integer"),
        ({"city": "Bonn", "days": True}, "$.days", "an integer, got true"),
        ({"city": "Bonn", "days": 99}, "$.days", "at most 14"),
        ({"city": "Bonn", "unit": "K"}, "$.unit", "one of `C`, `F`, got `K`"),
        ({"city": "Bonn", "zip": "5311"}, "$.zip", "must match the pattern"),
        ({"city": "Bonn", "zip": "53111\n"}, "$.zip", "must match the pattern"),
        ({"city": "Bonn", "town": 1}, "$.town", "`town` isn't a known property"),
        ({"city": "Bonn", "spots": [{"x y": 1}, {}]}, "$.spots[1]['x y']", "missing in"),
        ({"city": "Bonn", "kind": None}, "$.kind", "matches none"),
        ({"city": "Bonn", "once": [1, 1.0]}, "$.once", "must not contain duplicate items"),
        ([], "$", "must be a JSON object"),
        (None, "$", "must be a JSON object"),
    ],
)
def test_invalid_arguments_are_reported_with_their_path(
    arguments: Any, field: str, text: str
) -> None:
    problem = refusal(arguments)
    assert problem.code == "invalid_arguments"
    assert problem.field == field
    assert text in problem.detail
    assert problem.remedy


def test_a_misspelled_name_gets_a_suggestion() -> None:
    assert "`city`" in refusal({"city": "Bonn", "ciyt": "x"}).remedy


def test_unknown_properties_follow_the_schema() -> None:
    check_arguments({"type": "object"}, {"anything": 1}, INLINE)
    patterns = {"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False}
    check_arguments(patterns, {"x-a": 1}, INLINE)
    assert refusal({"y-a": 1}, patterns).field == "$.y-a"
    numbers = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert refusal({"a": "b"}, numbers).field == "$.a"


def test_several_errors_are_listed_together() -> None:
    problem = refusal({"days": "3", "unit": "K"})
    assert {error["code"] for error in problem.as_dict()["errors"]} == {"invalid_arguments"}
    assert {error["field"] for error in problem.as_dict()["errors"]} == {
        "$.city",
        "$.days",
        "$.unit",
    }


def test_values_of_arguments_arent_repeated() -> None:
    secret = "hunter2-and-more"
    for arguments in ({"city": "B", "token": secret}, {"city": "Bonn", "zip": secret}):
        assert secret not in json.dumps(refusal(arguments).as_dict())
    assert "string of 16 characters" in refusal({"city": "Bonn", "token": secret}).detail


def test_hidden_characters_in_names_are_shown() -> None:
    problem = refusal({"city": "Bonn", "to\u202ewn": 1})
    assert "\u202e" not in json.dumps(problem.as_dict(), ensure_ascii=False)
    assert "⟨U+202E⟩" in problem.field


def test_a_refused_schema_has_a_reason() -> None:
    with pytest.raises(Problem) as caught:
        check_arguments({"type": "any"}, {}, classify_schema({"type": "any"}))
    assert caught.value.code == "schema_rejected"
    assert "$.type" in caught.value.detail


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": "\ud83d"},
        {"\ud83d": 1},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": list(range(100_001))},
        json.loads('{"a":' + "[" * 64 + "]" * 64 + "}"),
    ],
    ids=["surrogate", "surrogate key", "NaN", "Infinity", "too many", "too deep"],
)
def test_arguments_beyond_all_limits_are_refused(arguments: Any) -> None:
    assert refusal(arguments, {"type": "object"}).field == "$"


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"type": "object"}, {"a": "x" * 17_000}),
        ({"type": "object"}, {"a": list(range(1_001))}),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, {}),
        (
            {
                "type": "object",
                "additionalProperties": {"anyOf": [{"const": n} for n in range(99)]},
            },
            {f"p{n}": "x" for n in range(200)},
        ),
    ],
    ids=["characters", "values", "recursive schema", "both together"],
)
def test_checks_that_could_take_long_need_a_subprocess(schema: Any, arguments: Any) -> None:
    with pytest.raises(SubprocessNeeded):
        check_arguments(schema, arguments, classify_schema(schema))


HOSTILE = {
    "pattern": (
        {"type": "object", "additionalProperties": {"pattern": "^(a+)+$"}},
        {"x": "a" * 10_000 + "!"},
    ),
    "a wide pattern": (
        {"type": "object", "additionalProperties": {"pattern": "(x+x+){1000}y"}},
        {"a": "x" * 16_000},
    ),
    "many patterns": (
        {
            "type": "object",
            "additionalProperties": {
                "items": {"allOf": [{"pattern": f"(x?){{500}}{n}"} for n in range(60)]}
            },
        },
        {"a": ["x" * 70] * 100},
    ),
    "pattern of names": (
        {"type": "object", "patternProperties": {"^(a|a)*$": {}}, "additionalProperties": False},
        {"a" * 10_000 + "!": 1},
    ),
    "unique items": (
        {"type": "object", "additionalProperties": {"uniqueItems": True}},
        {"x": [{"v": n} for n in range(480)]},
    ),
    "choices": (
        {"type": "object", "additionalProperties": {"enum": [{"v": n} for n in range(150)]}},
        {f"p{n}": {"v": -1} for n in range(400)},
    ),
    "branches": (
        {
            "type": "object",
            "additionalProperties": {
                "items": {"anyOf": [{"minLength": n + 20} for n in range(150)]}
            },
        },
        {"x": ["y"] * 900},
    ),
}


@pytest.mark.parametrize(("schema", "arguments"), HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_schemas_and_arguments_never_block_the_loop(schema: Any, arguments: Any) -> None:
    classification = classify_schema(schema)
    started_at = time.thread_time()
    with suppress(InvalidArguments, SubprocessNeeded):
        check_arguments(schema, arguments, classification)
    assert time.thread_time() - started_at < 0.25


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 0.5, "a", "ab", "b1"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["a", "b", "ab", "x1"]), inner, max_size=3)
    ),
    max_leaves=8,
)
leaves = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["string", "integer", "object", "array", "number"]),
        "pattern": st.sampled_from(["^a", "b$", "[0-9]", "a+b?"]),
        "uniqueItems": st.booleans(),
        "enum": st.lists(values, min_size=1, max_size=3),
    },
)
schemas = st.recursive(
    leaves | st.booleans(),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b", "x1"]), inner, max_size=2),
            "patternProperties": st.dictionaries(
                st.sampled_from(["^a", "b$", "[0-9]"]), inner, max_size=2
            ),
            "additionalProperties": inner,
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
        },
    ),
    max_leaves=8,
)


@given(schemas.filter(lambda schema: isinstance(schema, dict)), values)
def test_keywords_decide_like_the_reference_implementation(schema: Any, value: Any) -> None:
    reference = jsonschema.Draft202012Validator(schema, registry=REGISTRY)
    assert (find_violation(schema, value) is None) == reference.is_valid(value)


@given(schemas.filter(lambda schema: isinstance(schema, dict)), values)
def test_any_refusal_has_a_path_and_a_message(schema: Any, value: Any) -> None:
    violation = find_violation(schema, value)
    if violation is not None:
        assert violation.field.startswith("$")
        assert violation.detail.endswith(".")
        json.dumps(violation.as_dict())
