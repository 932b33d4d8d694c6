"""Defaults of a schema count as provided values."""

import asyncio
from typing import Any

import pytest

from mcp_servers.schemas import InvalidArguments, SchemaVerdict
from mcp_servers.schemas.defaults import fill_defaults
from mcp_servers.schemas.subprocess_pool import check_tool_arguments

INLINE = SchemaVerdict("inline")
# As zod writes it: what has a default is required, because the parsed value always has it.
SEARCH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "limit": {"type": "integer", "default": 10},
        "sort": {"type": "string", "default": None},
        "page": {"$ref": "#/$defs/page"},
    },
    "required": ["query", "limit"],
    "$defs": {"page": {"type": "object", "properties": {"size": {"default": 5}}}},
}


def check(arguments: dict[str, Any]) -> None:
    asyncio.run(check_tool_arguments(SEARCH, arguments, INLINE))


def test_a_required_property_with_a_default_can_be_omitted() -> None:
    check({"query": "x"})


def test_an_optional_property_whose_default_is_invalid_can_be_omitted() -> None:
    check({"query": "x", "limit": 1})


def test_a_required_property_without_a_default_is_still_missing() -> None:
    with pytest.raises(InvalidArguments, match="query"):
        check({"limit": 3})


@pytest.mark.parametrize(
    ("arguments", "filled"),
    [
        ({"query": "x"}, {"query": "x", "limit": 10, "sort": None}),
        ({"limit": 2, "sort": "a"}, {"limit": 2, "sort": "a"}),
        (
            {"limit": 2, "sort": "a", "page": {}},
            {"limit": 2, "sort": "a", "page": {"size": 5}},
        ),
        ([], []),
    ],
)
def test_omitted_properties_are_filled_in_at_every_level(arguments: Any, filled: Any) -> None:
    assert fill_defaults(SEARCH, arguments) == filled


@pytest.mark.parametrize(
    "schema",
    [True, {"properties": []}, {"properties": {"a": True}, "required": 1}, {"$ref": "#/$defs/x"}],
)
def test_unusual_schemas_leave_arguments_unchanged(schema: Any) -> None:
    arguments = {"a": 1}
    assert fill_defaults(schema, arguments) is arguments


def test_references_that_lead_to_themselves_end() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    schema = {"$ref": "#/$defs/node", "$defs": {"node": node}}
    value: dict[str, Any] = {}
    for _ in range(50):
        value = {"next": value}
    assert fill_defaults(schema, value) is value
