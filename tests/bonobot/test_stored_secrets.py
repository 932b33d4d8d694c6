"""No stored secret can be sent elsewhere: every object that has one × every address of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.notifications.services import NotificationChannelSpec, save_channel
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, rest

pytestmark = pytest.mark.django_db

MASK = "********"
HERE, ELSEWHERE = "https://here.example.com", "https://elsewhere.example.net"


@dataclass(frozen=True)
class Kind:
    """A kind of object over REST: how it is made, changed, and what its secret is."""

    make: Callable[[Principal], Any]
    path: str
    secret: str  # the field of the refusal
    body: Callable[[str, str], dict[str, Any]]  # of a secret and the address that changes


def server(boss: Principal, **auth: Any) -> Any:
    headers = {} if auth else {"X-Team": "stored"}
    config = {"url": f"{HERE}/mcp", "headers": headers}
    spec = ServerSpec(
        name="web", transport_type="http", endpoint_config=config, auth_config=auth or None
    )
    return create_server(boss, spec)


def oauth(**more: str) -> Callable[[Principal], Any]:
    fields = {"type": "oauth2", "client_id": "us", "client_secret": "stored", **more}
    return lambda boss: server(boss, **fields)


def with_auth(**auth: str) -> Callable[[str, str], dict[str, Any]]:
    """Return a body that changes the address marked by `ADDRESS` in the sign-in."""

    def body(secret: str, address: str) -> dict[str, Any]:
        filled = {name: value.replace("ADDRESS", address) for name, value in auth.items()}
        data = {"type": "oauth2", "client_id": "us", "client_secret": secret} | filled
        return {"auth_config": data}

    return body


def with_url(kind: str, member: str, **more: str) -> Callable[[str, str], dict[str, Any]]:
    def body(secret: str, address: str) -> dict[str, Any]:
        auth = {"auth_config": {"type": kind, member: secret, **more}}
        return {"endpoint_config": {"url": f"{address}/mcp"}} | auth

    return body


SERVERS = "mcp-servers/{}"
KINDS = {
    "server, header": Kind(
        server,
        SERVERS,
        "endpoint_config.headers.X-Team",
        lambda secret, address: {
            "endpoint_config": {"url": f"{address}/mcp", "headers": {"X-Team": secret}}
        },
    ),
    "server, bearer token": Kind(
        lambda boss: server(boss, type="bearer_token", token="stored"),
        SERVERS,
        "auth_config.token",
        with_url("bearer_token", "token"),
    ),
    "server, API key": Kind(
        lambda boss: server(boss, type="api_key", key="stored", header="X-API-Key"),
        SERVERS,
        "auth_config.key",
        with_url("api_key", "key", header="X-API-Key"),
    ),
    "server, token URL": Kind(
        oauth(token_url=f"{HERE}/token"),
        SERVERS,
        "auth_config.client_secret",
        with_auth(token_url="ADDRESS/token"),
    ),
    "server, path of the token URL": Kind(
        oauth(token_url=f"{HERE}/token"),
        SERVERS,
        "auth_config.client_secret",
        with_auth(token_url=f"{HERE}/token?to=ADDRESS"),
    ),
    "server, a token URL where there was none": Kind(
        oauth(), SERVERS, "auth_config.client_secret", with_auth(token_url="ADDRESS/token")
    ),
    "server, no token URL any more": Kind(
        oauth(token_url=f"{HERE}/token"), SERVERS, "auth_config.client_secret", with_auth()
    ),
    "server, issuer": Kind(
        oauth(issuer=HERE), SERVERS, "auth_config.client_secret", with_auth(issuer="ADDRESS")
    ),
    "server, address of a sign-in that it names": Kind(
        oauth(),
        SERVERS,
        "auth_config.client_secret",
        lambda secret, address: (
            with_auth()(secret, "") | {"endpoint_config": {"url": f"{address}/mcp"}}
        ),
    ),
    "model endpoint": Kind(
        lambda boss: save_endpoint(
            boss,
            ModelEndpointSpec(
                name="Model", kind="openai", model="m", base_url=f"{HERE}/v1", api_key="stored"
            ),
        ),
        "model-endpoints/{}",
        "api_key",
        lambda secret, address: {"base_url": f"{address}/v1", "api_key": secret},
    ),
    "identity provider": Kind(
        lambda boss: factories.create_provider(
            Organization.objects.get(pk=boss.organization_id), HERE, client_secret="stored"
        ),
        "identity-providers/{}",
        "client_secret",
        lambda secret, address: {"url": address, "client_secret": secret},
    ),
    "notification channel": Kind(
        lambda boss: save_channel(
            boss,
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
    made = kind.make(factories.build_administrator(acme))
    client = rest.as_administrator()
    path = kind.path.format(made.pk)
    headers = {"Bonobot-Organization": acme.slug}
    refused = client.patch(path, kind.body(MASK, ELSEWHERE), **headers)
    assert refused.status == 400, refused
    assert refused.code == "credential_needed"
    assert refused.json["field"] == kind.secret
    entered = client.patch(path, kind.body("entered-again-for-it", ELSEWHERE), **headers)
    assert entered.status == 200, entered
    assert "stored" not in entered.text


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_masked_secret_is_kept_for_the_same_address(kind: Kind) -> None:
    acme = factories.create_organization()
    made = kind.make(factories.build_administrator(acme))
    headers = {"Bonobot-Organization": acme.slug}
    data = {"name": "Another name"}
    kept = rest.as_administrator().patch(kind.path.format(made.pk), data, **headers)
    assert kept.status == 200, kept
