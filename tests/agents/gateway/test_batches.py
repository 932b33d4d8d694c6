"""JSON-RPC batches work in sessions of MCP 2025-03-26, and in no others."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agents.gateway.batches import parse_batch
from agents.models import Agent
from bonobot.accounts.models import Organization
from tests.agents.gateway.conftest import GatewayClient, Reply, Session
from tests.agents.gateway.upstream_server import Upstream, attach_upstream

pytestmark = pytest.mark.django_db(transaction=True)
AGENT = "/mcp/agents/helper"


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    upstream = Upstream("anew")
    with upstream.listening():
        attach_upstream(upstream, acme, helper)
        yield upstream


def request(number: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def call(number: int, text: str) -> dict[str, Any]:
    return request(number, "tools/call", name="mcp_anew_echo", arguments={"text": text})


def send(
    session: Session, gateway_client: GatewayClient, messages: Any
) -> tuple[Reply, dict[Any, Any]]:
    """Send a batch and return the responses by id."""
    headers = session._with_bearer()
    headers.pop("MCP_Protocol_Version")
    transported = gateway_client.send("POST", AGENT, json.dumps(messages).encode(), **headers)
    return transported, {
        message["id"]: message for message in transported.messages if "id" in message
    }


def test_each_request_of_a_batch_is_answered(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, version="2025-03-26")
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    reply, answers = send(
        session, gateway_client, [notification, call(1, "a"), call(2, "b"), request(3, "nothing")]
    )
    assert reply.status == 200
    assert sorted(answers) == [1, 2, 3]
    assert "a" in json.dumps(answers[1]["result"])
    assert "b" in json.dumps(answers[2]["result"])
    assert answers[3]["error"]["code"] == -32601


def test_a_batch_without_requests_is_accepted(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, version="2025-03-26")
    reply, answers = send(
        session, gateway_client, [{"jsonrpc": "2.0", "method": "notifications/x"}]
    )
    assert (reply.status, answers) == (202, {})


def test_invalid_messages_of_a_batch_are_answered_with_errors(
    upstream: Upstream, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT, version="2025-03-26")
    bad = {"jsonrpc": "1.0", "id": 1, "method": "ping"}
    _, answers = send(session, gateway_client, [bad, request(2, "ping")])
    assert "error" in answers[1]
    assert answers[2]["result"] == {}


@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05"])
def test_batches_are_refused_in_sessions_of_other_versions(
    upstream: Upstream, gateway_client: GatewayClient, version: str
) -> None:
    session = gateway_client.handshake(AGENT, version=version)
    reply, _ = send(session, gateway_client, [request(1, "ping")])
    assert (reply.status, reply.error["code"]) == (400, -32600)


@pytest.mark.parametrize(
    "messages",
    [[], [1], [request(1, "initialize")], [request(1, "ping")] * 2, [request(1, "x")] * 101],
)
def test_an_invalid_batch_is_refused(messages: Any) -> None:
    assert isinstance(parse_batch(json.dumps(messages).encode()), str)
