"""APIs over REST: previews, and servers with the selected operations."""

import json

import pytest

from bonobot.accounts.roles import Role
from mcp_servers.models import ApiDocument, Server
from tests import factories, rest
from tests.mcp_servers.openapi.documents import PETS, text

pytestmark = pytest.mark.django_db

SERVERS = [{"url": "https://api.example.com/v1"}]
TEXT = text(PETS | {"/bad": {"get": []}}, servers=SERVERS)


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def operator(acme):
    return rest.as_role(acme, Role.OPERATOR)


def body(*operations, **config):
    config = {"document": TEXT, "operations": list(operations)} | config
    return {"name": "pets", "transport_type": "openapi", "endpoint_config": config}


def test_a_preview_lists_operations_with_their_errors_and_writes_nothing(operator):
    response = operator.post("mcp-servers/openapi/preview", {"document": TEXT})
    assert response.status == 200, response
    operations = {operation["key"]: operation for operation in response.json["operations"]}
    assert [key for key, operation in operations.items() if operation["refused"]] == ["GET /bad"]
    assert operations["GET /bad"]["pointer"] == "/paths/~1bad/get"
    assert operations["POST /pets"]["writes"] is True
    assert response.json["base_urls"][0]["url"] == SERVERS[0]["url"]
    assert not Server.objects.exists()


@pytest.mark.parametrize(
    ("request_body", "code"),
    [
        ({}, "missing_value"),
        ({"document": "<html>"}, "broken_document"),
        ({"document": '{"swagger": "2.0"}'}, "unsupported_version"),
        ({"document_url": "http://169.254.169.254/openapi.json"}, "egress_denied"),
        ({"document_url": "http://127.0.0.1:1/openapi.json"}, "private_address"),
    ],
)
def test_a_document_that_cant_be_fetched_or_parsed_is_reported(operator, request_body, code):
    response = operator.post("mcp-servers/openapi/preview", request_body)
    assert (response.status, response.code) == (400, code)


def test_only_a_platform_administrator_can_preview_a_private_address(operator):
    request_body = {"document_url": "http://127.0.0.1:1/x", "allow_private": True}
    assert operator.post("mcp-servers/openapi/preview", request_body).status == 403


def test_selected_operations_are_stored_and_the_document_isnt_returned(operator):
    response = operator.post("mcp-servers", body("listPets", "GET /pets/{id}"))
    assert response.status == 201, response
    assert response.json["endpoint_config"] == {
        "url": SERVERS[0]["url"],
        "operations": ["GET /pets", "GET /pets/{id}"],
    }
    assert ApiDocument.objects.get().text == TEXT
    updated = operator.patch(f"mcp-servers/{response.json['id']}", {"description": "Pets"})
    assert updated.status == 200
    servers = operator.get("mcp-servers?transport_type=openapi").json["results"]
    assert "document" not in servers[0]["endpoint_config"]


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([], "nothing_selected"),
        (["nope"], "unknown_operation"),
        (["GET /bad"], "operation_rejected"),
    ],
)
def test_an_invalid_selection_is_refused(operator, operations, code):
    response = operator.post("mcp-servers", body(*operations))
    assert response.code == code
    assert not Server.objects.exists()


def test_selecting_all_selects_every_supported_operation(operator):
    response = operator.post("mcp-servers", body("*"))
    assert len(response.json["endpoint_config"]["operations"]) == 4


def test_a_document_without_a_server_url_requires_one(operator):
    assert operator.post("mcp-servers", body("*", document=text(PETS))).code == "base_url_missing"


def test_too_many_operations_are_refused(operator):
    paths = {f"/p{n}": {"get": {}} for n in range(1001)}
    response = operator.post("mcp-servers", body("*", document=text(paths, servers=SERVERS)))
    assert response.code == "too_many"


def test_the_selection_can_be_changed_with_the_stored_document(operator):
    created = operator.post("mcp-servers", body("listPets")).json
    config = {"url": SERVERS[0]["url"], "operations": ["getPet"]}
    response = operator.patch(f"mcp-servers/{created['id']}", {"endpoint_config": config})
    assert response.json["endpoint_config"]["operations"] == ["GET /pets/{id}"]


def test_an_api_of_another_organization_isnt_found(operator):
    other_client = rest.as_role(factories.create_organization("other"), Role.OPERATOR)
    created = operator.post("mcp-servers", body("listPets")).json
    assert other_client.patch(f"mcp-servers/{created['id']}", {"name": "x"}).status == 404
    assert json.dumps(TEXT)[:40] not in other_client.get("mcp-servers").text
