"""Server configurations are validated field by field and returned without secrets."""

import pytest

from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from mcp_servers.auth_config import mask_auth_config
from mcp_servers.models import Secret, Server
from mcp_servers.server_config import ServerSpec, mask_endpoint_config
from mcp_servers.services import create_server, update_server
from tests import factories

pytestmark = pytest.mark.django_db

HTTP = {"url": "https://mcp.example.com/mcp"}
STDIO = {"command": "npx", "args": ["-y", "package@1.2.3"]}


@pytest.fixture
def administrator():
    return factories.build_administrator(factories.create_organization())


@pytest.fixture
def owner(administrator):
    return factories.create_member(
        factories.Organization.objects.get(pk=administrator.organization_id), Role.OWNER
    )


def spec(name="docs", transport_type="http", endpoint_config=None, **more):
    return ServerSpec(
        name=name, transport_type=transport_type, endpoint_config=endpoint_config or HTTP, **more
    )


def create_and_fail(principal, invalid_spec) -> Problem:
    with pytest.raises(Problem) as caught:
        create_server(principal, invalid_spec)
    assert not Server.objects.exists()
    assert not Secret.objects.exists()
    return caught.value


INVALID = {
    "an unknown transport": (
        spec(transport_type="carrier-pigeon"),
        "unknown_transport",
        "transport_type",
    ),
    "no url": (spec(endpoint_config={"headers": {}}), "bad_url", "endpoint_config.url"),
    "a url without a scheme": (
        spec(endpoint_config={"url": "mcp.example.com"}),
        "bad_url",
        "endpoint_config.url",
    ),
    "another scheme": (
        spec(endpoint_config={"url": "file:///etc/passwd"}),
        "bad_url",
        "endpoint_config.url",
    ),
    "a private address": (
        spec(endpoint_config={"url": "http://10.0.0.1/mcp"}),
        "private_address",
        "endpoint_config.url",
    ),
    "loopback address": (
        spec(endpoint_config={"url": "http://localhost:3001/mcp"}),
        "private_address",
        "endpoint_config.url",
    ),
    "an unknown member": (
        spec(endpoint_config={**HTTP, "colour": "red"}),
        "unknown_field",
        "endpoint_config.colour",
    ),
    "a reserved header": (
        spec(endpoint_config={**HTTP, "headers": {"Host": "x"}}),
        "invalid",
        "endpoint_config.headers.Host",
    ),
    "a header of two lines": (
        spec(endpoint_config={**HTTP, "headers": {"X": "a\r\nY: b"}}),
        "invalid",
        "endpoint_config.headers.X",
    ),
    "a parameter not filled": (
        spec(endpoint_config={**HTTP, "headers": {"X": "${KEY}"}}),
        "missing_value",
        "endpoint_config.headers.X",
    ),
    "a command not on the list": (
        spec(transport_type="stdio", endpoint_config={"command": "rm", "args": ["-rf"]}),
        "launcher_not_allowed",
        "endpoint_config.command",
    ),
    "a shell": (
        spec(transport_type="stdio", endpoint_config={"command": "bash", "args": ["-c", "x"]}),
        "launcher_not_allowed",
        "endpoint_config.command",
    ),
    "no command": (
        spec(transport_type="stdio", endpoint_config={"args": []}),
        "invalid",
        "endpoint_config.command",
    ),
    "arguments in one text": (
        spec(transport_type="stdio", endpoint_config={"command": "npx", "args": "-y x"}),
        "invalid",
        "endpoint_config.args",
    ),
    "Bonobot's own variable": (
        spec(transport_type="stdio", endpoint_config={**STDIO, "env": {"BONOBOT_SECRET_KEY": "x"}}),
        "invalid",
        "endpoint_config.env.BONOBOT_SECRET_KEY",
    ),
    "no name": (spec(name="  "), "missing_name", "name"),
    "an unknown sign-in": (spec(auth_config={"type": "magic"}), "invalid", "auth_config.type"),
    "a sign-in without its token": (
        spec(auth_config={"type": "bearer_token"}),
        "missing_value",
        "auth_config.token",
    ),
    "an unknown approval": (spec(approval="never"), "invalid", "approval"),
}


@pytest.mark.parametrize(("invalid_spec", "code", "field"), INVALID.values(), ids=INVALID.keys())
def test_invalid_values_are_refused_by_field_and_nothing_is_written(
    administrator, invalid_spec, code, field
):
    problem = create_and_fail(administrator, invalid_spec)
    assert (problem.code, problem.field) == (code, field)


def test_a_refused_url_shows_no_password(administrator):
    problem = create_and_fail(
        administrator, spec(endpoint_config={"url": "https://ann:hunter2@example.com/"})
    )
    assert "hunter2" not in str(problem.as_dict())


def test_only_a_platform_administrator_sets_a_command(owner):
    assert create_and_fail(owner, spec(transport_type="stdio", endpoint_config=STDIO)).code == (
        "platform_admin_only"
    )


def test_only_a_platform_administrator_allows_a_private_address(owner):
    private_spec = spec(endpoint_config={"url": "http://10.0.0.1/mcp"}, allow_private=True)
    assert create_and_fail(owner, private_spec).code == "forbidden"


def test_only_a_platform_administrator_can_set_approval_to_always(owner):
    assert create_and_fail(owner, spec(approval="always")).code == "forbidden"


@pytest.mark.parametrize("role", [Role.MEMBER, Role.AUDITOR, Role.REVIEWER])
def test_other_roles_cant_add_servers(administrator, role):
    organization = factories.Organization.objects.get(pk=administrator.organization_id)
    assert create_and_fail(factories.create_member(organization, role), spec()).code == "forbidden"


def test_a_name_is_unique_in_the_pool(administrator):
    create_server(administrator, spec(name="Docs One"))
    for name in ("Docs One", "docs-one", "docs_one", "D\u043ecs One"):
        with pytest.raises(Problem) as caught:
            create_server(administrator, spec(name=name))
        assert caught.value.field == "name"
    assert Server.objects.count() == 1


def test_secrets_are_encrypted_and_shown_masked(administrator):
    server = create_server(
        administrator,
        spec(
            endpoint_config={**HTTP, "headers": {"X-Key": "s3cret-value"}},
            auth_config={"type": "bearer_token", "token": "t0ken-value"},
        ),
    )
    assert mask_endpoint_config(server) == {**HTTP, "headers": {"X-Key": "********"}}
    assert mask_auth_config(server) == {"type": "bearer_token", "configured": True}
    columns = str(list(Server.objects.values())) + str(list(Secret.objects.values("value")))
    assert "s3cret" not in columns
    assert "t0ken" not in columns
    assert {s.name: s.value.open() for s in server.secrets.all()} == {
        "X-Key": "s3cret-value",
        "token": "t0ken-value",
    }


@pytest.mark.parametrize(
    "auth",
    [
        None,
        {"type": "bearer_token", "configured": True},
        {"type": "bearer_token", "token": "********"},
    ],
)
def test_a_write_with_the_mask_keeps_the_stored_secret(administrator, auth):
    original = spec(
        endpoint_config={**HTTP, "headers": {"X-Key": "s3cret"}},
        auth_config={"type": "bearer_token", "token": "t0ken"},
    )
    server = create_server(administrator, original)
    masked = spec(endpoint_config=mask_endpoint_config(server), auth_config=auth)
    update_server(administrator, server, masked)
    assert {s.name: s.value.open() for s in server.secrets.all()} == {
        "X-Key": "s3cret",
        "token": "t0ken",
    }


def test_omitted_secrets_are_deleted(administrator):
    server = create_server(
        administrator, spec(endpoint_config={**HTTP, "headers": {"X-Key": "s3cret"}})
    )
    update_server(administrator, server, spec(endpoint_config=HTTP, auth_config={"type": "none"}))
    assert not server.secrets.exists()


@pytest.mark.parametrize(
    ("headers", "auth", "field"),
    [
        ({"X-Key": "********"}, {"type": "none"}, "endpoint_config.headers.X-Key"),
        ({}, None, "auth_config.token"),
    ],
)
def test_a_stored_value_is_never_sent_to_another_host(administrator, headers, auth, field):
    original = spec(
        endpoint_config={**HTTP, "headers": {"X-Key": "s3cret"}},
        auth_config={"type": "bearer_token", "token": "t0ken"},
    )
    server = create_server(administrator, original)
    other_host = {"url": "https://elsewhere.example.net/mcp", "headers": headers}
    with pytest.raises(Problem) as caught:
        update_server(administrator, server, spec(endpoint_config=other_host, auth_config=auth))
    assert (caught.value.code, caught.value.field) == ("credential_required", field)
    assert Server.objects.get().endpoint_config == HTTP


def test_another_path_of_the_same_host_keeps_the_stored_secret(administrator):
    server = create_server(
        administrator, spec(auth_config={"type": "bearer_token", "token": "t0ken"})
    )
    update_server(
        administrator, server, spec(endpoint_config={"url": "https://mcp.example.com/other"})
    )
    assert server.secrets.get().value.open() == "t0ken"


def test_a_changed_address_detects_the_era_again(administrator):
    server = create_server(administrator, spec())
    Server.objects.filter(pk=server.pk).update(era="modern", discovery={"a": 1})
    server.refresh_from_db()
    update_server(
        administrator, server, spec(endpoint_config={"url": "https://other.example.com/mcp"})
    )
    server.refresh_from_db()
    assert (server.era, server.discovery) == ("", None)
