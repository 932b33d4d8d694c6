"""Declared operations over REST: listed, added, changed, removed, and previewed."""

import pytest

from bonobot.accounts.roles import Role
from mcp_servers.models import Server
from tests import factories, rest

pytestmark = pytest.mark.django_db

URL = "https://api.example.com/v1"
GET_ORDER = {
    "name": "get_order",
    "description": "Look up an order.",
    "path": "/orders/{id}",
    "parameters": [{"name": "limit", "type": "integer", "default": 20}],
}
ADD_ORDER = {
    "name": "add_order",
    "description": "Order something.",
    "method": "POST",
    "path": "/orders",
    "parameters": [{"name": "email", "in": "body", "required": True}],
    "body": "form",
}


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def operator(acme):
    return rest.as_role(acme, Role.OPERATOR)


def body(*declared, **config):
    config = {"url": URL, "declared": list(declared or (GET_ORDER,))} | config
    return {"name": "shop", "transport_type": "openapi", "endpoint_config": config}


@pytest.fixture
def place(operator):
    found = operator.post("mcp-servers", body())
    assert found.status == 201, found
    return f"mcp-servers/{found.json['id']}/operations"


def test_a_server_is_created_with_declared_operations(operator, place):
    found = operator.get(place.removesuffix("/operations")).json["endpoint_config"]
    assert found["operations"] == ["GET /orders/{id}"]
    [kept] = found["declared"]
    assert [one["name"] for one in kept["parameters"]] == ["id", "limit"]
    again = operator.patch(place.removesuffix("/operations"), {"endpoint_config": found})
    assert again.json["endpoint_config"] == found


def test_operations_are_listed_created_updated_and_deleted(operator, place):
    made = operator.post(place, ADD_ORDER)
    assert (made.status, made.json["key"], made.json["state"]) == (
        201,
        "POST /orders",
        "undiscovered",
    )
    listed = operator.get(place).json
    assert [one["name"] for one in listed["results"]] == ["add_order", "get_order"]
    assert operator.get(f"{place}?limit=1").json["next"]
    changed = operator.put(f"{place}/add_order", ADD_ORDER | {"path": "/purchases"})
    assert (changed.status, changed.json["key"]) == (200, "POST /purchases")
    assert operator.get(f"{place}/add_order").json["path"] == "/purchases"
    assert operator.delete(f"{place}/add_order").status == 204
    assert operator.get(f"{place}/add_order").code == "unknown_operation"
    assert operator.delete(f"{place}/get_order").code == "last_operation"


@pytest.mark.parametrize(
    ("said", "field", "code"),
    [
        (ADD_ORDER | {"name": "get_order"}, "name", "duplicate_name"),
        (ADD_ORDER | {"method": "TRACE"}, "method", "unknown_method"),
        (ADD_ORDER | {"path": "https://{h}.example.com/x"}, "path", "host_is_parameter"),
        (ADD_ORDER | {"parameters": [{"name": "x", "in": "y"}]}, "parameters[0].in", None),
        (ADD_ORDER | {"colour": "red"}, "colour", "unknown_field"),
    ],
)
def test_invalid_operations_are_refused_with_their_field(operator, place, said, field, code):
    before = Server.objects.get().endpoint_config
    found = operator.post(place, said)
    assert (found.status, found.json["field"]) == (400, field)
    assert code in (None, found.code)
    assert Server.objects.get().endpoint_config == before


def test_a_preview_shows_the_request_and_writes_nothing(operator):
    found = operator.post(
        "mcp-servers/operations/preview", {"url": URL, "operation": {**ADD_ORDER, "method": "put"}}
    )
    assert found.status == 200, found
    assert found.json["request"] == {
        "method": "PUT",
        "url": f"{URL}/orders",
        "headers": [{"name": "Content-Type", "value": "application/x-www-form-urlencoded"}],
        "body": "email=EMAIL",
    }
    assert found.json["tool"]["inputSchema"]["required"] == ["body"]
    assert not Server.objects.exists()


@pytest.mark.parametrize(
    ("sent", "field", "code"),
    [
        ({"url": "https://{h}.example.com", "operation": GET_ORDER}, "url", "bad_url"),
        (
            {"url": "http://169.254.169.254", "operation": GET_ORDER},
            "url",
            "egress_denied",
        ),
        ({"url": URL, "operation": GET_ORDER | {"path": "/../x"}}, "operation.path", None),
        ({"url": URL, "operation": GET_ORDER | {"name": "a b"}}, "operation.name", "bad_name"),
    ],
)
def test_a_preview_of_an_invalid_operation_explains_the_error(operator, sent, field, code):
    found = operator.post("mcp-servers/operations/preview", sent)
    assert (found.status, found.json["field"]) == (400, field)
    assert code in (None, found.code)


def test_a_server_with_a_document_has_no_declared_operations(operator):
    text = '{"openapi": "3.1.0", "paths": {"/x": {"get": {}}}}'
    config = {"url": URL, "document": text, "operations": ["GET /x"], "declared": None}
    made = operator.post("mcp-servers", body() | {"endpoint_config": config})
    assert made.status == 201, made
    place = f"mcp-servers/{made.json['id']}/operations"
    assert operator.get(place).json == {"results": [], "next": None}
    assert operator.get(f"{place}/get_order").status == 404
    assert operator.put(f"{place}/get_order", GET_ORDER).status == 404
    refused = operator.post(place, GET_ORDER)
    assert (refused.status, refused.code) == (409, "not_declared")


def test_read_only_roles_can_view_operations_and_others_cant(acme, operator, place):
    auditor = rest.as_role(acme, Role.AUDITOR)
    assert auditor.get(place).status == 200
    assert auditor.post(place, ADD_ORDER).status == 403
    assert auditor.delete(f"{place}/get_order").status == 403
    stranger = rest.as_role(factories.create_organization("other"), Role.OPERATOR)
    assert stranger.get(place).status == 404
    assert stranger.put(f"{place}/get_order", GET_ORDER).status == 404
