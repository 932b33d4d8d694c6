"""The servers of an agent over REST: paths, bodies, and responses."""

from typing import Any

import pytest

from agents.models import Agent, AgentServer
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from mcp_servers.models import Definition, Server
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

STDIO_BODY = {
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
HTTP_BODY = {
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
def operator(acme: Organization, helper: Agent) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def path(helper: Agent) -> str:
    return f"agents/{helper.pk}/mcp-servers"


@pytest.fixture
def pool_server(acme: Organization) -> Server:
    return create_pool_server(acme, "pooled")


def create_pool_server(acme: Organization, name: str) -> Server:
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


def list_names_and_scopes(response: rest.RestResponse) -> list[tuple[str, str]]:
    return [(server["name"], server["scope"]) for server in response.json["results"]]


def test_the_example_of_the_specification_is_accepted(acme, helper, path):
    administrator = rest.as_administrator()
    created = administrator.post(path, STDIO_BODY)
    assert created.status == 201
    expected: dict[str, Any] = {
        "agent_id": str(helper.pk),
        "scope": "agent",
        "name": "aws-s3",
        "transport_type": "stdio",
        "endpoint_config": STDIO_BODY["endpoint_config"] | {"env": {"AWS_REGION": MASK}},
        "auth_config": {"type": "none", "configured": False},
        "enabled": True,
        "discovered_tools": [],
        "last_connected_at": None,
    }
    assert {name: created.json[name] for name in expected} == expected
    server = Server.objects.get()
    assert (server.scope_id, str(server.pk)) == (helper.pk, created.json["id"])
    assert administrator.get(f"{path}/{server.pk}").json == created.json
    assert list_names_and_scopes(administrator.get(path)) == [("aws-s3", "agent")]


def test_a_private_server_isnt_in_the_pool(operator, path):
    operator.post(path, HTTP_BODY)
    assert operator.get("mcp-servers").json["results"] == []


def test_two_agents_can_have_private_servers_with_one_name(acme, operator, path):
    other_agent = factories.create_agent(acme, "other")
    assert operator.post(path, HTTP_BODY).status == 201
    assert operator.post(f"agents/{other_agent.pk}/mcp-servers", HTTP_BODY).status == 201
    assert operator.post(path, HTTP_BODY).code == "name_taken"


def test_a_pool_server_is_attached_by_its_id(operator, helper, path, pool_server):
    created = operator.post(path, {"server_id": str(pool_server.pk), "allowed_tools": ["list_*"]})
    assert (created.status, created.json["scope"]) == (201, "pool")
    assert created.json["agent_id"] == str(helper.pk)
    assert created.json["discovered_tools"] == [
        {
            "name": "list_buckets",
            "description": "List S3 buckets",
            "input_schema": {"type": "object", "properties": {}},
        }
    ]
    assert helper.agent_servers.get().allowed_tools == ["list_*"]


def test_a_disabled_server_is_attached_only_after_it_is_enabled(
    operator, helper, path, pool_server
):
    Server.objects.filter(pk=pool_server.pk).update(enabled=False)
    body = {"server_id": str(pool_server.pk)}
    response = operator.post(path, body)
    assert (response.status, response.code) == (409, "server_disabled")
    assert response.json["detail"] == "The server `pooled` is disabled."
    assert response.json["remedy"] == "Disabled servers can't be attached. Enable it first."
    assert not helper.agent_servers.exists()
    Server.objects.filter(pk=pool_server.pk).update(enabled=True)
    assert operator.post(path, body).status == 201
    Server.objects.filter(pk=pool_server.pk).update(enabled=False)
    response = operator.post(path, body | {"allowed_tools": ["list_*"]})
    assert (response.status, response.json["allowed_tools"]) == (200, ["list_*"])


def test_a_private_server_can_be_created_disabled(operator, helper, path):
    assert operator.post(path, HTTP_BODY | {"enabled": False}).status == 201
    assert helper.agent_servers.count() == 1


def test_attaching_again_changes_only_the_given_fields(operator, helper, path, pool_server):
    operator.post(path, {"server_id": str(pool_server.pk), "allowed_tools": ["list_*"]})
    response = operator.post(path, {"server_id": str(pool_server.pk), "enabled": False})
    assert (response.status, response.json["enabled"]) == (200, False)
    agent_server = helper.agent_servers.get()
    assert (agent_server.enabled, agent_server.allowed_tools) == (False, ["list_*"])
    pool_server.refresh_from_db()
    assert pool_server.enabled


def test_tools_must_be_selected_or_all_requested_explicitly(operator, helper, path, pool_server):
    body = {"server_id": str(pool_server.pk)}
    for allowed_tools, code in (([], "nothing_selected"), (["list_bucket"], "unknown_tool")):
        response = operator.post(path, body | {"allowed_tools": allowed_tools})
        assert (response.status, response.code) == (400, code)
        assert response.json["field"] == "allowed_tools"
    assert not helper.agent_servers.exists()
    created = operator.post(path, body | {"allowed_tools": ["*"]})
    assert (created.status, created.json["allowed_tools"]) == (201, ["*"])


def test_an_attachment_is_updated_field_by_field(operator, helper, path, pool_server):
    operator.post(path, {"server_id": str(pool_server.pk), "allowed_tools": ["list_*"]})
    url = f"{path}/{pool_server.pk}"
    disabled = operator.patch(url, {"enabled": False})
    assert (disabled.status, disabled.json["enabled"], disabled.json["allowed_tools"]) == (
        200,
        False,
        ["list_*"],
    )
    assert operator.patch(url, {"denied_tools": ["x"]}).json["denied_tools"] == ["x"]
    all_tools = operator.patch(url, {"allowed_tools": ["*"], "enabled": True})
    assert (all_tools.json["allowed_tools"], all_tools.json["enabled"]) == (["*"], True)
    assert operator.patch(url, {"allowed_tools": []}).code == "nothing_selected"
    assert operator.patch(url, {"server_id": str(pool_server.pk)}).code == "unknown_field"
    agent_server = helper.agent_servers.get()
    assert (agent_server.allowed_tools, agent_server.denied_tools) == ([], ["x"])


def test_private_and_attached_servers_are_listed_together(operator, path, pool_server):
    operator.post(path, HTTP_BODY)
    operator.post(path, {"server_id": str(pool_server.pk)})
    assert list_names_and_scopes(operator.get(path)) == [("docs", "agent"), ("pooled", "pool")]


def test_a_put_replaces_a_private_server_and_keeps_its_credential(operator, path):
    created = operator.post(path, HTTP_BODY).json
    body = {name: HTTP_BODY[name] for name in ("name", "transport_type")}
    body |= {"endpoint_config": {"url": "https://mcp.example.com/v2"}, "enabled": False}
    response = operator.put(f"{path}/{created['id']}", body)
    assert response.json["endpoint_config"] == {"url": "https://mcp.example.com/v2"}
    assert response.json["auth_config"] == {
        "type": "api_key",
        "header": "X-Key",
        "configured": True,
    }
    assert response.json["enabled"] is False
    assert Server.objects.get().secrets.get().value.open() == "key-in-the-clear"


def test_a_pool_server_cant_be_changed_through_an_agent(operator, path, pool_server):
    operator.post(path, {"server_id": str(pool_server.pk)})
    response = operator.put(f"{path}/{pool_server.pk}", HTTP_BODY)
    assert (response.status, response.code) == (409, "pool_server")
    assert str(pool_server.pk) in response.json["remedy"]


def test_deleting_detaches_a_pool_server_and_deletes_a_private_one(operator, path, pool_server):
    private = operator.post(path, HTTP_BODY).json["id"]
    operator.post(path, {"server_id": str(pool_server.pk)})
    for server_id in (private, str(pool_server.pk)):
        assert operator.delete(f"{path}/{server_id}").status == 204
        assert operator.delete(f"{path}/{server_id}").status == 404
    assert list(Server.objects.all()) == [pool_server]
    assert not AgentServer.objects.exists()


def test_a_server_that_isnt_attached_isnt_found(operator, path, pool_server):
    for method, body in (("GET", None), ("PUT", HTTP_BODY), ("PATCH", {}), ("DELETE", None)):
        response = operator.send(method, f"{path}/{pool_server.pk}", body)
        assert (response.status, response.json["field"]) == (404, "server_id")
    assert operator.post(f"{path}/{pool_server.pk}/test").status == 404


def test_a_private_server_of_another_agent_cant_be_attached(acme, operator, path):
    other_agent = factories.create_agent(acme, "other")
    private = operator.post(f"agents/{other_agent.pk}/mcp-servers", HTTP_BODY).json["id"]
    foreign = create_pool_server(factories.create_organization("other"), "foreign")
    for server_id in (private, str(foreign.pk), "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11"):
        response = operator.post(path, {"server_id": server_id})
        assert (response.status, response.json["field"]) == (404, "server_id")
    assert AgentServer.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        ({}, 400, "invalid", "name"),
        (HTTP_BODY | {"transport_type": "smoke"}, 400, "unknown_transport", "transport_type"),
        (STDIO_BODY, 403, "platform_admin_only", "endpoint_config"),
        ({"server_id": "x"}, 400, "invalid", "server_id"),
        ({"server_id": "x", "name": "y"}, 400, "unknown_field", "name"),
        ({"preset": "nothing-like-it"}, 404, "not_found", "preset"),
    ],
)
def test_invalid_values_are_refused_and_nothing_is_written(
    operator, path, body, status, code, field
):
    response = operator.post(path, body)
    assert (response.status, response.code, response.json["field"]) == (status, code, field)
    assert not Server.objects.exists()
    assert not AgentServer.objects.exists()


def test_the_list_uses_the_same_queries_for_any_number_of_rows(
    acme, operator, helper, path, django_assert_num_queries
):
    operator.get(path)
    for number in range(12):
        server = create_pool_server(acme, f"s{number}")
        AgentServer.objects.create(organization=acme, agent=helper, server=server)
    # The token, the agent, its attached servers, the servers with counts, secrets, tools, and the
    # labels of the agent, of the servers, and of the patterns.
    with django_assert_num_queries(9):
        assert len(operator.get(path).json["results"]) == 12
