"""Cross-origin requests: only allowed origins can use the gateway."""

from typing import Any

import pytest

from tests.agents.gateway.conftest import GatewayClient

pytestmark = pytest.mark.django_db(transaction=True)

ALLOWED, OTHER = "https://app.example.com", "https://elsewhere.example.com"
PREFLIGHT = {
    "Access_Control_Request_Method": "POST",
    "Access_Control_Request_Headers": "authorization, mcp-param-city, x-own",
}


@pytest.fixture(autouse=True)
def allow_origin(settings: Any) -> None:
    settings.BONOBOT_CORS_ORIGINS = [ALLOWED]


def test_an_allowed_origin_can_send_the_headers_of_clients(gateway_client: GatewayClient) -> None:
    reply = gateway_client.send("OPTIONS", "/mcp", Origin=ALLOWED, **PREFLIGHT)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (204, ALLOWED)
    allowed_headers = reply.headers["access-control-allow-headers"].split(", ")
    assert {"Authorization", "Mcp-Method", "mcp-param-city"} <= set(allowed_headers)
    assert "x-own" not in allowed_headers


def test_only_allowed_origins_can_read_responses(gateway_client: GatewayClient) -> None:
    reply = gateway_client.send("POST", "/mcp", b"{}", Origin=ALLOWED)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (401, ALLOWED)
    assert (
        "access-control-allow-origin"
        not in gateway_client.send("POST", "/mcp", b"{}", Origin=OTHER).headers
    )
    preflight = gateway_client.send("OPTIONS", "/mcp", Origin=OTHER, **PREFLIGHT)
    assert (preflight.status, "access-control-allow-methods" in preflight.headers) == (204, False)


def test_only_allowed_origins_can_read_the_metadata(gateway_client: GatewayClient) -> None:
    path = "/.well-known/oauth-protected-resource/mcp"
    preflight = {**PREFLIGHT, "Access_Control_Request_Headers": "mcp-protocol-version"}
    assert gateway_client.send("OPTIONS", path, Origin=ALLOWED, **preflight).status == 204
    reply = gateway_client.send("GET", path, Origin=ALLOWED)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, ALLOWED)
    foreign = gateway_client.send("GET", path, Origin=OTHER)
    assert "access-control-allow-origin" not in foreign.headers
