"""APIs in configuration files: described whole, applied as they were, kept from other clients."""

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
def boss():
    return factories.build_administrator(factories.create_organization())


def api(boss, **more):
    config = {
        "url": "https://api.example.com",
        "operations": ["GET /pets", "GET /pets/{id}"],
    } | more
    key = {"type": "api_key", "in": "query", "header": "api_key", "key": "sesame"}
    return create_server(
        boss,
        ServerSpec(name="pets", transport_type="openapi", endpoint_config=config, auth_config=key),
    )


def wanted(written):
    return read_config_file(written, {"PETS_KEY": "sesame"})


@pytest.mark.parametrize(
    "more", [{"document_url": URL}, {"document": text(PETS) + " # ${NOT_OURS}"}]
)
def test_an_api_is_exported_and_applied_unchanged(boss, more):
    api(boss, **more)
    written = to_yaml(export_config(boss))
    assert "sesame" not in written
    assert apply_config(boss, wanted(written)).changes == ()
    Server.objects.all().delete()
    plan = apply_config(boss, wanted(written))
    assert (plan.problems, [step.action for step in plan.changes]) == ((), ["create"])
    made = Server.objects.get()
    assert made.endpoint_config["operations"] == ["GET /pets", "GET /pets/{id}"]
    assert made.auth_config == {"header": "api_key", "in": "query"}
    assert ApiDocument.objects.filter(text=more.get("document", "")).exists() is (
        "document" in more
    )


def test_another_document_is_a_change(boss):
    api(boss, document=text(PETS))
    written = to_yaml(export_config(boss)).replace("listPets", "listAll")
    (step,) = apply_config(boss, wanted(written)).changes
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


def test_declared_operations_are_exported_and_applied_unchanged(boss):
    values = {"SHOP_TOKEN": "sesame"}
    plan = apply_config(boss, read_config_file(DECLARED, values))
    assert (plan.problems, [step.action for step in plan.changes]) == ((), ["create"])
    server = Server.objects.get()
    assert server.endpoint_config["operations"] == ["GET /orders/{id}"]
    assert "get_order" in ApiDocument.objects.get(server=server).text
    written = to_yaml(export_config(boss))
    assert "sesame" not in written
    assert "document" not in written
    assert "operations:" not in written
    assert apply_config(boss, read_config_file(written, values)).changes == ()
    changed = read_config_file(written.replace("Look up", "Find"), values)
    (step,) = apply_config(boss, changed).changes
    assert (step.action, step.fields) == ("change", ("endpoint_config", "document"))
    Server.objects.all().delete()
    assert apply_config(boss, read_config_file(written, values)).problems == ()
    assert Server.objects.get().endpoint_config == server.endpoint_config


@pytest.mark.parametrize(
    ("before", "after", "where", "code"),
    [
        ("/orders/{id}", "https://{x}.test/", "[0].path", "host_is_parameter"),
        ("type: integer", "type: date", "[0].parameters[0].type", "unknown_type"),
        ("name: get_order", "nam: get_order", "[0].nam", "unknown_field"),
        ("result:", "document: x\n        result:", "[0].document", "unknown_field"),
    ],
)
def test_invalid_declarations_are_refused_with_their_path(boss, before, after, where, code):
    written = DECLARED.replace(before, after)
    [problem] = apply_config(boss, read_config_file(written, {"SHOP_TOKEN": "x"})).problems
    field = f"servers.shop.endpoint_config.declared{where}"
    assert (problem.code, problem.field) == (code, field)
    assert not Server.objects.exists()


def test_an_api_without_operations_or_document_is_refused_with_its_line(boss):
    given = "servers:\n  pets:\n    transport_type: openapi\n    url: https://a.example\n"
    assert [problem.code for problem in apply_config(boss, wanted(given)).problems] == ["bad_value"]
    plan = apply_config(boss, wanted(f"{given}    operations: [GET /pets]\n"))
    assert [problem.code for problem in plan.problems] == ["missing_value"]


def test_apis_arent_exported_to_other_clients(boss):
    api(boss, document_url=URL)
    assert export_client_file(boss) == {"mcpServers": {}}
