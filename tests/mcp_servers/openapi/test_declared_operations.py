"""Operations that a person declares by hand: what holds, and the document that comes of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import InvalidInput
from mcp_servers.flow_labels.inference import build_label_context, infer_labels
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


def said(**more):
    return {"name": "get_order", "description": "Look up an order.", "path": "/orders/{id}"} | more


def with_parameter(**more):
    return said(parameters=[{"name": "q", **more}])


def tool(**more):
    return build_tool(read_operation(said(**more), BASE), BASE)


def request(found, **arguments):
    check_arguments(found["inputSchema"], arguments, classify_schema(found["inputSchema"]))
    return prepare_request(found["_meta"][PLAN_META_KEY], BASE, arguments)


def test_declarations_are_stored_in_one_normalized_form():
    [one] = read_declared_operations([said(result="data.items", labels=["private-data"])], BASE)
    kept = one.as_dict()
    assert kept == {
        "name": "get_order",
        "description": "Look up an order.",
        "method": "GET",
        "path": "/orders/{id}",
        "parameters": [{"name": "id", "in": "path", "type": "string", "required": True}],
        "result": "/data/items",
        "labels": ["private_data"],
    }
    assert read_declared_operations([kept], BASE) == (one,)


def test_the_composed_document_is_valid_openapi_with_the_same_tool():
    declared = read_declared_operations(
        [said(), said(name="add_order", method="post", path="/orders")], BASE
    )
    found = {
        one.key: one for one in iterate_operations(parse_document(compose_document(declared, BASE)))
    }
    assert list(found) == ["GET /orders/{id}", "POST /orders"]
    assert found["GET /orders/{id}"].tool == tool()
    assert [one.refusal_reason for one in found.values()] == ["", ""]


def test_a_complete_url_below_the_base_url_becomes_a_path():
    assert read_operation(said(path=f"{BASE}/orders/{{id}}"), BASE).path == "/orders/{id}"
    assert read_operation(said(path="orders"), BASE).path == "/orders"


@pytest.mark.parametrize(
    ("operation", "field", "code"),
    [
        (said(path="https://{shop}.example.com/orders"), "path", "host_is_parameter"),
        (said(path="{scheme}://api.example.com/v1/orders"), "path", "host_is_parameter"),
        (said(path="https://api.example.com.evil.test/v1/x"), "path", "other_address"),
        (said(path="https://api.example.com/v1x/orders"), "path", "other_address"),
        (said(path="//evil.test/orders"), "path", "other_address"),
        (said(path="ftp://api.example.com/v1/x"), "path", "other_address"),
        (said(path="/orders?state={state}"), "path", "bad_path"),
        (said(path="/orders#top"), "path", "bad_path"),
        (said(path="/orders\r\nHost: evil"), "path", "bad_path"),
        (said(path="/" + "x" * 500), "path", "bad_path"),
        (said(path="/orders/../admin"), "path", "operation_refused"),
        (said(path="/orders/%2e%2e/admin"), "path", "operation_refused"),
        (said(path="/a b"), "path", "operation_refused"),
        (said(path="/a\\b"), "path", "operation_refused"),
        (said(path=""), "path", "missing_value"),
        (said(name=""), "name", "missing_value"),
        (said(name="get order"), "name", "bad_name"),
        (said(name="get__order"), "name", "bad_name"),
        (said(name="x" * 65), "name", "bad_name"),
        (said(description=" "), "description", "missing_value"),
        (said(description="x" * 4_001), "description", "too_large"),
        (said(method="TRACE"), "method", "unknown_method"),
        (said(method=3), "method", "unknown_method"),
        (said(body="xml"), "body", "unknown_body"),
        (said(result="a..b"), "result", "bad_result"),
        (said(result="/" + "x" * 300), "result", "bad_result"),
        (said(labels=["harmless"]), "labels", "unknown_label"),
        (said(labels="private_data"), "labels", "bad_value"),
        (said(summary="x"), "summary", "unknown_field"),
        (said(parameters={}), "parameters", "bad_value"),
        (said(parameters=[{"name": "q"}] * 101), "parameters", "too_many"),
        (said(parameters=[{"name": "q"}, {"name": "q"}]), "parameters[1].name", "duplicate_name"),
        (with_parameter(name=""), "parameters[0].name", "missing_value"),
        (with_parameter(name="a\nb"), "parameters[0].name", "bad_name"),
        (with_parameter(**{"in": "path"}), "parameters[0].name", "not_in_path"),
        (with_parameter(**{"in": "cookie"}), "parameters[0].in", "unknown_place"),
        (with_parameter(type="date"), "parameters[0].type", "unknown_type"),
        (with_parameter(style="form"), "parameters[0].style", "unknown_field"),
        (with_parameter(required="yes"), "parameters[0].required", "bad_value"),
        (with_parameter(name="Authorization", **{"in": "header"}), None, "reserved_header"),
        (with_parameter(name="Host", **{"in": "header"}), None, "reserved_header"),
        (with_parameter(name="X-A: b\tc", **{"in": "header"}), None, "bad_name"),
        (with_parameter(name="X A", **{"in": "header"}), None, "reserved_header"),
        (with_parameter(type="integer", default="x"), "parameters[0].default", "bad_default"),
        (with_parameter(enum=["a"], default="b"), "parameters[0].default", "bad_default"),
        (with_parameter(required=True, default="b"), "parameters[0].default", "default_unused"),
        (with_parameter(name="api_key", default="s"), "parameters[0].default", "secret_in_default"),
        (with_parameter(type="integer", enum=["a"]), "parameters[0].enum", "bad_choice"),
        (with_parameter(type="boolean", enum=[True]), "parameters[0].enum", "bad_choice"),
        (with_parameter(**{"in": "body"}), "method", "body_not_sent"),
        ("x", "", "bad_value"),
    ],
)
def test_invalid_declarations_are_refused_with_their_field(operation, field, code):
    with pytest.raises(InvalidInput) as refused:
        build_tool(read_operation(operation, BASE), BASE)
    assert refused.value.code == code
    assert field is None or refused.value.field == field
    assert str(refused.value)


@pytest.mark.parametrize(
    ("listed", "field", "code"),
    [
        ("x", "endpoint_config.declared", "bad_value"),
        ([], "endpoint_config.declared", "nothing_declared"),
        ([said()] * 101, "endpoint_config.declared", "too_many"),
        ([said(), said(name="GET_ORDER")], "endpoint_config.declared[1].name", "duplicate_name"),
        ([said(), said(name="b")], "endpoint_config.declared[1].path", "duplicate_operation"),
        (
            [said(name=f"n{n}", path=f"/{n}", description="x" * 4_000) for n in range(40)],
            "endpoint_config.declared",
            "too_large",
        ),
    ],
)
def test_an_invalid_list_of_declarations_is_refused(listed, field, code):
    with pytest.raises(InvalidInput) as refused:
        read_declared_operations(listed, BASE)
    assert (refused.value.code, refused.value.field) == (code, field)


FIELDS = [
    {"name": "customer.email", "in": "body", "required": True},
    {"name": "customer.address.city", "in": "body"},
    {"name": "count", "in": "body", "type": "integer", "default": 1},
    {"name": "tags", "in": "body", "type": "string[]"},
]


def test_fields_of_a_json_body_can_be_nested():
    found = tool(method="POST", path="/orders", parameters=FIELDS)
    body = {"customer": {"email": "a@example.com"}, "tags": ["x"]}
    sent = request(found, body=body)
    assert sent.headers == (("Content-Type", "application/json"),)
    assert json.loads(sent.body) == body | {"count": 1}
    for wrong in ({}, {"customer": {}}, {"customer": {"email": "a", "role": "admin"}}):
        with pytest.raises(InvalidArguments):
            request(found, body=wrong)


def test_fields_of_a_form_are_sent_together():
    fields = [{"name": "a.b", "in": "body"}, {"name": "c", "in": "body", "default": "x&y=z"}]
    found = tool(method="POST", path="/orders", body="form", parameters=fields)
    sent = request(found, body={"a.b": "1\r\n2"})
    assert sent.headers == (("Content-Type", "application/x-www-form-urlencoded"),)
    assert sent.body == b"c=x%26y%3Dz&a.b=1%0D%0A2"


@pytest.mark.parametrize("names", [("a", "a.b"), ("a.b", "a"), ("a..b",), (".a",), ("a.",)])
def test_conflicting_fields_are_refused(names):
    fields = [{"name": name, "in": "body"} for name in names]
    with pytest.raises(InvalidInput) as refused:
        tool(method="POST", path="/orders", parameters=fields)
    assert (refused.value.code, refused.value.field) == ("field_clash", "parameters")


def test_a_default_is_sent_for_a_missing_argument():
    found = tool(parameters=[{"name": "limit", "type": "integer", "default": 20}])
    assert request(found, id="1").url == f"{BASE}/orders/1?limit=20"
    assert request(found, id="1", limit=3).url == f"{BASE}/orders/1?limit=3"


def test_defaults_of_an_external_document_arent_sent():
    plan = {"parameters": [], "path": "/x", "method": "GET"}
    assert apply_defaults(plan, {"a": 1}) == {"a": 1}
    stranger = {"/x": {"get": {"parameters": [{"name": "n", "in": "query"}]}}}
    stranger["/x"]["get"]["parameters"][0]["schema"] = {"type": "integer", "default": 3}
    document = json.dumps({"openapi": "3.1.0", "paths": stranger})
    [one] = iterate_operations(parse_document(document))
    assert "defaults" not in one.tool["_meta"][PLAN_META_KEY]


@pytest.mark.parametrize("value", ["..", "../admin", "%2e%2e", "a/../b", "..%2fadmin", "", "a\x00"])
def test_a_value_cant_leave_its_path_segment(value):
    try:
        sent = request(tool(), id=value)
    except InvalidArguments:
        return
    assert sent.url.startswith(f"{BASE}/orders/")
    assert sent.url.removeprefix(f"{BASE}/orders/").strip(".")
    assert "/" not in sent.url.removeprefix(f"{BASE}/orders/")


def test_a_header_value_cant_contain_line_breaks():
    found = tool(parameters=[{"name": "X-Trace", "in": "header"}])
    assert ("X-Trace", "a") in request(found, id="1", **{"X-Trace": "a"}).headers
    for value in ("a\r\nAuthorization: x", "a\nb", "\x00"):
        with pytest.raises(InvalidArguments):
            request(found, id="1", **{"X-Trace": value})


def test_an_example_shows_the_place_of_each_value():
    parameters = [
        {"name": "limit", "type": "integer"},
        {"name": "state", "enum": ["open", "closed"]},
        {"name": "deep", "type": "boolean"},
    ]
    sent = build_example_request(tool(parameters=parameters), BASE)
    assert (sent.method, sent.body) == ("GET", None)
    assert sent.url == f"{BASE}/orders/ID?limit=1&state=open&deep=true"


def test_labels_in_declarations_count_only_for_declared_operations():
    found = tool(labels=["repeatable"])
    assert infer_labels("tool", found, build_label_context("openapi", declared=True)) == (
        "repeatable",
    )
    assert "private_data" in infer_labels("tool", found, build_label_context("openapi"))
    assert "private_data" in infer_labels(
        "tool", tool(), build_label_context("openapi", declared=True)
    )
    assert (
        infer_labels("tool", tool(labels=[]), build_label_context("openapi", declared=True)) == ()
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
def test_any_declaration_and_arguments_stay_at_the_base_url(name, place, kind, value):
    parameter = {"name": name, "in": place, "type": kind}
    path = f"/orders/{{{name}}}" if place == "path" else "/orders"
    try:
        found = tool(method="POST", path=path, parameters=[parameter])
        value = [value] if kind in LIST_TYPES else value
        argument = next(iter(found["inputSchema"]["properties"]))
        given_here = {name: value} if place == "body" else value
        sent = prepare_request(found["_meta"][PLAN_META_KEY], BASE, {argument: given_here})
    except InvalidInput:
        return
    assert sent.url.startswith(f"{BASE}/orders")
    assert sent.url.isascii()
    assert not any(ord(letter) < 33 for letter in sent.url)
    for _, text in sent.headers:
        assert "\r" not in text
        assert "\n" not in text
