"""Change notifications of sessions and child processes, which need no subscription."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mcp_servers.client import change_notifications
from mcp_servers.client.change_notifications import ChangeNotification
from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import (
    HOLDER,
    SERVERS,
    Clock,
    call,
    failure,
    http,
    stdio,
    text_of,
    until,
)
from tests.mcp_servers.client.event_recorder import (
    LIST_CHANGED_CAPABILITIES,
    WATCH,
    Events,
    build_discovery,
    notice,
    stream,
)
from tests.servers import raw_http_server
from tests.servers.raw_http_server import HandshakeHttp, RawHttp, RecordedRequest, SseHttp

WORKSHOP = str(SERVERS / "tool_server.py")


def handshake(events: Callable[[RecordedRequest], Any]) -> tuple[HandshakeHttp, RawHttp]:
    era = HandshakeHttp(raw_http_server.text)
    return era, RawHttp(
        lambda request: (
            events(request)
            if request.verb == "GET" and request.headers.get("mcp-session-id") in era.known
            else era(request)
        )
    )


async def test_a_handshake_server_is_watched_in_a_separate_session(recorder, start_listening):
    era, server = handshake(stream(notice(), hold=True))
    async with server.listening():
        task = await start_listening(http(server.url, era="handshake", discovery=build_discovery()))
        await until(lambda: recorder.received)
        assert recorder.notifications == [ChangeNotification("tools", holder=WATCH)]
        await recorder.connections.close_idle()  # an open stream isn't idle
        assert era.known == {"s1"}
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert era.known == set()
        assert server.methods().count("GET") == 1


async def test_a_handshake_server_without_a_stream_is_reported(recorder):
    era, server = handshake(lambda request: raw_http_server.response(405))
    async with server.listening():
        endpoint = http(server.url, era="handshake", discovery=build_discovery())
        assert (await failure(recorder.listen(endpoint))).code == "not_offered"
    assert (recorder.granted, era.known) == ([], set())


async def test_a_stream_without_headers_counts_as_open(recorder, start_listening, monkeypatch):
    monkeypatch.setattr(change_notifications, "OPEN_TIMEOUT_S", 0.05)

    async def silent(request: RecordedRequest) -> Events:
        await asyncio.Event().wait()
        yield b""

    _, server = handshake(silent)
    async with server.listening():
        task = await start_listening(http(server.url, era="handshake", discovery=build_discovery()))
        assert (recorder.granted, task.done()) == ([{"tools"}], False)


async def test_notifications_of_an_existing_session_are_received(recorder):
    _, server = handshake(stream(notice(), hold=True))
    async with server.listening():
        endpoint = http(server.url, era="handshake", discovery=build_discovery())
        server.respond = _with_capabilities(server.respond)
        await call(recorder.connections, endpoint, "x")
        await until(lambda: recorder.received)
    assert recorder.notifications == [ChangeNotification("tools", holder=HOLDER)]


def _with_capabilities(
    respond: Callable[[RecordedRequest], Any],
) -> Callable[[RecordedRequest], Any]:
    def answer(request: RecordedRequest) -> Any:
        response = respond(request)
        if request.method == "initialize":
            value = {"protocolVersion": "2025-11-25", "capabilities": LIST_CHANGED_CAPABILITIES}
            return raw_http_server.result(request, value, Mcp_Session_Id="s1")
        return response

    return answer


async def test_a_notification_on_the_stream_of_a_call_is_received(recorder):
    answer = raw_http_server.event({"jsonrpc": "2.0", "id": 2, "result": {"content": []}})
    era = HandshakeHttp(stream(notice(), lambda request: answer))
    async with RawHttp(era).listening() as server:
        await call(recorder.connections, http(server.url, era="handshake"), "x")
    assert recorder.notifications == [ChangeNotification("tools", holder=HOLDER)]


async def test_an_sse_server_is_watched_until_it_disconnects(recorder, start_listening):
    era = SseHttp(lambda request: raw_http_server.build_event(request, {}))
    discovery = build_discovery() | {"bonobot/wire": "sse"}
    async with RawHttp(era).listening() as server:
        task = await start_listening(http(server.url, era="handshake", discovery=discovery))
        [events] = era.streams.values()
        events.put_nowait(notice("notifications/prompts/list_changed")(server.asked[0]))
        await until(lambda: recorder.received)
        assert recorder.notifications == [ChangeNotification("prompts", holder=WATCH)]
        era.hang_up()
        assert (await failure(task)).code == "server_unreachable"


@pytest.mark.npm
async def test_server_everything_is_watched_over_http(
    recorder, start_listening, node_server, free_port
):
    server = subprocess.Popen(
        ["node", node_server("mcp-server-everything"), "streamableHttp"],
        env={**os.environ, "PORT": str(free_port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert "listening" in server.stderr.readline()
        endpoint = http(f"http://127.0.0.1:{free_port}/mcp")
        declarations = await recorder.connections.fetch_declarations(endpoint)
        assert recorder.received == []  # notifications during a discovery are dropped
        endpoint = http(endpoint.url, era=declarations.era, discovery=declarations.discovery)
        await start_listening(endpoint)
        assert recorder.granted == [{"tools", "prompts", "resources"}]
        data = {"name": "x.gz", "data": "data:text/plain;base64,aGVsbG8="}
        await call(recorder.connections, endpoint, "gzip-file-as-resource", **data)
        await until(
            lambda: ChangeNotification("resources", holder=HOLDER) in recorder.notifications
        )
    finally:
        server.terminate()
        server.wait(5)
        server.stderr.close()


# --- stdio


async def test_a_modern_child_is_watched_while_it_runs(recorder):
    endpoint = stdio(sys.executable, WORKSHOP, env={"WORKSHOP_CHANGES": "1"})
    assert text_of(await call(recorder.connections, endpoint, "echo", text="a")) == "a"
    await call(recorder.connections, endpoint, "change", words="Add another server.")
    await until(lambda: recorder.received)
    assert recorder.received == [(endpoint.server_id, ChangeNotification("tools", holder=HOLDER))]
    declarations = await recorder.connections.fetch_declarations(endpoint, preferred_holder=HOLDER)
    [echo] = [item for item in declarations.items if item.name == "echo"]
    assert echo.payload["description"] == "Add another server."
    [unchanged] = [
        i
        for i in (await recorder.connections.fetch_declarations(endpoint)).items
        if i.name == "echo"
    ]
    assert unchanged.payload["description"] == "Return the text."


async def test_watching_doesnt_keep_a_child_alive():
    clock = Clock()
    connections = ConnectionPool(clock=clock, on_notification=lambda *_: None)
    endpoint = stdio(sys.executable, WORKSHOP, env={"WORKSHOP_CHANGES": "1"})
    await call(connections, endpoint, "echo", text="a")
    clock.now += 301
    await connections.close_idle()
    assert not connections._has_connection(endpoint, HOLDER)
    await connections.close()


@pytest.mark.npm
async def test_server_everything_is_watched_over_stdio(recorder, node_server):
    endpoint = stdio("node", node_server("mcp-server-everything"), "stdio")
    data = {"name": "x.gz", "data": "data:text/plain;base64,aGVsbG8="}
    await call(recorder.connections, endpoint, "gzip-file-as-resource", **data)
    await until(lambda: ChangeNotification("resources", holder=HOLDER) in recorder.notifications)
