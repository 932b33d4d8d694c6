"""Change notifications of modern servers, including servers that break the protocol."""

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
    build_discovery,
    end,
    frame,
    modern_http,
    stream,
)
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest


async def test_a_modern_server_notifies_that_its_tools_changed(
    recorder, start_listening, changing_url
):
    endpoint = modern_http(changing_url)
    await start_listening(endpoint)
    assert recorder.granted == [{"tools"}]
    await call(recorder.connections, endpoint, "alter", description="Return the same text.")
    await until(lambda: recorder.received)
    assert recorder.received == [(endpoint.server_id, ChangeNotification("tools"))]


async def test_only_declared_notifications_are_requested(recorder, start_listening):
    capabilities = {"tools": {"listChanged": True}, "prompts": {"listChanged": False}}
    async with RawHttp(stream(acknowledgement, hold=True)).listening() as server:
        await start_listening(modern_http(server.url, resources={}, **capabilities))
        [request] = server.asked
    assert request.message["params"]["notifications"] == {"toolsListChanged": True}
    assert request.headers["mcp-method"] == "subscriptions/listen"


async def test_a_server_without_declared_notifications_isnt_asked(recorder):
    for endpoint in (modern_http("http://127.0.0.1:1/", tools={}), http("http://127.0.0.1:1/")):
        assert (await failure(recorder.listen(endpoint))).code == "not_offered"
    assert (await failure(recorder.listen(stdio("nothing")))).code == "not_offered"


async def test_notifications_that_werent_granted_or_are_foreign_are_dropped(recorder):
    parts = stream(
        lambda request: frame(request, CHANGED),  # before the acknowledgement
        acknowledgement,
        lambda request: frame(request, CHANGED, number=request.id + 1),
        lambda request: frame(request, CHANGED, number=str(request.id)),
        lambda request: raw_http_server.event({"jsonrpc": "2.0", "method": CHANGED}),
        lambda request: frame(request, "notifications/prompts/list_changed"),
        lambda request: frame(request, "notifications/message", data="chatter"),
        lambda request: frame(request, "notifications/resources/updated", uri="test://not-granted"),
        lambda request: frame(request, CHANGED),
        end,
    )
    async with RawHttp(parts).listening() as server:
        await recorder.listen(modern_http(server.url))
    assert recorder.notifications == [ChangeNotification("tools")]


async def test_a_changed_resource_is_forwarded(recorder):
    parts = stream(
        lambda request: acknowledgement(request, resourcesListChanged=True),
        lambda request: frame(request, "notifications/resources/updated", uri="test://a"),
        lambda request: frame(request, "notifications/resources/updated", uri="x" * 3000),
        lambda request: frame(request, "notifications/resources/updated", uri=7),
        end,
    )
    async with RawHttp(parts).listening() as server:
        await recorder.listen(modern_http(server.url, resources={"listChanged": True}))
    assert recorder.notifications == [ChangeNotification("resources", "test://a")]


async def test_a_stream_that_ends_returns_and_one_that_breaks_raises(recorder):
    async with RawHttp(stream(acknowledgement, end)).listening() as server:
        await recorder.listen(modern_http(server.url))
        server.respond = stream(acknowledgement)
        error = await failure(recorder.listen(modern_http(server.url)))
    assert (error.code, error.sent) == ("server_unreachable", True)


async def test_an_end_without_an_acknowledgment_is_a_protocol_error(recorder):
    async with RawHttp(lambda request: raw_http_server.result(request, {})).listening() as server:
        assert (await failure(recorder.listen(modern_http(server.url)))).code == "protocol_error"
    assert recorder.granted == []


async def test_a_server_that_never_acknowledges_times_out(recorder):
    async with RawHttp(stream(hold=True)).listening() as server:
        endpoint = http(
            server.url, era="modern", discovery=build_discovery(), connect_s=0.1, read_s=0.1
        )
        error = await failure(recorder.listen(endpoint))
        await server.cut.wait()
    assert error.code == "call_timeout"


@pytest.mark.parametrize(
    "answer",
    [
        lambda request: raw_http_server.error(request, -32601, status=404),
        lambda request: raw_http_server.error(request, -32601, status=200),
        lambda request: raw_http_server.response(404),
        lambda request: raw_http_server.response(405),
        stream(lambda request: acknowledgement(request, promptsListChanged=True), hold=True),
    ],
)
async def test_a_server_without_notification_streams_is_reported(recorder, answer):
    async with RawHttp(answer).listening() as server:
        assert (await failure(recorder.listen(modern_http(server.url)))).code == "not_offered"


async def test_refused_credentials_are_reported(recorder):
    async with RawHttp(lambda request: raw_http_server.response(401)).listening() as server:
        assert (await failure(recorder.listen(modern_http(server.url)))).code == "needs_reauth"


async def test_a_flood_of_notifications_is_throttled(recorder, monkeypatch):
    monkeypatch.setattr(change_notifications, "FRAME_PAUSE_S", 0.002)

    async def flood(request: RecordedRequest) -> Events:
        yield raw_http_server.STREAM + acknowledgement(request)
        while True:
            yield frame(request, CHANGED) * 100

    async with RawHttp(flood).listening() as server:
        task = asyncio.create_task(recorder.listen(modern_http(server.url)))
        await until(lambda: len(recorder.received) >= 50)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(recorder.received) < 200


async def test_an_exception_in_on_open_ends_the_stream(recorder):
    class Enough(Exception):
        pass

    async def raise_enough(granted: frozenset[str]) -> None:
        raise Enough

    async with RawHttp(stream(acknowledgement, hold=True)).listening() as server:
        with pytest.raises(Enough):
            await recorder.connections.listen(
                modern_http(server.url), holder=WATCH, on_open=raise_enough
            )
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
