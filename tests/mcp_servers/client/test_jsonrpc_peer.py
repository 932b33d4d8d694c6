"""The stream peer without a process: accepted, dropped and failing messages."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mcp_servers.client.answer_server_requests import NullHost
from mcp_servers.client.child_process import OverlongLine
from mcp_servers.client.errors import UpstreamError, build_unreachable_error
from mcp_servers.client.jsonrpc import McpRequest
from mcp_servers.client.jsonrpc_peer import StreamPeer
from mcp_servers.client.task_set import TaskSet
from tests.mcp_servers.client.endpoints import faulty_stdio


def build_peer() -> tuple[StreamPeer, list[dict[str, Any]]]:
    """Return a peer and the list of messages that it writes."""
    messages: list[dict[str, Any]] = []
    stream_peer = StreamPeer(faulty_stdio(), messages.append, NullHost(), TaskSet())
    return stream_peer, messages


async def start_requests(peer: StreamPeer, count: int) -> list[asyncio.Future[Any]]:
    """Start `count` requests that wait for their responses."""
    tasks = [asyncio.ensure_future(peer.send_request(McpRequest("x"), {})) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_peer_that_has_failed_sends_nothing_more():
    peer, messages = build_peer()
    peer.fail_all(build_unreachable_error(faulty_stdio(), "gone"))
    peer.fail_all(build_unreachable_error(faulty_stdio(), "gone again"))
    request = McpRequest("x")
    with pytest.raises(UpstreamError, match=r"gone\.$") as error:
        await peer.send_request(request, {})
    assert (messages, request.sent, error.value.sent) == ([], False, False)


async def test_initialize_is_never_canceled():
    peer, messages = build_peer()
    task = asyncio.ensure_future(peer.send_request(McpRequest("initialize"), {}))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert [message["method"] for message in messages] == ["initialize"]
    assert not peer.busy


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        (OverlongLine(b'{"jsonrpc":"2.0","id":2,"result":{"a":"x', b'x"}}'), [2]),
        (OverlongLine(b'{"id": 1, "result":', b"}}"), [1]),
        (OverlongLine(b'{"result":{"a":"x', b'x"},"jsonrpc":"2.0","id":3}'), [3]),
        (OverlongLine(b'{"result":{"id":2,"a":"x', b'x"}}'), [1, 2, 3]),
        (OverlongLine(b'{"jsonrpc":"2.0","id":77,"result":', b"}}"), [1, 2, 3]),
        (OverlongLine(b'{"jsonrpc":"2.0","method":"notifications/x","params":{', b"}}"), []),
        (b'{"jsonrpc":"2.0","id":2,"result":NaN}', [2]),
        (b'  {"unfinished": ', [1, 2, 3]),
        (b"chatter", []),
        (b'"a text"', []),
        (b"\xff\xfe", []),
    ],
)
async def test_an_unreadable_response_fails_its_request(
    line: bytes | OverlongLine, failed: list[int]
):
    peer, _ = build_peer()
    tasks = await start_requests(peer, 3)
    peer.receive_line(line)
    await asyncio.sleep(0)
    assert [number for number, task in enumerate(tasks, 1) if task.done()] == failed
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


MESSAGES = some.dictionaries(
    some.sampled_from(["jsonrpc", "id", "method", "result", "error", "params"]),
    some.none()
    | some.integers(-1, 3)
    | some.sampled_from(["notifications/progress", "ping", "x"])
    | some.dictionaries(some.sampled_from(["progressToken", "code", "message"]), some.integers(1))
    | some.lists(some.integers()),
)


@given(some.lists(MESSAGES | some.lists(MESSAGES), max_size=8))
def test_no_message_breaks_the_peer(messages: list[Any]):
    async def talk() -> None:
        peer, _ = build_peer()
        tasks = await start_requests(peer, 2)
        for message in messages:
            peer.receive_line(json.dumps(message).encode())
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, dict | UpstreamError | asyncio.CancelledError)

    with asyncio.Runner() as runner:
        runner.run(talk())
