"""The command line's specification: its YAML file, and servers as verbs add and toggle them."""

import pytest

from agents.models import Agent
from agents.server_imports import apply_import, plan_import
from bonobot.accounts.models import Invitation
from bonobot.processes.process_status import (
    ProcessStatus,
    delete_statuses,
    read_running_url,
    write_statuses,
)
from mcp_servers.import_export.import_plan import ImportChoices
from mcp_servers.models import Server
from tests import factories, rest
from tests.seeds.conftest import FILES, WEATHER

pytestmark = pytest.mark.django_db(transaction=True)

FILE = FILES / "default.yaml"
VALUES = {"GITHUB_TOKEN": "gh", "BRAVE_API_KEY": "brave", "API_TOKEN": "api"}
SET = [part for name, value in VALUES.items() for part in ("--set", f"{name}={value}")]
NAMES = {"filesystem-extended", "github", "brave-search", "custom-api"}


def check_servers() -> None:
    """Check that the file's servers exist as it describes them."""
    servers = {server.name: server for server in Server.objects.all()}
    assert servers.keys() == NAMES
    assert [name for name, server in servers.items() if not server.enabled] == ["brave-search"]
    extended = servers["filesystem-extended"].endpoint_config
    assert (extended["command"], extended["args"][0]) == ("npx", "-y")
    secrets = {
        name: {secret.name: secret.value.open() for secret in server.secrets.all()}
        for name, server in servers.items()
    }
    assert secrets == {
        "filesystem-extended": {"NODE_ENV": "production"},
        "github": {"GITHUB_TOKEN": "gh"},
        "brave-search": {"BRAVE_API_KEY": "brave"},
        "custom-api": {"token": "api"},
    }


def test_the_files_servers_are_imported(acme):
    administrator = factories.build_administrator(acme)
    choices = ImportChoices(values=VALUES, allow_private=["custom-api"])
    plan = plan_import(administrator, FILE.read_text(), choices)
    assert not plan.problems
    apply_import(administrator, plan)
    check_servers()


def test_the_file_is_applied_completely(acme, helper, bonobot):
    arguments = ("mcp", "apply", str(FILE), *SET, "--allow-private", "--no-discover", "--yes")
    result = bonobot(*arguments, "--json")
    assert (result.status, result.json["problems"], result.json["applied"]) == (0, [], True)
    assert "profile, engagement_mode" in result.json["notices"][0]
    check_servers()
    agent = Agent.objects.get(slug="code")
    assert agent.enabled
    assert set(agent.builtin_tools) == {"filesystem", "shell", "edit", "search", "git"}
    assert {binding.server.name for binding in agent.agent_servers.all()} == NAMES
    second = bonobot(*arguments, "--json")
    assert not second.json["applied"]


def test_an_import_says_how_to_load_the_rest_of_the_file(acme, bonobot):
    result = bonobot("mcp", "import", str(FILE), *SET, "--dry-run", "--allow-private")
    assert result.status == 0
    assert "bonobot mcp apply" in result.out


def test_a_server_is_added_disabled_unless_it_is_enabled(acme, bonobot, declare):
    http = declare("other", WEATHER).http
    arguments = ("--server-type", "http", "--url", http.url, "--allow-private")
    requests = len(http.asked)
    assert bonobot("tools", "add-mcp", "my-api", *arguments).status == 0
    added = Server.objects.get(name="my-api")
    assert (added.enabled, added.status) == (False, "disabled")
    assert len(http.asked) == requests
    for flag, enabled in (("--enable", True), ("--enable=false", False)):
        assert bonobot("tools", "toggle-mcp", "my-api", flag).status == 0
        assert Server.objects.get(name="my-api").enabled is enabled
    assert bonobot("tools", "add-mcp", "now", *arguments, "--enable").status == 0
    assert Server.objects.get(name="now").definitions.count() == 1
    assert {server["name"] for server in bonobot("tools", "list-mcp", "--json").json} == {
        *("other", "my-api", "now")
    }
    assert bonobot("tools", "test-mcp", "now", "--json").json["tools_discovered"] == 1
    assert bonobot("tools", "remove-mcp", "my-api").status == 0
    assert not Server.objects.filter(name="my-api").exists()


def test_the_remedy_of_a_private_address_is_an_option_of_the_command(acme, bonobot):
    """The specification's own example is at `localhost`."""
    arguments = ("--server-type", "http", "--url", "http://localhost:8080/mcp", "--enable")
    ran = bonobot("tools", "add-mcp", "my-api", *arguments, "--json")
    assert (ran.status, ran.error["code"]) == (1, "private_address")
    assert "--allow-private" in ran.error["remedy"]


def test_a_command_line_in_one_string_is_split(acme, bonobot):
    command = "npx -y @modelcontextprotocol/server-github"
    assert bonobot("tools", "add-mcp", "github", "--command", command).status == 0
    assert Server.objects.get().endpoint_config == {
        "command": "npx",
        "args": ["-y", "@modelcontextprotocol/server-github"],
    }


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (("--command", "npx x@1.0.0", "--bearer", "t"), "--bearer"),
        (("--command", "npx x@1.0.0", "--header", "A=b"), "--header"),
        (("--url", "https://mcp.example.com", "--env", "A=b"), "--env"),
        (("--url", "https://mcp.example.com", "--cwd", "/srv"), "--cwd"),
        (("--url", "https://mcp.example.com", "--set", "A=b"), "--set"),
        (("--preset", "time", "--bearer", "t"), "--bearer"),
    ],
)
def test_an_option_without_effect_is_refused(acme, bonobot, options, field):
    result = bonobot("mcp", "add", "some", *options, "--json")
    assert (result.error["code"], result.error["field"]) == ("no_effect", field)
    assert not Server.objects.exists()


def test_snippets_name_the_address_of_the_running_server(tmp_path):
    assert read_running_url(tmp_path) == ""
    write_statuses(tmp_path, [ProcessStatus("web", "running")], "http://127.0.0.1:9000")
    assert read_running_url(tmp_path) == "http://127.0.0.1:9000"
    delete_statuses(tmp_path)
    assert read_running_url(tmp_path) == ""


def test_a_new_organization_doesnt_become_anyones_current_one(acme, bonobot):
    administrator = rest.as_administrator()
    assert bonobot("org", "add", "Aardvark").status == 0
    assert administrator.get("me").json["organization"] == acme.slug


def test_the_printed_next_step_of_a_new_organization_works_as_printed(acme, bonobot):
    printed = bonobot("org", "add", "other")
    _program, *arguments = printed.out.splitlines()[-1].replace("EMAIL", "a@b.example").split()
    invited = bonobot(*arguments, "--json")
    assert (invited.status, Invitation.objects.get().organization.slug) == (0, "other"), invited.err


def test_a_package_without_a_version_is_a_warning(acme, bonobot):
    line = "npx -y @modelcontextprotocol/server-github"
    result = bonobot("tools", "add-mcp", "github", "--command", line)
    assert (result.status, result.err.split()[:2]) == (0, ["!", "`npx`"])
