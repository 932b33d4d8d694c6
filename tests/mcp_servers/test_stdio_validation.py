"""Validation of stdio configurations, on every surface and again at the start."""

import json

import pytest
from django.utils.datastructures import MultiValueDict

from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_config, to_yaml
from agents.config_file.read_config import read_config_file
from agents.doctor_checks import inspect_stdio_configuration
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.admin.server_forms import ServerForm, build_initial
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.client.child_process import StderrTail, spawn_child
from mcp_servers.import_export.export_servers import SecretPlaceholders, export_server
from mcp_servers.import_export.import_plan import plan_servers
from mcp_servers.models import Secret, Server
from mcp_servers.presets.allowed_folders import get_organization_folder
from mcp_servers.presets.save_as_preset import save_as_preset
from mcp_servers.presets.services import PresetSpec, create_preset
from mcp_servers.server_config import ServerSpec, build_changed_spec
from mcp_servers.services import create_server, update_server
from tests import factories, rest

pytestmark = pytest.mark.django_db

STDIO = {"command": "npx", "args": ["-y", "package@1.2.3"]}
WITH_OPTIONS = {**STDIO, "env": {"NODE_OPTIONS": "--require ./secret-canary.js", "TOKEN": "t"}}
REASONS = {"NODE_OPTIONS": "needs more memory for large documents"}


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def administrator(acme):
    return factories.build_administrator(acme)


@pytest.fixture
def owner(acme):
    return factories.create_member(acme, Role.OWNER)


def spec(config=None, **more):
    return ServerSpec(
        name="ours", transport_type="stdio", endpoint_config=config or WITH_OPTIONS, **more
    )


def refusal(operation, *args, **more) -> Problem:
    with pytest.raises(Problem) as caught:
        operation(*args, **more)
    return caught.value


def start(server):
    server.refresh_from_db()
    endpoint = build_endpoint(server)
    ignore = lambda _: None  # noqa: E731
    return get_runtime().call(spawn_child, endpoint, ignore, ignore, StderrTail(endpoint.secrets))


def create_old_server(administrator, name="NODE_OPTIONS"):
    """Return a server stored before these rules existed."""
    server = create_server(administrator, spec(STDIO))
    row = Secret(organization_id=server.organization_id, server=server, placement="env", name=name)
    row.value = "--require ./secret-canary.js"
    row.save()
    return server


# --- variables


def test_a_dangerous_variable_is_refused_even_for_a_platform_administrator(administrator):
    problem = refusal(create_server, administrator, spec())
    assert (problem.code, problem.status) == ("variable_not_allowed", 403)
    assert problem.field == "endpoint_config.env.NODE_OPTIONS"
    assert "NODE_OPTIONS" in str(problem)
    assert "secret-canary" not in str(problem.as_dict())
    assert "exception" in problem.remedy
    assert not Server.objects.exists()


def test_an_exception_allows_one_variable_and_is_recorded_with_its_reason(administrator):
    server = create_server(administrator, spec(env_exceptions=REASONS))
    assert server.env_exceptions == REASONS
    row = AuditRow.objects.get(action="server_created")
    assert (row.actor_kind, row.actor_id) == (administrator.actor.kind, administrator.actor.id)
    assert json.loads(row.opened)["details"]["env_exceptions"] == REASONS
    later = {"NODE_OPTIONS": "another reason"}
    update_server(administrator, server, build_changed_spec(server, env_exceptions=later))
    changed = json.loads(AuditRow.objects.get(action="server_updated").opened)
    assert changed["details"]["env_exceptions"] == later


def test_omitted_exceptions_are_kept_until_their_variable_is_removed(administrator):
    server = create_server(administrator, spec(env_exceptions=REASONS))
    update_server(administrator, server, build_changed_spec(server, description="new"))
    assert server.env_exceptions == REASONS
    update_server(administrator, server, build_changed_spec(server, endpoint_config=STDIO))
    assert server.env_exceptions == {}
    assert refusal(update_server, administrator, server, spec()).code == "variable_not_allowed"


@pytest.mark.parametrize(
    ("exceptions", "code"),
    [
        ({"NODE_OPTIONS": ""}, "invalid"),
        ({"NODE_OPTIONS": "two\nlines"}, "invalid"),
        ({"NODE_OPTIONS": "x" * 501}, "invalid"),
        ({"NODE_OPTIONS": None}, "invalid"),
        ({**REASONS, "TOKEN": "why"}, "redundant_exception"),
        ({**REASONS, "PATH": "why"}, "redundant_exception"),
        ({"node_options": "why"}, "redundant_exception"),
    ],
)
def test_an_exception_needs_a_reason_and_a_variable(administrator, exceptions, code):
    problem = refusal(create_server, administrator, spec(env_exceptions=exceptions))
    assert problem.code == code
    assert problem.field.startswith("env_exceptions.")


def test_only_a_platform_administrator_can_change_exceptions(administrator, owner):
    server = create_server(administrator, spec(env_exceptions=REASONS))
    update_server(owner, server, build_changed_spec(server, description="mine"))
    assert server.env_exceptions == REASONS
    for exceptions in ({}, {"NODE_OPTIONS": "because"}):
        problem = refusal(
            update_server, owner, server, build_changed_spec(server, env_exceptions=exceptions)
        )
        assert (problem.code, problem.field) == ("platform_admin_only", "env_exceptions")


def test_a_preset_cant_set_a_dangerous_variable(administrator):
    preset_spec = PresetSpec(name="options", transport_type="stdio", endpoint_config=WITH_OPTIONS)
    assert refusal(create_preset, administrator, preset_spec).code == "variable_not_allowed"
    server = create_server(administrator, spec(env_exceptions=REASONS))
    assert refusal(save_as_preset, administrator, server, "options").code == "variable_not_allowed"


def test_a_pasted_configuration_cant_set_a_dangerous_variable(administrator):
    text = (
        '{"mcpServers": {"ours": {"command": "npx", "args": ["x@1.0.0"], "env": {"PATH": "/x"}}}}'
    )
    (planned,) = plan_servers(administrator, text)
    assert [problem.code for problem in planned.problems] == ["variable_not_allowed"]


def test_a_configuration_file_contains_the_exceptions(acme, administrator):
    server = create_server(administrator, spec(env_exceptions=REASONS))
    assert export_server(server, SecretPlaceholders())["env_exceptions"] == REASONS
    text = to_yaml(export_config(administrator))
    server.delete()
    values = {"OURS_NODE_OPTIONS": "--max-old-space-size=8192", "OURS_TOKEN": "t"}
    apply_config(administrator, read_config_file(text, values))
    assert Server.objects.get().env_exceptions == REASONS
    without = text.replace("NODE_OPTIONS: needs more memory for large documents", "{}")
    assert without != text


def test_rest_accepts_and_returns_exceptions(acme, administrator):
    client = rest.as_administrator()
    body = {"name": "ours", "transport_type": "stdio", "endpoint_config": WITH_OPTIONS}
    refusal_response = client.post("mcp-servers", body)
    assert (refusal_response.status, refusal_response.code) == (403, "variable_not_allowed")
    response = client.post("mcp-servers", {**body, "env_exceptions": REASONS})
    assert response.status == 201, response
    assert response.json["env_exceptions"] == REASONS


def test_a_server_that_violates_a_newer_rule_doesnt_start_and_is_reported_by_doctor(administrator):
    server = create_old_server(administrator)
    problem = refusal(start, server)
    assert problem.code == "variable_not_allowed"
    assert problem.field == "endpoint_config.env.NODE_OPTIONS"
    assert "secret-canary" not in str(problem.as_dict())
    (finding,) = inspect_stdio_configuration()
    assert (finding.state, "NODE_OPTIONS" in finding.detail) == ("failed", True)
    Server.objects.filter(pk=server.pk).update(env_exceptions=REASONS)
    assert list(inspect_stdio_configuration()) == []


# --- texts and folders


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({**STDIO, "command": "npx\x00"}, "command"),
        ({**STDIO, "args": ["-y", "a\x00b"]}, "args"),
        ({**STDIO, "cwd": "/srv/a\x00b"}, "cwd"),
        ({**STDIO, "env": {"TOKEN": "a\x00b"}}, "env.TOKEN"),
        ({**STDIO, "env": {"TO\x00KEN": "ab"}}, "env.TO"),
    ],
)
def test_a_nul_character_is_refused_everywhere(administrator, config, field):
    problem = refusal(create_server, administrator, spec(config))
    assert problem.field.startswith(f"endpoint_config.{field}")
    assert "NUL" in str(problem)


def test_folders_of_the_system_and_of_other_organizations_are_refused(
    acme, administrator, settings, tmp_path
):
    settings.BONOBOT_VAR = tmp_path / "var"
    workspace = get_organization_folder(acme.pk)
    workspace.mkdir(parents=True)
    (workspace / "out").symlink_to("/etc")
    other_workspace = workspace.parent / "others"
    other_workspace.mkdir()
    for folder in ("/", "/etc", "/root", "/usr/lib", tmp_path / "var" / "keys", other_workspace):
        problem = refusal(create_server, administrator, spec({**STDIO, "cwd": str(folder)}))
        assert (problem.code, problem.field) == ("folder_not_allowed", "endpoint_config.cwd")
    for folder in (workspace / "out", f"{workspace}/../others"):
        assert (
            refusal(create_server, administrator, spec({**STDIO, "cwd": str(folder)})).code
            == "folder_not_allowed"
        )
    mounting = {"command": "docker", "args": ["run", "-i", "-v", "/etc:/x", "image@sha256:1"]}
    assert refusal(create_server, administrator, spec(mounting)).field == "endpoint_config.args"
    assert create_server(administrator, spec({**STDIO, "cwd": str(workspace)})).endpoint_config[
        "cwd"
    ] == str(workspace)


def test_a_folder_that_became_a_symlink_is_refused_at_the_start(administrator, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    server = create_server(administrator, spec({**STDIO, "cwd": str(folder)}))
    folder.rmdir()
    folder.symlink_to("/etc")
    assert refusal(start, server).code == "folder_not_allowed"


def test_a_system_folder_cant_be_a_preset_folder(acme, administrator, settings, tmp_path):
    settings.BONOBOT_VAR, settings.BONOBOT_PRESET_FOLDERS = tmp_path / "var", ("/etc",)
    preset = create_preset(
        administrator,
        PresetSpec(
            name="files",
            transport_type="stdio",
            endpoint_config={"command": "npx", "args": ["files@1.0.0", "${FOLDER}"]},
            parameters=[{"name": "FOLDER", "kind": "folder"}],
        ),
    )
    client = rest.as_administrator()
    body = {"preset": preset.slug, "parameters": {"FOLDER": "/etc/ssl"}}
    response = client.post("mcp-servers", body)
    assert response.code == "folder_not_allowed"


# --- the form


def test_the_form_accepts_one_reason_per_line(acme, administrator):
    fields = {
        "name": "ours",
        "transport_type": "stdio",
        "command": "npx",
        "args": "package@1.2.3",
        "env-name": ["NODE_OPTIONS"],
        "env-value": ["--max-old-space-size=8192"],
        "auth_type": "none",
        "approval": "manual",
        "env_exceptions": "NODE_OPTIONS: needs more memory",
    }
    data = MultiValueDict({k: v if isinstance(v, list) else [v] for k, v in fields.items()})
    form = ServerForm(administrator, data)
    assert form.is_valid(), form.errors
    server = create_server(administrator, form.build_spec())
    assert server.env_exceptions == {"NODE_OPTIONS": "needs more memory"}
    assert build_initial(server)["env_exceptions"] == "NODE_OPTIONS: needs more memory"
