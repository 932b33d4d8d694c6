"""The pool of servers over REST."""

from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.text.masking import MASK
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Definition, Launcher, Secret, Server
from tests import factories, rest
from tests.rest import Rest

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
def operator(acme: Organization) -> Rest:
    return rest.as_role(acme, Role.OPERATOR)


@pytest.fixture
def root(acme: Organization) -> Rest:
    return rest.as_administrator()


def changed(body: dict[str, Any], **members: Any) -> dict[str, Any]:
    return body | members


def test_a_server_is_created_and_returned_without_its_secrets(operator):
    made = operator.post("mcp-servers", HTTP)
    assert made.status == 201
    assert made.json["scope"] == "pool"
    assert made.json["endpoint_config"]["headers"] == {"X-Team": MASK}
    assert made.json["auth_config"] == {"type": "bearer_token", "configured": True}
    assert made.json["discovered_tools"] == []
    read = operator.get(f"mcp-servers/{made.json['id']}")
    assert read.json == made.json
    for answer in (made, read, operator.get("mcp-servers")):
        assert "tok-in-the-clear" not in answer.text
        assert "blue" not in answer.text


def test_a_masked_write_keeps_the_secrets(operator):
    made = operator.post("mcp-servers", HTTP).json
    endpoint = {"url": "https://mcp.example.com/v2", "headers": {"X-Team": MASK}}
    body = {"name": "docs", "transport_type": "http", "endpoint_config": endpoint}
    answer = operator.put(f"mcp-servers/{made['id']}", body)
    assert answer.json["endpoint_config"]["url"] == "https://mcp.example.com/v2"
    assert answer.json["auth_config"]["configured"]
    values = {secret.name: secret.value.open() for secret in Secret.objects.all()}
    assert values == {"X-Team": "blue", "token": "tok-in-the-clear"}


def test_a_patch_changes_only_its_fields(operator):
    made = operator.post("mcp-servers", HTTP).json
    answer = operator.patch(f"mcp-servers/{made['id']}", {"description": "Our documents"})
    same = ("name", "endpoint_config", "auth_config", "enabled", "approval")
    assert {name: answer.json[name] for name in same} == {name: made[name] for name in same}
    assert answer.json["description"] == "Our documents"


def test_a_deleted_server_is_gone_and_stays_in_the_audit_log(operator):
    made = operator.post("mcp-servers", HTTP).json
    assert operator.delete(f"mcp-servers/{made['id']}").status == 204
    assert operator.get(f"mcp-servers/{made['id']}").status == 404
    assert AuditRow.objects.get(action="server_removed").resource_name == "docs"


@pytest.mark.parametrize(
    ("members", "status", "code", "field"),
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
    operator, members, status, code, field
):
    answer = operator.post("mcp-servers", changed(HTTP, **members))
    assert (answer.status, answer.code, answer.json.get("field")) == (status, code, field), answer
    assert answer.json["remedy"] or answer.json["errors"]
    assert not Server.objects.exists()
    assert not Secret.objects.exists()


def test_only_platform_administrators_can_set_a_command(operator, root):
    refused = operator.post("mcp-servers", STDIO)
    assert (refused.status, refused.code) == (403, "platform_admin_only")
    made = root.post("mcp-servers", STDIO)
    assert made.status == 201
    assert made.json["endpoint_config"]["env"] == {"KEY": MASK}
    assert "env-value" not in made.text


def test_a_launcher_that_isnt_allowed_is_refused(root):
    config = {"command": "/bin/sh", "args": ["-c", "true"]}
    answer = root.post("mcp-servers", changed(STDIO, endpoint_config=config))
    assert answer.code == "launcher_not_allowed"
    assert answer.json["field"] == "endpoint_config.command"
    assert not Launcher.objects.exists()


def test_only_platform_administrators_can_allow_a_private_address(root):
    local = {"url": "http://127.0.0.1:9/mcp"}
    answer = root.post("mcp-servers", changed(HTTP, endpoint_config=local, allow_private=True))
    assert answer.status == 201


def test_a_duplicate_name_is_a_conflict(operator):
    operator.post("mcp-servers", HTTP)
    answer = operator.post("mcp-servers", changed(HTTP, name="Docs"))
    assert (answer.status, answer.code, answer.json["field"]) == (409, "name_taken", "name")


def test_a_server_is_disabled_and_enabled(operator):
    made = operator.post("mcp-servers", HTTP).json
    off = operator.post(f"mcp-servers/{made['id']}/disable").json
    assert (off["enabled"], off["status"]) == (False, "disabled")
    on = operator.post(f"mcp-servers/{made['id']}/enable").json
    assert (on["enabled"], on["status"]) == (True, "disconnected")


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
    with django_assert_num_queries(3):  # the token, the servers with their counts, the secrets
        found = operator.get("mcp-servers").json["results"]
    assert {(server["tools"], server["waiting"]) for server in found} == {(1, 1)}
