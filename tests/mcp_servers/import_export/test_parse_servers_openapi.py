"""APIs in configuration files: exported, applied unchanged, omitted for other clients."""

import pytest

from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_client_file, export_config, to_yaml
from agents.config_file.read_config import read_config_file
from mcp_servers.models import ApiDocument, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.mcp_servers.openapi.documents import PETS, text

pytestmark = pytest.mark.django_db
URL = "https://api.example.com/openapi.json"


@pytest.fixture
def administrator():
    return factories.build_administrator(factories.create_organization())


def create_api(administrator, **more):
    config = {
        "url": "https://api.example.com",
        "operations": ["GET /pets", "GET /pets/{id}"],
    } | more
    key = {"type": "api_key", "in": "query", "header": "api_key", "key": "sesame"}
    return create_server(
        administrator,
        ServerSpec(name="pets", transport_type="openapi", endpoint_config=config, auth_config=key),
    )


def read_config(exported):
    return read_config_file(exported, {"PETS_KEY": "sesame"})


@pytest.mark.parametrize(
    "more", [{"document_url": URL}, {"document": text(PETS) + " # ${NOT_OURS}"}]
)
def test_an_api_is_exported_and_applied_unchanged(administrator, more):
    create_api(administrator, **more)
    exported = to_yaml(export_config(administrator))
    assert "sesame" not in exported
    assert apply_config(administrator, read_config(exported)).changes == ()
    Server.objects.all().delete()
    plan = apply_config(administrator, read_config(exported))
    assert (plan.problems, [step.action for step in plan.changes]) == ((), ["create"])
    server = Server.objects.get()
    assert server.endpoint_config["operations"] == ["GET /pets", "GET /pets/{id}"]
    assert server.auth_config == {"header": "api_key", "in": "query"}
    assert ApiDocument.objects.filter(text=more.get("document", "")).exists() is (
        "document" in more
    )


def test_another_document_is_a_change(administrator):
    create_api(administrator, document=text(PETS))
    exported = to_yaml(export_config(administrator)).replace("listPets", "listAll")
    (step,) = apply_config(administrator, read_config(exported)).changes
    assert (step.action, step.fields) == ("change", ("document",))
    assert "listAll" in ApiDocument.objects.get().text


DECLARED = """\
servers:
  shop:
    transport_type: openapi
    url: https://api.example.com/v1
    auth_config: {type: bearer_token, token: "${SHOP_TOKEN}"}
    declared:
      - name: get_order
        description: Look up an order. ${NOT_OURS}
        path: /orders/{id}
        parameters:
          - {name: id, in: path, type: integer, description: The order}
          - {name: state, enum: [open, "no"], default: open}
        result: data.order
        labels: [private_data]
"""


def test_declared_operations_are_exported_and_applied_unchanged(administrator):
    values = {"SHOP_TOKEN": "sesame"}
    plan = apply_config(administrator, read_config_file(DECLARED, values))
    assert (plan.problems, [step.action for step in plan.changes]) == ((), ["create"])
    server = Server.objects.get()
    assert server.endpoint_config["operations"] == ["GET /orders/{id}"]
    assert "get_order" in ApiDocument.objects.get(server=server).text
    exported = to_yaml(export_config(administrator))
    assert "sesame" not in exported
    assert "document" not in exported
    assert "operations:" not in exported
    assert apply_config(administrator, read_config_file(exported, values)).changes == ()
    changed = read_config_file(exported.replace("Look up", "Find"), values)
    (step,) = apply_config(administrator, changed).changes
    assert (step.action, step.fields) == ("change", ("endpoint_config", "document"))
    Server.objects.all().delete()
    assert apply_config(administrator, read_config_file(exported, values)).problems == ()
    assert Server.objects.get().endpoint_config == server.endpoint_config


@pytest.mark.parametrize(
    ("before", "after", "path", "code"),
    [
        ("/orders/{id}", "https://{x}.test/", "[0].path", "host_is_parameter"),
        ("type: integer", "type: date", "[0].parameters[0].type", "unknown_type"),
        ("name: get_order", "nam: get_order", "[0].nam", "unknown_field"),
        ("result:", "document: x\n        result:", "[0].document", "unknown_field"),
    ],
)
def test_invalid_declarations_are_refused_with_their_path(administrator, before, after, path, code):
    config = DECLARED.replace(before, after)
    [problem] = apply_config(administrator, read_config_file(config, {"SHOP_TOKEN": "x"})).problems
    field = f"servers.shop.endpoint_config.declared{path}"
    assert (problem.code, problem.field) == (code, field)
    assert not Server.objects.exists()


def test_an_api_without_operations_or_document_is_refused_with_its_line(administrator):
    config = "servers:\n  pets:\n    transport_type: openapi\n    url: https://a.example\n"
    assert [
        problem.code for problem in apply_config(administrator, read_config(config)).problems
    ] == ["bad_value"]
    plan = apply_config(administrator, read_config(f"{config}    operations: [GET /pets]\n"))
    assert [problem.code for problem in plan.problems] == ["missing_value"]


def test_apis_arent_exported_to_other_clients(administrator):
    create_api(administrator, document_url=URL)
    assert export_client_file(administrator) == {"mcpServers": {}}
