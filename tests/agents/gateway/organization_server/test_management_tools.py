"""Management tools at `/mcp`: the operations of REST, with the same permissions."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from agents.gateway.organization_server.handlers import load_tools
from agents.gateway.organization_server.management_tools import (
    OPERATIONS,
    RENAMED_TOOLS,
    list_management_tools,
)
from agents.models import Agent, Note, Workflow, WorkflowRun
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role, TokenScope
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Server
from tests import factories, rest
from tests.agents.gateway.conftest import token_of
from tests.agents.gateway.organization_server.conftest import PATH, Client

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "s3cr3t-of-the-other-side"


@pytest.fixture
def workflow(helper: Agent) -> Workflow:
    return factories.create_workflow(helper)


def test_agents_are_created_updated_and_listed_by_page(
    acme: Organization, helper: Agent, client: Client
) -> None:
    created = client.use("create_agent", name="Second", instructions="You count.", max_turns=3)
    assert (created["slug"], created["max_turns"]) == ("second", 3)
    changed = client.use("update_agent", agent_id="second", description="Counts things")
    assert (changed["description"], changed["max_turns"]) == ("Counts things", 3)
    assert client.use("get_agent", agent_id="second") == changed
    owner = rest.as_role(acme, Role.OWNER)
    assert changed == owner.get("agents/second").json
    first = client.use("list_agents", limit=1)
    second = client.use("list_agents", limit=1, cursor=first["next"])
    assert [agent["slug"] for agent in (*first["results"], *second["results"])] == [
        "helper",
        "second",
    ]
    assert second["next"] is None
    assert client.use("list_agents", q="sec", enabled=True)["results"] == [changed]
    assert "second_chat" in client.tools()
    change = AuditRow.objects.get(action="agent_created", resource_name="Second")
    assert change.actor_label == "tests"


def test_a_renamed_tool_can_be_called_by_its_old_name(helper: Agent, client: Client) -> None:
    assert set(RENAMED_TOOLS.values()) <= set(client.tools())
    assert not set(RENAMED_TOOLS) & set(client.tools())
    reply = client.call("add_agent", {"name": "Second"})
    assert reply.result["structuredContent"]["slug"] == "second"


def test_errors_have_the_same_codes_as_in_rest(helper: Agent, client: Client) -> None:
    def get_code(name: str, /, **arguments: Any) -> str:
        reply = client.call(name, arguments)
        assert reply.result["isError"] is True
        return reply.code

    assert get_code("create_agent", name="Helper", slug="helper") == "name_taken"
    assert get_code("create_agent", slug="x") == "invalid_arguments"
    assert get_code("create_agent", name="A", nothing=1) == "invalid_arguments"
    assert get_code("get_agent", agent_id="nobody") == "not_found"
    assert get_code("list_agents", cursor="x") == "bad_cursor"
    assert get_code("list_notes", agent_id="../../tokens") == "not_found"
    problem = client.call("create_agent", {"name": "Helper", "slug": "helper"}).result["_meta"]
    assert problem["bonobot/problem"]["remedy"]


def test_servers_are_created_updated_and_attached_without_recording_secrets(
    acme: Organization, helper: Agent, client: Client
) -> None:
    created = client.use(
        "create_server",
        name="docs",
        transport_type="http",
        endpoint_config={"url": "https://mcp.example.com/mcp", "headers": {"X-Own": SECRET}},
        auth_config={"type": "bearer_token", "token": SECRET + "2"},
    )
    assert client.use("get_server", server_id=created["id"])["name"] == "docs"
    changed = client.use("update_server", server_id=created["id"], description="The docs")
    assert changed["description"] == "The docs"
    assert [server["name"] for server in client.use("list_servers")["results"]] == ["docs"]
    attached = client.use(
        "attach_server_to_agent", agent_id="helper", server_id=created["id"], allowed_tools=["*"]
    )
    assert (attached["allowed_tools"], attached["enabled"]) == (["*"], True)
    disabled = client.use(
        "update_agent_server", agent_id="helper", server_id=created["id"], enabled=False
    )
    assert disabled["enabled"] is False
    assert len(client.use("list_agent_servers", agent_id="helper")["results"]) == 1
    presets = client.use("list_presets", limit=500)["results"]
    assert presets
    returned = json.dumps([created, changed, attached])
    recorded = "".join(row.opened + row.closed for row in AuditRow.objects.all())
    assert SECRET not in returned + recorded
    assert AuditRow.objects.filter(action="gateway_call", tool_name="create_server").count() == 1


def test_notes_are_created_updated_and_deleted(helper: Agent, client: Client) -> None:
    note = client.use("create_note", agent_id="helper", title="Day", text="Tuesday")
    ids = {"agent_id": "helper", "note_id": note["id"]}
    assert client.use("update_note", **ids, text="Friday")["text"] == "Friday"
    assert len(client.use("list_notes", agent_id="helper", q="friday")["results"]) == 1
    assert client.use("delete_note", **ids) == {"removed": True}
    assert not Note.objects.exists()


def test_skills_are_read_rendered_and_run(
    acme: Organization, helper: Agent, client: Client, running_worker: None
) -> None:
    arguments = [{"name": "who", "required": True}]
    spec = SkillSpec(name="greet", text="hello ${who}", arguments=arguments, agents=["helper"])
    save_skill(factories.build_administrator(acme), spec)
    assert [item["name"] for item in client.use("list_skills")["results"]] == ["greet"]
    assert client.use("get_skill", skill_id="greet")["agents"] == ["helper"]
    values = {"skill_id": "greet", "arguments": {"who": "Ada"}}
    assert client.use("render_skill", **values) == {"text": "hello Ada"}
    session = client.use("run_skill", **values, agent="helper")
    status = client.use("session_status", session_id=session["id"], wait_s=30)
    assert (status["status"], bool(status["answer"])) == ("done", True)
    listed = client.use("list_sessions", agent="helper")["results"]
    assert [item["id"] for item in listed] == [session["id"]]


def test_workflows_are_run_and_read(
    helper: Agent, workflow: Workflow, client: Client, running_worker: None
) -> None:
    assert [item["name"] for item in client.use("list_workflows")["results"]] == ["tell"]
    assert client.use("get_workflow", workflow_id="tell")["id"] == str(workflow.pk)
    run = client.use("run_workflow", workflow_id="tell", inputs={})
    client.use("session_status", session_id=run["session"]["id"], wait_s=30)
    finished = client.use("get_workflow_run", run_id=run["id"])
    assert finished["session"]["status"] in ("done", "failed")
    assert [item["id"] for item in finished["steps"]] == ["look"]
    assert len(client.use("list_workflow_runs", workflow_id="tell")["results"]) == 1
    assert client.use("cancel_workflow_run", run_id=run["id"])["id"] == run["id"]
    assert WorkflowRun.objects.count() == 1


@pytest.mark.parametrize("role", list(Role))
def test_a_role_sees_only_its_tools_and_others_are_unknown(
    role: Role, acme: Organization, helper: Agent, client: Client
) -> None:
    administrator = factories.build_administrator(acme)
    other_client = Client(client.gateway_client, token_of(administrator, role))
    listed, everything = set(other_client.tools()), set(client.tools())
    assert listed <= everything
    assert ("create_agent" in listed) == (role in (Role.OWNER, Role.OPERATOR))
    assert ("run_workflow" in listed) == (role in (Role.OWNER, Role.OPERATOR, Role.MEMBER))
    assert ("list_servers" in listed) == (role != Role.MEMBER)
    hidden = sorted(everything - listed)[:3]
    for name in hidden:
        assert other_client.call(name).error == {"code": -32602, "message": f"Unknown tool: {name}"}


def test_a_token_for_one_agent_has_no_management_tools(
    acme: Organization, helper: Agent, client: Client
) -> None:
    administrator = factories.build_administrator(acme)
    factories.create_agent(acme, "other")
    limited = Client(
        client.gateway_client, token_of(administrator, Role.OWNER, agent_ids=[helper.pk])
    )
    listed = set(limited.tools())
    writes = {
        "create_agent",
        "update_agent",
        "create_server",
        "create_note",
        "list_servers",
        "list_notes",
    }
    assert not writes & listed
    assert {"list_agents", "run_skill", "list_sessions"} <= listed
    assert [agent["slug"] for agent in limited.use("list_agents")["results"]] == ["helper"]
    assert limited.call("get_agent", {"agent_id": "other"}).code == "not_found"


def test_the_mcp_scopes_of_a_token_decide_its_tools(
    acme: Organization, helper: Agent, client: Client
) -> None:
    administrator = factories.build_administrator(acme)

    def create_client(scope: TokenScope) -> Client:
        return Client(client.gateway_client, token_of(administrator, scopes=[scope]))

    runs, manages = create_client(TokenScope.AGENTS), create_client(TokenScope.MANAGE)
    assert {"helper_chat", "run_skill", "list_agents"} <= set(runs.tools())
    assert not {"create_agent", "create_note"} & set(runs.tools())
    assert runs.use("list_agents")["results"]
    assert not {"helper_chat", "run_skill"} & set(manages.tools())
    assert manages.use("create_agent", name="Second")["slug"] == "second"
    reply = client.gateway_client.modern(
        PATH, "tools/list", token=create_client(TokenScope.TOOLS).token
    )
    assert (reply.status, reply.message["code"]) == (403, "insufficient_scope")
    assert reply.message["scopes"] == ["mcp:agents", "mcp:manage", "api"]


def test_organizations_are_isolated(acme: Organization, helper: Agent, client: Client) -> None:
    administrator = factories.build_administrator(factories.create_organization("other"))
    other_client = Client(client.gateway_client, token_of(administrator))
    assert other_client.use("list_agents")["results"] == []
    assert other_client.call("update_agent", {"agent_id": str(helper.pk)}).code == "not_found"
    assert "helper_chat" not in other_client.tools()


def test_every_tool_has_valid_schemas_and_correct_hints(acme: Organization, helper: Agent) -> None:
    tools = load_tools(factories.build_administrator(acme))
    assert len(list_management_tools(factories.build_administrator(acme))) == len(OPERATIONS)
    for name, tool in tools.items():
        declaration = tool.declaration
        for schema in (declaration["inputSchema"], declaration["outputSchema"]):
            Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object", name
        assert tool.input_schema.verdict is not None
        assert declaration["description"].strip(), name
        assert "Roles:" not in declaration["description"], name
        assert len(name) <= 64
        hints = declaration["annotations"]
        read_only = name.startswith(("list_", "get_", "render_")) or name.endswith(
            ("_status", "_messages")
        )
        assert hints["readOnlyHint"] == read_only, name
        assert ("destructiveHint" in hints) == (not read_only), name


def test_a_server_is_discovered_again(workshop: Server, client: Client) -> None:
    server = client.use("refresh_server", server_id=str(workshop.pk))
    assert server["status"] == "connected"
