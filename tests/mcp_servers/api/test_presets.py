"""Presets over REST: an organization's own are writable, those of the platform read-only."""

from typing import Any

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.models import Preset, Server
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db
PRESET: dict[str, Any] = {
    "name": "House search",
    "description": "Searches the intranet.",
    "transport_type": "http",
    "endpoint_config": {"url": "https://${TEAM}.example.com/mcp"},
    "auth_config": {"type": "bearer_token", "token": "${TOKEN}"},
    "parameters": [
        {"name": "TEAM", "label": "Team", "default": "all"},
        {"name": "TOKEN", "label": "Access token", "secret": True},
    ],
}
STDIO_PRESET: dict[str, Any] = {
    "name": "Files",
    "transport_type": "stdio",
    "endpoint_config": {"command": "npx", "args": ["-y", "server@1.0.0", "${FOLDER}"]},
    "parameters": [{"name": "FOLDER", "label": "Folder", "kind": "folder"}],
}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def operator(acme: Organization) -> RestClient:
    return rest.as_role(acme, Role.OPERATOR)


def get_own_presets(acme: Organization) -> Any:
    return Preset.objects.filter(organization=acme)


def test_a_preset_is_created_used_updated_and_deleted(acme, operator):
    created = operator.post("presets", PRESET)
    assert (created.status, created.json["slug"], created.json["own"]) == (
        201,
        "house-search",
        True,
    )
    body = {"preset": "house-search", "name": "search", "parameters": {"TOKEN": "sesam"}}
    server = operator.post("mcp-servers", body)
    assert server.json["endpoint_config"] == {"url": "https://all.example.com/mcp"}
    assert Server.objects.get().secrets.get().value.open() == "sesam"
    path = f"presets/{created.json['id']}"
    assert operator.patch(path, {"description": "New words."}).json["description"] == "New words."
    assert operator.get("presets/house-search").json["parameters"] == created.json["parameters"]
    assert operator.delete(path).status == 204
    assert Server.objects.get().preset is None
    actions = AuditRow.objects.filter(resource_type="mcp_preset").values_list("action", flat=True)
    assert set(actions) == {"preset_created", "preset_updated", "preset_deleted"}


def test_presets_of_the_catalog_are_read_only(operator):
    for method in ("PATCH", "DELETE"):
        response = operator.send(method, "presets/time", {} if method == "PATCH" else None)
        assert (response.status, response.code) == (403, "platform_preset")
    assert operator.get("presets/aws-lambda").json["replaces"] == ["@aws/mcp-server-lambda"]


def test_only_a_platform_administrator_can_set_the_command(acme, operator):
    response = operator.post("presets", STDIO_PRESET)
    assert (response.status, response.code) == (403, "platform_admin_only")
    path = f"presets/{rest.as_administrator().post('presets', STDIO_PRESET).json['id']}"
    for body in (
        {"endpoint_config": {"command": "npx", "args": ["evil@1.0.0", "${FOLDER}"]}},
        {"parameters": [{"name": "FOLDER", "label": "Folder"}]},
        PRESET,
    ):
        assert operator.patch(path, body).code == "platform_admin_only"
    assert operator.patch(path, {"description": "Our files."}).status == 200
    assert get_own_presets(acme).get().endpoint_config == STDIO_PRESET["endpoint_config"]


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"name": ""}, "invalid", "name"),
        ({"transport_type": "smoke"}, "invalid", "transport_type"),
        ({"endpoint_config": {"url": "ftp://x"}}, "bad_url", "endpoint_config.url"),
        ({"endpoint_config": {"uri": "x"}}, "unknown_field", "endpoint_config.uri"),
        (
            {"endpoint_config": {"url": "https://x.example/${NOPE}"}},
            "unknown_parameter",
            "endpoint_config.url",
        ),
        (
            {"endpoint_config": {"url": "https://x.example/${TOKEN}"}},
            "secret_in_public",
            "endpoint_config.url",
        ),
        (
            {"auth_config": {"type": "bearer_token", "token": "in-the-clear"}},
            "secret_in_preset",
            "auth_config.token",
        ),
        ({"auth_config": {"type": "smoke"}}, "invalid", "auth_config.type"),
        ({"auth_config": {"type": "none"}}, "unused_parameter", "parameters"),
        ({"parameters": [{"name": "lower"}]}, "invalid", "parameters.0.name"),
        (
            {"parameters": [{"name": "T", "secret": True, "default": "x"}]},
            "secret_in_preset",
            "parameters.0.default",
        ),
        ({"parameters": [{"name": "T", "colour": "x"}]}, "unknown_field", "parameters.0.colour"),
        ({"parameters": [{"name": "T", "pattern": "("}]}, "invalid", "parameters.0.pattern"),
        ({"parameters": [{"name": "T"}, {"name": "T"}]}, "invalid", "parameters"),
        ({"documentation_url": "nowhere"}, "invalid", "documentation_url"),
        ({"headers": {}}, "unknown_field", "headers"),
    ],
)
def test_invalid_values_are_refused_with_their_path(acme, operator, changes, code, field):
    response = operator.post("presets", PRESET | changes)
    assert (response.status, response.code, response.json["field"]) == (400, code, field), response
    assert "in-the-clear" not in response.text
    assert not get_own_presets(acme).exists()


def test_a_credential_in_a_header_is_a_parameter(acme, operator):
    headers = {
        "url": "https://x.example/${TEAM}",
        "headers": {"X-Api-Key": "abc", "X-T": "${TOKEN}"},
    }
    body = PRESET | {"endpoint_config": headers, "auth_config": {"type": "none"}}
    response = operator.post("presets", body)
    assert (response.code, response.json["field"]) == (
        "secret_in_preset",
        "endpoint_config.headers.X-Api-Key",
    )


def test_a_duplicate_name_is_refused(operator):
    assert operator.post("presets", PRESET).status == 201
    assert operator.post("presets", PRESET | {"name": "house search"}).code == "name_taken"


def test_a_preset_of_another_organization_isnt_found(operator):
    other_preset = rest.as_role(factories.create_organization("other"), Role.OWNER).post(
        "presets", PRESET
    )
    for name in (other_preset.json["id"], "house-search", "nothing"):
        assert operator.get(f"presets/{name}").status == 404
