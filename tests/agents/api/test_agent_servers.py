"""The servers of an agent over REST: the paths and shapes of the specification."""

from typing import Any

import pytest

from agents.models import Agent, AgentServer
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from mcp_servers.models import Definition, Server
from tests import factories, rest
from tests.rest import Rest

pytestmark = pytest.mark.django_db

AWS = {
    "name": "aws-s3",
    "transport_type": "stdio",
    "endpoint_config": {
        "command": "npx",
        "args": ["-y", "@aws/mcp-server-s3@1.0.0"],
        "env": {"AWS_REGION": "us-east-1"},
    },
    "auth_config": {"type": "none"},
    "enabled": True,
}
HTTP = {
    "name": "docs",
    "transport_type": "http",
    "endpoint_config": {"url": "https://mcp.example.com/mcp"},
    "auth_config": {"type": "api_key", "header": "X-Key", "key": "key-in-the-clear"},
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


@pytest.fixture
def operator(acme: Organization, helper: Agent) -> Rest:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def path(helper: Agent) -> str:
    return f"agents/{helper.pk}/mcp-servers"


@pytest.fixture
def pooled(acme: Organization) -> Server:
    return in_pool(acme, "pooled")


def in_pool(acme: Organization, name: str) -> Server:
    server: Server = Server.objects.create(
        organization=acme,
        scope_id=acme.pk,
        name=name,
        slug=name,
        transport_type="http",
        endpoint_config={"url": "https://x.example/"},
    )
    Definition.objects.create(
        organization=acme,
        server=server,
        kind="tool",
        name="list_buckets",
        description="List S3 buckets",
        payload={"name": "list_buckets", "inputSchema": {"type": "object", "properties": {}}},
        digest="d",
    )
    return server


def names(answer: rest.Answer) -> list[tuple[str, str]]:
    return [(server["name"], server["scope"]) for server in answer.json["results"]]


def test_the_example_of_the_specification_is_accepted(acme, helper, path):
    root = rest.as_administrator()
    made = root.post(path, AWS)
    assert made.status == 201
    expected: dict[str, Any] = {
        "agent_id": str(helper.pk),
        "scope": "agent",
        "name": "aws-s3",
        "transport_type": "stdio",
        "endpoint_config": AWS["endpoint_config"] | {"env": {"AWS_REGION": MASK}},
        "auth_config": {"type": "none", "configured": False},
        "enabled": True,
        "discovered_tools": [],
        "last_connected_at": None,
    }
    assert {name: made.json[name] for name in expected} == expected
    server = Server.objects.get()
    assert (server.scope_id, str(server.pk)) == (helper.pk, made.json["id"])
    assert root.get(f"{path}/{server.pk}").json == made.json
    assert names(root.get(path)) == [("aws-s3", "agent")]


def test_a_private_server_isnt_in_the_pool(operator, path):
    operator.post(path, HTTP)
    assert operator.get("mcp-servers").json["results"] == []


def test_two_agents_can_have_private_servers_with_one_name(acme, operator, path):
    other = factories.create_agent(acme, "other")
    assert operator.post(path, HTTP).status == 201
    assert operator.post(f"agents/{other.pk}/mcp-servers", HTTP).status == 201
    assert operator.post(path, HTTP).code == "name_taken"


def test_a_pool_server_is_attached_by_its_id(operator, helper, path, pooled):
    made = operator.post(path, {"server_id": str(pooled.pk), "allowed_tools": ["list_*"]})
    assert (made.status, made.json["scope"]) == (201, "pool")
    assert made.json["agent_id"] == str(helper.pk)
    assert made.json["discovered_tools"] == [
        {
            "name": "list_buckets",
            "description": "List S3 buckets",
            "input_schema": {"type": "object", "properties": {}},
        }
    ]
    assert helper.agent_servers.get().allowed_tools == ["list_*"]


def test_attaching_again_changes_only_the_given_fields(operator, helper, path, pooled):
    operator.post(path, {"server_id": str(pooled.pk), "allowed_tools": ["list_*"]})
    again = operator.post(path, {"server_id": str(pooled.pk), "enabled": False})
    assert (again.status, again.json["enabled"]) == (200, False)
    agent_server = helper.agent_servers.get()
    assert (agent_server.enabled, agent_server.allowed_tools) == (False, ["list_*"])
    pooled.refresh_from_db()
    assert pooled.enabled


def test_tools_must_be_selected_or_all_requested_explicitly(operator, helper, path, pooled):
    bound = {"server_id": str(pooled.pk)}
    for choice, code in (([], "nothing_chosen"), (["list_bucket"], "unknown_tool")):
        answer = operator.post(path, bound | {"allowed_tools": choice})
        assert (answer.status, answer.code) == (400, code)
        assert answer.json["field"] == "allowed_tools"
    assert not helper.agent_servers.exists()
    made = operator.post(path, bound | {"allowed_tools": ["*"]})
    assert (made.status, made.json["allowed_tools"]) == (201, ["*"])


def test_an_attachment_is_updated_field_by_field(operator, helper, path, pooled):
    operator.post(path, {"server_id": str(pooled.pk), "allowed_tools": ["list_*"]})
    one = f"{path}/{pooled.pk}"
    off = operator.patch(one, {"enabled": False})
    assert (off.status, off.json["enabled"], off.json["allowed_tools"]) == (200, False, ["list_*"])
    assert operator.patch(one, {"denied_tools": ["x"]}).json["denied_tools"] == ["x"]
    everything = operator.patch(one, {"allowed_tools": ["*"], "enabled": True})
    assert (everything.json["allowed_tools"], everything.json["enabled"]) == (["*"], True)
    assert operator.patch(one, {"allowed_tools": []}).code == "nothing_chosen"
    assert operator.patch(one, {"server_id": str(pooled.pk)}).code == "unknown_field"
    agent_server = helper.agent_servers.get()
    assert (agent_server.allowed_tools, agent_server.denied_tools) == ([], ["x"])


def test_private_and_attached_servers_are_listed_together(operator, path, pooled):
    operator.post(path, HTTP)
    operator.post(path, {"server_id": str(pooled.pk)})
    assert names(operator.get(path)) == [("docs", "agent"), ("pooled", "pool")]


def test_a_put_replaces_a_private_server_and_keeps_its_credential(operator, path):
    made = operator.post(path, HTTP).json
    body = {name: HTTP[name] for name in ("name", "transport_type")}
    body |= {"endpoint_config": {"url": "https://mcp.example.com/v2"}, "enabled": False}
    answer = operator.put(f"{path}/{made['id']}", body)
    assert answer.json["endpoint_config"] == {"url": "https://mcp.example.com/v2"}
    assert answer.json["auth_config"] == {"type": "api_key", "header": "X-Key", "configured": True}
    assert answer.json["enabled"] is False
    assert Server.objects.get().secrets.get().value.open() == "key-in-the-clear"


def test_a_pool_server_cant_be_changed_through_an_agent(operator, path, pooled):
    operator.post(path, {"server_id": str(pooled.pk)})
    answer = operator.put(f"{path}/{pooled.pk}", HTTP)
    assert (answer.status, answer.code) == (409, "pool_server")
    assert str(pooled.pk) in answer.json["remedy"]


def test_deleting_detaches_a_pool_server_and_deletes_a_private_one(operator, path, pooled):
    private = operator.post(path, HTTP).json["id"]
    operator.post(path, {"server_id": str(pooled.pk)})
    for server_id in (private, str(pooled.pk)):
        assert operator.delete(f"{path}/{server_id}").status == 204
        assert operator.delete(f"{path}/{server_id}").status == 404
    assert list(Server.objects.all()) == [pooled]
    assert not AgentServer.objects.exists()


def test_a_server_that_isnt_attached_isnt_found(operator, path, pooled):
    for method, body in (("GET", None), ("PUT", HTTP), ("PATCH", {}), ("DELETE", None)):
        answer = operator.send(method, f"{path}/{pooled.pk}", body)
        assert (answer.status, answer.json["field"]) == (404, "server_id")
    assert operator.post(f"{path}/{pooled.pk}/test").status == 404


def test_a_private_server_of_another_agent_cant_be_attached(acme, operator, path):
    other = factories.create_agent(acme, "other")
    private = operator.post(f"agents/{other.pk}/mcp-servers", HTTP).json["id"]
    foreign = in_pool(factories.create_organization("other"), "foreign")
    for server_id in (private, str(foreign.pk), "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"):
        answer = operator.post(path, {"server_id": server_id})
        assert (answer.status, answer.json["field"]) == (404, "server_id")
    assert AgentServer.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 400, "invalid", "name"),
        (HTTP | {"transport_type": "smoke"}, 400, "unknown_transport", "transport_type"),
        (AWS, 403, "platform_admin_only", "endpoint_config"),
        ({"server_id": "x"}, 400, "invalid", "server_id"),
        ({"server_id": "x", "name": "y"}, 400, "unknown_field", "name"),
        ({"preset": "nothing-like-it"}, 404, "not_found", "preset"),
    ],
)
def test_invalid_values_are_refused_and_nothing_is_written(
    operator, path, body, status, code, field
):
    answer = operator.post(path, body)
    assert (answer.status, answer.code, answer.json["field"]) == (status, code, field)
    assert not Server.objects.exists()
    assert not AgentServer.objects.exists()


def test_the_list_uses_the_same_queries_for_any_number_of_rows(
    acme, operator, helper, path, django_assert_num_queries
):
    operator.get(path)
    for number in range(12):
        server = in_pool(acme, f"s{number}")
        AgentServer.objects.create(organization=acme, agent=helper, server=server)
    # The token, the agent, its agent_servers, the servers with counts, their secrets, their tools.
    with django_assert_num_queries(6):
        assert len(operator.get(path).json["results"]) == 12
