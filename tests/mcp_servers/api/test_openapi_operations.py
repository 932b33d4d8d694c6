"""Declared operations over REST: listed, created, updated, deleted, and previewed."""

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
def path(operator):
    response = operator.post("mcp-servers", body())
    assert response.status == 201, response
    return f"mcp-servers/{response.json['id']}/operations"


def test_a_server_is_created_with_declared_operations(operator, path):
    config = operator.get(path.removesuffix("/operations")).json["endpoint_config"]
    assert config["operations"] == ["GET /orders/{id}"]
    [declared] = config["declared"]
    assert [parameter["name"] for parameter in declared["parameters"]] == ["id", "limit"]
    response = operator.patch(path.removesuffix("/operations"), {"endpoint_config": config})
    assert response.json["endpoint_config"] == config


def test_operations_are_listed_created_updated_and_deleted(operator, path):
    created = operator.post(path, ADD_ORDER)
    assert (created.status, created.json["key"], created.json["state"]) == (
        201,
        "POST /orders",
        "undiscovered",
    )
    data = operator.get(path).json
    assert [row["name"] for row in data["results"]] == ["add_order", "get_order"]
    assert operator.get(f"{path}?limit=1").json["next"]
    changed = operator.put(f"{path}/add_order", ADD_ORDER | {"path": "/purchases"})
    assert (changed.status, changed.json["key"]) == (200, "POST /purchases")
    assert operator.get(f"{path}/add_order").json["path"] == "/purchases"
    assert operator.delete(f"{path}/add_order").status == 204
    assert operator.get(f"{path}/add_order").code == "unknown_operation"
    assert operator.delete(f"{path}/get_order").code == "last_operation"


@pytest.mark.parametrize(
    ("operation", "field", "code"),
    [
        (ADD_ORDER | {"name": "get_order"}, "name", "duplicate_name"),
        (ADD_ORDER | {"method": "TRACE"}, "method", "unknown_method"),
        (ADD_ORDER | {"path": "https://{h}.example.com/x"}, "path", "host_is_parameter"),
        (ADD_ORDER | {"parameters": [{"name": "x", "in": "y"}]}, "parameters[0].in", None),
        (ADD_ORDER | {"colour": "red"}, "colour", "unknown_field"),
    ],
)
def test_invalid_operations_are_refused_with_their_field(operator, path, operation, field, code):
    before = Server.objects.get().endpoint_config
    response = operator.post(path, operation)
    assert (response.status, response.json["field"]) == (400, field)
    assert code in (None, response.code)
    assert Server.objects.get().endpoint_config == before


def test_a_preview_shows_the_request_and_writes_nothing(operator):
    response = operator.post(
        "mcp-servers/operations/preview", {"url": URL, "operation": {**ADD_ORDER, "method": "put"}}
    )
    assert response.status == 200, response
    assert response.json["request"] == {
        "method": "PUT",
        "url": f"{URL}/orders",
        "headers": [{"name": "Content-Type", "value": "application/x-www-form-urlencoded"}],
        "body": "email=EMAIL",
    }
    assert response.json["tool"]["inputSchema"]["required"] == ["body"]
    assert not Server.objects.exists()


@pytest.mark.parametrize(
    ("request_body", "field", "code"),
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
def test_a_preview_of_an_invalid_operation_explains_the_error(operator, request_body, field, code):
    response = operator.post("mcp-servers/operations/preview", request_body)
    assert (response.status, response.json["field"]) == (400, field)
    assert code in (None, response.code)


def test_a_server_with_a_document_has_no_declared_operations(operator):
    text = '{"openapi": "3.1.0", "paths": {"/x": {"get": {}}}}'
    config = {"url": URL, "document": text, "operations": ["GET /x"], "declared": None}
    created = operator.post("mcp-servers", body() | {"endpoint_config": config})
    assert created.status == 201, created
    path = f"mcp-servers/{created.json['id']}/operations"
    assert operator.get(path).json == {"results": [], "next": None}
    assert operator.get(f"{path}/get_order").status == 404
    assert operator.put(f"{path}/get_order", GET_ORDER).status == 404
    response = operator.post(path, GET_ORDER)
    assert (response.status, response.code) == (409, "not_declared")


def test_read_only_roles_can_view_operations_and_others_cant(acme, operator, path):
    auditor = rest.as_role(acme, Role.AUDITOR)
    assert auditor.get(path).status == 200
    assert auditor.post(path, ADD_ORDER).status == 403
    assert auditor.delete(f"{path}/get_order").status == 403
    stranger = rest.as_role(factories.create_organization("other"), Role.OPERATOR)
    assert stranger.get(path).status == 404
    assert stranger.put(f"{path}/get_order", GET_ORDER).status == 404
