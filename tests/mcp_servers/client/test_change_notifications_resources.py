"""Updates: a server of either era, over either transport, tells of single resources; bounded."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from mcp_servers.client.change_notifications import ChangeNotification, DesiredSubscriptions
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from tests.mcp_servers.client.endpoints import SERVERS, http, stdio, text_of, until
from tests.mcp_servers.client.event_recorder import Ears, acknowledgement, end, frame, modern_http
from tests.mcp_servers.client.event_recorder import stream as streamed
from tests.servers import raw_http_server
from tests.servers.raw_http_server import Asked, RawHttp

FEED = "updates:test"
PAPER, SECRET, WEATHER = "news://paper", "news://secret", "news://weather"
UPDATED = "notifications/resources/updated"
NEWS = str(SERVERS / "resource_updates_server.py")
CAN = {"capabilities": {"resources": {"subscribe": True}}}


@contextmanager
def served(*how: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, NEWS, "http", *how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
        server.kill()


@pytest.fixture(scope="module")
def endpoints() -> Iterator[dict[str, ServerEndpoint]]:
    """A real server in each era, over each transport."""
    with served() as both, served("handshake") as old:
        yield {
            "modern http": http(both, discovery=CAN),
            "handshake http": http(old, discovery=CAN),
            "modern stdio": stdio(sys.executable, NEWS, "stdio", discovery=CAN),
            "handshake stdio": stdio(
                sys.executable, NEWS, "stdio", "handshake", era="handshake", discovery=CAN
            ),
        }


class Feed:
    """A wish, and what was told of it."""

    def __init__(self, ears: Ears, endpoint: ServerEndpoint, *uris: str) -> None:
        self.wish = DesiredSubscriptions()
        self.told: dict[str, bool] = {}
        for uri in uris:
            self.wish.add(uri)
        self.task = asyncio.ensure_future(
            ears.connections.watch_resources(
                endpoint, self.wish, self.told.__setitem__, holder=FEED
            )
        )


@asynccontextmanager
async def fed(ears: Ears, endpoint: ServerEndpoint, *uris: str) -> AsyncIterator[Feed]:
    feed = Feed(ears, endpoint, *uris)
    try:
        yield feed
    finally:
        feed.task.cancel()
        await asyncio.gather(feed.task, return_exceptions=True)


async def ask(ears: Ears, endpoint: ServerEndpoint, tool: str, uri: str) -> str:
    # A child process is its holder's own; over HTTP any connection will do.
    holder = FEED if endpoint.transport == "stdio" else "session:another"
    params = {"name": tool, "arguments": {"uri": uri}}
    return text_of(
        await ears.connections.send_request(endpoint, "tools/call", params, holder=holder)
    )


async def counted(ears: Ears, endpoint: ServerEndpoint, readers: str) -> None:
    """Ask the server again and again, until it says that it has these readers of the paper."""
    async with asyncio.timeout(10):
        while readers not in await ask(ears, endpoint, "readers", PAPER):
            pass


@pytest.mark.parametrize(
    "which", ["modern http", "handshake http", "modern stdio", "handshake stdio"]
)
async def test_a_subscribed_resource_is_notified_until_it_is_unsubscribed(
    which: str, ears: Ears, endpoints: dict[str, ServerEndpoint]
) -> None:
    endpoint = endpoints[which]
    async with fed(ears, endpoint, PAPER) as feed:
        await until(lambda: PAPER in feed.told, within_s=20)
        assert feed.told == {PAPER: True}
        await ask(ears, endpoint, "print", SECRET)
        await ask(ears, endpoint, "print", PAPER)
        await until(lambda: ears.notices)
        assert ears.notices == [ChangeNotification("resources", PAPER, FEED)]
        feed.wish.add(SECRET)
        await until(lambda: SECRET in feed.told)
        await ask(ears, endpoint, "print", SECRET)
        await until(lambda: len(ears.notices) == 2)
        feed.wish.discard(PAPER)
        if which.startswith("handshake"):
            await counted(ears, endpoint, "0 sessions")
        else:
            feed.told.clear()
            await until(lambda: feed.told == {SECRET: True})
        await ask(ears, endpoint, "print", PAPER)
        await ask(ears, endpoint, "print", SECRET)
        await until(lambda: len(ears.notices) == 3)
        assert [one.uri for one in ears.notices] == [PAPER, SECRET, SECRET]
    assert ears.connections._has_connection(endpoint, FEED) is False


async def test_a_refused_subscription_is_reported_and_the_others_continue(
    ears: Ears, endpoints: dict[str, ServerEndpoint]
) -> None:
    async with fed(ears, endpoints["handshake http"], WEATHER, PAPER) as feed:
        await until(lambda: len(feed.told) == 2)
        assert feed.told == {WEATHER: False, PAPER: True}


async def test_a_client_that_leaves_ends_its_subscriptions(
    ears: Ears, endpoints: dict[str, ServerEndpoint]
) -> None:
    endpoint = endpoints["modern http"]
    async with fed(ears, endpoint, PAPER) as feed:
        await until(lambda: feed.told)
        assert (await ask(ears, endpoint, "readers", PAPER)).endswith("1 streams")
        feed.wish.add(SECRET)  # there before the first goes, and then the first goes
        await until(lambda: SECRET in feed.told)
        await counted(ears, endpoint, "1 streams")
    await counted(ears, endpoint, "0 streams")


async def failed(ears: Ears, endpoint: ServerEndpoint, *uris: str) -> UpstreamError:
    """Return what ends following."""
    async with fed(ears, endpoint, *uris) as feed, asyncio.timeout(10):
        with pytest.raises(UpstreamError) as error:
            await feed.task
        return error.value


async def raw(ears: Ears, *parts: Any, hold: bool = True, read_s: float = 10) -> UpstreamError:
    """Return what ends a stream that a raw server answers with these events."""
    async with raw_http_server.modern(streamed(*parts, hold=hold)).listening() as server:
        endpoint = replace(modern_http(server.url, resources={"subscribe": True}), read_s=read_s)
        return await failed(ears, endpoint, PAPER)


async def test_a_stream_that_is_never_acknowledged_times_out(ears: Ears) -> None:
    assert (await raw(ears, read_s=0.2)).code == "call_timeout"


async def test_a_stream_that_ends_before_its_acknowledgment_is_a_protocol_error(ears: Ears) -> None:
    assert (await raw(ears, end)).code == "protocol_error"


async def test_foreign_and_early_frames_are_ignored(
    ears: Ears,
) -> None:
    def granted(asked: Asked) -> bytes:
        kept = {"resourceSubscriptions": [PAPER, 7]}
        return frame(asked, "notifications/subscriptions/acknowledged", notifications=kept)

    parts = (
        lambda asked: frame(asked, UPDATED, uri=SECRET),
        lambda asked: frame(asked, UPDATED, number=999, uri=SECRET),
        granted,
        lambda asked: frame(asked, "notifications/tools/list_changed"),
        lambda asked: frame(asked, UPDATED, uri=PAPER),
        end,
    )
    async with (
        raw_http_server.modern(streamed(*parts)).listening() as server,
        fed(ears, modern_http(server.url), PAPER) as feed,
    ):
        await feed.task  # it ended in order
    assert feed.told == {PAPER: True}
    assert ears.notices == [ChangeNotification("resources", PAPER, FEED)]


async def test_resources_that_arent_acknowledged_arent_notified(ears: Ears) -> None:
    async with (
        raw_http_server.modern(streamed(acknowledgement, end)).listening() as server,
        fed(ears, modern_http(server.url), PAPER) as feed,
    ):
        await feed.task
    assert feed.told == {PAPER: False}


async def test_a_server_without_streams_offers_no_subscriptions(ears: Ears) -> None:
    def refuse(asked: Asked) -> bytes:
        return raw_http_server.error(asked, -32601, 404)

    async with raw_http_server.modern(refuse).listening() as server:
        assert (await failed(ears, modern_http(server.url), PAPER)).code == "not_offered"


async def test_a_session_that_doesnt_answer_a_subscription_times_out(ears: Ears) -> None:
    async def silent(asked: Asked) -> AsyncIterator[bytes]:
        yield raw_http_server.STREAM
        await asyncio.Event().wait()

    sessions = raw_http_server.HandshakeHttp(silent)

    def answer(asked: Asked) -> Any:
        return silent(asked) if asked.verb == "GET" else sessions(asked)

    async with RawHttp(answer).listening() as server:
        endpoint = http(server.url, era="handshake", read_s=0.3)
        assert (await failed(ears, endpoint, PAPER)).code == "call_timeout"


async def test_a_dead_child_ends_its_subscriptions(
    ears: Ears, endpoints: dict[str, ServerEndpoint]
) -> None:
    endpoint = endpoints["handshake stdio"]
    async with fed(ears, endpoint, PAPER) as feed:
        await until(lambda: feed.told, within_s=20)
        await ears.connections.release(FEED)
        with pytest.raises(UpstreamError):
            await feed.task
