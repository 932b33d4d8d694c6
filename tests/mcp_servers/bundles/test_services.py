"""Bundles: uploaded by platform administrators, kept by digest, and checked at every start."""

import base64
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone
from pytest_django import Settings

from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_config, to_yaml
from agents.config_file.read_config import read_config_file
from agents.server_imports import ServerImport, apply_import, plan_import
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.bundles.services import get_bundle_folder, store_bundle
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.discovery import discover_servers
from mcp_servers.import_export.import_plan import ImportChoices
from mcp_servers.models import Secret, Server, ServerBundle
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories, rest
from tests.bundle_files import build_bundle, build_manifest, pack_npm_bundle

pytestmark = pytest.mark.django_db(transaction=True)

CONFIG = {
    "api_key": {"type": "string", "title": "Key", "required": True, "sensitive": True},
    "zone": {"type": "string", "title": "Time zone", "default": "UTC"},
}
MCP_CONFIG = {
    "command": "python3",
    "args": ["${__dirname}/server/clock.py", "${user_config.zone}"],
    "env": {"API_KEY": "${user_config.api_key}", "PYTHONPATH": "${__dirname}/server/lib"},
}


@pytest.fixture(autouse=True)
def _close(settings: Settings, tmp_path: Path) -> Iterator[None]:
    settings.BONOBOT_VAR = tmp_path / "var"
    settings.BONOBOT_VAR.mkdir()
    yield
    for server in Server.objects.all():
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def build_with_settings(**config: Any) -> bytes:
    server = build_manifest()["server"] | {"mcp_config": MCP_CONFIG | config}
    return build_bundle(build_manifest(server=server, user_config=CONFIG))


def plan(organization: Organization, data: bytes, **values: str) -> ServerImport:
    administrator = factories.build_administrator(organization)
    text = store_bundle(administrator, data)
    return plan_import(administrator, text, ImportChoices(values=values))


def add(organization: Organization, data: bytes, **values: str) -> Server:
    planned = plan(organization, data, **values)
    apply_import(factories.build_administrator(organization), planned)
    assert not planned.problems, planned.as_dict()
    return Server.objects.get()


def discover(server: Server) -> str:
    """Discover a server; return the code of its failure, if any."""
    actor = factories.build_administrator(server.organization).actor
    [attempt] = discover_servers([server], actor=actor)
    return attempt.problem.code if attempt.problem else ""


def test_settings_become_arguments_and_secrets(acme: Organization) -> None:
    data = build_with_settings()
    [entry] = plan(acme, data).as_dict()["entries"]
    assert [(p["name"], p["secret"]) for p in entry["parameters"]] == [
        ("CLOCK_API_KEY", True),
        ("CLOCK_ZONE", False),
    ]
    assert [(p["code"], p["field"]) for p in entry["problems"]] == [
        ("missing_value", "user_config.api_key")
    ]
    server = add(acme, data, CLOCK_API_KEY="tok-secret-1", CLOCK_ZONE="CET")
    assert server.endpoint_config == {
        "command": "python3",
        "args": ["{bundle}/server/clock.py", "CET"],
        "bundle": ServerBundle.objects.get().digest,
    }
    assert server.env_exceptions == {"PYTHONPATH": "Names only folders of the server's bundle."}
    secret = Secret.objects.get(server=server, name="API_KEY")
    assert secret.value.open() == "tok-secret-1"


@pytest.mark.parametrize(
    ("config", "code", "field"),
    [
        ({"args": ["${user_config.api_key}"]}, "bad_manifest", "server.mcp_config.args[0]"),
        ({"args": ["${HOME}"]}, "bad_manifest", "server.mcp_config.args[0]"),
        ({"command": "bash"}, "launcher_not_allowed", "endpoint_config.command"),
        (
            {"command": "${__dirname}/../../bin/x"},
            "launcher_not_allowed",
            "endpoint_config.command",
        ),
        (
            {"env": {"LD_PRELOAD": "${__dirname}/x.so"}},
            "variable_not_allowed",
            "endpoint_config.env.LD_PRELOAD",
        ),
        (
            {"env": {"PYTHONPATH": "${__dirname}/a:/tmp"}},
            "variable_not_allowed",
            "endpoint_config.env.PYTHONPATH",
        ),
    ],
)
def test_a_bundle_follows_the_rules_of_stdio_servers(
    acme: Organization, config: dict[str, Any], code: str, field: str
) -> None:
    planned = plan(acme, build_with_settings(**config), CLOCK_API_KEY="k")
    [problem] = planned.as_dict()["entries"][0]["problems"]
    assert (problem["code"], problem["field"]) == (code, field)


def test_only_platform_administrators_import_bundles(acme: Organization) -> None:
    owner = factories.create_member(acme, Role.OWNER)
    with pytest.raises(Problem) as caught:
        store_bundle(owner, build_bundle())
    assert (caught.value.code, ServerBundle.objects.count()) == ("platform_admin_only", 0)
    text = store_bundle(factories.build_administrator(acme), build_bundle())
    [entry] = plan_import(owner, text, ImportChoices()).as_dict()["entries"]
    assert entry["problems"][0]["code"] == "platform_admin_only"


def test_another_organization_cant_use_a_bundle(acme: Organization) -> None:
    text = store_bundle(factories.build_administrator(acme), build_bundle())
    administrator = factories.build_administrator(factories.create_organization("other"))
    [entry] = plan_import(administrator, text, ImportChoices()).as_dict()["entries"]
    assert (entry["problems"][0]["code"], entry["action"]) == ("unknown_bundle", "invalid")
    config = {"command": "python3", "args": [], "bundle": ServerBundle.objects.get().digest}
    with pytest.raises(Problem) as caught:
        create_server(
            administrator, ServerSpec(name="x", transport_type="stdio", endpoint_config=config)
        )
    assert (caught.value.code, caught.value.field) == ("unknown_bundle", "endpoint_config.bundle")


def test_a_missing_manifest_or_entry_point_is_reported(acme: Organization) -> None:
    server = build_manifest()["server"] | {"entry_point": "server/other.py"}
    for data, field in (
        (build_bundle("{"), "manifest.json"),
        (build_bundle(build_manifest(server=server)), "server.entry_point"),
    ):
        with pytest.raises(Problem) as caught:
            store_bundle(factories.build_administrator(acme), data)
        assert (caught.value.code, caught.value.field) == ("bad_manifest", field)


def test_a_bundle_that_no_server_uses_is_deleted_after_a_day(acme: Organization) -> None:
    server = add(acme, build_bundle())
    administrator = factories.build_administrator(acme)
    store_bundle(administrator, build_bundle(files={"a": b"1"}))
    day_ago = timezone.now() - timedelta(days=1, minutes=1)
    ServerBundle.objects.update(updated_at=day_ago)
    store_bundle(administrator, build_bundle(files={"a": b"2"}))
    digests = list(ServerBundle.objects.order_by("created_at").values_list("digest", flat=True))
    assert (digests[0], len(digests)) == (server.endpoint_config["bundle"], 2)


def test_the_sandbox_that_hides_the_files_is_refused(acme: Organization) -> None:
    server = add(acme, build_bundle())
    spec = ServerSpec(
        name="x",
        transport_type="stdio",
        endpoint_config=server.endpoint_config,
        sandbox="bubblewrap",
    )
    with pytest.raises(Problem) as caught:
        create_server(factories.build_administrator(acme), spec)
    assert (caught.value.code, caught.value.field) == ("not_for_bundles", "sandbox")


def test_an_exported_configuration_with_a_bundle_changes_nothing(acme: Organization) -> None:
    add(acme, build_bundle())
    administrator = factories.build_administrator(acme)
    text = to_yaml(export_config(administrator, None))
    assert ServerBundle.objects.get().digest in text
    assert not apply_config(administrator, read_config_file(text, {}), dry_run=True).changes


@pytest.mark.sandbox
def test_a_server_of_a_bundle_runs_in_the_sandbox_until_its_files_change(
    acme: Organization, settings: Settings
) -> None:
    settings.BONOBOT_STDIO_SANDBOX = "sandbox"
    server = add(acme, build_bundle())
    folder = get_bundle_folder(acme.pk, server.endpoint_config["bundle"])
    assert not folder.exists()  # importing unpacks and runs nothing
    assert discover(server) == ""
    assert server.definitions.exists()
    get_runtime().call(get_connection_pool().forget_server, server.pk)
    (folder / "server" / "clock.py").write_text("raise SystemExit")
    assert discover(server) == "bundle_changed"
    ServerBundle.objects.all().delete()
    assert discover(server) != ""


@pytest.mark.npm
@pytest.mark.sandbox
def test_a_bundle_of_the_official_tool_runs_in_the_sandbox(
    acme: Organization, settings: Settings, tmp_path: Path
) -> None:
    settings.BONOBOT_STDIO_SANDBOX = "sandbox"
    server = add(acme, pack_npm_bundle(tmp_path))
    assert (server.sandbox, server.network) == ("sandbox", "egress")
    assert discover(server) == ""
    names = set(server.definitions.values_list("name", flat=True))
    assert "get-time" in names


def test_a_bundle_is_imported_over_rest(acme: Organization) -> None:
    administrator = rest.as_administrator()
    body = {"bundle": base64.b64encode(build_with_settings()).decode()}
    [entry] = administrator.post("mcp-servers/import", body).json["entries"]
    assert entry["parameters"][0]["label"] == "Key"
    body |= {"apply": True, "fill": {"CLOCK_API_KEY": "k"}}
    [entry] = administrator.post("mcp-servers/import", body).json["entries"]
    assert entry["action"] == "added"
    assert administrator.post("mcp-servers/import", {"bundle": "?"}).json["field"] == "bundle"
    member = rest.as_role(acme, Role.OPERATOR)
    assert member.post("mcp-servers/import", body).code == "platform_admin_only"


def test_a_bundle_larger_than_a_request_is_refused_over_rest(acme: Organization) -> None:
    data = build_bundle(files={"noise": os.urandom(4 * 1024 * 1024)})
    body = {"bundle": base64.b64encode(data).decode()}
    response = rest.as_administrator().post("mcp-servers/import", body)
    assert (response.status, response.code) == (413, "body_too_large")


def test_a_bundle_is_previewed_in_the_admin_before_it_is_added(acme: Organization) -> None:
    seat = admin_client.sign_in(acme, None)
    file = SimpleUploadedFile("clock.mcpb", build_with_settings())
    page = seat.post("mcp_servers_server_paste", file=file, do="add")
    assert "Time zone" in page
    assert not Server.objects.exists()
    text = json.dumps({"mcpServers": {"clock": {"bundle": ServerBundle.objects.get().digest}}})
    fields = {"parameter-CLOCK_API_KEY": "k", "parameter-CLOCK_ZONE": "CET", "add": "clock"}
    seat.post("mcp_servers_server_paste", text=text, seen="1", do="add", **fields)
    assert Server.objects.get().endpoint_config["args"][1] == "CET"
