"""Suspended calls: a response at any process continues the call at its process."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agents.gateway import suspended_calls
from agents.gateway.transports import GatewayApplication
from agents.models import Agent, CallHandoff
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.tokens.services import revoke_token
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.agents.calls.test_pipeline_audit_failure import LONG, Away, away
from tests.agents.gateway.conftest import GatewayClient, token_of
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, attach_upstream
from tests.wait import eventually

__all__ = ["away"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ASK = "mcp_bygone_ask"
OVER = -32602
FAILED = -32050


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    """A server of the handshake era that requests input during a call."""
    with Upstream("bygone", handshake=True).listening() as server:
        attach_upstream(server, acme, helper)
        yield server


@pytest.fixture
def second_gateway(gateway_client: GatewayClient) -> Iterator[GatewayClient]:
    """Another gateway on the same database."""
    mount = GatewayApplication()
    yield GatewayClient(mount, gateway_client.token)
    get_runtime().call(mount.stop)


def call(gateway_client: GatewayClient, **more: Any) -> Json:
    params = {"name": ASK, "arguments": {"times": more.pop("times", 1)}} | more
    return gateway_client.modern(AGENT, "tools/call", params, capabilities=ABLE).message


def build_retry(pending: Json, name: str = "Ann") -> Json:
    """Build a retry with answers to all requests and the state."""
    result = pending["result"]
    answer = {"action": "accept", "content": {"name": name}}
    responses = dict.fromkeys(result["inputRequests"], answer)
    return {"requestState": result["requestState"], "inputResponses": responses}


def text(message: Json) -> str:
    content: list[Json] = message["result"]["content"]
    return str(content[0]["text"])


def test_a_response_at_another_process_continues_the_call(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client)
    assert pending["result"]["resultType"] == "input_required"
    assert "bygone asks" in str(pending["result"]["inputRequests"])
    message = call(second_gateway, **build_retry(pending))
    assert text(message).startswith("bygone")
    assert "Ann" in text(message)
    assert len(upstream.client_responses) == 1
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the handoff")


def test_a_call_with_several_requests_can_continue_at_any_process(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client, times=3)
    for name, gateway in (("Ann", second_gateway), ("Ben", gateway_client)):
        pending = call(gateway, times=3, **build_retry(pending, name))
        assert pending["result"]["resultType"] == "input_required"
    message = call(second_gateway, times=3, **build_retry(pending, "Cho"))
    assert [name for name in ("Ann", "Ben", "Cho") if name in text(message)] == [
        "Ann",
        "Ben",
        "Cho",
    ]


def test_stored_rows_are_encrypted(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client)
    stored: list[str] = []

    def record_rows(channel: str) -> None:
        for row in CallHandoff.objects.all():
            stored.extend((row.responses, row.result))
        wake_listeners(channel)

    wake_listeners = suspended_calls.wake_listeners
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suspended_calls, "wake_listeners", record_rows)
        message = call(second_gateway, **build_retry(pending))
    assert "Ann" in text(message)
    assert any(stored)
    assert "Ann" not in "".join(stored)


def test_responses_are_used_once(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client)
    assert "Ann" in text(call(second_gateway, **build_retry(pending)))
    for gateway in (second_gateway, gateway_client):
        repeated = call(gateway, **build_retry(pending))
        assert repeated["error"]["code"] == OVER
        assert repeated["error"]["data"]["code"] == "call_ended"
    assert len(upstream.client_responses) == 1


def test_a_lost_process_is_reported(
    upstream: Upstream,
    gateway_client: GatewayClient,
    second_gateway: GatewayClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pending = call(gateway_client)
    monkeypatch.setattr(suspended_calls, "HOLDER_TIMEOUT_S", 0.3)
    get_runtime().call(_stop_watching, gateway_client)
    message = call(second_gateway, **build_retry(pending))
    assert message["error"]["code"] == OVER
    assert message["error"]["data"]["code"] == "call_lost"


def test_a_process_without_heartbeats_isnt_waited_for(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client)
    get_runtime().call(_stop_watching, gateway_client)
    expire_heartbeats(suspended_calls.HOLDER_TIMEOUT_S)
    assert call(second_gateway, **build_retry(pending))["error"]["data"]["code"] == "call_lost"
    assert call(second_gateway, **build_retry(pending))["error"]["data"]["code"] == "call_ended"


def test_a_slow_process_cancels_a_call_that_was_reported_lost(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client)
    get_runtime().call(_stop_watching, gateway_client)
    expire_heartbeats(suspended_calls.HOLDER_TIMEOUT_S)
    assert call(second_gateway, **build_retry(pending))["error"]["data"]["code"] == "call_lost"
    get_runtime().call(_restart_watching, gateway_client)
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the handoff")
    assert upstream.client_responses == []


def expire_heartbeats(seconds: float) -> None:
    """Make every heartbeat older than this."""
    CallHandoff.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=seconds + 1))


async def _restart_watching(gateway_client: GatewayClient) -> None:
    calls = gateway_client._mount.dispatcher._upstream_handlers._suspended_calls
    calls._watch_task = asyncio.create_task(calls._watch_handoffs())


async def _stop_watching(gateway_client: GatewayClient) -> None:
    """Stop a gateway's polling, as if its process had ended."""
    task = gateway_client._mount.dispatcher._upstream_handlers._suspended_calls._watch_task
    assert task is not None
    task.cancel()
    await asyncio.wait({task})


def test_a_deleted_row_ends_the_wait(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    arguments = {"times": 1, "for_ever": True}
    pending = call(gateway_client, arguments=arguments)
    params = {"name": ASK, "arguments": arguments, **build_retry(pending)}
    stream = second_gateway.listen(AGENT, params, method="tools/call", capabilities=ABLE)
    eventually(lambda: upstream.client_responses, what="the answer at the server")
    CallHandoff.objects.all().delete()
    message = stream.next()
    stream.close()
    assert message is not None
    assert (message["error"]["code"], message["error"]["data"]["code"]) == (OVER, "call_ended")


def test_a_failed_write_is_reported_to_the_waiting_client(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient, away: Away
) -> None:
    pending = call(gateway_client)
    away.tries = LONG
    result = call(second_gateway, **build_retry(pending))["result"]
    away.tries = 0
    problem = result["_meta"]["bonobot/problem"]
    assert (result["isError"], problem["code"]) == (True, "outcome_unrecorded")
    assert problem["remedy"].startswith("Check the result of the call")


@pytest.mark.parametrize("location", ["here", "elsewhere"])
def test_a_server_that_fails_after_a_response_is_reported(
    location: str, upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client, arguments={"times": 1, "fails": True})
    gateway = gateway_client if location == "here" else second_gateway
    message = call(gateway, arguments={"times": 1, "fails": True}, **build_retry(pending))
    assert message["error"]["code"] == FAILED


def test_a_client_that_doesnt_return_declines_the_request(
    upstream: Upstream, gateway_client: GatewayClient, settings: Any
) -> None:
    settings.BONOBOT_ANSWER_S = 0.1
    pending = call(gateway_client)
    (response,) = eventually(lambda: upstream.client_responses, what="the answer at the server")
    assert response["error"]["code"] == -1
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the call")
    assert call(gateway_client, **build_retry(pending))["error"]["code"] == OVER


@pytest.mark.parametrize("location", ["here", "elsewhere"])
def test_an_expired_token_cant_continue_a_call(
    location: str,
    acme: Organization,
    upstream: Upstream,
    gateway_client: GatewayClient,
    second_gateway: GatewayClient,
) -> None:
    gateway = gateway_client if location == "here" else second_gateway
    token = token_of(factories.build_administrator(acme))
    gateway_client.token = second_gateway.token = token
    pending = call(gateway_client)
    second_gateway.modern(AGENT, "tools/list")  # the other process caches the token
    revoke_token(factories.build_administrator(acme), Token.objects.get(key=token.split("_")[1]))
    message = call(gateway, **build_retry(pending))
    assert "bad_token" in str(message)
    assert upstream.client_responses == []


def test_missing_responses_are_requested_again(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client)
    repeated = call(second_gateway, **build_retry(pending) | {"inputResponses": {}})
    assert repeated["result"]["inputRequests"] == pending["result"]["inputRequests"]
    assert "Ann" in text(call(second_gateway, **build_retry(repeated)))


def test_a_client_that_leaves_ends_the_call_at_its_process(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    arguments = {"times": 1, "for_ever": True}
    pending = call(gateway_client, arguments=arguments)
    params = {"name": ASK, "arguments": arguments, **build_retry(pending)}
    stream = second_gateway.listen(AGENT, params, method="tools/call", capabilities=ABLE)
    eventually(lambda: upstream.client_responses, what="the answer at the server")
    stream.close()
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the handoff")
    entry = AuditRow.objects.filter(event_type="call").order_by("seq").last()
    assert entry is not None
    assert entry.outcome == "unknown"  # it was sent, and its effect is unknown


def test_a_process_that_stops_records_its_suspended_calls_as_unknown(
    upstream: Upstream, gateway_client: GatewayClient, second_gateway: GatewayClient
) -> None:
    pending = call(gateway_client)
    get_runtime().call(gateway_client._mount.stop)
    assert not CallHandoff.objects.exists()
    entry = AuditRow.objects.filter(event_type="call").order_by("seq").last()
    assert entry is not None
    assert entry.outcome == "unknown"
    message = call(second_gateway, **build_retry(pending))
    assert message["error"]["data"]["code"] == "call_ended"
