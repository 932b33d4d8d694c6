"""`bonobot mcp import`: the plan, adding and discovering servers, and errors with positions."""

import io
import json
import sys

import pytest

from agents.models import AgentServer
from bonobot.core.cli.command_group import CommandContext
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Secret, Server
from tests import factories
from tests.agents.conftest import WORKSHOP
from tests.agents.registry_server import serve_registry
from tests.bundle_files import build_bundle, build_manifest

pytestmark = pytest.mark.django_db(transaction=True)

WORKING_SERVER = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}


@pytest.fixture(autouse=True)
def _close(acme):
    yield
    for server in Server.objects.all():
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def write(tmp_path):
    def write_file(content, name="servers.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write_file


def test_servers_are_added_discovered_and_approved_in_one_step(bonobot, write):
    file = write({"mcpServers": {"one": WORKING_SERVER, "two": WORKING_SERVER}})
    result = bonobot("mcp", "import", file, "--approve", "--json")
    assert result.status == 0, result.err
    assert [entry["action"] for entry in result.json["entries"]] == ["added", "added"]
    assert {entry["discovery"]["tools"] for entry in result.json["entries"]} == {8}
    assert not Server.objects.get(name="two").definitions.awaiting_review().exists()


def test_a_dry_run_shows_the_plan_and_changes_nothing(bonobot, write):
    result = bonobot("mcp", "import", write({"one": WORKING_SERVER}), "--dry-run")
    assert (result.status, Server.objects.count()) == (0, 0)
    assert "one" in result.out
    assert "stdio" in result.out


MIXED_SERVERS = {
    "good": WORKING_SERVER,
    "bad": {"url": "ftp://x.example"},
    "half": {"url": "${NOWHERE_SET}"},
}


def test_valid_servers_need_confirmation_if_others_are_refused(bonobot, write):
    file = write({"mcpServers": MIXED_SERVERS})
    result = bonobot("mcp", "import", file, "--json")
    assert (result.status, result.json["applied"], Server.objects.count()) == (1, False, 0)
    result = bonobot("mcp", "import", file, "--yes", "--json")
    assert (result.status, result.json["applied"]) == (1, True)
    entries = {entry["name"]: entry for entry in result.json["entries"]}
    assert (entries["good"]["action"], entries["bad"]["action"]) == ("added", "invalid")
    (problem,) = entries["half"]["problems"]
    assert problem["code"] == "missing_value"
    assert entries["half"]["line"] > entries["bad"]["line"] > 1


def test_refused_entries_are_printed_with_line_field_and_reason(bonobot, write):
    result = bonobot("mcp", "import", write({"mcpServers": MIXED_SERVERS}))
    assert "line 10 bad url: bad_url" in result.out
    assert "--set NAME=VALUE" in result.out
    assert "To add the rest, use --yes." in result.out


@pytest.mark.parametrize("answer", [True, False])
def test_a_terminal_asks_for_confirmation(bonobot, write, monkeypatch, answer):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(CommandContext, "confirm", lambda cli, question: answer)
    bonobot("mcp", "import", write({"one": WORKING_SERVER}))
    assert Server.objects.exists() is answer


def test_variables_come_from_the_environment_and_set_and_are_encrypted(bonobot, write, monkeypatch):
    monkeypatch.setenv("IMPORT_KEY", "s3cret")
    monkeypatch.delenv("IMPORT_MODE", raising=False)
    env = {"KEY": "${IMPORT_KEY}", "MODE": "${IMPORT_MODE:-quiet}", "TEAM": "${TEAM}"}
    file = write({"one": {**WORKING_SERVER, "env": env}})
    result = bonobot("mcp", "import", file, "--set", "TEAM=blue", "--json")
    assert result.status == 0, result.err
    stored = {secret.name: secret.value.open() for secret in Secret.objects.all()}
    assert stored == {"KEY": "s3cret", "MODE": "quiet", "TEAM": "blue"}
    assert "s3cret" not in result.out


@pytest.mark.parametrize("name", ["BONOBOT_VAR", "DATABASE_URL", "REDIS_URL"])
def test_variables_of_bonobot_are_never_used(bonobot, write, monkeypatch, name):
    monkeypatch.setenv(name, "kept to ourselves")
    file = write({"one": {**WORKING_SERVER, "env": {"KEY": f"${{{name}}}"}}})
    result = bonobot("mcp", "import", file, "--yes", "--json")
    assert result.json["entries"][0]["problems"][0]["code"] == "forbidden_variable"
    assert "kept to ourselves" not in result.out


def test_yaml_with_servers_below_tools_is_imported(bonobot, write):
    text = f"""\
    tools:
      mcp_servers:
        - name: workshop
          type: stdio
          command: ["{sys.executable}", "{WORKSHOP}", "stdio"]
          env:
            MODE: "${{UNSET_ANYWHERE:-calm}}"
    """
    result = bonobot("mcp", "import", write(text, "config.yaml"), "--json")
    assert result.status == 0, result.out
    assert result.json["entries"][0]["discovery"]["status"] == "connected"


def test_standard_input_is_imported(bonobot, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"one": WORKING_SERVER})))
    assert bonobot("mcp", "import", "-", "--json").json["source"] == "standard input"
    assert Server.objects.get().name == "one"


def test_only_the_specified_entries_are_added(bonobot, write):
    file = write(MIXED_SERVERS | {"two": WORKING_SERVER})
    assert bonobot("mcp", "import", file, "--only", "two", "--json").status == 0
    assert [server.name for server in Server.objects.all()] == ["two"]
    result = bonobot("mcp", "import", file, "--only", "nothing", "--json")
    assert (result.status, result.error["code"]) == (1, "unknown_entry")


def test_a_private_address_needs_its_option(bonobot, write):
    file = write({"local": {"url": "http://127.0.0.1:9/mcp"}})
    result = bonobot("mcp", "import", file, "--json")
    assert result.json["entries"][0]["problems"][0]["code"] == "private_address"
    result = bonobot("mcp", "import", file, "--allow-private", "--json")
    assert (result.status, result.json["entries"][0]["action"]) == (1, "added")
    assert result.json["entries"][0]["discovery"]["code"] == "server_unreachable"


def test_a_failing_server_doesnt_stop_the_others(bonobot, write):
    failing = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    result = bonobot("mcp", "import", write({"away": failing, "one": WORKING_SERVER}))
    assert result.status == 1
    assert "✗ away: server_crashed" in result.out
    assert "✓ one: 8 tools" in result.out


@pytest.fixture
def file_with_overrides(write):
    return write(
        {
            "servers": {
                "workshop": {
                    **WORKING_SERVER,
                    "transport": "stdio",
                    "allowed_tools": ["echo", "add"],
                    "sampling_budget_tokens": 10000,
                }
            },
            "bot_overrides": {
                "research-bot": {
                    "additional_servers": ["workshop"],
                    "removed_servers": ["time"],
                    "tool_permissions": {"workshop": {"allowed": ["echo"], "denied": ["crash"]}},
                }
            },
        }
    )


def test_bot_overrides_and_allowed_tools_are_imported(bonobot, acme, file_with_overrides):
    agent = factories.create_agent(acme, "research-bot")
    factories.approve_server(acme, factories.create_stdio_server(acme), agent)
    result = bonobot("mcp", "import", file_with_overrides, "--approve", "--json")
    assert result.status == 0, result.out
    assert [override["action"] for override in result.json["overrides"]] == ["detach", "attach"]
    assert result.json["notices"] == []
    assert Server.objects.get(name="workshop").sampling_tokens == 10_000
    attached = {
        agent_server.server.name: agent_server
        for agent_server in AgentServer.objects.select_related("server")
    }
    assert (attached["time"].enabled, attached["workshop"].enabled) == (False, True)
    assert (attached["workshop"].allowed_tools, attached["workshop"].denied_tools) == (
        ["echo"],
        ["crash"],
    )
    tools = Server.objects.get(name="workshop").definitions.tools().callable()
    assert sorted(tools.values_list("name", flat=True)) == ["add", "echo"]


def test_an_override_of_an_unknown_bot_is_reported(bonobot, file_with_overrides):
    result = bonobot("mcp", "import", file_with_overrides, "--json")
    assert (result.status, result.json["applied"]) == (1, False)
    assert result.json["overrides"][0]["problems"][0]["field"] == "bot_overrides.research-bot"
    text = bonobot("mcp", "import", file_with_overrides).out
    assert text.count("The agent `research-bot` doesn't exist.") == 1
    assert bonobot("mcp", "import", file_with_overrides, "--yes", "--json").json["applied"] is True


def test_a_client_configuration_is_found_on_this_host(bonobot, write, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write({"mcpServers": {"one": WORKING_SERVER}}, ".cursor/mcp.json")
    result = bonobot("mcp", "import", "--from", "cursor", "--json")
    assert result.status == 0, result.err
    assert result.json["source"].endswith(".cursor/mcp.json")
    result = bonobot("mcp", "import", "--from", "windsurf", "--json")
    assert (result.status, result.error["code"]) == (1, "no_client_file")


@pytest.mark.parametrize(
    ("content", "code"),
    [("{broken", "broken_json"), ("a:\n\t- b", "broken_yaml"), ("", "nothing_to_import")],
)
def test_unreadable_input_is_explained(bonobot, write, content, code):
    result = bonobot("mcp", "import", write(content), "--json")
    assert (result.status, result.error["code"]) == (1, code)


def test_a_missing_file_is_reported(bonobot, tmp_path):
    result = bonobot("mcp", "import", str(tmp_path / "nothing.json"), "--json")
    assert result.error["code"] == "unreadable_file"
    assert bonobot("mcp", "import", "--json").error["code"] == "no_source"


def test_installed_catalog_servers_are_found_and_added(bonobot, acme):
    result = bonobot("mcp", "import", "--installed", "--only", "time", "--approve", "--json")
    assert result.status == 0, result.out + result.err
    assert result.json["source"] == "loopback address"
    entries = {entry["name"]: entry for entry in result.json["entries"]}
    assert entries["time"]["discovery"]["status"] == "connected"
    assert entries["git"]["problems"][0]["field"] == "REPOSITORY"
    plan = bonobot("mcp", "import", "--installed", "--dry-run", "--json").json
    assert "time" not in {entry["name"] for entry in plan["entries"]}


def test_only_one_source_can_be_specified(bonobot, write):
    result = bonobot("mcp", "import", write({"one": WORKING_SERVER}), "--installed", "--json")
    assert (result.status, result.error["code"]) == (1, "no_source")


def test_servers_of_a_registry_are_planned_without_the_environment(bonobot, monkeypatch):
    monkeypatch.setenv("ONE_X_TOKEN", "secret-of-the-caller")
    with serve_registry() as url:
        command = ("mcp", "import", "--registry", url, "--allow-private", "--dry-run", "--json")
        listed = bonobot(*command)
        assert [entry["name"] for entry in listed.json["entries"]] == ["one", "two", "three"]
        (problem,) = listed.json["entries"][0]["problems"]
        assert problem["code"] == "missing_value"
        searched = bonobot(*command, "--search", "two", "--set", "TWO_X_TOKEN=t")
        assert [entry["action"] for entry in searched.json["entries"]] == ["add"]
        file = bonobot(*(*command[:3], f"{url}/server.json", *command[4:]))
        assert [entry["name"] for entry in file.json["entries"]] == ["one"]
        refused = bonobot("mcp", "import", "--registry", url, "--dry-run")
        assert (refused.status != 0, "private" in refused.err) == (True, True)
        missing = bonobot(*(*command[:3], f"{url}/nothing.json", *command[4:]))
        assert "404" in missing.err + missing.out
        endless = bonobot(*(*command[:3], f"{url}/endless", *command[4:]))
        assert "too large" in endless.err + endless.out
        for path in ("client.json", "list"):
            other_reply = bonobot(*(*command[:3], f"{url}/{path}", *command[4:]))
            assert "something else" in other_reply.err + other_reply.out
            assert "secret-of-the-caller" not in other_reply.err + other_reply.out
    assert not Server.objects.exists()


def test_a_bundle_gets_values_only_from_options(bonobot, tmp_path, monkeypatch):
    manifest = build_manifest(
        user_config={"token": {"type": "string", "title": "Token", "required": True}}
    )
    file = tmp_path / "clock.mcpb"
    file.write_bytes(build_bundle(manifest))
    monkeypatch.setenv("CLOCK_TOKEN", "of the caller")
    refused = bonobot("mcp", "import", str(file), "--dry-run", "--json")
    (problem,) = refused.json["entries"][0]["problems"]
    assert (problem["code"], problem["field"]) == ("missing_value", "user_config.token")
    command = ("mcp", "import", str(file), "--set", "CLOCK_TOKEN=x", "--dry-run", "--json")
    assert bonobot(*command).json["entries"][0]["action"] == "add"
    missing = bonobot("mcp", "import", str(tmp_path / "missing.mcpb"))
    assert (missing.status, "unreadable_file" in missing.err) == (1, True)
