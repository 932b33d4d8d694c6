"""Input requests of modern servers to clients of the handshake era."""

from collections.abc import Iterator

import pytest

from agents.gateway import approvals, forwarded_requests
from agents.models import Agent
from bonobot.accounts.models import Organization
from tests.agents.gateway.conftest import GatewayClient
from tests.agents.gateway.upstream_server import Upstream, attach_upstream

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ASK = {"name": "mcp_anew_ask", "arguments": {}}


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    """A modern server that requests input before it answers."""
    with Upstream("anew").listening() as server:
        attach_upstream(server, acme, helper)
        yield server


def test_the_call_continues_with_the_clients_response(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {}})
    stream = session.begin("tools/call", ASK)
    request = stream.next()
    assert request is not None
    assert (request["method"], request["params"]["message"]) == ("elicitation/create", "anew asks")
    session.answer(request, result={"action": "accept", "content": {"name": "Ann"}})
    response = stream.next()
    assert response is not None
    assert "Ann" in response["result"]["content"][0]["text"]
    assert "resultType" not in response["result"]
    stream.close()


def test_a_client_that_answers_with_an_error_ends_the_call(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {}})
    stream = session.begin("tools/call", ASK)
    session.answer(stream.next() or {}, error={"code": -1, "message": "No."})
    response = stream.next()
    assert response is not None
    assert response["error"]["code"] == -1
    stream.close()


def test_a_server_with_endless_requests_is_stopped(
    upstream: Upstream, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarded_requests, "MAX_ROUNDS", 1)
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {}})
    stream = session.begin("tools/call", ASK)
    session.answer(stream.next() or {}, result={"action": "decline"})
    response = stream.next()
    assert response is not None
    assert response["error"]["code"] == -32602
    stream.close()


@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_only_an_accepted_url_is_waited_for(action: str) -> None:
    assert approvals.is_declined({approvals.APPROVAL_REQUEST_KEY: {"action": action}})
    assert not approvals.is_declined({approvals.APPROVAL_REQUEST_KEY: {"action": "accept"}})
    assert not approvals.is_declined({})
