"""jsonschema-rs, which accepts arguments, agrees with `jsonschema` or isn't used."""

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_servers.schemas.classify_schema import classify_schema
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
PATTERNS = st.sampled_from(["^a", "[0-9]$", "(?=a)b", ".", r"\d", r"^\w+$", r"\s", r"\p{L}", "^.b"])
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
            "pattern": PATTERNS,
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
            "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
            "propertyNames": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "contains": inner,
            "multipleOf": st.sampled_from([0.1, 1, 2.5, 1e-7]),
            "minContains": SMALL,
            "maxContains": SMALL,
            "uniqueItems": st.booleans(),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True)),
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=2),
            "dependencies": st.dictionaries(NAMES, inner, max_size=2),
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
            "$ref": st.sampled_from(["#/$defs/a", "#/properties/a", "#b"]),
            "$defs": st.fixed_dictionaries({"a": inner}),
            "$anchor": st.just("b"),
            "description": TEXTS,
            "format": st.just("email"),
            "x-unknown": TEXTS,
        },
    )


SCHEMAS = st.recursive(st.booleans() | _objects(st.booleans()), _objects, max_leaves=6)
DIALECTS = st.sampled_from(
    [
        {},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"$schema": "https://json-schema.org/draft/2019-09/schema"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
    ]
)


@settings(max_examples=EXAMPLES)
@given(SCHEMAS, DIALECTS, st.lists(VALUES, min_size=4, max_size=8))
def test_both_libraries_agree(schema: Any, dialect: Any, values: list[Any]) -> None:
    schema = dialect | schema if isinstance(schema, dict) else {"allOf": [schema]}
    if classify_schema(schema).verdict != "inline":
        return
    fits = build_fast_test(schema)
    if fits is None:
        return
    validator = build_validator(schema)
    for value in values:
        assert fits(value) is validator.is_valid(value)


@pytest.mark.parametrize(
    ("factor", "value", "is_multiple"),
    [
        (0.1, 0.3, True),
        (0.01, 19.99, True),
        (1, 10**400, True),
        (2.5, 2**63, False),
        (1e-7, 0.1, True),
        (3, 1.5, False),
    ],
)
def test_multiples_are_exact(factor: float, value: float, is_multiple: bool) -> None:
    schema = {"multipleOf": factor}
    fits = build_fast_test(schema)
    assert fits is not None
    assert fits(value) is build_validator(schema).is_valid(value) is is_multiple


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/missing"},
        {"type": "any"},
        {"pattern": "(?=a)b"},
        {"pattern": "[^a]{900}"},
        {"pattern": "[[:alpha:]]"},
        {"pattern": r"^\s$"},
        {"properties": {"a": {"dependencies": {"a": ["b"]}}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64"},
        {"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1},
        {"$schema": ["https://json-schema.org/draft/2020-12/schema"]},
        {"required": "text"},
        "text",
    ],
)
def test_other_schemas_are_left_to_jsonschema(schema: Any) -> None:
    assert build_fast_test(schema) is None


def test_typical_tool_schemas_are_fast() -> None:
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
