"""What a session does with its servers when it starts: reuse, refresh, and not wait for long."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agents.models import Agent, Session, Step
from agents.sessions import services as sessions
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import update_server
from tests import factories
from tests.servers import raw_http_server
from tests.servers.raw_http_server import HandshakeHttp, RawHttp, RecordedRequest
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


class Legacy:
    """A server of the handshake era with one tool, which counts its handshakes."""

    def __init__(self) -> None:
        self.era = HandshakeHttp(self._answer)
        self.http = RawHttp(self.era)
        self.tools = [{"name": "look", "inputSchema": {"type": "object"}}]
        self.server: Server

    def _answer(self, asked: RecordedRequest) -> bytes:
        if asked.method == "tools/list":
            return raw_http_server.result(asked, {"tools": self.tools})
        if asked.method == "ping":
            return raw_http_server.result(asked, {})
        return raw_http_server.text(asked)


@pytest.fixture
def legacy(acme: Organization, helper: Agent) -> Iterator[Callable[[str], Legacy]]:
    """A function that starts such a server and gives it to the agent."""
    stack, started = AsyncExitStack(), list[Legacy]()

    def start(name: str) -> Legacy:
        legacy = Legacy()
        get_runtime().call(stack.enter_async_context, legacy.http.listening())
        legacy.server = factories.create_http_server(acme, legacy.http.url, name)
        started.append(legacy)
        factories.approve_server(acme, legacy.server, helper)
        legacy.era.opened = 0
        legacy.era.known.clear()
        legacy.http.asked.clear()
        return legacy

    yield start
    for legacy in started:
        get_runtime().call(get_connection_pool().forget_server, legacy.server.pk)
    get_runtime().call(stack.aclose)


def list_notice_texts(session: Session) -> list[str]:
    notices = session.steps.filter(kind=Step.Kind.NOTICE).order_by("seq")
    return [notice.payload["text"] for notice in notices]


def expire(server: Server) -> None:
    Server.objects.filter(pk=server.pk).update(discovered_at=timezone.now() - timedelta(days=2))


CALL = "/mcp_old_look {}"


def test_the_sessions_of_a_person_with_an_agent_share_one_handshake(legacy, run):
    old = legacy("old")
    first = run(CALL)
    run(CALL, first)
    for _ in range(3):
        run(CALL)
    assert old.era.opened == 1
    assert old.http.methods().count("tools/call") == 5
    assert old.http.methods().count("ping") == 4
    assert "DELETE" not in old.http.methods()
    assert list_notice_texts(first) == []


def test_sessions_of_others_have_their_own_handshake(acme, helper, legacy, run_to_rest, run):
    old = legacy("old")
    run(CALL)
    ada = factories.create_member(acme, Role.OPERATOR, "ada@example.com")
    run_to_rest(sessions.start_session(ada, helper, CALL))
    assert old.era.opened == 2
    # Two people who write to one session share it with nobody else.
    session = run(CALL)
    sessions.send_message(ada, session, CALL)
    run_to_rest(session)
    assert old.era.opened == 3
    run(CALL)
    assert old.era.opened == 3


def test_a_change_of_the_server_ends_its_sessions(acme, legacy, run):
    old = legacy("old")
    run(CALL)
    get_runtime().call(get_connection_pool().close_outdated_connections)
    config = {"url": old.http.url, "headers": {"X-Key": "new"}}
    spec = ServerSpec(name="old", transport_type="http", endpoint_config=config, allow_private=True)
    update_server(factories.build_administrator(acme), old.server, spec)
    eventually(lambda: not old.era.known)


def test_a_session_connects_before_its_first_turn(legacy, run):
    old = legacy("old")
    run("hello")
    assert old.http.methods()[:2] == ["initialize", "notifications/initialized"]
    assert "tools/call" not in old.http.methods()


def test_an_expired_catalog_is_refreshed_when_a_session_starts(legacy, run):
    """Once, on a connection of its own."""
    old = legacy("old")
    old.tools = [{**old.tools[0], "title": "Look"}, {**old.tools[0], "name": "hear"}]
    run("hello")
    assert old.server.definitions.count() == 1
    expire(old.server)
    old.http.asked.clear()
    run("hello")
    assert old.server.definitions.count() == 2
    assert old.http.methods().count("tools/list") == 1


def test_servers_are_contacted_in_parallel_and_not_waited_for(legacy, run, settings):
    settings.BONOBOT_SESSION_CONNECT_S = 0.3
    servers = [legacy("old"), legacy("older")]
    asked: list[Any] = []

    async def never(legacy: RecordedRequest) -> Any:
        asked.append(legacy)
        await asyncio.Event().wait()
        yield b""

    for legacy in servers:
        legacy.http.respond = never
    session = run("hello")
    assert session.status == Session.Status.DONE
    assert len(asked) >= 2
    assert sorted(list_notice_texts(session)) == [
        f"The server {name} didn't respond within 0.3 s. Calls to it may fail."
        for name in ("old", "older")
    ]


def test_a_server_that_works_again_is_found_when_a_session_starts(legacy, run):
    old = legacy("old")
    failed = {"status": "error", "status_code": "gone", "failures": 1}
    Server.objects.filter(pk=old.server.pk).update(**failed)
    assert list_notice_texts(run("hello")) == ["The server old is not reachable now."]
    an_hour_ago = timezone.now() - timedelta(hours=1)
    Server.objects.filter(pk=old.server.pk).update(checked_at=an_hour_ago)
    assert list_notice_texts(run("hello")) == []
    old.server.refresh_from_db()
    assert old.server.status == Server.Status.CONNECTED


def test_an_unreachable_server_is_a_warning(legacy, run):
    old = legacy("old")
    old.http.respond = lambda asked: raw_http_server.response(503)
    session = run("hello")
    assert session.status == Session.Status.DONE
    assert list_notice_texts(session) == ["The server old is not reachable now."]
    assert session.steps.get(kind=Step.Kind.NOTICE).payload["why"] == "server_unreachable"
