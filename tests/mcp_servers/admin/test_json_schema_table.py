"""JSON schemas are shown as tables."""

from typing import Any

import pytest
from django.utils.translation import override
from hypothesis import given

from mcp_servers.admin.json_schema_table import MAX_ROWS, build_schema_rows
from tests.mcp_servers.any_schema import ANY_SCHEMA


def test_properties_are_listed_with_type_required_and_description() -> None:
    [row] = build_schema_rows(
        {
            "properties": {"city": {"type": "string", "description": "Where", "minLength": 2}},
            "required": ["city"],
        }
    )
    assert (row.name, row.type, row.required, row.description) == ("city", "string", True, "Where")
    assert row.bounds == ("at least 2 characters",)


def test_nested_properties_are_listed_below_their_parent() -> None:
    schema = {"properties": {"a": {"type": "array", "items": {"properties": {"b": {}}}}}}
    assert [(row.depth, row.name) for row in build_schema_rows(schema)] == [(0, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": ["string", "null"]}, "string or null"),
        ({"type": "array", "items": {"type": "integer"}}, "list of integer"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "string or number"),
        ({"$ref": "#/$defs/Point"}, "Point"),
        ({"enum": [1, 2]}, "one of a list"),
        ({}, "any"),
    ],
)
def test_a_type_is_shown_in_words(schema: dict[str, Any], text: str) -> None:
    assert build_schema_rows({"properties": {"x": schema}})[0].type == text


def test_hidden_characters_in_a_schema_are_visible() -> None:
    [row] = build_schema_rows({"properties": {"a\u200b": {"description": "b\u202ec"}}})
    assert "⟨U+200B⟩" in row.name
    assert "⟨U+202E⟩" in row.description


def test_constraints_are_shown_in_the_readers_language() -> None:
    schema = {"type": "array", "minItems": 2, "default": []}
    with override("de"):
        [row] = build_schema_rows({"properties": {"tags": schema | {"items": {"enum": ["a"]}}}})
    assert row.type == "Liste aus: eines aus einer Liste"
    assert row.bounds == ("Standard []", "mindestens 2 Elemente")


@pytest.mark.parametrize(
    ("language", "keyword", "count", "text"),
    [
        ("en", "minItems", 1, "at least 1 item"),
        ("en", "maxLength", 1.0, "at most 1 character"),
        ("en", "minProperties", 2, "at least 2 fields"),
        ("de", "minItems", 1, "mindestens 1 Element"),
        ("de", "maxItems", 0, "höchstens 0 Elemente"),
        ("de", "maxProperties", 1, "höchstens 1 Feld"),
    ],
)
def test_a_count_has_its_plural(language: str, keyword: str, count: float, text: str) -> None:
    with override(language):
        [row] = build_schema_rows({"properties": {"tags": {keyword: count}}})
    assert row.bounds == (text,)


@pytest.mark.parametrize("count", ["1", 1.5, float("inf"), None, [1]])
def test_a_count_that_isnt_an_integer_is_left_out(count: object) -> None:
    assert build_schema_rows({"properties": {"tags": {"minItems": count}}})[0].bounds == ()


def test_a_long_schema_is_truncated() -> None:
    schema = {"properties": {f"p{number}": {} for number in range(MAX_ROWS + 50)}}
    assert len(build_schema_rows(schema)) == MAX_ROWS


@given(ANY_SCHEMA)
def test_any_schema_renders(schema: dict[str, Any]) -> None:
    assert all(row.type for row in build_schema_rows(schema))


def test_references_and_alternatives_are_followed_once_per_path() -> None:
    node = {
        "type": "object",
        "description": "One of a tree",
        "properties": {"label": {"type": "string"}, "child": {"$ref": "#/$defs/Node"}},
    }
    schema = {
        "properties": {
            "tree": {"$ref": "#/$defs/Node"},
            "where": {"anyOf": [{"properties": {"city": {"type": "string"}}}, {"type": "null"}]},
            "gone": {"$ref": "https://elsewhere.example/x"},
        },
        "$defs": {"Node": node},
    }
    rows = build_schema_rows(schema)
    assert [(row.depth, row.name, row.type) for row in rows] == [
        (0, "tree", "Node"),
        (1, "label", "string"),
        (1, "child", "Node"),
        (0, "where", "any or null"),
        (1, "city", "string"),
        (0, "gone", "x"),
    ]
    assert rows[0].description == "One of a tree"
