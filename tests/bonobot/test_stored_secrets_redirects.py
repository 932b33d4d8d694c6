"""More ways to have a stored secret sent elsewhere: spellings, other writes, other objects."""

import json
from contextlib import suppress
from typing import Any

import pytest

from agents.config_file.apply_config import apply_config
from agents.config_file.read_config import read_config_file
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import ModelEndpoint
from bonobot.accounts.deletions import restore_deletion
from bonobot.accounts.models import Organization, Provider
from bonobot.accounts.principals import Principal
from bonobot.core.crypto.secret_addresses import normalize_origin
from bonobot.core.problems import InvalidInput, Problem
from bonobot.notifications.models import NotificationChannel
from mcp_servers.models import Preset, Secret, Server
from mcp_servers.presets.save_as_preset import save_as_preset
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, delete_server, update_server
from tests import factories, rest
from tests.bonobot.test_stored_secrets import HERE, KINDS, MASK, create_web_server

pytestmark = pytest.mark.django_db

# Origins that look like HERE, and aren't.
ORIGINS = {
    "user info": "https://here.example.com@elsewhere.example.net",
    "user info and password": "https://here.example.com:443@elsewhere.example.net",
    "backslash": "https://here.example.com\\@elsewhere.example.net",
    "backslash and a suffix": "https://here.example.com\\.elsewhere.example.net",
    "a suffix": "https://here.example.com.elsewhere.example.net",
    "a prefix": "https://elsewhere-here.example.com",
    "another port": "https://here.example.com:8443",
    "port 0": "https://here.example.com:0",
    "an invalid port": "https://here.example.com:65537",
    "another scheme": "http://here.example.com",
    "another scheme, same port": "http://here.example.com:443",
    "fullwidth letters": "https://\uff48ere.example.com.elsewhere.example.net",
    "Cyrillic letter": "https://h\u0435re.example.com",
    "punycode": "https://xn--hre-8cd.example.com",
    "ideographic full stop": "https://here\u3002example\u3002com\u3002elsewhere.example.net",
    "tab": "https://else\twhere.example.net",
    "line end": "https://elsewhere.example.net\n.here.example.com",
    "percent-encoded dot": "https://here%2Eexample%2Ecom.elsewhere.example.net",
    "percent-encoded slash": "https://elsewhere.example.net%2Fhere.example.com",
    "relative name": "https://here",
    "parent domain": "https://example.com",
    "address": "https://203.0.113.7",
    "only a path": "/mcp",
    "no scheme": "//elsewhere.example.net",
    "file": "file:///etc/passwd",
}
BASIC_KINDS = {
    name: KINDS[name]
    for name in (
        *("server, header", "server, bearer token", "server, token URL", "server, issuer"),
        *("model endpoint", "identity provider", "notification channel"),
    )
}


def read_addresses() -> str:
    """Return all stored addresses."""
    return json.dumps(
        [
            *Server.objects.values_list("endpoint_config", "auth_config"),
            *ModelEndpoint.objects.values_list("base_url", "kind"),
            *Provider.objects.values_list("url", "client_id"),
            *NotificationChannel.objects.values_list("origin", "name"),
        ]
    )


@pytest.mark.parametrize("name", BASIC_KINDS)
def test_a_secret_isnt_kept_for_an_address_that_looks_the_same(name: str) -> None:
    acme, kind = factories.create_organization(), KINDS[name]
    path = kind.path.format(kind.make(factories.build_administrator(acme)).pk)
    client, headers = rest.as_administrator(), {"Bonobot-Organization": acme.slug}
    before = read_addresses()
    for spelling, origin in ORIGINS.items():
        refusal = client.patch(path, kind.body(MASK, origin), **headers)
        assert (spelling, refusal.status) == (spelling, 400), refusal
        assert (spelling, read_addresses()) == (spelling, before)


SAME_ORIGINS = {
    "capitals": "HTTPS://HERE.EXAMPLE.COM",
    "the default port": f"{HERE}:443",
    "a trailing dot": f"{HERE}.",
}


@pytest.mark.parametrize("spelling", SAME_ORIGINS)
def test_another_spelling_of_the_same_origin_keeps_a_header(spelling: str) -> None:
    assert normalize_origin(SAME_ORIGINS[spelling]) == normalize_origin(HERE)


@pytest.mark.parametrize("name", ["server, header", "server, bearer token", "model endpoint"])
def test_a_secret_isnt_kept_by_put(name: str) -> None:
    acme, kind = factories.create_organization(), KINDS[name]
    path = kind.path.format(kind.make(factories.build_administrator(acme)).pk)
    client, headers = rest.as_administrator(), {"Bonobot-Organization": acme.slug}
    stored = client.get(path, **headers)
    names = ("name", "transport_type", "auth_config", "kind", "model")
    body = {name: stored.json[name] for name in names if name in stored.json}
    body |= kind.body(MASK, "https://elsewhere.example.net")
    before = read_addresses()
    refusal = client.put(path, body, **headers)
    assert (refusal.status, refusal.code) == (400, "credential_required"), refusal
    refusal = client.patch(path, body, **{**headers, "If-Match": stored.headers["ETag"]})
    assert (refusal.status, refusal.code) == (400, "credential_required"), refusal
    assert read_addresses() == before


CONFIGURATIONS = {
    "server, header": "servers:\n  web: {{url: {url}/mcp, headers: {{X-Team: '{secret}'}}}}\n",
    "server, no headers": "servers:\n  web: {{url: {url}/mcp}}\n",
    "server, bearer token": (
        "servers:\n  web: {{url: {url}/mcp,"
        " auth_config: {{type: bearer_token, token: '{secret}'}}}}\n"
    ),
    "model endpoint": (
        "model_endpoints:\n  model: {{name: Model, kind: openai, model: m, base_url: {url}/v1,"
        " api_key: '{secret}'}}\n"
    ),
    "model endpoint, no key": (
        "model_endpoints:\n  model: {{name: Model, kind: openai, model: m, base_url: {url}/v1}}\n"
    ),
}


def create_all(administrator: Principal, *, auth: bool) -> None:
    if auth:
        create_web_server(administrator, type="bearer_token", token="stored")
    else:
        create_web_server(administrator)
    save_endpoint(
        administrator,
        ModelEndpointSpec(
            name="Model", kind="openai", model="m", base_url=f"{HERE}/v1", api_key="stored"
        ),
    )


def count_secrets_elsewhere() -> int:
    """Return how many stored secrets belong to an object with another address."""
    servers = [row for row in Server.objects.all() if "elsewhere" in row.endpoint_config["url"]]
    endpoints = ModelEndpoint.objects.filter(base_url__contains="elsewhere").exclude(api_key="")
    return Secret.objects.filter(server__in=servers).count() + sum(
        bool(row.api_key and row.api_key.open() == "stored") for row in endpoints
    )


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("secret", [MASK, ""], ids=["masked", "blank"])
def test_a_configuration_file_doesnt_send_stored_secrets_elsewhere(name: str, secret: str) -> None:
    administrator = factories.build_administrator(factories.create_organization())
    create_all(administrator, auth="bearer" in name)
    text = CONFIGURATIONS[name].format(url="https://elsewhere.example.net", secret=secret)
    with suppress(Problem):
        apply_config(administrator, read_config_file(text, {}), prune=False)
    assert count_secrets_elsewhere() == 0


@pytest.mark.parametrize("header", [{"X-Team": MASK}, {"X-Team": ""}, {}])
def test_an_import_doesnt_send_stored_secrets_elsewhere(header: dict[str, str]) -> None:
    acme = factories.create_organization()
    create_web_server(factories.build_administrator(acme))
    entry = {"url": "https://elsewhere.example.net/mcp", "headers": header}
    text, client = json.dumps({"mcpServers": {"web": entry}}), rest.as_administrator()
    for body in ({"text": text}, {"text": text, "apply": True}):
        headers = {"Bonobot-Organization": acme.slug}
        response = client.post("mcp-servers/import", body, **headers)
        assert response.status == 200, response
    assert count_secrets_elsewhere() == 0


def test_a_server_that_replaces_a_deleted_one_gets_none_of_its_secrets() -> None:
    """The deleted one can't be restored over it, either."""
    acme = factories.create_organization()
    administrator = factories.build_administrator(acme)
    deletion = delete_server(administrator, create_web_server(administrator))
    assert deletion is not None
    spec = ServerSpec(
        name="web",
        transport_type="http",
        endpoint_config={"url": "https://elsewhere.example.net/mcp", "headers": {"X-Team": MASK}},
    )
    with pytest.raises(InvalidInput) as refusal:
        create_server(administrator, spec)
    assert refusal.value.code == "missing_value"
    without_headers = {"url": "https://elsewhere.example.net/mcp"}
    other_server = create_server(
        administrator,
        ServerSpec(name="web", transport_type="http", endpoint_config=without_headers),
    )
    with pytest.raises(Problem):
        restore_deletion(administrator, deletion)
    assert not other_server.secrets.exists()
    assert count_secrets_elsewhere() == 0


def test_a_restored_server_has_the_address_of_its_secrets() -> None:
    administrator = factories.build_administrator(factories.create_organization())
    server = create_web_server(administrator)
    deletion = delete_server(administrator, server)
    assert deletion is not None
    with pytest.raises(Exception):  # noqa: B017, PT011  # the row is gone
        update_server(
            administrator,
            server,
            ServerSpec(
                name="web",
                transport_type="http",
                endpoint_config={
                    "url": "https://elsewhere.example.net/mcp",
                    "headers": {"X-Team": MASK},
                },
            ),
        )
    restore_deletion(administrator, deletion)
    (restored,) = Server.objects.all()
    assert restored.endpoint_config["url"] == f"{HERE}/mcp"


TRANSPORTS: dict[str, dict[str, Any]] = {
    "API with declared operations": {
        "transport_type": "openapi",
        "endpoint_config": {
            "url": HERE,
            "headers": {"X-Team": MASK},
            "declared": [
                {
                    "name": "look",
                    "method": "GET",
                    "path": "https://elsewhere.example.net/look",
                    "description": "Looks.",
                }
            ],
        },
    },
    "API with a document": {
        "transport_type": "openapi",
        "endpoint_config": {
            "url": "https://elsewhere.example.net",
            "headers": {"X-Team": MASK},
            "operations": ["GET /look"],
            "document": json.dumps(
                {
                    "openapi": "3.1.0",
                    "info": {"title": "Shop", "version": "1"},
                    "paths": {"/look": {"get": {"operationId": "look", "responses": {}}}},
                }
            ),
        },
    },
    "local program": {
        "transport_type": "stdio",
        "endpoint_config": {"command": "npx", "args": ["-y", "x@1.0.0"], "env": {"X-Team": MASK}},
    },
    "local program with a variable": {
        "transport_type": "stdio",
        "endpoint_config": {"command": "npx", "args": ["-y", "x@1.0.0"], "env": {"X_TEAM": MASK}},
    },
}


@pytest.mark.parametrize("name", TRANSPORTS)
def test_a_secret_isnt_kept_for_another_transport_elsewhere(name: str) -> None:
    acme = factories.create_organization()
    server = create_web_server(factories.build_administrator(acme))
    headers = {"Bonobot-Organization": acme.slug}
    refusal = rest.as_administrator().patch(f"mcp-servers/{server.pk}", TRANSPORTS[name], **headers)
    assert refusal.status == 400, refusal
    server.refresh_from_db()
    assert server.endpoint_config["url"] == f"{HERE}/mcp"


def test_the_servers_of_a_document_dont_change_where_secrets_are_sent() -> None:
    """Operations are requested below the server's own URL, whatever the document says."""
    acme = factories.create_organization()
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://elsewhere.example.net"}],
        "paths": {
            "/look": {
                "servers": [{"url": "https://elsewhere.example.net"}],
                "get": {
                    "operationId": "look",
                    "servers": [{"url": "https://elsewhere.example.net"}],
                    "responses": {},
                },
            }
        },
    }
    spec = ServerSpec(
        name="shop",
        transport_type="openapi",
        endpoint_config={
            "url": HERE,
            "headers": {"X-Team": "stored"},
            "operations": ["GET /look"],
            "document": json.dumps(document),
        },
    )
    server = create_server(factories.build_administrator(acme), spec)
    assert server.endpoint_config["url"] == HERE
    assert "elsewhere" not in json.dumps(server.endpoint_config)


def test_a_preset_of_a_server_has_none_of_its_secrets() -> None:
    administrator = factories.build_administrator(factories.create_organization())
    preset = save_as_preset(administrator, create_web_server(administrator), "Copy")
    row = Preset.objects.filter(pk=preset.pk).values().get()
    assert "stored" not in str(row)


def test_a_channel_that_was_an_email_address_has_no_signing_secret(settings: Any) -> None:
    settings.BONOBOT_EMAIL_URL = "smtp://localhost"
    acme: Organization = factories.create_organization()
    channel = KINDS["notification channel"].make(factories.build_administrator(acme))
    path, client = f"notification-channels/{channel.pk}", rest.as_administrator()
    headers = {"Bonobot-Organization": acme.slug}
    assert (
        client.patch(path, {"kind": "email", "addresses": ["a@example.com"]}, **headers).status
        == 200
    )
    body = {"kind": "webhook", "url": "https://elsewhere.example.net/hook", "secret": MASK}
    client.patch(path, body, **headers)
    channel.refresh_from_db()
    assert not channel.secret or channel.secret.open() != "stored-and-long-enough"
