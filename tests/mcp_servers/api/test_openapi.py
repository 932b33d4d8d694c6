"""APIs over REST: a preview that writes nothing, and servers made of what was chosen."""

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
    found = operator.post("mcp-servers/openapi/preview", {"document": TEXT})
    assert found.status == 200, found
    operations = {one["key"]: one for one in found.json["operations"]}
    assert [key for key, one in operations.items() if one["refused"]] == ["GET /bad"]
    assert operations["GET /bad"]["pointer"] == "/paths/~1bad/get"
    assert operations["POST /pets"]["writes"] is True
    assert found.json["base_urls"][0]["url"] == SERVERS[0]["url"]
    assert not Server.objects.exists()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({}, "missing_value"),
        ({"document": "<html>"}, "broken_document"),
        ({"document": '{"swagger": "2.0"}'}, "unsupported_version"),
        ({"document_url": "http://169.254.169.254/openapi.json"}, "egress_denied"),
        ({"document_url": "http://127.0.0.1:1/openapi.json"}, "private_address"),
    ],
)
def test_a_document_that_cant_be_fetched_or_parsed_is_reported(operator, sent, code):
    found = operator.post("mcp-servers/openapi/preview", sent)
    assert (found.status, found.code) == (400, code)


def test_only_a_platform_administrator_can_preview_a_private_address(operator):
    sent = {"document_url": "http://127.0.0.1:1/x", "allow_private": True}
    assert operator.post("mcp-servers/openapi/preview", sent).status == 403


def test_selected_operations_are_stored_and_the_document_isnt_returned(operator):
    found = operator.post("mcp-servers", body("listPets", "GET /pets/{id}"))
    assert found.status == 201, found
    assert found.json["endpoint_config"] == {
        "url": SERVERS[0]["url"],
        "operations": ["GET /pets", "GET /pets/{id}"],
    }
    assert ApiDocument.objects.get().text == TEXT
    kept = operator.patch(f"mcp-servers/{found.json['id']}", {"description": "Pets"})
    assert kept.status == 200
    listed = operator.get("mcp-servers?transport_type=openapi").json["results"]
    assert "document" not in listed[0]["endpoint_config"]


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ([], "nothing_chosen"),
        (["nope"], "unknown_operation"),
        (["GET /bad"], "operation_refused"),
    ],
)
def test_an_invalid_selection_is_refused(operator, operations, code):
    found = operator.post("mcp-servers", body(*operations))
    assert found.code == code
    assert not Server.objects.exists()


def test_selecting_all_selects_every_supported_operation(operator):
    found = operator.post("mcp-servers", body("*"))
    assert len(found.json["endpoint_config"]["operations"]) == 4


def test_a_document_without_a_server_url_requires_one(operator):
    assert operator.post("mcp-servers", body("*", document=text(PETS))).code == "base_url_missing"


def test_too_many_operations_are_refused(operator):
    many = {f"/p{n}": {"get": {}} for n in range(1001)}
    found = operator.post("mcp-servers", body("*", document=text(many, servers=SERVERS)))
    assert found.code == "too_many"


def test_the_selection_can_be_changed_with_the_stored_document(operator):
    made = operator.post("mcp-servers", body("listPets")).json
    config = {"url": SERVERS[0]["url"], "operations": ["getPet"]}
    found = operator.patch(f"mcp-servers/{made['id']}", {"endpoint_config": config})
    assert found.json["endpoint_config"]["operations"] == ["GET /pets/{id}"]


def test_an_api_of_another_organization_isnt_found(operator):
    other = rest.as_role(factories.create_organization("other"), Role.OPERATOR)
    made = operator.post("mcp-servers", body("listPets")).json
    assert other.patch(f"mcp-servers/{made['id']}", {"name": "x"}).status == 404
    assert json.dumps(TEXT)[:40] not in other.get("mcp-servers").text
