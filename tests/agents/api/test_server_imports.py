"""Importing servers and using presets over REST."""

import json
from uuid import UUID

import pytest
from celery import current_app

from agents.api.server_imports import CHECK_DUE
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.text.masking import MASK
from mcp_servers.health.server_status import record_contact, record_failure
from mcp_servers.models import Preset, Server
from mcp_servers.presets.enabled_presets import enable_preset
from mcp_servers.tasks import check_due_servers
from tests import admin_client, factories, rest
from tests.agents.registry_server import build_entry
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

SECRET = "tok-in-the-clear-0123456789"
TWO_SERVERS = {
    "mcpServers": {
        "docs": {
            "url": "https://mcp.example.com/mcp",
            "headers": {"Authorization": f"Bearer {SECRET}"},
        },
        "odd": {"transport": "pigeon", "url": "https://x.example/"},
    }
}
LOCAL_SERVER = {"everything": {"url": "http://127.0.0.1:3001/mcp"}}
SERVER_WITH_VARIABLE = {
    "docs": {"url": "https://mcp.example.com/mcp", "headers": {"X-Key": "${KEY}"}}
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def operator(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


def post_import(client: RestClient, text: object, **fields: object) -> rest.RestResponse:
    content = text if isinstance(text, str) else json.dumps(text)
    return client.post("mcp-servers/import", {"text": content} | fields)


def test_a_preview_writes_nothing_and_contains_no_secret(operator):
    response = post_import(operator, TWO_SERVERS)
    assert (response.status, response.json["applied"]) == (200, False)
    docs, odd = response.json["entries"]
    assert (docs["name"], docs["action"], docs["problems"]) == ("docs", "add", [])
    assert docs["auth_config"]["configured"] is True
    assert (odd["action"], odd["problems"][0]["code"]) == ("invalid", "unknown_transport")
    assert SECRET not in response.text
    assert not Server.objects.exists()


def test_applying_adds_valid_servers_and_explains_the_others(operator):
    docs, odd = post_import(operator, TWO_SERVERS, apply=True).json["entries"]
    server = Server.objects.get()
    assert (docs["action"], docs["server_id"]) == ("added", str(server.pk))
    assert (odd["action"], odd["server_id"]) == ("invalid", None)
    assert server.secrets.get().value.open() == SECRET


def test_of_two_entries_with_one_name_only_the_first_is_added(operator):
    text = "a: {url: https://a.example/}\na: {url: https://b.example/}\n"
    first, second = post_import(operator, text, apply=True).json["entries"]
    assert (first["action"], second["action"]) == ("added", "invalid")
    assert second["server_id"] is None
    assert [problem["code"] for problem in second["problems"]] == ["duplicate_name"]


def test_applying_again_reports_duplicate_names(operator):
    post_import(operator, TWO_SERVERS, apply=True)
    docs, _ = post_import(operator, TWO_SERVERS, apply=True).json["entries"]
    assert (docs["action"], docs["problems"][0]["code"]) == ("invalid", "name_taken")
    assert Server.objects.count() == 1


def test_only_selected_servers_are_added(operator):
    docs, _ = post_import(operator, TWO_SERVERS, apply=True, chosen=[]).json["entries"]
    assert docs["action"] == "skip"
    assert not Server.objects.exists()


def test_a_platform_administrator_can_allow_a_private_address(acme, operator):
    (entry,) = post_import(operator, LOCAL_SERVER).json["entries"]
    assert (entry["private"], entry["problems"][0]["code"]) == (True, "private_address")
    response = post_import(operator, LOCAL_SERVER, apply=True, allow_private=["everything"])
    assert (response.status, response.json["rule"]) == (403, "role:allow_private_address")
    administrator = rest.as_administrator()
    (entry,) = post_import(
        administrator, LOCAL_SERVER, apply=True, allow_private=["everything"]
    ).json["entries"]
    assert (entry["action"], Server.objects.get().allow_private) == ("added", True)


def test_a_parameter_is_filled_from_the_request(operator):
    (entry,) = post_import(operator, SERVER_WITH_VARIABLE).json["entries"]
    assert (entry["action"], entry["parameters"][0]["name"]) == ("invalid", "KEY")
    (entry,) = post_import(operator, SERVER_WITH_VARIABLE, apply=True, fill={"KEY": SECRET}).json[
        "entries"
    ]
    assert entry["action"] == "added"
    assert entry["endpoint_config"]["headers"] == {"X-Key": MASK}
    assert Server.objects.get().secrets.get().value.open() == SECRET


@pytest.mark.parametrize(
    ("text", "code"),
    [("{", "broken_json"), ("[]", "nothing_to_import"), ("7", "not_a_configuration")],
)
def test_an_unreadable_text_is_a_problem(operator, text, code):
    response = post_import(operator, text)
    assert (response.status, response.code) == (400, code)
    assert response.json["remedy"]


def test_a_refused_entry_has_line_field_and_reason(operator):
    text = (
        '{"mcpServers": {\n"fine": {"url": "https://a.example/mcp"},\n"odd": {"url": "ftp://x"}}}'
    )
    fine, odd = post_import(operator, text).json["entries"]
    assert (fine["line"], odd["line"]) == (2, 3)
    [problem] = odd["problems"]
    assert (problem["code"], problem["field"]) == ("bad_url", "url")
    assert problem["remedy"]
    assert not Server.objects.exists(), "valid servers are added only with `apply`"


def test_the_response_doesnt_wait_and_the_progress_can_be_read(
    operator, monkeypatch, django_capture_on_commit_callbacks
):
    tasks = []
    monkeypatch.setattr(current_app, "send_task", lambda *task: tasks.append(task))
    with django_capture_on_commit_callbacks(execute=True):
        response = post_import(operator, TWO_SERVERS, apply=True).json
    assert [name for name, _ in tasks] == [CHECK_DUE] == [check_due_servers.name]
    progress = operator.get(response["progress"]).json
    assert (progress["done"], progress["total"], progress["counts"]["asking"]) == (False, 1, 1)
    server = Server.objects.get()
    record_contact(server, "discovery", 7)
    progress = operator.get(response["progress"]).json
    assert (progress["done"], progress["counts"]["connected"]) == (True, 1)
    record_failure(server.pk, "discovery", Problem("Gone.", code="server_unreachable"))
    [row] = operator.get(response["progress"]).json["servers"]
    assert (row["state"], row["code"], row["name"]) == ("error", "server_unreachable", "docs")


def test_without_added_servers_there_is_no_progress(operator):
    assert post_import(operator, TWO_SERVERS).json["progress"] is None
    assert post_import(operator, TWO_SERVERS, apply=True, chosen=[]).json["progress"] is None


@pytest.mark.parametrize(
    ("query", "status"), [("", 400), ("?server=x", 404), (f"?server={UUID(int=1)}", 404)]
)
def test_progress_without_servers_is_a_problem(operator, query, status):
    assert operator.get(f"mcp-servers/import{query}").status == status


def test_the_progress_of_a_server_of_others_isnt_found(operator):
    foreign = admin_client.create_web_server(factories.create_organization("other"))
    assert operator.get(f"mcp-servers/import?server={foreign.pk}").status == 404


def test_the_progress_of_many_servers_uses_the_same_queries(
    acme, operator, django_assert_max_num_queries
):
    ids = [admin_client.create_web_server(acme, f"s{number}").pk for number in range(12)]
    query = "&".join(f"server={pk}" for pk in ids)
    with django_assert_max_num_queries(12):
        assert operator.get(f"mcp-servers/import?{query}").json["total"] == 12


# -- presets -------------------------------------------------------------------------------------


@pytest.fixture
def preset(acme) -> Preset:
    row: Preset = Preset.objects.create(
        slug="notes",
        name="Notes",
        category="Files",
        transport_type="stdio",
        endpoint_config={"command": "uvx", "args": ["notes-mcp@1.2.3", "--folder", "${FOLDER}"]},
        parameters=[{"name": "FOLDER", "label": "Folder", "secret": False, "required": True}],
    )
    enable_preset(factories.build_administrator(acme), row)
    return row


def test_presets_of_the_catalog_and_the_organization_are_listed(acme, operator, preset):
    other_organization = factories.create_organization("other")
    for organization, slug in ((acme, "mine"), (other_organization, "theirs")):
        Preset.objects.create(
            organization=organization, slug=slug, name=slug, transport_type="http"
        )
    own_by_slug = {
        row["slug"]: row["own"] for row in operator.get("presets?limit=500").json["results"]
    }
    assert (own_by_slug["notes"], own_by_slug["mine"]) == (False, True)
    assert "theirs" not in own_by_slug
    assert [row["slug"] for row in operator.get("presets?category=Files").json["results"]] == [
        "notes"
    ]


@pytest.mark.parametrize("path", ["mcp-servers", "agents/helper/mcp-servers"])
def test_an_operator_can_add_a_local_program_from_a_preset(acme, operator, preset, path):
    factories.create_agent(acme)
    body = {"preset": "notes", "name": "my notes", "parameters": {"FOLDER": "/srv/notes"}}
    created = operator.post(path, body)
    assert (created.status, created.json["preset_id"]) == (201, str(preset.pk))
    assert created.json["endpoint_config"]["args"][-1] == "/srv/notes"


@pytest.mark.parametrize(
    ("parameters", "code"),
    [({}, "missing_value"), ({"FOLDER": "x", "ROOT": "y"}, "unknown_parameter")],
)
def test_a_preset_requires_its_parameters(operator, preset, parameters, code):
    response = operator.post("mcp-servers", {"preset": "notes", "parameters": parameters})
    assert (response.status, response.code) == (400, code)
    assert response.json["errors"]
    assert not Server.objects.exists()


def test_a_preset_of_another_organization_isnt_found(operator):
    other_organization = factories.create_organization("other")
    Preset.objects.create(
        organization=other_organization, slug="theirs", name="t", transport_type="http"
    )
    response = operator.post("mcp-servers", {"preset": "theirs"})
    assert (response.status, response.json["field"]) == (404, "preset")


SERVER_WITH_OVERRIDES = {
    "mcpServers": {"docs": {"url": "https://mcp.example.com/mcp", "allowed_tools": ["read_*"]}},
    "bot_overrides": {"helper": {"additional_servers": ["docs"]}, "nobody": {"removed_servers": 7}},
}


def test_attachments_are_previewed_and_then_applied(acme, operator):
    helper = factories.create_agent(acme)
    preview = post_import(operator, SERVER_WITH_OVERRIDES).json
    assert [override["action"] for override in preview["overrides"]] == ["attach"]
    assert preview["entries"][0]["allowed_tools"] == ["read_*"]
    [problem] = preview["problems"]
    assert problem["code"] == "bad_value"
    assert problem["field"] == "bot_overrides.nobody.removed_servers"
    assert not helper.agent_servers.exists()
    post_import(operator, SERVER_WITH_OVERRIDES, apply=True)
    agent_server = helper.agent_servers.get()
    assert agent_server.allowed_tools == ["read_*"]
    assert agent_server.server.only_tools == ["read_*"]


def test_an_attachment_of_a_server_that_wasnt_added_is_refused(acme, operator):
    factories.create_agent(acme)
    response = post_import(operator, SERVER_WITH_OVERRIDES, apply=True, chosen=[])
    [override] = response.json["overrides"]
    assert (override["action"], override["problems"][0]["code"]) == ("invalid", "not_found")


def test_a_disabled_server_is_attached_only_by_the_import_that_creates_it(acme, operator):
    helper = factories.create_agent(acme)
    entry = {"url": "https://mcp.example.com/mcp", "disabled": True}
    document = {
        "mcpServers": {"docs": entry},
        "bot_overrides": {"helper": {"additional_servers": ["docs"]}},
    }
    post_import(operator, document, apply=True)
    attached_server = helper.agent_servers.get()
    assert not attached_server.server.enabled
    attached_server.delete()
    for apply in (False, True):
        [override] = post_import(operator, document, apply=apply).json["overrides"]
        assert (override["action"], override["problems"][0]["code"]) == (
            "invalid",
            "server_disabled",
        )
        assert override["problems"][0]["field"] == "bot_overrides.helper"
    assert not helper.agent_servers.exists()


def test_a_registry_at_a_private_address_is_refused(acme, operator):
    refused = operator.post("mcp-servers/import", {"registry": "http://127.0.0.1:1/registry"})
    assert (refused.json["field"], refused.status < 500) == ("registry", True)
    for body in ({}, {"text": "{}", "registry": "https://registry.example.com"}):
        assert operator.post("mcp-servers/import", body).code == "no_source"
    member = rest.as_role(acme, Role.MEMBER)
    assert member.post("mcp-servers/import", {"registry": "https://192.0.2.1"}).status == 403


def test_a_server_json_is_imported_like_a_clients_file(operator):
    entry = build_entry("io.example/weather")
    preview = post_import(operator, entry)
    assert preview.json["entries"][0]["parameters"][0]["name"] == "WEATHER_X_TOKEN"
    added = post_import(operator, entry, apply=True, fill={"WEATHER_X_TOKEN": SECRET})
    assert added.json["entries"][0]["action"] == "added"
    server = Server.objects.get()
    assert (server.slug, server.approval) == ("weather", Server.Approval.MANUAL)
