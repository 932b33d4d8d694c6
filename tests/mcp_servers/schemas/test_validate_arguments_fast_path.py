"""The fast path of validation agrees with `jsonschema` or isn't used."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_servers.schemas.dialects import build_validator
from mcp_servers.schemas.validate_arguments import build_fast_test

# A run repeats the same schemas; `make fuzz` searches among many more.
EXAMPLES = 4_000 if os.environ.get("TEST_FUZZING") == "whole" else 200
TEXTS = st.sampled_from(["", "a", "ab", "b1", "true", "1", "ä", "😀", "a\n"])
NUMBERS = st.integers(-3, 3) | st.sampled_from([1.0, -0.5, 2.0, 1e300, 10**20, 0.1])
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
NAMES = st.sampled_from(["a", "b", "ab", ""])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)  # the same names
    ),
    max_leaves=8,
)
TYPES = st.sampled_from(["string", "number", "integer", "object", "array", "boolean", "null"])
SMALL = st.integers(0, 3)


def _objects(inner: Any) -> Any:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": inner,
            "items": inner,
            "enum": st.lists(SCALARS, min_size=1, max_size=3),
            "const": SCALARS | st.just([]),
            "pattern": st.sampled_from(["^a", "[0-9]$", "(?=a)b", "."]),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "minimum": NUMBERS,
            "maximum": NUMBERS,
            "exclusiveMinimum": NUMBERS,
            "exclusiveMaximum": NUMBERS,
            "minLength": SMALL,
            "maxLength": SMALL,
            "minItems": SMALL,
            "maxItems": SMALL,
            "minProperties": SMALL,
            "maxProperties": SMALL,
            "description": TEXTS,
            "format": st.just("email"),
        },
    )


SCHEMAS = st.recursive(st.booleans() | _objects(st.booleans()), _objects, max_leaves=6)
DIALECTS = st.sampled_from(
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    ]
)


@settings(max_examples=EXAMPLES)
@given(SCHEMAS, DIALECTS, st.lists(VALUES, min_size=4, max_size=8))
def test_the_fast_path_agrees_with_jsonschema(schema: Any, dialect: Any, values: list[Any]) -> None:
    schema = dialect | schema if isinstance(schema, dict) else {"allOf": [schema]}
    fits = build_fast_test(schema)
    if fits is None:
        return
    validator = build_validator(schema)
    for value in values:
        assert fits(value) is validator.is_valid(value)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": True}},
        {"patternProperties": {"^x-": {}}, "additionalProperties": False},
        {"prefixItems": [True], "items": False},
        {"items": [{"type": "string"}]},
        {"enum": [True]},
        {"const": {"a": 1}},
        {"type": "any"},
        {"not": {}},
        {"oneOf": [True]},
        {"properties": {"a": {"$schema": "http://json-schema.org/draft-04/schema#"}}},
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1},
        {"unevaluatedProperties": False},
        {"required": "text"},
        {"x-unknown": 1},
        "text",
    ],
)
def test_the_fast_path_decides_nothing_else(schema: Any) -> None:
    assert build_fast_test(schema) is None


def test_typical_tool_schemas_use_the_fast_path() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "Where", "minLength": 1},
            "edits": {"type": "array", "items": {"type": "object", "required": ["old"]}},
            "mode": {"enum": ["r", "w"], "default": "r"},
        },
        "required": ["path"],
        "additionalProperties": False,
    }
    fits = build_fast_test(schema)
    assert fits is not None
    assert fits({"path": "/srv", "edits": [{"old": "a"}], "mode": "w"})
    assert not fits({"path": "/srv", "edits": [{}]})
    assert not fits({"path": "/srv", "other": 1})
    assert not fits({"mode": "r"})
