"""Change notices of modern servers: asked for, granted, told; and servers that do it badly."""

import asyncio

import pytest

from mcp_servers.client import change_notifications
from mcp_servers.client.change_notifications import (
    ChangeNotification,
    list_notifying_topics,
    parse_change_notification,
)
from tests.mcp_servers.client.endpoints import call, failure, http, stdio, until
from tests.mcp_servers.client.event_recorder import (
    CHANGED,
    WATCH,
    Events,
    acknowledgement,
    discovered,
    end,
    frame,
    modern_http,
    stream,
)
from tests.servers import raw_http_server
from tests.servers.raw_http_server import Asked, RawHttp


async def test_a_modern_server_notifies_that_its_tools_changed(ears, listening_to, changing_url):
    endpoint = modern_http(changing_url)
    await listening_to(endpoint)
    assert ears.granted == [{"tools"}]
    await call(ears.connections, endpoint, "alter", description="Return the same text.")
    await until(lambda: ears.heard)
    assert ears.heard == [(endpoint.server_id, ChangeNotification("tools"))]


async def test_only_declared_notifications_are_requested(ears, listening_to):
    capabilities = {"tools": {"listChanged": True}, "prompts": {"listChanged": False}}
    async with RawHttp(stream(acknowledgement, hold=True)).listening() as server:
        await listening_to(modern_http(server.url, resources={}, **capabilities))
        [asked] = server.asked
    assert asked.message["params"]["notifications"] == {"toolsListChanged": True}
    assert asked.headers["mcp-method"] == "subscriptions/listen"


async def test_a_server_without_declared_notifications_isnt_asked(ears):
    for endpoint in (modern_http("http://127.0.0.1:1/", tools={}), http("http://127.0.0.1:1/")):
        assert (await failure(ears.listen(endpoint))).code == "not_offered"
    assert (await failure(ears.listen(stdio("nothing")))).code == "not_offered"


async def test_notifications_that_werent_granted_or_are_foreign_are_dropped(ears):
    parts = stream(
        lambda asked: frame(asked, CHANGED),  # before the acknowledgement
        acknowledgement,
        lambda asked: frame(asked, CHANGED, number=asked.id + 1),
        lambda asked: frame(asked, CHANGED, number=str(asked.id)),
        lambda asked: raw_http_server.event({"jsonrpc": "2.0", "method": CHANGED}),
        lambda asked: frame(asked, "notifications/prompts/list_changed"),
        lambda asked: frame(asked, "notifications/message", data="chatter"),
        lambda asked: frame(asked, "notifications/resources/updated", uri="test://not-granted"),
        lambda asked: frame(asked, CHANGED),
        end,
    )
    async with RawHttp(parts).listening() as server:
        await ears.listen(modern_http(server.url))
    assert ears.notices == [ChangeNotification("tools")]


async def test_a_changed_resource_is_forwarded(ears):
    parts = stream(
        lambda asked: acknowledgement(asked, resourcesListChanged=True),
        lambda asked: frame(asked, "notifications/resources/updated", uri="test://a"),
        lambda asked: frame(asked, "notifications/resources/updated", uri="x" * 3000),
        lambda asked: frame(asked, "notifications/resources/updated", uri=7),
        end,
    )
    async with RawHttp(parts).listening() as server:
        await ears.listen(modern_http(server.url, resources={"listChanged": True}))
    assert ears.notices == [ChangeNotification("resources", "test://a")]


async def test_a_stream_that_ends_returns_and_one_that_breaks_raises(ears):
    async with RawHttp(stream(acknowledgement, end)).listening() as server:
        await ears.listen(modern_http(server.url))
        server.respond = stream(acknowledgement)
        error = await failure(ears.listen(modern_http(server.url)))
    assert (error.code, error.sent) == ("server_unreachable", True)


async def test_an_end_without_an_acknowledgment_is_a_protocol_error(ears):
    async with RawHttp(lambda asked: raw_http_server.result(asked, {})).listening() as server:
        assert (await failure(ears.listen(modern_http(server.url)))).code == "protocol_error"
    assert ears.granted == []


async def test_a_server_that_never_acknowledges_times_out(ears):
    async with RawHttp(stream(hold=True)).listening() as server:
        endpoint = http(server.url, era="modern", discovery=discovered(), connect_s=0.1, read_s=0.1)
        error = await failure(ears.listen(endpoint))
        await server.cut.wait()
    assert error.code == "call_timeout"


@pytest.mark.parametrize(
    "answer",
    [
        lambda asked: raw_http_server.error(asked, -32601, status=404),
        lambda asked: raw_http_server.error(asked, -32601, status=200),
        lambda asked: raw_http_server.response(404),
        lambda asked: raw_http_server.response(405),
        stream(lambda asked: acknowledgement(asked, promptsListChanged=True), hold=True),
    ],
)
async def test_a_server_without_notification_streams_is_reported(ears, answer):
    async with RawHttp(answer).listening() as server:
        assert (await failure(ears.listen(modern_http(server.url)))).code == "not_offered"


async def test_refused_credentials_are_reported(ears):
    async with RawHttp(lambda asked: raw_http_server.response(401)).listening() as server:
        assert (await failure(ears.listen(modern_http(server.url)))).code == "needs_reauth"


async def test_a_flood_of_notifications_is_throttled(ears, monkeypatch):
    monkeypatch.setattr(change_notifications, "FRAME_PAUSE_S", 0.002)

    async def flood(asked: Asked) -> Events:
        yield raw_http_server.STREAM + acknowledgement(asked)
        while True:
            yield frame(asked, CHANGED) * 100

    async with RawHttp(flood).listening() as server:
        task = asyncio.create_task(ears.listen(modern_http(server.url)))
        await until(lambda: len(ears.heard) >= 50)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(ears.heard) < 200


async def test_an_exception_in_on_open_ends_the_stream(ears):
    class Enough(Exception):
        pass

    async def opened(granted: frozenset[str]) -> None:
        raise Enough

    async with RawHttp(stream(acknowledgement, hold=True)).listening() as server:
        with pytest.raises(Enough):
            await ears.connections.listen(modern_http(server.url), holder=WATCH, on_open=opened)
        await server.cut.wait()


# --- messages


@pytest.mark.parametrize(
    "message",
    [{}, {"method": 7}, {"method": "notifications/tools/updated"}]
    + [{"method": "notifications/resources/updated", "params": p} for p in (None, [], {"uri": ""})],
)
def test_other_messages_are_ignored(message):
    assert parse_change_notification(message) is None


@pytest.mark.parametrize("capabilities", [None, [], {"tools": True}, {"tools": {"listChanged": 1}}])
def test_only_an_explicit_declaration_counts(capabilities):
    assert list_notifying_topics(capabilities) == set()
