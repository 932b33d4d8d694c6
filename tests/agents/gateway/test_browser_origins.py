"""Browser applications elsewhere: those that are named may use the gateway, others may not."""

from typing import Any

import pytest

from tests.agents.gateway.conftest import Wire

pytestmark = pytest.mark.django_db(transaction=True)

OURS, STRANGE = "https://app.example.com", "https://elsewhere.example.com"
ASKS = {
    "Access_Control_Request_Method": "POST",
    "Access_Control_Request_Headers": "authorization, mcp-param-city, x-own",
}


@pytest.fixture(autouse=True)
def _known(settings: Any) -> None:
    settings.BONOBOT_CORS_ORIGINS = [OURS]


def test_an_allowed_origin_can_send_the_headers_of_clients(wire: Wire) -> None:
    answer = wire.send("OPTIONS", "/mcp", Origin=OURS, **ASKS)
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (204, OURS)
    sent = answer.headers["access-control-allow-headers"].split(", ")
    assert {"Authorization", "Mcp-Method", "mcp-param-city"} <= set(sent)
    assert "x-own" not in sent


def test_only_allowed_origins_can_read_responses(wire: Wire) -> None:
    refused = wire.send("POST", "/mcp", b"{}", Origin=OURS)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (401, OURS)
    assert (
        "access-control-allow-origin"
        not in wire.send("POST", "/mcp", b"{}", Origin=STRANGE).headers
    )
    strange = wire.send("OPTIONS", "/mcp", Origin=STRANGE, **ASKS)
    assert (strange.status, "access-control-allow-methods" in strange.headers) == (204, False)


def test_only_allowed_origins_can_read_the_metadata(wire: Wire) -> None:
    path = "/.well-known/oauth-protected-resource/mcp"
    asked = {**ASKS, "Access_Control_Request_Headers": "mcp-protocol-version"}
    assert wire.send("OPTIONS", path, Origin=OURS, **asked).status == 204
    read = wire.send("GET", path, Origin=OURS)
    assert (read.status, read.headers["access-control-allow-origin"]) == (200, OURS)
    strange = wire.send("GET", path, Origin=STRANGE)
    assert "access-control-allow-origin" not in strange.headers
