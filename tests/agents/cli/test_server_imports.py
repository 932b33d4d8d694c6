"""`bonobot mcp import`: shown first, then added and discovered; refused rows say where and why."""

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

pytestmark = pytest.mark.django_db(transaction=True)

WORKING = {"command": sys.executable, "args": [str(WORKSHOP), "stdio"]}


@pytest.fixture(autouse=True)
def _close(acme):
    yield
    for server in Server.objects.all():
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def write(tmp_path):
    def put(content, name="servers.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = content if isinstance(content, str) else json.dumps(content, indent=2)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return put


def test_servers_are_added_discovered_and_approved_in_one_step(bonobot, write):
    file = write({"mcpServers": {"one": WORKING, "two": WORKING}})
    ran = bonobot("mcp", "import", file, "--approve", "--json")
    assert ran.status == 0, ran.err
    assert [entry["action"] for entry in ran.json["entries"]] == ["added", "added"]
    assert {entry["discovery"]["tools"] for entry in ran.json["entries"]} == {8}
    assert not Server.objects.get(name="two").definitions.awaiting_review().exists()


def test_a_dry_run_shows_the_plan_and_changes_nothing(bonobot, write):
    ran = bonobot("mcp", "import", write({"one": WORKING}), "--dry-run")
    assert (ran.status, Server.objects.count()) == (0, 0)
    assert "one" in ran.out
    assert "stdio" in ran.out


MIXED = {"good": WORKING, "bad": {"url": "ftp://x.example"}, "half": {"url": "${NOWHERE_SET}"}}


def test_valid_servers_need_confirmation_if_others_are_refused(bonobot, write):
    file = write({"mcpServers": MIXED})
    ran = bonobot("mcp", "import", file, "--json")
    assert (ran.status, ran.json["applied"], Server.objects.count()) == (1, False, 0)
    ran = bonobot("mcp", "import", file, "--yes", "--json")
    assert (ran.status, ran.json["applied"]) == (1, True)
    told = {entry["name"]: entry for entry in ran.json["entries"]}
    assert (told["good"]["action"], told["bad"]["action"]) == ("added", "refuse")
    (problem,) = told["half"]["problems"]
    assert problem["code"] == "missing_value"
    assert told["half"]["line"] > told["bad"]["line"] > 1


def test_refused_entries_are_printed_with_line_field_and_reason(bonobot, write):
    ran = bonobot("mcp", "import", write({"mcpServers": MIXED}))
    assert "line 10 bad url: bad_url" in ran.out
    assert "--set NAME=VALUE" in ran.out
    assert "To add the rest, use --yes." in ran.out


@pytest.mark.parametrize("answer", [True, False])
def test_a_terminal_asks_for_confirmation(bonobot, write, monkeypatch, answer):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(CommandContext, "confirm", lambda cli, question: answer)
    bonobot("mcp", "import", write({"one": WORKING}))
    assert Server.objects.exists() is answer


def test_variables_come_from_the_environment_and_set_and_are_encrypted(bonobot, write, monkeypatch):
    monkeypatch.setenv("IMPORT_KEY", "s3cret")
    monkeypatch.delenv("IMPORT_MODE", raising=False)
    env = {"KEY": "${IMPORT_KEY}", "MODE": "${IMPORT_MODE:-quiet}", "TEAM": "${TEAM}"}
    file = write({"one": {**WORKING, "env": env}})
    ran = bonobot("mcp", "import", file, "--set", "TEAM=blue", "--json")
    assert ran.status == 0, ran.err
    stored = {secret.name: secret.value.open() for secret in Secret.objects.all()}
    assert stored == {"KEY": "s3cret", "MODE": "quiet", "TEAM": "blue"}
    assert "s3cret" not in ran.out


@pytest.mark.parametrize("name", ["BONOBOT_VAR", "DATABASE_URL", "REDIS_URL"])
def test_variables_of_bonobot_are_never_used(bonobot, write, monkeypatch, name):
    monkeypatch.setenv(name, "kept to ourselves")
    file = write({"one": {**WORKING, "env": {"KEY": f"${{{name}}}"}}})
    ran = bonobot("mcp", "import", file, "--yes", "--json")
    assert ran.json["entries"][0]["problems"][0]["code"] == "forbidden_variable"
    assert "kept to ourselves" not in ran.out


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
    ran = bonobot("mcp", "import", write(text, "config.yaml"), "--json")
    assert ran.status == 0, ran.out
    assert ran.json["entries"][0]["discovery"]["status"] == "connected"


def test_standard_input_is_imported(bonobot, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({"one": WORKING})))
    assert bonobot("mcp", "import", "-", "--json").json["source"] == "standard input"
    assert Server.objects.get().name == "one"


def test_only_the_specified_entries_are_added(bonobot, write):
    file = write(MIXED | {"two": WORKING})
    assert bonobot("mcp", "import", file, "--only", "two", "--json").status == 0
    assert [server.name for server in Server.objects.all()] == ["two"]
    ran = bonobot("mcp", "import", file, "--only", "nothing", "--json")
    assert (ran.status, ran.error["code"]) == (1, "unknown_entry")


def test_a_private_address_needs_its_option(bonobot, write):
    file = write({"local": {"url": "http://127.0.0.1:9/mcp"}})
    ran = bonobot("mcp", "import", file, "--json")
    assert ran.json["entries"][0]["problems"][0]["code"] == "private_address"
    ran = bonobot("mcp", "import", file, "--allow-private", "--json")
    assert (ran.status, ran.json["entries"][0]["action"]) == (1, "added")
    assert ran.json["entries"][0]["discovery"]["code"] == "server_unreachable"


def test_a_failing_server_doesnt_stop_the_others(bonobot, write):
    away = {"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}
    ran = bonobot("mcp", "import", write({"away": away, "one": WORKING}))
    assert ran.status == 1
    assert "✗ away: server_crashed" in ran.out
    assert "✓ one: 8 tools" in ran.out


@pytest.fixture
def overridden(write):
    return write(
        {
            "servers": {
                "workshop": {
                    **WORKING,
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


def test_bot_overrides_and_allowed_tools_are_imported(bonobot, acme, overridden):
    agent = factories.create_agent(acme, "research-bot")
    factories.approve_server(acme, factories.create_stdio_server(acme), agent)
    ran = bonobot("mcp", "import", overridden, "--approve", "--json")
    assert ran.status == 0, ran.out
    assert [share["action"] for share in ran.json["overrides"]] == ["take", "give"]
    assert ran.json["notices"] == []
    assert Server.objects.get(name="workshop").sampling_tokens == 10_000
    bound = {one.server.name: one for one in AgentServer.objects.select_related("server")}
    assert (bound["time"].enabled, bound["workshop"].enabled) == (False, True)
    assert (bound["workshop"].allowed_tools, bound["workshop"].denied_tools) == (
        ["echo"],
        ["crash"],
    )
    offered = Server.objects.get(name="workshop").definitions.tools().callable()
    assert sorted(offered.values_list("name", flat=True)) == ["add", "echo"]


def test_an_override_of_an_unknown_bot_is_reported(bonobot, overridden):
    ran = bonobot("mcp", "import", overridden, "--json")
    assert (ran.status, ran.json["applied"]) == (1, False)
    assert ran.json["overrides"][0]["problems"][0]["field"] == "bot_overrides.research-bot"
    told = bonobot("mcp", "import", overridden).out
    assert told.count("The agent `research-bot` doesn't exist.") == 1
    assert bonobot("mcp", "import", overridden, "--yes", "--json").json["applied"] is True


def test_a_client_configuration_is_found_on_this_host(bonobot, write, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write({"mcpServers": {"one": WORKING}}, ".cursor/mcp.json")
    ran = bonobot("mcp", "import", "--from", "cursor", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["source"].endswith(".cursor/mcp.json")
    ran = bonobot("mcp", "import", "--from", "windsurf", "--json")
    assert (ran.status, ran.error["code"]) == (1, "no_client_file")


@pytest.mark.parametrize(
    ("content", "code"),
    [("{broken", "broken_json"), ("a:\n\t- b", "broken_yaml"), ("", "nothing_to_import")],
)
def test_unreadable_input_is_explained(bonobot, write, content, code):
    ran = bonobot("mcp", "import", write(content), "--json")
    assert (ran.status, ran.error["code"]) == (1, code)


def test_a_missing_file_is_reported(bonobot, tmp_path):
    ran = bonobot("mcp", "import", str(tmp_path / "nothing.json"), "--json")
    assert ran.error["code"] == "unreadable_file"
    assert bonobot("mcp", "import", "--json").error["code"] == "no_source"


def test_installed_catalog_servers_are_found_and_added(bonobot, acme):
    ran = bonobot("mcp", "import", "--installed", "--only", "time", "--approve", "--json")
    assert ran.status == 0, ran.out + ran.err
    assert ran.json["source"] == "loopback address"
    told = {entry["name"]: entry for entry in ran.json["entries"]}
    assert told["time"]["discovery"]["status"] == "connected"
    assert told["git"]["problems"][0]["field"] == "REPOSITORY"
    again = bonobot("mcp", "import", "--installed", "--dry-run", "--json").json
    assert "time" not in {entry["name"] for entry in again["entries"]}


def test_only_one_source_can_be_specified(bonobot, write):
    ran = bonobot("mcp", "import", write({"one": WORKING}), "--installed", "--json")
    assert (ran.status, ran.error["code"]) == (1, "no_source")
