"""Mirrored headers, compared with the SDK's encoder and checks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from mcp.shared.inbound import (
    decode_header_value,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from mcp_servers.client.http_requests import build_routing_headers, validate_header_annotations
from mcp_servers.client.http_requests import encode_header_value as encoded
from mcp_servers.client.jsonrpc import McpRequest

STRING = {"type": "string"}


@given(some.text(some.characters(exclude_categories=["Cs"])))
def test_values_are_encoded_as_the_sdk_does(value: str):
    assert decode_header_value(encoded(value)) == value
    assert encoded(value) == encode_header_value(value)


def test_a_lone_surrogate_doesnt_break_the_header():
    assert encoded("\ud800").startswith("=?base64?")


@pytest.mark.parametrize(
    ("request_", "name"),
    [
        (McpRequest("tools/call", {"name": "t", "uri": "u"}), "t"),
        (McpRequest("prompts/get", {"name": "p"}), "p"),
        (McpRequest("resources/read", {"uri": "a://ü"}), "=?base64?YTovL8O8?="),
        (McpRequest("tools/list", {"name": "t"}), None),
        (McpRequest("tools/call", {"name": 7}), None),
    ],
)
def test_the_name_is_sent_as_a_header_for_methods_with_one(request_: McpRequest, name: str | None):
    headers = build_routing_headers(request_)
    assert headers.get("Mcp-Name") == name
    assert headers["Mcp-Method"] == request_.method
    assert headers["MCP-Protocol-Version"] == "2026-07-28"


SCHEMAS: list[Any] = [
    {},
    {"properties": {"a": {**STRING, "x-mcp-header": "A"}}},
    {"properties": {"a": {"properties": {"b": {"type": "integer", "x-mcp-header": "B"}}}}},
    {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
    {"properties": {"a": {"x-mcp-header": "A"}}},
    {"properties": {"a": {**STRING, "x-mcp-header": "a b"}}},
    {"properties": {"a": {**STRING, "x-mcp-header": ""}}},
    {"properties": {"a": {**STRING, "x-mcp-header": 7}}},
    {"properties": {"a": {"type": ["string"], "x-mcp-header": "A"}}},
    {
        "properties": {
            "a": {**STRING, "x-mcp-header": "X"},
            "b": {**STRING, "x-mcp-header": "x"},
        }
    },
    {"x-mcp-header": "A"},
    {"properties": {"a": {"items": {**STRING, "x-mcp-header": "A"}}}},
    {"anyOf": [{"properties": {"a": {**STRING, "x-mcp-header": "A"}}}]},
    {"$defs": {"d": {**STRING, "x-mcp-header": "A"}}},
    {"properties": {"a": {"default": {"x-mcp-header": "A"}}}},
    {"properties": {"x-mcp-header": STRING}},
    {"properties": []},
    {"anyOf": {}, "$defs": []},
    [],
    None,
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_header_annotations_are_validated_as_the_sdk_does(schema: Any):
    assert bool(validate_header_annotations(schema)) == bool(find_invalid_x_mcp_header(schema))


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"a": "v", "b": {"c": 3, "d": True}},
        {"a": None, "b": None},
        {"a": "ü", "b": 7},
        {"a": ["x"], "b": {"c": 2**40, "d": False}},
    ],
)
def test_arguments_are_sent_as_headers_as_the_sdk_does(arguments: dict[str, Any]):
    inner = {
        "c": {"type": "integer", "x-mcp-header": "C"},
        "d": {"type": "boolean", "x-mcp-header": "D"},
    }
    schema = {
        "properties": {"a": {**STRING, "x-mcp-header": "A"}, "b": {"properties": inner}, "e": {}}
    }
    request = McpRequest("tools/call", {"name": "t", "arguments": arguments}, input_schema=schema)
    headers = build_routing_headers(request)
    mirrored = {name: value for name, value in headers.items() if name.startswith("Mcp-Param-")}
    assert mirrored == mcp_param_headers(x_mcp_header_map(schema), arguments)
