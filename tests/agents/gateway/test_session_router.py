"""Handshake sessions continue in every web process, and after a restart; for their owner alone."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from django.utils import timezone
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from agents.gateway import client_sessions, session_router
from agents.gateway.resource_subscriptions import WatchedResource
from agents.gateway.transports import GatewayApplication
from agents.models import Agent, GatewaySessionMessage, GatewaySessionState
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.tokens.services import revoke_token
from bonobot.core.runtime import get_runtime
from mcp_servers.models import Server
from tests import factories
from tests.agents.gateway.conftest import LONG_S, GatewayClient, Session, Stream, token_of
from tests.agents.gateway.upstream_server import ANSWERS, KEY, Upstream, attach_upstream
from tests.resource_updates import PAPER, SECRET, create_news_server, edition_url
from tests.wait import eventually

__all__ = ["edition_url"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
ECHO = {"name": "mcp_old_echo", "arguments": {"text": "hello"}}
ASK = {"name": "mcp_old_ask", "arguments": {}}


@pytest.fixture
def old(acme: Organization, helper: Agent) -> Iterator[Upstream]:
    """A server of the handshake era that asks in the middle of a call."""
    upstream = Upstream("old", handshake=True)
    with upstream.listening():
        attach_upstream(upstream, acme, helper)
        yield upstream


@pytest.fixture
def start_process(gateway_client: GatewayClient) -> Iterator[Callable[[], GatewayClient]]:
    """Return a function that starts another web process, as far as the gateway knows."""
    started: list[GatewayApplication] = []

    def start() -> GatewayClient:
        started.append(GatewayApplication())
        return GatewayClient(started[-1], gateway_client.token)

    yield start
    for mount in started:
        get_runtime().call(mount.stop)


def move(session: Session, gateway_client: GatewayClient, token: str | None = None) -> Session:
    """Return the same session as a client of another process."""
    moved = object.__new__(Session)
    moved.__dict__ = {
        **session.__dict__,
        "_wire": gateway_client,
        "_token": token or gateway_client.token,
    }
    return moved


def test_a_session_is_served_by_every_process(
    old: Upstream, gateway_client: GatewayClient, start_process: Callable[[], GatewayClient]
) -> None:
    session = gateway_client.handshake(AGENT, version="2025-03-26")
    moved_session = move(session, start_process())
    for client in (moved_session, session, moved_session):
        reply = client.ask("tools/call", ECHO)
        assert "hello" in json.dumps(reply.result)
        assert reply.headers["mcp-session-id"] == session.headers["Mcp_Session_Id"]
    moved_session.ask("logging/setLevel", {"level": "error"})
    session.ask("ping")
    levels = {
        gateway_session.log_level
        for mount in (gateway_client._mount, moved_session._wire._mount)
        for gateway_session in mount.dispatcher.sessions._sessions.values()
    }
    assert levels == {"error"}


def test_a_session_survives_a_restart(
    old: Upstream, gateway_client: GatewayClient, start_process: Callable[[], GatewayClient]
) -> None:
    first = start_process()
    session = first.handshake(AGENT, capabilities={"elicitation": {}})
    session.ask("tools/list")
    get_runtime().call(first._mount.stop)
    after = move(session, start_process())
    assert after.ask("tools/list").result["tools"]
    stream = after.begin("tools/call", ASK)  # its capabilities are known
    asked = stream.next()
    assert asked is not None
    after.answer(asked, result=ANSWERS[KEY])
    assert "Ann" in json.dumps(stream.next())
    stream.close()


def test_a_session_belongs_to_its_principal_and_address(
    old: Upstream,
    gateway_client: GatewayClient,
    acme: Organization,
    start_process: Callable[[], GatewayClient],
) -> None:
    session, process = gateway_client.handshake(AGENT), start_process()
    administrator = factories.build_administrator(acme)
    stranger = move(session, process, token_of(administrator))
    assert stranger.ask("tools/list").status == 404
    own = move(session, process)
    assert own.ask("tools/list", path="/mcp").status == 404
    assert stranger.end().status == 404
    assert own.ask("tools/list").status == 200
    revoke_token(administrator, Token.objects.get(key=gateway_client.token.split("_")[1]))
    assert "bad_token" in json.dumps(own.ask("tools/list").message)


def test_a_deleted_session_ends_in_every_process(
    old: Upstream, gateway_client: GatewayClient, start_process: Callable[[], GatewayClient]
) -> None:
    session = gateway_client.handshake(AGENT)
    stream = session.follow()
    moved_session = move(session, start_process())
    assert moved_session.ask("tools/list").status == 200
    assert moved_session.end().status == 200
    assert moved_session.ask("tools/list").status == 404
    assert list(iter(stream.next, None)) == []  # it ends, too
    assert session.ask("tools/list").status == 404
    stream.close()


def test_a_session_is_deleted_before_its_client_gets_the_response(
    old: Upstream, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = gateway_client.handshake(AGENT)
    handle_request, counts = StreamableHTTPSessionManager.handle_request, []

    async def count_rows(manager: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "DELETE":
            counts.append(await get_runtime().run_orm(GatewaySessionState.objects.count))
        await handle_request(manager, scope, receive, send)

    monkeypatch.setattr(StreamableHTTPSessionManager, "handle_request", count_rows)
    assert session.end().status == 200
    assert counts == [0]


def test_an_expired_session_is_unknown(
    old: Upstream, gateway_client: GatewayClient, start_process: Callable[[], GatewayClient]
) -> None:
    session = gateway_client.handshake(AGENT)
    GatewaySessionState.objects.update(used_at=timezone.now() - timedelta(hours=25))
    assert move(session, start_process()).ask("tools/list").status == 404
    assert session.ask("tools/list").status == 404
    gateway_client.handshake(AGENT)
    assert GatewaySessionState.objects.count() == 1


def test_an_answer_reaches_the_process_that_asked(
    old: Upstream, gateway_client: GatewayClient, start_process: Callable[[], GatewayClient]
) -> None:
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {}})
    moved_session = move(session, start_process())
    streams = [client.begin("tools/call", ASK) for client in (session, moved_session)]
    asked = [stream.next() or {} for stream in streams]
    assert asked[0]["id"] != asked[1]["id"]
    for request, answering, name in ((asked[0], moved_session, "Ann"), (asked[1], session, "Ben")):
        answer = {"action": "accept", "content": {"name": name}}
        answering.answer(request, result=answer)
    assert ["Ann" in json.dumps(streams[0].next()), "Ben" in json.dumps(streams[1].next())] == [
        True,
        True,
    ]
    assert GatewaySessionMessage.objects.count() == 2
    for stream in streams:
        stream.close()


def test_a_cancellation_reaches_the_process_that_calls(
    old: Upstream, gateway_client: GatewayClient, start_process: Callable[[], GatewayClient]
) -> None:
    session = gateway_client.handshake(AGENT, capabilities={"elicitation": {}})
    moved_session = move(session, start_process())
    stream = session.begin("tools/call", ASK)
    assert stream.next() is not None
    moved_session.tell("notifications/cancelled", {"requestId": stream.number})
    messages: list[Any] = list(iter(stream.next, None))
    assert "cancelled" in json.dumps(messages).lower()
    stream.close()


def test_a_subscription_in_one_process_reaches_the_stream_in_another(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    start_process: Callable[[], GatewayClient],
    edition_url: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_router, "SYNC_INTERVAL_S", 0.05)
    server: Server = create_news_server(acme, helper, edition_url())
    path = f"/mcp/servers/{server.slug}"
    session = gateway_client.handshake(path)
    stream: Stream = session.follow()
    moved_session = move(session, start_process())
    assert "result" in moved_session.ask("resources/subscribe", {"uri": PAPER}).message
    (here,) = gateway_client._mount.dispatcher.sessions._sessions.values()
    eventually(lambda: PAPER in here.watched, what="the subscription")
    params = {"name": "print", "arguments": {"uri": PAPER}}
    gateway_client.modern(path, "tools/call", params)
    assert (stream.next() or {})["params"] == {"uri": PAPER}
    stream.close()


@pytest.fixture
def news(acme: Organization, helper: Agent, edition_url: Callable[..., str]) -> Server:
    return create_news_server(acme, helper, edition_url())


def get_watched(gateway_client: GatewayClient) -> dict[str, WatchedResource]:
    """Return the resources that the only session of a process watches."""
    (session,) = gateway_client._mount.dispatcher.sessions._sessions.values()
    return session.watched


def test_a_subscription_survives_a_row_that_was_read_before_it_was_stored(
    news: Server, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = gateway_client.handshake(f"/mcp/servers/{news.slug}")
    stream = session.follow()
    session.ask("resources/subscribe", {"uri": PAPER})
    load_live_states = client_sessions.load_live_states
    is_read, is_stored, is_synced = Event(), Event(), Event()

    def load_slowly(state_ids: Any, used_ids: Any) -> Any:
        (is_synced if is_read.is_set() else is_read).set()
        states = load_live_states(state_ids, used_ids)
        is_stored.wait(LONG_S)
        return states

    monkeypatch.setattr(client_sessions, "load_live_states", load_slowly)
    assert is_read.wait(LONG_S)
    session.ask("resources/subscribe", {"uri": SECRET})
    resource = get_watched(gateway_client)[SECRET]
    is_stored.set()
    assert is_synced.wait(LONG_S)
    assert get_watched(gateway_client)[SECRET] is resource
    stream.close()


def test_processes_store_only_the_subscriptions_that_they_changed(
    news: Server, gateway_client: GatewayClient, start_process: Callable[[], GatewayClient]
) -> None:
    session = gateway_client.handshake(f"/mcp/servers/{news.slug}")
    session.ask("resources/subscribe", {"uri": PAPER})
    moved_session = move(session, start_process())
    moved_session.ask("ping")  # from here on, it knows the subscription to the paper
    session.ask("resources/subscribe", {"uri": SECRET})
    moved_session.ask("resources/unsubscribe", {"uri": PAPER})
    assert list(GatewaySessionState.objects.get().watched) == [SECRET]


def test_subscriptions_that_are_too_large_to_store_stay_in_their_process(
    news: Server, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_router, "SYNC_INTERVAL_S", 0.05)
    session = gateway_client.handshake(f"/mcp/servers/{news.slug}")
    monkeypatch.setattr(client_sessions, "MAX_STATE_SIZE", len(PAPER))
    stream = session.follow()
    session.ask("resources/subscribe", {"uri": PAPER})
    assert GatewaySessionState.objects.get().watched == {}
    load_live_states, loads = client_sessions.load_live_states, []

    def load_and_count(*args: Any) -> Any:
        loads.append(args)
        return load_live_states(*args)

    monkeypatch.setattr(client_sessions, "load_live_states", load_and_count)
    eventually(lambda: len(loads) > 1, what="a second load, after the first was applied")
    assert PAPER in get_watched(gateway_client)
    stream.close()
