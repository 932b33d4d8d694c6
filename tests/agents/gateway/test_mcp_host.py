"""Hosting: calls of one client that servers ask about go on beside each other, each for itself."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.gateway import mcp_host
from agents.gateway.mcp_host import ExclusiveConnections
from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.gateway.conftest import Reply, Session, Stream, Wire
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, give

pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ASKER = Path(__file__).parents[2] / "servers" / "client_request_server.py"
NAMES = ("Ann", "Ben", "Cho")


@pytest.fixture
def olds(acme: Organization, helper: Agent) -> Iterator[tuple[Upstream, Upstream]]:
    """Two servers of the handshake era that ask in the middle of a call."""
    with (
        Upstream("first", old=True).listening() as one,
        Upstream("second", old=True).listening() as two,
    ):
        for each in (one, two):
            give(each, acme, helper)
        yield one, two


@pytest.fixture
def asker(acme: Organization, helper: Agent, tmp_path: Path) -> Server:
    """A server over stdio that asks whatever its arguments say, in the handshake era."""
    spec = ServerSpec(
        name="asker",
        transport_type="stdio",
        endpoint_config={
            **{"command": sys.executable, "args": [str(ASKER), "handshake"]},
            "env": {"ASKER_FILE": str(tmp_path / "asker")},
        },
        approval=Server.Approval.ALWAYS,
        elicitation=True,
    )
    boss = factories.build_administrator(acme)
    server = factories.approve_server(acme, create_server(boss, spec))
    attach_server(boss, helper, server)
    return server


def call(wire: Wire, tool: str, **more: Any) -> Json:
    params = {"name": f"mcp_{tool}", "arguments": {}, **more}
    return wire.modern(AGENT, "tools/call", params, capabilities=ABLE).result


def answered(wire: Wire, tool: str, asked: Json, name: str, **more: Any) -> str:
    said = {"action": "accept", "content": {"name": name}}
    back = dict.fromkeys(asked["inputRequests"], said)
    done = call(wire, tool, requestState=asked["requestState"], inputResponses=back, **more)
    assert done["resultType"] == "complete"
    return str(done["content"][0]["text"])


def test_two_servers_can_request_input_of_a_modern_client(
    olds: tuple[Upstream, Upstream], wire: Wire
) -> None:
    asked = {mark: call(wire, f"{mark}_ask") for mark in ("first", "second")}
    for mark, found in asked.items():
        assert found["resultType"] == "input_required"
        assert f"{mark} asks" in json.dumps(found["inputRequests"])
    assert "Ben" in answered(wire, "second_ask", asked["second"], "Ben")
    assert "Ann" in answered(wire, "first_ask", asked["first"], "Ann")
    assert [len(one.asked_back) for one in olds] == [1, 1]


def test_two_calls_of_a_modern_client_get_their_own_responses(
    olds: tuple[Upstream, Upstream], wire: Wire
) -> None:
    asked = [call(wire, "first_ask", arguments={"n": n}) for n in range(2)]
    for n, name in ((1, "Ben"), (0, "Ann")):
        text = answered(wire, "first_ask", asked[n], name, arguments={"n": n})
        assert [one for one in NAMES if one in text] == [name]


def test_concurrent_stdio_calls_with_requests_have_their_own_processes(
    asker: Server, wire: Wire
) -> None:
    def wanting(text: str) -> Json:
        form = {"mode": "form", "message": text, "requestedSchema": {"type": "object"}}
        return {"requests": [{"method": "elicitation/create", "params": form}]}

    asked = [call(wire, "asker_ask", arguments=wanting(f"{n}?")) for n in range(2)]
    for n, found in enumerate(asked):
        (one,) = found["inputRequests"].values()
        assert one["params"]["message"] == f"{n}?"
    for n, name in ((1, "Ben"), (0, "Ann")):
        text = answered(wire, "asker_ask", asked[n], name, arguments=wanting(f"{n}?"))
        assert [one for one in NAMES if one in text] == [name]


def test_a_handshake_client_is_asked_on_the_stream_of_its_call(
    olds: tuple[Upstream, Upstream], wire: Wire
) -> None:
    session = wire.handshake(AGENT, capabilities={"elicitation": {}})
    calls = [calling(session, "mcp_first_ask", n, {"n": n}) for n in range(2)]
    calls.append(calling(session, "mcp_second_ask", 2, {}))
    asked = [one.next() for one in calls]
    for mark, one in zip(("first", "first", "second"), asked, strict=True):
        assert one is not None
        assert one["params"]["message"] == f"{mark} asks"
    for n in (2, 1, 0):
        answer(session, asked[n], NAMES[n])
        done = calls[n].next()
        assert done is not None
        text = done["result"]["content"][0]["text"]
        assert [one for one in NAMES if one in text] == [NAMES[n]]
        calls[n].close()


def calling(session: Session, tool: str, number: int, arguments: Json) -> Stream:
    """Begin a call, and read what comes of it as it comes."""
    params = {"name": tool, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 100 + number, "method": "tools/call", "params": params}
    content, mount = json.dumps(message).encode(), session._wire._mount
    return Stream(mount, "POST", AGENT, session._with_bearer(), content)


def answer(session: Session, asked: Json | None, name: str) -> Reply:
    assert asked is not None
    said = {"action": "accept", "content": {"name": name}}
    body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": said}).encode()
    return session._wire.send("POST", AGENT, body, **session._with_bearer())


def test_the_number_of_parallel_connections_is_limited_and_free_ones_are_reused() -> None:
    async def taken() -> list[str]:
        lanes, held = ExclusiveConnections(), []
        entered = [lanes.acquire_connection("me", None) for _ in range(mcp_host.MAX_CONNECTIONS)]
        held = [await one.__aenter__() for one in entered]
        waiting = asyncio.ensure_future(lanes.acquire_connection("me", None).__aenter__())
        async with lanes.acquire_connection("another", None) as other:
            assert other == "another"
        assert not waiting.done()
        await entered[3].__aexit__(None, None, None)
        return [*held, await waiting]

    found = get_runtime().call(taken)
    assert found[0] == "me"
    assert len(set(found[:-1])) == mcp_host.MAX_CONNECTIONS
    assert found[-1] == found[3]
