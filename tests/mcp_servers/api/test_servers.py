"""The pool of servers over REST."""

from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Definition, Launcher, Secret, Server
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

HTTP = {
    "name": "docs",
    "transport_type": "http",
    "endpoint_config": {"url": "https://mcp.example.com/mcp", "headers": {"X-Team": "blue"}},
    "auth_config": {"type": "bearer_token", "token": "tok-in-the-clear"},
}
STDIO = {
    "name": "files",
    "transport_type": "stdio",
    "endpoint_config": {"command": "uvx", "args": ["files@1.0"], "env": {"KEY": "env-value"}},
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def operator(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def administrator(acme: Organization) -> RestClient:
    return rest.as_administrator()


def change_fields(body: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return body | changes


def test_a_server_is_created_and_returned_without_its_secrets(operator):
    created = operator.post("mcp-servers", HTTP)
    assert created.status == 201
    assert created.json["scope"] == "pool"
    assert created.json["endpoint_config"]["headers"] == {"X-Team": MASK}
    assert created.json["auth_config"] == {"type": "bearer_token", "configured": True}
    assert created.json["discovered_tools"] == []
    fetched = operator.get(f"mcp-servers/{created.json['id']}")
    assert fetched.json == created.json
    for response in (created, fetched, operator.get("mcp-servers")):
        assert "tok-in-the-clear" not in response.text
        assert "blue" not in response.text


def test_a_masked_write_keeps_the_secrets(operator):
    created = operator.post("mcp-servers", HTTP).json
    endpoint = {"url": "https://mcp.example.com/v2", "headers": {"X-Team": MASK}}
    body = {"name": "docs", "transport_type": "http", "endpoint_config": endpoint}
    response = operator.put(f"mcp-servers/{created['id']}", body)
    assert response.json["endpoint_config"]["url"] == "https://mcp.example.com/v2"
    assert response.json["auth_config"]["configured"]
    values = {secret.name: secret.value.open() for secret in Secret.objects.all()}
    assert values == {"X-Team": "blue", "token": "tok-in-the-clear"}


def test_a_patch_changes_only_its_fields(operator):
    created = operator.post("mcp-servers", HTTP).json
    response = operator.patch(f"mcp-servers/{created['id']}", {"description": "Our documents"})
    unchanged = ("name", "endpoint_config", "auth_config", "enabled", "approval")
    assert {name: response.json[name] for name in unchanged} == {
        name: created[name] for name in unchanged
    }
    assert response.json["description"] == "Our documents"


def test_a_deleted_server_is_gone_and_stays_in_the_audit_log(operator):
    created = operator.post("mcp-servers", HTTP).json
    assert operator.delete(f"mcp-servers/{created['id']}").status == 204
    assert operator.get(f"mcp-servers/{created['id']}").status == 404
    assert AuditRow.objects.get(action="server_deleted").resource_name == "docs"


@pytest.mark.parametrize(
    ("changes", "status", "code", "field"),
    [
        ({"transport_type": "ftp"}, 400, "unknown_transport", "transport_type"),
        ({"endpoint_config": {"url": "ftp://x"}}, 400, "bad_url", "endpoint_config.url"),
        ({"endpoint_config": {"url": 7}}, 400, "bad_url", "endpoint_config.url"),
        (
            {"endpoint_config": {"url": "http://127.0.0.1:1/mcp"}},
            400,
            "private_address",
            "endpoint_config.url",
        ),
        (
            {"endpoint_config": {"url": "https://x.example/", "command": "sh"}},
            400,
            "unknown_field",
            "endpoint_config.command",
        ),
        (
            {"endpoint_config": {"url": "https://x.example/", "headers": {"X-A": MASK}}},
            400,
            "missing_value",
            "endpoint_config.headers.X-A",
        ),
        ({"auth_config": {"type": "magic"}}, 400, "invalid", "auth_config.type"),
        ({"auth_config": {"type": "bearer_token"}}, 400, "missing_value", "auth_config.token"),
        ({"endpoint_config": [1]}, 400, "invalid", "endpoint_config"),
        ({"name": "p\u0430ypal"}, 400, "confusable_name", "name"),
        ({"approval": "never"}, 400, "invalid", "approval"),
        ({"allow_private": True}, 403, "forbidden", None),
        ({"approval": "always"}, 403, "forbidden", None),
        ({"colour": "red"}, 400, "unknown_field", "colour"),
    ],
)
def test_invalid_values_are_refused_by_field_and_nothing_is_written(
    operator, changes, status, code, field
):
    response = operator.post("mcp-servers", change_fields(HTTP, **changes))
    assert (response.status, response.code, response.json.get("field")) == (status, code, field), (
        response
    )
    assert response.json["remedy"] or response.json["errors"]
    assert not Server.objects.exists()
    assert not Secret.objects.exists()


def test_only_platform_administrators_can_set_a_command(operator, administrator):
    response = operator.post("mcp-servers", STDIO)
    assert (response.status, response.code) == (403, "platform_admin_only")
    created = administrator.post("mcp-servers", STDIO)
    assert created.status == 201
    assert created.json["endpoint_config"]["env"] == {"KEY": MASK}
    assert "env-value" not in created.text


def test_a_launcher_that_isnt_allowed_is_refused(administrator):
    config = {"command": "/bin/sh", "args": ["-c", "true"]}
    response = administrator.post("mcp-servers", change_fields(STDIO, endpoint_config=config))
    assert response.code == "launcher_not_allowed"
    assert response.json["field"] == "endpoint_config.command"
    assert not Launcher.objects.exists()


def test_only_platform_administrators_can_allow_a_private_address(administrator):
    local = {"url": "http://127.0.0.1:9/mcp"}
    response = administrator.post(
        "mcp-servers", change_fields(HTTP, endpoint_config=local, allow_private=True)
    )
    assert response.status == 201


def test_a_duplicate_name_is_a_conflict(operator):
    operator.post("mcp-servers", HTTP)
    response = operator.post("mcp-servers", change_fields(HTTP, name="Docs"))
    assert (response.status, response.code, response.json["field"]) == (409, "name_taken", "name")


def test_a_server_is_disabled_and_enabled(operator):
    created = operator.post("mcp-servers", HTTP).json
    disabled = operator.post(f"mcp-servers/{created['id']}/disable").json
    assert (disabled["enabled"], disabled["status"]) == (False, "disabled")
    enabled = operator.post(f"mcp-servers/{created['id']}/enable").json
    assert (enabled["enabled"], enabled["status"]) == (True, "disconnected")


def test_servers_are_found_by_name_status_and_scope(acme, operator):
    agent = factories.create_agent(acme)
    operator.post("mcp-servers", HTTP)
    Server.objects.create(
        organization=acme, scope_id=agent.pk, name="private", slug="private", transport_type="http"
    )

    def names(query: str) -> list[str]:
        return [server["name"] for server in operator.get(f"mcp-servers{query}").json["results"]]

    assert names("") == ["docs"]
    assert names("?scope=agent") == ["private"]
    assert names("?scope=all") == ["docs", "private"]
    assert names("?q=DOC") == ["docs"]
    assert names("?status=connected") == []
    assert names("?enabled=true") == ["docs"]


def test_the_list_uses_the_same_queries_for_any_number_of_servers(
    acme, operator, django_assert_num_queries
):
    operator.get("mcp-servers")
    for number in range(12):
        server = Server.objects.create(
            organization=acme,
            scope_id=acme.pk,
            name=f"s{number}",
            slug=f"s{number}",
            transport_type="http",
            endpoint_config={"url": "https://x.example/"},
        )
        Definition.objects.create(
            organization=acme, server=server, kind="tool", name="one", payload={}, digest="d"
        )
    # The token, the servers with their counts, the secrets, and the labels of the names.
    with django_assert_num_queries(4):
        servers = operator.get("mcp-servers").json["results"]
    assert {(server["tools"], server["pending_review"]) for server in servers} == {(1, 1)}
