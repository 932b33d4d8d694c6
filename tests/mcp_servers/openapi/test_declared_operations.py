"""Hand-declared operations: validation, and the document composed of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import InvalidInput
from mcp_servers.flow_labels.suggested_labels import build_label_context, infer_labels
from mcp_servers.openapi.compose_document import build_example_request, build_tool, compose_document
from mcp_servers.openapi.declared_operations import (
    INPUT_LOCATIONS,
    INPUT_TYPES,
    LIST_TYPES,
    read_declared_operations,
    read_operation,
)
from mcp_servers.openapi.document import parse_document
from mcp_servers.openapi.operations import (
    PLAN_META_KEY,
    apply_defaults,
    iterate_operations,
    resolve_pointer,
)
from mcp_servers.openapi.requests import prepare_request
from mcp_servers.schemas import InvalidArguments, check_arguments, classify_schema

BASE = "https://api.example.com/v1"


def build_declaration(**more):
    return {"name": "get_order", "description": "Look up an order.", "path": "/orders/{id}"} | more


def build_with_parameter(**more):
    return build_declaration(parameters=[{"name": "q", **more}])


def build_declared_tool(**more):
    return build_tool(read_operation(build_declaration(**more), BASE), BASE)


def prepare(declared_tool, **arguments):
    check_arguments(
        declared_tool["inputSchema"], arguments, classify_schema(declared_tool["inputSchema"])
    )
    return prepare_request(declared_tool["_meta"][PLAN_META_KEY], BASE, arguments)


def test_declarations_are_stored_in_one_normalized_form():
    [operation] = read_declared_operations(
        [build_declaration(result="data.items", labels=["private-data"])], BASE
    )
    stored = operation.as_dict()
    assert stored == {
        "name": "get_order",
        "description": "Look up an order.",
        "method": "GET",
        "path": "/orders/{id}",
        "parameters": [{"name": "id", "in": "path", "type": "string", "required": True}],
        "result": "/data/items",
        "labels": ["private_data"],
    }
    assert read_declared_operations([stored], BASE) == (operation,)


def test_the_composed_document_is_valid_openapi_with_the_same_tool():
    declared = read_declared_operations(
        [build_declaration(), build_declaration(name="add_order", method="post", path="/orders")],
        BASE,
    )
    operations = {
        operation.key: operation
        for operation in iterate_operations(parse_document(compose_document(declared, BASE)))
    }
    assert list(operations) == ["GET /orders/{id}", "POST /orders"]
    assert operations["GET /orders/{id}"].tool == build_declared_tool()
    assert [operation.refusal_reason for operation in operations.values()] == ["", ""]


def test_a_complete_url_below_the_base_url_becomes_a_path():
    assert (
        read_operation(build_declaration(path=f"{BASE}/orders/{{id}}"), BASE).path == "/orders/{id}"
    )
    assert read_operation(build_declaration(path="orders"), BASE).path == "/orders"


@pytest.mark.parametrize(
    ("operation", "field", "code"),
    [
        (build_declaration(path="https://{shop}.example.com/orders"), "path", "host_is_parameter"),
        (
            build_declaration(path="{scheme}://api.example.com/v1/orders"),
            "path",
            "host_is_parameter",
        ),
        (build_declaration(path="https://api.example.com.evil.test/v1/x"), "path", "other_address"),
        (build_declaration(path="https://api.example.com/v1x/orders"), "path", "other_address"),
        (build_declaration(path="//evil.test/orders"), "path", "other_address"),
        (build_declaration(path="ftp://api.example.com/v1/x"), "path", "other_address"),
        (build_declaration(path="/orders?state={state}"), "path", "bad_path"),
        (build_declaration(path="/orders#top"), "path", "bad_path"),
        (build_declaration(path="/orders\r\nHost: evil"), "path", "bad_path"),
        (build_declaration(path="/" + "x" * 500), "path", "bad_path"),
        (build_declaration(path="/orders/../admin"), "path", "operation_rejected"),
        (build_declaration(path="/orders/%2e%2e/admin"), "path", "operation_rejected"),
        (build_declaration(path="/a b"), "path", "operation_rejected"),
        (build_declaration(path="/a\\b"), "path", "operation_rejected"),
        (build_declaration(path=""), "path", "missing_value"),
        (build_declaration(name=""), "name", "missing_value"),
        (build_declaration(name="get order"), "name", "bad_name"),
        (build_declaration(name="get__order"), "name", "bad_name"),
        (build_declaration(name="x" * 65), "name", "bad_name"),
        (build_declaration(description=" "), "description", "missing_value"),
        (build_declaration(description="x" * 4_001), "description", "too_large"),
        (build_declaration(method="TRACE"), "method", "unknown_method"),
        (build_declaration(method=3), "method", "unknown_method"),
        (build_declaration(body="xml"), "body", "unknown_body"),
        (build_declaration(result="a..b"), "result", "bad_result"),
        (build_declaration(result="/" + "x" * 300), "result", "bad_result"),
        (build_declaration(labels=["harmless"]), "labels", "unknown_label"),
        (build_declaration(labels="private_data"), "labels", "bad_value"),
        (build_declaration(summary="x"), "summary", "unknown_field"),
        (build_declaration(parameters={}), "parameters", "bad_value"),
        (build_declaration(parameters=[{"name": "q"}] * 101), "parameters", "too_many"),
        (
            build_declaration(parameters=[{"name": "q"}, {"name": "q"}]),
            "parameters[1].name",
            "duplicate_name",
        ),
        (build_with_parameter(name=""), "parameters[0].name", "missing_value"),
        (build_with_parameter(name="a\nb"), "parameters[0].name", "bad_name"),
        (build_with_parameter(**{"in": "path"}), "parameters[0].name", "not_in_path"),
        (build_with_parameter(**{"in": "cookie"}), "parameters[0].in", "unknown_place"),
        (build_with_parameter(type="date"), "parameters[0].type", "unknown_type"),
        (build_with_parameter(style="form"), "parameters[0].style", "unknown_field"),
        (build_with_parameter(required="yes"), "parameters[0].required", "bad_value"),
        (build_with_parameter(name="Authorization", **{"in": "header"}), None, "reserved_header"),
        (build_with_parameter(name="Host", **{"in": "header"}), None, "reserved_header"),
        (build_with_parameter(name="X-A: b\tc", **{"in": "header"}), None, "bad_name"),
        (build_with_parameter(name="X A", **{"in": "header"}), None, "reserved_header"),
        (build_with_parameter(type="integer", default="x"), "parameters[0].default", "bad_default"),
        (build_with_parameter(enum=["a"], default="b"), "parameters[0].default", "bad_default"),
        (
            build_with_parameter(required=True, default="b"),
            "parameters[0].default",
            "default_unused",
        ),
        (
            build_with_parameter(name="api_key", default="s"),
            "parameters[0].default",
            "secret_in_default",
        ),
        (build_with_parameter(type="integer", enum=["a"]), "parameters[0].enum", "bad_choice"),
        (build_with_parameter(type="boolean", enum=[True]), "parameters[0].enum", "bad_choice"),
        (build_with_parameter(**{"in": "body"}), "method", "body_not_sent"),
        ("x", "", "bad_value"),
    ],
)
def test_invalid_declarations_are_refused_with_their_field(operation, field, code):
    with pytest.raises(InvalidInput) as caught:
        build_tool(read_operation(operation, BASE), BASE)
    assert caught.value.code == code
    assert field is None or caught.value.field == field
    assert str(caught.value)


@pytest.mark.parametrize(
    ("declarations", "field", "code"),
    [
        ("x", "endpoint_config.declared", "bad_value"),
        ([], "endpoint_config.declared", "nothing_declared"),
        ([build_declaration()] * 101, "endpoint_config.declared", "too_many"),
        (
            [build_declaration(), build_declaration(name="GET_ORDER")],
            "endpoint_config.declared[1].name",
            "duplicate_name",
        ),
        (
            [build_declaration(), build_declaration(name="b")],
            "endpoint_config.declared[1].path",
            "duplicate_operation",
        ),
        (
            [
                build_declaration(name=f"n{n}", path=f"/{n}", description="x" * 4_000)
                for n in range(40)
            ],
            "endpoint_config.declared",
            "too_large",
        ),
    ],
)
def test_an_invalid_list_of_declarations_is_refused(declarations, field, code):
    with pytest.raises(InvalidInput) as caught:
        read_declared_operations(declarations, BASE)
    assert (caught.value.code, caught.value.field) == (code, field)


FIELDS = [
    {"name": "customer.email", "in": "body", "required": True},
    {"name": "customer.address.city", "in": "body"},
    {"name": "count", "in": "body", "type": "integer", "default": 1},
    {"name": "tags", "in": "body", "type": "string[]"},
]


def test_fields_of_a_json_body_can_be_nested():
    tool = build_declared_tool(method="POST", path="/orders", parameters=FIELDS)
    body = {"customer": {"email": "a@example.com"}, "tags": ["x"]}
    request = prepare(tool, body=body)
    assert request.headers == (("Content-Type", "application/json"),)
    assert json.loads(request.body) == body | {"count": 1}
    for invalid in ({}, {"customer": {}}, {"customer": {"email": "a", "role": "admin"}}):
        with pytest.raises(InvalidArguments):
            prepare(tool, body=invalid)


def test_fields_of_a_form_are_sent_together():
    fields = [{"name": "a.b", "in": "body"}, {"name": "c", "in": "body", "default": "x&y=z"}]
    tool = build_declared_tool(method="POST", path="/orders", body="form", parameters=fields)
    request = prepare(tool, body={"a.b": "1\r\n2"})
    assert request.headers == (("Content-Type", "application/x-www-form-urlencoded"),)
    assert request.body == b"c=x%26y%3Dz&a.b=1%0D%0A2"


@pytest.mark.parametrize("names", [("a", "a.b"), ("a.b", "a"), ("a..b",), (".a",), ("a.",)])
def test_conflicting_fields_are_refused(names):
    fields = [{"name": name, "in": "body"} for name in names]
    with pytest.raises(InvalidInput) as caught:
        build_declared_tool(method="POST", path="/orders", parameters=fields)
    assert (caught.value.code, caught.value.field) == ("field_clash", "parameters")


def test_a_default_is_sent_for_a_missing_argument():
    tool = build_declared_tool(parameters=[{"name": "limit", "type": "integer", "default": 20}])
    assert prepare(tool, id="1").url == f"{BASE}/orders/1?limit=20"
    assert prepare(tool, id="1", limit=3).url == f"{BASE}/orders/1?limit=3"


def test_defaults_of_an_external_document_arent_sent():
    plan = {"parameters": [], "path": "/x", "method": "GET"}
    assert apply_defaults(plan, {"a": 1}) == {"a": 1}
    paths = {"/x": {"get": {"parameters": [{"name": "n", "in": "query"}]}}}
    paths["/x"]["get"]["parameters"][0]["schema"] = {"type": "integer", "default": 3}
    document = json.dumps({"openapi": "3.1.0", "paths": paths})
    [operation] = iterate_operations(parse_document(document))
    assert "defaults" not in operation.tool["_meta"][PLAN_META_KEY]


@pytest.mark.parametrize("value", ["..", "../admin", "%2e%2e", "a/../b", "..%2fadmin", "", "a\x00"])
def test_a_value_cant_leave_its_path_segment(value):
    try:
        request = prepare(build_declared_tool(), id=value)
    except InvalidArguments:
        return
    assert request.url.startswith(f"{BASE}/orders/")
    assert request.url.removeprefix(f"{BASE}/orders/").strip(".")
    assert "/" not in request.url.removeprefix(f"{BASE}/orders/")


def test_a_header_value_cant_contain_line_breaks():
    tool = build_declared_tool(parameters=[{"name": "X-Trace", "in": "header"}])
    assert ("X-Trace", "a") in prepare(tool, id="1", **{"X-Trace": "a"}).headers
    for value in ("a\r\nAuthorization: x", "a\nb", "\x00"):
        with pytest.raises(InvalidArguments):
            prepare(tool, id="1", **{"X-Trace": value})


def test_an_example_shows_the_place_of_each_value():
    parameters = [
        {"name": "limit", "type": "integer"},
        {"name": "state", "enum": ["open", "closed"]},
        {"name": "deep", "type": "boolean"},
    ]
    request = build_example_request(build_declared_tool(parameters=parameters), BASE)
    assert (request.method, request.body) == ("GET", None)
    assert request.url == f"{BASE}/orders/ID?limit=1&state=open&deep=true"


def test_labels_in_declarations_count_only_for_declared_operations():
    tool = build_declared_tool(labels=["repeatable"])
    assert infer_labels("tool", tool, build_label_context("openapi", declared=True)) == (
        "repeatable",
    )
    assert "private_data" in infer_labels("tool", tool, build_label_context("openapi"))
    assert "private_data" in infer_labels(
        "tool", build_declared_tool(), build_label_context("openapi", declared=True)
    )
    assert (
        infer_labels(
            "tool", build_declared_tool(labels=[]), build_label_context("openapi", declared=True)
        )
        == ()
    )


def test_the_result_can_be_a_part_of_the_response():
    value = {"data": {"a/b": [{"x": 1}, None]}}
    assert resolve_pointer(value, "") == (value, True)
    assert resolve_pointer(value, "/data/a~1b/0/x") == (1, True)
    assert resolve_pointer(value, "/data/a~1b/1") == (None, True)
    for missing in ("/nothing", "/data/a~1b/2", "/data/a~1b/-1", "/data/a~1b/0/x/y"):
        assert resolve_pointer(value, missing) == (None, False)


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    NAMES,
    st.sampled_from(INPUT_LOCATIONS),
    st.sampled_from(INPUT_TYPES),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
)
def test_any_declaration_and_arguments_stay_at_the_base_url(name, location, kind, value):
    parameter = {"name": name, "in": location, "type": kind}
    path = f"/orders/{{{name}}}" if location == "path" else "/orders"
    try:
        tool = build_declared_tool(method="POST", path=path, parameters=[parameter])
        value = [value] if kind in LIST_TYPES else value
        argument = next(iter(tool["inputSchema"]["properties"]))
        argument_value = {name: value} if location == "body" else value
        request = prepare_request(tool["_meta"][PLAN_META_KEY], BASE, {argument: argument_value})
    except InvalidInput:
        return
    assert request.url.startswith(f"{BASE}/orders")
    assert request.url.isascii()
    assert not any(ord(letter) < 33 for letter in request.url)
    for _, text in request.headers:
        assert "\r" not in text
        assert "\n" not in text
