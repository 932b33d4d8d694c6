"""The peer, without a process: what it takes, what it drops, whom it fails."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.child_process import OverlongLine
from mcp_servers.client.errors import UpstreamError, build_unreachable_error
from mcp_servers.client.host import NullHost
from mcp_servers.client.jsonrpc import McpRequest
from mcp_servers.client.stream_peer import StreamPeer
from tests.mcp_servers.client.endpoints import scripted


def peer() -> tuple[StreamPeer, list[dict[str, Any]]]:
    """Return a peer and the messages that it writes."""
    written: list[dict[str, Any]] = []
    made = StreamPeer(scripted(), written.append, NullHost(), TaskSet())
    return made, written


async def asked(made: StreamPeer, count: int) -> list[asyncio.Future[Any]]:
    """Make `count` requests that wait for their answers."""
    tasks = [asyncio.ensure_future(made.send_request(McpRequest("x"), {})) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_a_peer_that_has_failed_sends_nothing_more():
    made, written = peer()
    made.fail_all(build_unreachable_error(scripted(), "gone"))
    made.fail_all(build_unreachable_error(scripted(), "gone again"))
    request = McpRequest("x")
    with pytest.raises(UpstreamError, match=r"gone\.$") as error:
        await made.send_request(request, {})
    assert (written, request.sent, error.value.sent) == ([], False, False)


async def test_initialize_is_never_canceled():
    made, written = peer()
    task = asyncio.ensure_future(made.send_request(McpRequest("initialize"), {}))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert [message["method"] for message in written] == ["initialize"]
    assert not made.busy


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
    made, _ = peer()
    tasks = await asked(made, 3)
    made.receive_line(line)
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
        made, _ = peer()
        tasks = await asked(made, 2)
        for message in messages:
            made.receive_line(json.dumps(message).encode())
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, dict | UpstreamError | asyncio.CancelledError)

    with asyncio.Runner() as runner:
        runner.run(talk())
