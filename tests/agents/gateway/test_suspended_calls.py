"""Handing over: whichever process gets a client's answers, the call's holder goes on with it."""

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
from tests.agents.gateway.conftest import Wire, token_of
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, give
from tests.wait import eventually

__all__ = ["away"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ASK = "mcp_bygone_ask"
OVER = -32602
FAILED = -32050


@pytest.fixture
def upstream(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    """A server of the handshake era that asks in the middle of a call."""
    with Upstream("bygone", old=True).listening() as found:
        give(found, acme, helper)
        yield found


@pytest.fixture
def other(wire: Wire) -> Iterator[Wire]:
    """Another gateway on the same rows, which knows nothing of what the first holds."""
    mount = GatewayApplication()
    yield Wire(mount, wire.token)
    get_runtime().call(mount.stop)


def call(wire: Wire, **more: Any) -> Json:
    params = {"name": ASK, "arguments": {"times": more.pop("times", 1)}} | more
    return wire.modern(AGENT, "tools/call", params, capabilities=ABLE).message


def answers(asked: Json, name: str = "Ann") -> Json:
    """What a client sends back: an answer to all that was asked, and the state."""
    found = asked["result"]
    said = {"action": "accept", "content": {"name": name}}
    responses = dict.fromkeys(found["inputRequests"], said)
    return {"requestState": found["requestState"], "inputResponses": responses}


def text(message: Json) -> str:
    content: list[Json] = message["result"]["content"]
    return str(content[0]["text"])


def test_a_response_at_another_process_continues_the_call(
    upstream: Upstream, wire: Wire, other: Wire
) -> None:
    asked = call(wire)
    assert asked["result"]["resultType"] == "input_required"
    assert "bygone asks" in str(asked["result"]["inputRequests"])
    done = call(other, **answers(asked))
    assert text(done).startswith("bygone")
    assert "Ann" in text(done)
    assert len(upstream.asked_back) == 1
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the handover")


def test_a_call_with_several_requests_can_continue_at_any_process(
    upstream: Upstream, wire: Wire, other: Wire
) -> None:
    asked = call(wire, times=3)
    for name, there in (("Ann", other), ("Ben", wire)):
        asked = call(there, times=3, **answers(asked, name))
        assert asked["result"]["resultType"] == "input_required"
    done = call(other, times=3, **answers(asked, "Cho"))
    assert [name for name in ("Ann", "Ben", "Cho") if name in text(done)] == ["Ann", "Ben", "Cho"]


def test_stored_rows_are_encrypted(upstream: Upstream, wire: Wire, other: Wire) -> None:
    asked = call(wire)
    seen: list[str] = []

    def watch() -> None:
        for row in CallHandoff.objects.all():
            seen.extend((row.responses, row.result))

    answer = suspended_calls.handoff.save_result
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suspended_calls.handoff, "save_result", lambda *it: (answer(*it), watch()))
        done = call(other, **answers(asked))
    assert "Ann" in text(done)
    assert any(seen)
    assert "Ann" not in "".join(seen)


def test_responses_are_used_once(upstream: Upstream, wire: Wire, other: Wire) -> None:
    asked = call(wire)
    assert "Ann" in text(call(other, **answers(asked)))
    for one in (other, wire):
        again = call(one, **answers(asked))
        assert again["error"]["code"] == OVER
        assert again["error"]["data"]["code"] == "call_over"
    assert len(upstream.asked_back) == 1


def test_a_lost_process_is_reported(
    upstream: Upstream, wire: Wire, other: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = call(wire)
    monkeypatch.setattr(suspended_calls, "HOLDER_TIMEOUT_S", 0.3)
    get_runtime().call(_stop_attending, wire)
    gone = call(other, **answers(asked))
    assert gone["error"]["code"] == OVER
    assert gone["error"]["data"]["code"] == "call_lost"


def test_a_silent_process_isnt_waited_for(upstream: Upstream, wire: Wire, other: Wire) -> None:
    asked = call(wire)
    get_runtime().call(_stop_attending, wire)
    silent(suspended_calls.HOLDER_TIMEOUT_S)
    assert call(other, **answers(asked))["error"]["data"]["code"] == "call_lost"
    assert call(other, **answers(asked))["error"]["data"]["code"] == "call_over"


def test_a_slow_process_cancels_the_call_that_was_given_up(
    upstream: Upstream, wire: Wire, other: Wire
) -> None:
    asked = call(wire)
    get_runtime().call(_stop_attending, wire)
    silent(suspended_calls.HOLDER_TIMEOUT_S)
    assert call(other, **answers(asked))["error"]["data"]["code"] == "call_lost"
    get_runtime().call(_attend_again, wire)
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the handover")
    assert upstream.asked_back == []


def silent(seconds: float) -> None:
    """Have every holder's last sign of life be long ago."""
    CallHandoff.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=seconds + 1))


async def _attend_again(wire: Wire) -> None:
    held = wire._mount.dispatcher._upstream_handlers._suspended_calls
    held._watching = asyncio.create_task(held._watch_handoffs())


async def _stop_attending(wire: Wire) -> None:
    """Have a gateway look no more, as when its process has ended."""
    attending = wire._mount.dispatcher._upstream_handlers._suspended_calls._watching
    assert attending is not None
    attending.cancel()
    await asyncio.wait({attending})


def test_a_deleted_row_ends_the_wait(upstream: Upstream, wire: Wire, other: Wire) -> None:
    arguments = {"times": 1, "for_ever": True}
    asked = call(wire, arguments=arguments)
    params = {"name": ASK, "arguments": arguments, **answers(asked)}
    waiting = other.listen(AGENT, params, method="tools/call", capabilities=ABLE)
    eventually(lambda: upstream.asked_back, what="the answer at the server")
    CallHandoff.objects.all().delete()
    told = waiting.next()
    waiting.close()
    assert told is not None
    assert (told["error"]["code"], told["error"]["data"]["code"]) == (OVER, "call_over")


def test_a_failed_write_is_reported_to_the_waiting_client(
    upstream: Upstream, wire: Wire, other: Wire, away: Away
) -> None:
    asked = call(wire)
    away.tries = LONG
    told = call(other, **answers(asked))["result"]
    away.tries = 0
    problem = told["_meta"]["bonobot/problem"]
    assert (told["isError"], problem["code"]) == (True, "outcome_unrecorded")
    assert problem["remedy"].startswith("Check the result of the call")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_server_that_fails_after_a_response_is_reported(
    where: str, upstream: Upstream, wire: Wire, other: Wire
) -> None:
    asked = call(wire, arguments={"times": 1, "fails": True})
    there = wire if where == "here" else other
    failed = call(there, arguments={"times": 1, "fails": True}, **answers(asked))
    assert failed["error"]["code"] == FAILED


def test_a_client_that_doesnt_return_declines_the_request(
    upstream: Upstream, wire: Wire, settings: Any
) -> None:
    settings.BONOBOT_ANSWER_S = 0.1
    asked = call(wire)
    (told,) = eventually(lambda: upstream.asked_back, what="the answer at the server")
    assert told["error"]["code"] == -1
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the call")
    assert call(wire, **answers(asked))["error"]["code"] == OVER


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_an_expired_token_cant_continue_a_call(
    where: str, acme: Organization, upstream: Upstream, wire: Wire, other: Wire
) -> None:
    there = wire if where == "here" else other
    text_of_token = token_of(factories.build_administrator(acme))
    wire.token = other.token = text_of_token
    asked = call(wire)
    other.modern(AGENT, "tools/list")  # the other one knows the token, too
    revoke_token(
        factories.build_administrator(acme), Token.objects.get(key=text_of_token.split("_")[1])
    )
    ended = call(there, **answers(asked))
    assert "bad_token" in str(ended)
    assert upstream.asked_back == []


def test_missing_responses_are_requested_again(upstream: Upstream, wire: Wire, other: Wire) -> None:
    asked = call(wire)
    again = call(other, **answers(asked) | {"inputResponses": {}})
    assert again["result"]["inputRequests"] == asked["result"]["inputRequests"]
    assert "Ann" in text(call(other, **answers(again)))


def test_a_client_that_leaves_ends_the_call_at_its_process(
    upstream: Upstream, wire: Wire, other: Wire
) -> None:
    arguments = {"times": 1, "for_ever": True}
    asked = call(wire, arguments=arguments)
    params = {"name": ASK, "arguments": arguments, **answers(asked)}
    waiting = other.listen(AGENT, params, method="tools/call", capabilities=ABLE)
    eventually(lambda: upstream.asked_back, what="the answer at the server")
    waiting.close()
    eventually(lambda: not CallHandoff.objects.exists(), what="the end of the handover")
    ended = AuditRow.objects.filter(event_type="call").order_by("seq").last()
    assert ended is not None
    assert ended.outcome == "unknown"  # it was sent, and nobody knows what it did
