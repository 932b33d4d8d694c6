"""A stored secret is never sent to another address: every object with a secret × every URL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, rest

pytestmark = pytest.mark.django_db

MASK = "********"
HERE, ELSEWHERE = "https://here.example.com", "https://elsewhere.example.net"


@dataclass(frozen=True)
class Kind:
    """A kind of object over REST: how to create and change it, and the field of its secret."""

    make: Callable[[Principal], Any]
    path: str
    secret: str  # the field of the error
    body: Callable[[str, str], dict[str, Any]]  # for a secret and a changed URL


def create_web_server(administrator: Principal, **auth: Any) -> Any:
    headers = {} if auth else {"X-Team": "stored"}
    config = {"url": f"{HERE}/mcp", "headers": headers}
    spec = ServerSpec(
        name="web", transport_type="http", endpoint_config=config, auth_config=auth or None
    )
    return create_server(administrator, spec)


def oauth(**more: str) -> Callable[[Principal], Any]:
    fields = {"type": "oauth2", "client_id": "us", "client_secret": "stored", **more}
    return lambda administrator: create_web_server(administrator, **fields)


def build_auth_body(**auth: str) -> Callable[[str, str], dict[str, Any]]:
    """Return a function that builds a body with `ADDRESS` replaced in the authentication."""

    def body(secret: str, address: str) -> dict[str, Any]:
        values = {name: value.replace("ADDRESS", address) for name, value in auth.items()}
        data = {"type": "oauth2", "client_id": "us", "client_secret": secret} | values
        return {"auth_config": data}

    return body


def build_url_body(kind: str, field: str, **more: str) -> Callable[[str, str], dict[str, Any]]:
    def body(secret: str, address: str) -> dict[str, Any]:
        auth = {"auth_config": {"type": kind, field: secret, **more}}
        return {"endpoint_config": {"url": f"{address}/mcp"}} | auth

    return body


SERVERS = "mcp-servers/{}"
KINDS = {
    "server, header": Kind(
        create_web_server,
        SERVERS,
        "endpoint_config.headers.X-Team",
        lambda secret, address: {
            "endpoint_config": {"url": f"{address}/mcp", "headers": {"X-Team": secret}}
        },
    ),
    "server, bearer token": Kind(
        lambda administrator: create_web_server(administrator, type="bearer_token", token="stored"),
        SERVERS,
        "auth_config.token",
        build_url_body("bearer_token", "token"),
    ),
    "server, API key": Kind(
        lambda administrator: create_web_server(
            administrator, type="api_key", key="stored", header="X-API-Key"
        ),
        SERVERS,
        "auth_config.key",
        build_url_body("api_key", "key", header="X-API-Key"),
    ),
    "server, token URL": Kind(
        oauth(token_url=f"{HERE}/token"),
        SERVERS,
        "auth_config.client_secret",
        build_auth_body(token_url="ADDRESS/token"),
    ),
    "server, path of the token URL": Kind(
        oauth(token_url=f"{HERE}/token"),
        SERVERS,
        "auth_config.client_secret",
        build_auth_body(token_url=f"{HERE}/token?to=ADDRESS"),
    ),
    "server, a token URL where there was none": Kind(
        oauth(), SERVERS, "auth_config.client_secret", build_auth_body(token_url="ADDRESS/token")
    ),
    "server, no token URL any more": Kind(
        oauth(token_url=f"{HERE}/token"), SERVERS, "auth_config.client_secret", build_auth_body()
    ),
    "server, issuer": Kind(
        oauth(issuer=HERE), SERVERS, "auth_config.client_secret", build_auth_body(issuer="ADDRESS")
    ),
    "server, address that gets the tokens of a token URL": Kind(
        oauth(token_url=f"{HERE}/token"),
        SERVERS,
        "auth_config.client_secret",
        lambda secret, address: (
            build_auth_body(token_url=f"{HERE}/token")(secret, "")
            | {"endpoint_config": {"url": f"{address}/mcp"}}
        ),
    ),
    "server, address that gets the tokens of an issuer": Kind(
        oauth(issuer=HERE),
        SERVERS,
        "auth_config.client_secret",
        lambda secret, address: (
            build_auth_body(issuer=HERE)(secret, "")
            | {"endpoint_config": {"url": f"{address}/mcp"}}
        ),
    ),
    "server, address of a sign-in that it names": Kind(
        oauth(),
        SERVERS,
        "auth_config.client_secret",
        lambda secret, address: (
            build_auth_body()(secret, "") | {"endpoint_config": {"url": f"{address}/mcp"}}
        ),
    ),
    "model endpoint": Kind(
        lambda administrator: save_endpoint(
            administrator,
            ModelEndpointSpec(
                name="Model", kind="openai", model="m", base_url=f"{HERE}/v1", api_key="stored"
            ),
        ),
        "model-endpoints/{}",
        "api_key",
        lambda secret, address: {"base_url": f"{address}/v1", "api_key": secret},
    ),
    "identity provider": Kind(
        lambda administrator: factories.create_provider(
            Organization.objects.get(pk=administrator.organization_id), HERE, client_secret="stored"
        ),
        "identity-providers/{}",
        "client_secret",
        lambda secret, address: {"url": address, "client_secret": secret},
    ),
    "notification channel": Kind(
        lambda administrator: save_channel(
            administrator,
            NotificationChannelSpec(
                "Pager", "webhook", url=f"{HERE}/hook", secret="stored-and-long-enough"
            ),
        )[0],
        "notification-channels/{}",
        "secret",
        lambda secret, address: {"url": f"{address}/hook", "secret": secret},
    ),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_masked_secret_isnt_kept_for_another_address(kind: Kind) -> None:
    acme = factories.create_organization()
    target = kind.make(factories.build_administrator(acme))
    client = rest.as_administrator()
    path = kind.path.format(target.pk)
    headers = {"Bonobot-Organization": acme.slug}
    refusal = client.patch(path, kind.body(MASK, ELSEWHERE), **headers)
    assert refusal.status == 400, refusal
    assert refusal.code == "credential_required"
    assert refusal.json["field"] == kind.secret
    response = client.patch(path, kind.body("entered-again-for-it", ELSEWHERE), **headers)
    assert response.status == 200, response
    assert "stored" not in response.text


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("server, token URL", {"endpoint_config": {"url": f"{ELSEWHERE}/mcp"}}),
        ("server, bearer token", {"endpoint_config": {"url": f"{ELSEWHERE}/mcp"}}),
        ("server, bearer token", {"endpoint_config": {"url": "http://here.example.com/mcp"}}),
        ("model endpoint", {"base_url": ELSEWHERE}),
        ("model endpoint", {"kind": "anthropic", "base_url": ""}),
        ("identity provider", {"url": ELSEWHERE}),
        ("notification channel", {"url": f"{ELSEWHERE}/hook"}),
    ],
)
def test_a_secret_that_is_left_out_isnt_kept_for_another_address(
    name: str, body: dict[str, Any]
) -> None:
    acme, kind = factories.create_organization(), KINDS[name]
    path = kind.path.format(kind.make(factories.build_administrator(acme)).pk)
    refusal = rest.as_administrator().patch(path, body, **{"Bonobot-Organization": acme.slug})
    assert (refusal.status, refusal.code) == (400, "credential_required"), refusal
    assert refusal.json["field"] == kind.secret


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_masked_secret_is_kept_for_the_same_address(kind: Kind) -> None:
    acme = factories.create_organization()
    target = kind.make(factories.build_administrator(acme))
    headers = {"Bonobot-Organization": acme.slug}
    data = {"name": "Another name"}
    response = rest.as_administrator().patch(kind.path.format(target.pk), data, **headers)
    assert response.status == 200, response
