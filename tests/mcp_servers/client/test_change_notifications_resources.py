"""Resource subscriptions with servers of both eras, over both transports."""

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
from tests.mcp_servers.client.event_recorder import (
    EventRecorder,
    acknowledgement,
    end,
    frame,
    modern_http,
)
from tests.mcp_servers.client.event_recorder import stream as streamed
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

FEED = "updates:test"
PAPER, SECRET, WEATHER = "news://paper", "news://secret", "news://weather"
UPDATED = "notifications/resources/updated"
NEWS = str(SERVERS / "resource_updates_server.py")
SUBSCRIBABLE = {"capabilities": {"resources": {"subscribe": True}}}


@contextmanager
def run_server(*arguments: str) -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, NEWS, "http", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
        server.kill()


@pytest.fixture(scope="module")
def endpoints() -> Iterator[dict[str, ServerEndpoint]]:
    """Return a real server in each era, over each transport."""
    with run_server() as both_eras_url, run_server("handshake") as handshake_url:
        yield {
            "modern http": http(both_eras_url, discovery=SUBSCRIBABLE),
            "handshake http": http(handshake_url, discovery=SUBSCRIBABLE),
            "modern stdio": stdio(sys.executable, NEWS, "stdio", discovery=SUBSCRIBABLE),
            "handshake stdio": stdio(
                sys.executable, NEWS, "stdio", "handshake", era="handshake", discovery=SUBSCRIBABLE
            ),
        }


class Feed:
    """A set of desired subscriptions, and which of them were granted."""

    def __init__(self, recorder: EventRecorder, endpoint: ServerEndpoint, *uris: str) -> None:
        self.subscriptions = DesiredSubscriptions()
        self.granted: dict[str, bool] = {}
        for uri in uris:
            self.subscriptions.add(uri)
        self.task = asyncio.ensure_future(
            recorder.connections.watch_resources(
                endpoint, self.subscriptions, self.granted.__setitem__, holder=FEED
            )
        )


@asynccontextmanager
async def open_feed(
    recorder: EventRecorder, endpoint: ServerEndpoint, *uris: str
) -> AsyncIterator[Feed]:
    feed = Feed(recorder, endpoint, *uris)
    try:
        yield feed
    finally:
        feed.task.cancel()
        await asyncio.gather(feed.task, return_exceptions=True)


async def call_tool(recorder: EventRecorder, endpoint: ServerEndpoint, tool: str, uri: str) -> str:
    # A child process belongs to its holder; over HTTP any connection works.
    holder = FEED if endpoint.transport == "stdio" else "session:another"
    params = {"name": tool, "arguments": {"uri": uri}}
    return text_of(
        await recorder.connections.send_request(endpoint, "tools/call", params, holder=holder)
    )


async def wait_for_readers(recorder: EventRecorder, endpoint: ServerEndpoint, readers: str) -> None:
    """Call the server until it reports these readers of the paper."""
    async with asyncio.timeout(10):
        while readers not in await call_tool(recorder, endpoint, "readers", PAPER):
            pass


@pytest.mark.parametrize(
    "name", ["modern http", "handshake http", "modern stdio", "handshake stdio"]
)
async def test_a_subscribed_resource_is_notified_until_it_is_unsubscribed(
    name: str, recorder: EventRecorder, endpoints: dict[str, ServerEndpoint]
) -> None:
    endpoint = endpoints[name]
    async with open_feed(recorder, endpoint, PAPER) as feed:
        await until(lambda: PAPER in feed.granted, within_s=20)
        assert feed.granted == {PAPER: True}
        await call_tool(recorder, endpoint, "print", SECRET)
        await call_tool(recorder, endpoint, "print", PAPER)
        await until(lambda: recorder.notifications)
        assert recorder.notifications == [ChangeNotification("resources", PAPER, FEED)]
        feed.subscriptions.add(SECRET)
        await until(lambda: SECRET in feed.granted)
        await call_tool(recorder, endpoint, "print", SECRET)
        await until(lambda: len(recorder.notifications) == 2)
        feed.subscriptions.discard(PAPER)
        if name.startswith("handshake"):
            await wait_for_readers(recorder, endpoint, "0 sessions")
        else:
            feed.granted.clear()
            await until(lambda: feed.granted == {SECRET: True})
        await call_tool(recorder, endpoint, "print", PAPER)
        await call_tool(recorder, endpoint, "print", SECRET)
        await until(lambda: len(recorder.notifications) == 3)
        assert [notification.uri for notification in recorder.notifications] == [
            PAPER,
            SECRET,
            SECRET,
        ]
    assert recorder.connections._has_connection(endpoint, FEED) is False


async def test_a_refused_subscription_is_reported_and_the_others_continue(
    recorder: EventRecorder, endpoints: dict[str, ServerEndpoint]
) -> None:
    async with open_feed(recorder, endpoints["handshake http"], WEATHER, PAPER) as feed:
        await until(lambda: len(feed.granted) == 2)
        assert feed.granted == {WEATHER: False, PAPER: True}


async def test_a_client_that_leaves_ends_its_subscriptions(
    recorder: EventRecorder, endpoints: dict[str, ServerEndpoint]
) -> None:
    endpoint = endpoints["modern http"]
    async with open_feed(recorder, endpoint, PAPER) as feed:
        await until(lambda: feed.granted)
        assert (await call_tool(recorder, endpoint, "readers", PAPER)).endswith("1 streams")
        feed.subscriptions.add(SECRET)  # opened before the first is closed
        await until(lambda: SECRET in feed.granted)
        await wait_for_readers(recorder, endpoint, "1 streams")
    await wait_for_readers(recorder, endpoint, "0 streams")


async def watch_and_fail(
    recorder: EventRecorder, endpoint: ServerEndpoint, *uris: str
) -> UpstreamError:
    """Return the error that ends a subscription."""
    async with open_feed(recorder, endpoint, *uris) as feed, asyncio.timeout(10):
        with pytest.raises(UpstreamError) as error:
            await feed.task
        return error.value


async def watch_raw_server(
    recorder: EventRecorder, *parts: Any, hold: bool = True, read_s: float = 10
) -> UpstreamError:
    """Return the error that ends a raw server's stream of these events."""
    async with raw_http_server.modern(streamed(*parts, hold=hold)).listening() as server:
        endpoint = replace(modern_http(server.url, resources={"subscribe": True}), read_s=read_s)
        return await watch_and_fail(recorder, endpoint, PAPER)


async def test_a_stream_that_is_never_acknowledged_times_out(recorder: EventRecorder) -> None:
    assert (await watch_raw_server(recorder, read_s=0.2)).code == "call_timeout"


async def test_a_stream_that_ends_before_its_acknowledgment_is_a_protocol_error(
    recorder: EventRecorder,
) -> None:
    assert (await watch_raw_server(recorder, end)).code == "protocol_error"


async def test_foreign_and_early_frames_are_ignored(
    recorder: EventRecorder,
) -> None:
    def acknowledge(request: RecordedRequest) -> bytes:
        accepted = {"resourceSubscriptions": [PAPER, 7]}
        return frame(request, "notifications/subscriptions/acknowledged", notifications=accepted)

    parts = (
        lambda request: frame(request, UPDATED, uri=SECRET),
        lambda request: frame(request, UPDATED, number=999, uri=SECRET),
        acknowledge,
        lambda request: frame(request, "notifications/tools/list_changed"),
        lambda request: frame(request, UPDATED, uri=PAPER),
        end,
    )
    async with (
        raw_http_server.modern(streamed(*parts)).listening() as server,
        open_feed(recorder, modern_http(server.url), PAPER) as feed,
    ):
        await feed.task  # it ends without an error
    assert feed.granted == {PAPER: True}
    assert recorder.notifications == [ChangeNotification("resources", PAPER, FEED)]


async def test_resources_that_arent_acknowledged_arent_notified(recorder: EventRecorder) -> None:
    async with (
        raw_http_server.modern(streamed(acknowledgement, end)).listening() as server,
        open_feed(recorder, modern_http(server.url), PAPER) as feed,
    ):
        await feed.task
    assert feed.granted == {PAPER: False}


async def test_a_server_without_streams_offers_no_subscriptions(recorder: EventRecorder) -> None:
    def refuse(request: RecordedRequest) -> bytes:
        return raw_http_server.error(request, -32601, 404)

    async with raw_http_server.modern(refuse).listening() as server:
        assert (
            await watch_and_fail(recorder, modern_http(server.url), PAPER)
        ).code == "not_offered"


async def test_a_session_that_doesnt_answer_a_subscription_times_out(
    recorder: EventRecorder,
) -> None:
    async def silent(request: RecordedRequest) -> AsyncIterator[bytes]:
        yield raw_http_server.STREAM
        await asyncio.Event().wait()

    sessions = raw_http_server.HandshakeHttp(silent)

    def answer(request: RecordedRequest) -> Any:
        return silent(request) if request.verb == "GET" else sessions(request)

    async with RawHttp(answer).listening() as server:
        endpoint = http(server.url, era="handshake", read_s=0.3)
        assert (await watch_and_fail(recorder, endpoint, PAPER)).code == "call_timeout"


async def test_a_dead_child_ends_its_subscriptions(
    recorder: EventRecorder, endpoints: dict[str, ServerEndpoint]
) -> None:
    endpoint = endpoints["handshake stdio"]
    async with open_feed(recorder, endpoint, PAPER) as feed:
        await until(lambda: feed.granted, within_s=20)
        await recorder.connections.release(FEED)
        with pytest.raises(UpstreamError):
            await feed.task
