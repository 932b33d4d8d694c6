"""Requests from servers on live connections and their deadlines, with npm servers."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_servers.client.answer_server_requests import (
    Host,
    HostRequestRejected,
    build_declared_capabilities,
)
from mcp_servers.client.deadlines import RequestDeadline, measure_answer_wait
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.jsonrpc import McpRequest
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, SERVERS, call, failure, stdio, text_of, until

ALL = frozenset({"sampling", "elicitation", "roots"})


class Person(Host):
    """Declares capabilities, and answers when the test allows it."""

    def __init__(self, answer: dict[str, Any] | None = None) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.done: list[str] = []
        self.may_answer = asyncio.Event()
        self.given_up = asyncio.Event()
        self._answer = answer or {"action": "accept", "content": {"name": "Ada"}}

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        return build_declared_capabilities(endpoint)

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        self.asked.append(params)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.given_up.set()
            raise
        return self._answer

    async def complete_elicitation(self, endpoint: ServerEndpoint, elicitation_id: str) -> None:
        self.done.append(elicitation_id)

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        raise HostRequestRejected("A person said no.", code="approval_denied")

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        return {"roots": [{"uri": "file:///work", "name": "work"}]}


@pytest.mark.npm
async def test_an_npm_server_gets_responses_and_its_tools_depend_on_our_capabilities(
    connections: ConnectionPool, node_server: Callable[[str], str]
) -> None:
    # The response comes long after the call's timeout, which is paused while the server waits.
    endpoint = stdio(node_server("mcp-server-everything"), allowed_requests=ALL, read_s=2)
    declarations = await connections.fetch_declarations(endpoint)
    names = {item.name for item in declarations.items if item.kind == "tool"}
    assert {"trigger-elicitation-request", "trigger-sampling-request", "get-roots-list"} <= names

    host = Person()
    pending = asyncio.ensure_future(
        call(connections, endpoint, "trigger-elicitation-request", host=host)
    )
    await until(lambda: host.asked, within_s=10)
    assert host.asked[0]["requestedSchema"]["properties"]["name"]["type"] == "string"
    assert not (await asyncio.wait({pending}, timeout=2.2))[0]
    host.may_answer.set()
    assert "Ada" in json.dumps(await pending)

    declined = await call(
        connections, endpoint, "trigger-sampling-request", prompt="hi", maxTokens=9, host=host
    )
    assert "A person said no." in text_of(declined)

    url = {"url": "https://example.com/start", "elicitationId": "e1"}
    await call(connections, endpoint, "trigger-url-elicitation", **url, host=host)
    assert host.asked[-1]["url"] == url["url"]
    error = await failure(
        call(connections, endpoint, "trigger-url-elicitation", **url, errorPath=True, host=host)
    )
    assert error.rpc_code == -32042
    (elicitation,) = error.rpc_data["elicitations"]
    assert elicitation["mode"] == "url"


@pytest.mark.npm
async def test_capabilities_that_arent_allowed_arent_declared(
    connections: ConnectionPool, node_server: Callable[[str], str]
) -> None:
    endpoint = stdio(node_server("mcp-server-everything"), allowed_requests=frozenset({"roots"}))
    declarations = await connections.fetch_declarations(endpoint)
    names = {item.name for item in declarations.items if item.kind == "tool"}
    assert "get-roots-list" in names
    assert not {name for name in names if "elicitation" in name or "sampling" in name}


@pytest.fixture
def asker(tmp_path: Path) -> Callable[[str], ServerEndpoint]:
    """Return a function that builds the endpoint of `client_request_server.py` in an era."""

    def build_endpoint(era: str) -> ServerEndpoint:
        env = {"ASKER_FILE": str(tmp_path / "asker")}
        return stdio(
            sys.executable,
            str(SERVERS / "client_request_server.py"),
            era,
            allowed_requests=ALL,
            env=env,
        )

    return build_endpoint


async def test_a_server_can_cancel_its_request(
    connections: ConnectionPool, asker: Callable[[str], ServerEndpoint]
) -> None:
    host = Person()
    requests = [{"method": "elicitation/create", "params": {"message": "?"}}]
    asking = asyncio.ensure_future(
        call(connections, asker("handshake"), "take_back", host=host, requests=requests)
    )
    async with asyncio.timeout(5):
        await host.given_up.wait()
    assert text_of(await asking) == "taken back"
    await until(lambda: host.done == ["done-1"])


async def test_a_task_is_accepted_only_if_tasks_were_declared(
    connections: ConnectionPool, asker: Callable[[str], ServerEndpoint]
) -> None:
    endpoint, states = asker("modern"), [{"status": "working"}]
    result = await call(connections, endpoint, "task", states=states, host=Person())
    assert result["taskId"] == "task-1"
    await connections.release(HOLDER)
    error = await failure(call(connections, endpoint, "task", states=states))
    assert error.code == "protocol_error"


async def test_a_timeout_is_paused_only_while_it_is_held(
    asker: Callable[[str], ServerEndpoint],
) -> None:
    async def wait(seconds: float) -> None:
        await asyncio.wait({never}, timeout=seconds)

    never = asyncio.ensure_future(asyncio.Event().wait())
    endpoint = asker("handshake")
    deadline = RequestDeadline(endpoint, McpRequest("ping"), 0.05)
    with deadline, deadline.pause(), deadline.pause():
        await wait(0.1)
    with deadline.pause():  # already expired: nothing to pause
        pass
    late_deadline = RequestDeadline(endpoint, McpRequest("ping"), 0.05)

    async def too_slow() -> None:
        with late_deadline:
            with late_deadline.pause():
                await wait(0.06)
            await wait(5)

    with pytest.raises(UpstreamError):
        await too_slow()
    never.cancel()


async def test_the_wait_for_answers_is_the_time_in_which_a_deadline_is_paused(
    asker: Callable[[str], ServerEndpoint],
) -> None:
    loop, endpoint = asyncio.get_running_loop(), asker("handshake")
    request = McpRequest("tools/call")
    with measure_answer_wait() as call, measure_answer_wait() as nested_call:
        with RequestDeadline(endpoint, request, 60) as deadline:
            started_at = loop.time()
            with deadline.pause(), deadline.pause():  # at the same time: counted once
                await wait_until(started_at + 0.01)
            waited_s = loop.time() - started_at
            pause = deadline.pause()
            pause.__enter__()
            started_at = loop.time()
            await wait_until(started_at + 0.01)
        waited_s += loop.time() - started_at  # the request ended while its server waited
        assert 0.02 <= nested_call.seconds <= waited_s
    assert call.seconds == nested_call.seconds


async def wait_until(moment: float) -> None:
    """Wait until the time of the event loop."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout_at(moment):
            await asyncio.Event().wait()
