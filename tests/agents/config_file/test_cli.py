"""`bonobot mcp export|apply`: plans, idempotent and atomic changes, no secrets in the output."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from agents.assignments import list_callable_agents
from agents.budgets.services import list_budgets
from agents.models import Agent, AgentServer, Budget, ModelEndpoint
from agents.policies.services import load_policy_spec
from agents.policies.shadow_mode import find_draft
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow, Head
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Secret, Server
from tests import factories
from tests.agents.conftest import WORKSHOP
from tests.command_line import acme, bonobot

__all__ = ["acme", "bonobot"]

pytestmark = pytest.mark.django_db(transaction=True)

FILE = f"""\
bonobot: 1
budgets:
  - {{unit: microusd, period: month, limit: 20000000}}
policy_draft:
  mode: all
  deny: [current_time]
model_endpoints:
  offline:
    kind: offline
    model: offline
  big:
    name: Big
    kind: openai
    base_url: https://models.example.com/v1
    model: big-1
    context_window: 32000
    selectable: true
    api_key: ${{MODEL_KEY}}
servers:
  workshop:
    command: {sys.executable}
    args: [{WORKSHOP}, stdio]
    env: {{KEY: "${{WORKSHOP_SECRET}}"}}
    approval: first
    description: Tools to test with
    allowed_tools: [echo, "*a*"]
    budgets:
      - {{unit: calls, period: month, limit: 500, warn_at: 50}}
  docs:
    url: https://docs.example.com/mcp
    headers: {{Authorization: "Bearer ${{DOCS_TOKEN}}"}}
    enabled: false
agents:
  helper:
    name: Helper
    model: offline
    instructions: |
      Be kind.
      Use ${{NOTHING}} as it is.
    max_turns: 7
    tool_search_above: 12
    tools_in_prompt: true
    output_schema:
      type: object
      properties: {{count: {{type: integer}}}}
    policy:
      mode: allowlist
      allow: [mcp_workshop_*, read_result]
      deny: [mcp_workshop_crash]
    policy_draft:
      mode: denylist
      ask: [mcp_workshop_echo]
    budgets:
      - {{unit: tokens, period: day, limit: 100000}}
    servers:
      workshop:
        denied_tools: [crash]
        allowed_resources: ["docs://*", "docs://pages/{{page}}"]
        allowed_prompts: [review]
      docs: {{enabled: false}}
    builtin_tools: [notes]
    callable_agents: [helper]
skills:
  release-notes:
    description: Writes the notes of a release
    text: |
      Write release notes for ${{version}}.
    arguments:
      - {{name: version, required: true, choices: ["1.0", "2.0"]}}
    agents: [helper]
workflows:
  tell:
    agent: helper
    inputs: {{type: object, properties: {{version: {{type: string}}}}}}
    steps:
      - id: read
        call: read_skill
        arguments: {{name: release-notes}}
        when: {{/inputs/version: {{const: "1.0"}}}}
    outputs: {{said: "${{/steps/read/text:-no}}"}}
    agents: [helper]
    triggers:
      nightly:
        kind: schedule
        cron: 0 3 * * *
        time_zone: Europe/Berlin
        inputs: {{version: "1.0"}}
      alerts: {{kind: webhook, per_minute: 5, enabled: false, inputs: {{version: "${{/body/v}}"}}}}
"""


@pytest.fixture(autouse=True)
def _environment(acme, monkeypatch):
    for name in ("MODEL_KEY", "WORKSHOP_SECRET", "DOCS_TOKEN"):
        monkeypatch.setenv(name, f"s3cret-{name}")
    yield
    for server in Server.objects.all():
        get_runtime().call(get_connection_pool().forget_server, server.pk)


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="bonobot.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return write_file


@pytest.fixture
def applied_config(bonobot, write):
    result = bonobot("mcp", "apply", write(FILE), "--json")
    assert result.status == 0, result.out + result.err
    return result.json


def test_everything_in_the_file_is_created(applied_config):
    assert {step["action"] for step in applied_config["steps"]} == {"create", "change"}
    assert applied_config["discovery"]["workshop"]["tools"] == 8
    assert "docs" not in applied_config["discovery"]
    agent = Agent.objects.get(slug="helper")
    assert (agent.max_turns, agent.tool_search_above) == (7, 12)
    assert agent.tools_in_prompt is True
    assert agent.output_schema["properties"] == {"count": {"type": "integer"}}
    assert agent.model_endpoint.slug == "offline"
    assert agent.instructions == "Be kind.\nUse ${NOTHING} as it is.\n"
    assert set(load_policy_spec(agent).allow) == {"mcp_workshop_*", "read_result"}
    agent_server = AgentServer.objects.get(server__name="workshop")
    assert agent_server.denied_tools == ["crash"]
    assert agent_server.allowed_resources == ["docs://*", "docs://pages/{page}"]
    assert agent_server.allowed_prompts == ["review"]
    assert Server.objects.get(name="workshop").only_tools == ["echo", "*a*"]
    assert Budget.objects.get(agent=agent).limit == 100000
    assert Secret.objects.get(name="KEY").value.open() == "s3cret-WORKSHOP_SECRET"
    assert Secret.objects.get(name="token").value.open() == "s3cret-DOCS_TOKEN"
    assert ModelEndpoint.objects.get(slug="big").api_key.open() == "s3cret-MODEL_KEY"


def test_skills_and_toolsets_are_applied_and_exported(applied_config, bonobot, write):
    agent = Agent.objects.get(slug="helper")
    assert agent.builtin_tools == {"notes": {}}
    assert list_callable_agents(agent) == ["helper"]
    skill = agent.assignments.get(skill__isnull=False).skill
    assert (skill.text, skill.version) == ("Write release notes for ${version}.\n", 1)
    assert skill.arguments[0]["choices"] == ["1.0", "2.0"]
    workflow = agent.workflows.get()
    assert workflow.definition["outputs"] == {"said": "${/steps/read/text:-no}"}
    assert workflow.assignments.get().agent == agent
    alerts, nightly = workflow.triggers.all()
    assert (alerts.per_minute, alerts.enabled, bool(alerts.secret)) == (5, False, False)
    assert (nightly.cron, nightly.time_zone) == ("0 3 * * *", "Europe/Berlin")
    invalid_workflow = (
        "workflows:\n  a: {agent: helper, steps: [{id: a, call: b, when: {/x: {}}}]}\n"
    )
    result = bonobot("mcp", "apply", write(invalid_workflow), "--json")
    assert [problem["field"] for problem in result.json["problems"]] == [
        "workflows.a.steps[0].when./x"
    ]
    invalid_skill = "skills:\n  a: {text: 'Use ${b}', agents: [nobody], arguments: [1]}\n"
    result = bonobot("mcp", "apply", write(invalid_skill), "--json")
    assert result.status == 1
    fields = [problem["field"] for problem in result.json["problems"]]
    assert fields == ["skills.a.arguments", "skills.a.agents"]
    result = bonobot("mcp", "apply", write("skills:\n  a: {text: 'Use ${b}'}\n"), "--json")
    assert [problem["field"] for problem in result.json["problems"]] == ["skills.a.text"]
    assert bonobot("mcp", "apply", write("skills: {}"), "--prune", "--yes", "--json").status == 0
    assert not agent.assignments.filter(skill__isnull=False).exists()


def test_drafts_and_budgets_are_applied_and_exported(acme, applied_config):
    (organization_budget,) = list_budgets(acme)
    assert (organization_budget.unit, organization_budget.limit) == ("microusd", 20_000_000)
    (server_budget,) = list_budgets(Server.objects.get(name="workshop"))
    assert (server_budget.unit, server_budget.limit, server_budget.warn_at) == ("calls", 500, 50)
    assert find_draft(acme).spec.deny == ("current_time",)
    assert find_draft(Agent.objects.get()).spec.ask == ("mcp_workshop_echo",)
    assert load_policy_spec(acme).mode == "all"


def test_applying_again_changes_and_records_nothing(bonobot, write, applied_config):
    before = AuditRow.objects.count(), Head.objects.get().generation
    result = bonobot("mcp", "apply", write(FILE), "--json")
    assert result.status == 0
    assert {step["action"] for step in result.json["steps"]} == {"unchanged"}
    assert (AuditRow.objects.count(), Head.objects.get().generation) == before
    assert "No changes." in bonobot("mcp", "apply", write(FILE)).out


def test_applying_an_export_changes_nothing(bonobot, write, applied_config, monkeypatch):
    text = bonobot("mcp", "export").out
    assert "s3cret" not in text
    assert '- "*a*"' in text or "- '*a*'" in text
    for name, value in (
        ("WORKSHOP_KEY", "WORKSHOP_SECRET"),
        ("DOCS_TOKEN", "DOCS_TOKEN"),
        ("BIG_API_KEY", "MODEL_KEY"),
    ):
        assert f"${{{name}}}" in text
        monkeypatch.setenv(name, f"s3cret-{value}")
    result = bonobot("mcp", "apply", write(text), "--prune", "--yes", "--json")
    assert result.status == 0, result.out
    assert {step["action"] for step in result.json["steps"]} == {"unchanged"}


def test_a_plan_lists_changed_fields_and_no_secrets(bonobot, write, applied_config, monkeypatch):
    monkeypatch.setenv("WORKSHOP_SECRET", "another-s3cret")
    text = FILE.replace("max_turns: 7", "max_turns: 9").replace("limit: 100000", "limit: 5")
    result = bonobot("mcp", "apply", write(text), "--dry-run", "--json")
    changed = {
        (step["kind"], step["name"]): step["fields"]
        for step in result.json["steps"]
        if step["action"] == "change"
    }
    assert changed == {
        ("server", "workshop"): ["env.KEY"],
        ("agent", "helper"): ["max_turns"],
        ("budgets", "helper"): ["budgets"],
    }
    assert "s3cret" not in result.out
    assert Agent.objects.get().max_turns == 7
    assert result.json["applied"] is False


def test_a_dry_run_of_a_new_file_writes_nothing(bonobot, write):
    result = bonobot("mcp", "apply", write(FILE), "--dry-run", "--json")
    assert (result.status, result.json["problems"]) == (0, [])
    counts = [model.objects.count() for model in (Server, Agent, Secret, ModelEndpoint, AuditRow)]
    assert counts == [0] * 5


def test_only_prune_deletes_and_only_in_the_sections_of_the_file(bonobot, write, applied_config):
    text = "agents: {}\n"
    result = bonobot("mcp", "apply", write(text), "--json")
    assert (result.json["steps"], Agent.objects.count()) == ([], 1)
    result = bonobot("mcp", "apply", write(text), "--prune", "--json")
    assert (result.json["applied"], Agent.objects.count()) == (False, 1)
    result = bonobot("mcp", "apply", write(text), "--prune", "--yes", "--json")
    assert [(step["kind"], step["action"]) for step in result.json["steps"]] == [
        ("agent", "remove")
    ]
    assert (Agent.objects.count(), Server.objects.count()) == (0, 2)


def test_prune_detaches_servers_that_the_file_omits(bonobot, write, applied_config):
    text = FILE.replace("      docs: {enabled: false}\n", "")
    result = bonobot("mcp", "apply", write(text), "--prune", "--yes", "--json")
    removed = [step["name"] for step in result.json["steps"] if step["action"] == "remove"]
    assert removed == ["helper/docs"]
    assert [agent_server.server.name for agent_server in AgentServer.objects.all()] == ["workshop"]


def test_a_disabled_server_is_attached_only_by_the_file_that_creates_it(
    bonobot, write, applied_config
):
    assert AgentServer.objects.filter(server__name="docs").exists()  # created by the same file
    AgentServer.objects.get(server__name="docs").delete()
    assert not AgentServer.objects.filter(server__name="docs").exists()
    result = bonobot("mcp", "apply", write(FILE), "--yes", "--json")
    [problem] = result.json["problems"]
    assert (result.status, problem["code"]) == (1, "server_disabled")
    assert problem["field"].startswith("agents.helper.servers.docs")
    enabled = FILE.replace("    enabled: false\nagents:", "    enabled: true\nagents:")
    assert enabled != FILE
    assert bonobot("mcp", "apply", write(enabled), "--yes", "--no-discover").status == 0
    assert AgentServer.objects.filter(server__name="docs").exists()


INVALID_FILES = {
    "an unknown member": ("max_turns: 7", "max_turn: 7", "unknown_field", "agents.helper.max_turn"),
    "a wrong type": ("max_turns: 7", "max_turns: many", "bad_value", "agents.helper.max_turns"),
    "an unknown model": (
        "model: offline\n    i",
        "model: x\n    i",
        "not_found",
        "agents.helper.model",
    ),
    "an unknown server": ("docs: {e", "dogs: {e", "not_found", "agents.helper.servers.dogs"),
    "an unknown rule": ("mcp_workshop_*", "mcp_nowhere_*", "rule_unknown_server", "agents.helper"),
    "a bad budget": ("period: day", "period: hour", "invalid", "agents.helper.budgets[0].period"),
    "an empty unit": ("tokens, period: day", "'', period: day", "invalid", "agents.helper.budgets"),
    "a long timeout": (
        "context_window: 32000",
        "timeout_s: 3601",
        "invalid",
        "model_endpoints.big.timeout_s",
    ),
    "a bad url": ("https://docs", "ftp://docs", "bad_url", "servers.docs.url"),
    "a bad launcher": (sys.executable, "rm", "launcher_not_allowed", "servers.workshop"),
    "a bad mode": ("mode: allowlist", "mode: some", "unknown_mode", "agents.helper.mode"),
    "a wrong approval": ("approval: first", "approval: maybe", "invalid", "servers.workshop"),
    "a left out value": ("DOCS_TOKEN", "UNSET_HERE", "missing_value", "servers.docs.headers"),
    "a variable of ours": ("DOCS_TOKEN", "DATABASE_URL", "forbidden_variable", "servers.docs"),
    "a strange server member": (
        "    enabled: false",
        "    jail: yes",
        "unknown_field",
        "servers.docs",
    ),
    "a bad slug": ("  big:", "  big model:", "bad_slug", "model_endpoints.big model"),
    "a version of tomorrow": ("bonobot: 1", "bonobot: 2", "unknown_version", "bonobot"),
}


@pytest.mark.parametrize(
    ("old", "new", "code", "path"), INVALID_FILES.values(), ids=INVALID_FILES.keys()
)
def test_errors_have_document_and_path_and_nothing_is_written(bonobot, write, old, new, code, path):
    assert old in FILE
    result = bonobot("mcp", "apply", write("---\n" + FILE.replace(old, new)), "--yes", "--json")
    assert result.status == 1, result.out
    problem = next(row for row in result.json["problems"] if row["code"] == code)
    assert problem["field"].startswith(path)
    assert (problem["document"], problem["line"] > 0) == (1, True)
    assert problem["remedy"]
    assert not Server.objects.exists()
    assert not Agent.objects.exists()
    assert not AuditRow.objects.exists()


def test_an_object_that_cant_be_deleted_stops_everything(bonobot, write, applied_config):
    text = "model_endpoints: {}\nservers: {}\n"
    result = bonobot("mcp", "apply", write(text), "--prune", "--yes", "--json")
    (problem,) = result.json["problems"]
    assert (result.status, problem["code"]) == (1, "in_use")
    assert problem["field"] == "model_endpoint offline"
    assert (Server.objects.count(), ModelEndpoint.objects.count()) == (2, 2)


def test_the_example_of_the_documentation_works(bonobot, write, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "configuration-file.md").read_text("utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    for name in set(re.findall(r"\$\{(\w+)\}", example)):
        monkeypatch.setenv(name, "x")
    result = bonobot("mcp", "apply", write(example), "--dry-run", "--json")
    assert (result.status, result.json["problems"]) == (0, [])


def test_errors_are_printed_with_their_position(bonobot, write):
    result = bonobot("mcp", "apply", write("agents: {}\n---\nservers:\n  x: {url: 7}\n"))
    assert result.status == 1
    assert "document 2, line 4, servers.x" in result.out
    assert "Nothing was changed." in result.out


@pytest.mark.parametrize(
    ("text", "code"),
    [("", "nothing_to_import"), ("---\n", "nothing_to_apply"), ("a: [", "broken_yaml")],
)
def test_an_unreadable_file_is_explained(bonobot, write, text, code):
    result = bonobot("mcp", "apply", write(text), "--json")
    assert (result.status, result.error["code"]) == (1, code)


def test_the_export_for_other_clients_has_placeholders_for_secrets(bonobot, acme, applied_config):
    servers = json.loads(bonobot("mcp", "export", "--format", "mcpServers").out)["mcpServers"]
    assert servers["docs"] == {
        "type": "http",
        "url": "https://docs.example.com/mcp",
        "headers": {"Authorization": "Bearer ${DOCS_TOKEN}"},
        "disabled": True,
    }
    assert servers["workshop"]["env"] == {"KEY": "${WORKSHOP_KEY}"}
    factories.create_stdio_server(acme)
    agent_export = json.loads(
        bonobot("mcp", "export", "--agent", "helper", "--format", "mcpServers").out
    )
    assert sorted(agent_export["mcpServers"]) == ["docs", "workshop"]


def test_the_export_of_an_agent_has_everything_it_needs(bonobot, acme, applied_config):
    factories.create_stdio_server(acme)
    exported = yaml.safe_load(bonobot("mcp", "export", "--agent", "helper").out)
    assert sorted(exported["servers"]) == ["docs", "workshop"]
    assert list(exported["model_endpoints"]) == ["offline"]
    assert exported == bonobot("mcp", "export", "--agent", "helper", "--json").json
