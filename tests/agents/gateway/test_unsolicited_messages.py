"""Log messages and updates that a connection gets unasked reach each of its clients, once."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.gateway.resource_subscriptions import OVERLAP_S, WatchedResource
from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Session, Stream

pytestmark = pytest.mark.django_db(transaction=True)

PATH = "/mcp/servers/talk"
SCRIPT = Path(__file__).parents[2] / "servers" / "talkative_server.py"
URI = "talk://a"
UPDATED, LOGGED = "notifications/resources/updated", "notifications/message"


@pytest.fixture
def talk(acme: Organization, helper: Agent) -> Iterator[Server]:
    """A stdio server whose updates and log messages belong to a connection."""
    config = {"command": sys.executable, "args": ["-I", "-S", str(SCRIPT)]}
    spec = ServerSpec(
        name="talk", transport_type="stdio", endpoint_config=config, session_state="kept"
    )
    administrator = factories.build_administrator(acme)
    server = factories.approve_server(acme, create_server(administrator, spec))
    attach_server(administrator, helper, server, allowed_resources=["*"])
    yield server
    get_runtime().call(get_connection_pool().forget_server, server.pk)


def poke(session: Session, times: int = 1) -> list[dict[str, Any]]:
    """Call `poke`, and return what came before the answer."""
    params = {"name": "poke", "arguments": {"times": times}}
    return session.ask("tools/call", params).notifications


def read_updates(stream: Stream, count: int) -> list[str]:
    """Return what comes next, in short."""
    received = [stream.next() or {} for _ in range(count)]
    return [message["params"].get("data") or message["method"] for message in received]


def test_updates_and_logs_come_once_each(talk: Server, gateway_client: GatewayClient) -> None:
    session = gateway_client.handshake(PATH)
    stream = session.follow()
    session.ask("resources/subscribe", {"uri": URI})
    notifications = poke(session, 3)
    logs = ["poked 0", "poked 1", "poked 2"]
    on_call = [message["params"]["data"] for message in notifications]
    received = read_updates(stream, 6 - len(on_call))
    assert sorted(on_call + received) == sorted([*logs, *[UPDATED] * 3])
    notifications = poke(session)  # nothing else was left
    assert sorted(
        [
            *(message["params"]["data"] for message in notifications),
            *read_updates(stream, 2 - len(notifications)),
        ]
    ) == [
        UPDATED,
        "poked 0",
    ]
    stream.close()


def test_others_arent_told_what_a_connection_of_its_own_gets(
    talk: Server, gateway_client: GatewayClient
) -> None:
    first, second = gateway_client.handshake(PATH), gateway_client.handshake(PATH)
    streams = [first.follow(), second.follow()]
    for session in (first, second):
        session.ask("resources/subscribe", {"uri": URI})
    for session, stream, times in ((first, streams[0], 2), (second, streams[1], 1)):
        notifications = poke(session, times)
        assert read_updates(stream, 2 * times - len(notifications)).count(UPDATED) == times
    for stream in streams:
        stream.close()


def test_a_log_message_during_two_calls_of_a_client_comes_once(
    talk: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(PATH)
    poke(session, 0)
    stream = session.follow()
    held = session.begin("tools/call", {"name": "hold", "arguments": {}})
    ask = get_connection_pool()._stdio_pool
    get_runtime().call(_wait_until_busy, ask)
    reply = session.ask("tools/call", {"name": "say", "arguments": {}})
    messages = reply.notifications + [
        message for message in iter(held.next, None) if "method" in message
    ]
    assert [message["params"]["data"] for message in messages] == ["said"]
    held.close()
    stream.close()


async def _wait_until_busy(pool: Any) -> None:
    while not any(entry.connection.busy for entry in pool._entries.values()):
        await asyncio.sleep(0)


def test_quieter_messages_arent_forwarded(talk: Server, gateway_client: GatewayClient) -> None:
    session = gateway_client.handshake(PATH)
    stream = session.follow()
    session.ask("logging/setLevel", {"level": "error"})
    session.ask("resources/subscribe", {"uri": URI})
    assert poke(session) == []
    assert read_updates(stream, 1) == [UPDATED]
    stream.close()


class Connection:
    """What counts as a connection here."""

    alive = True


def test_updates_by_two_ways_count_once_while_both_are_open() -> None:
    watched = WatchedResource("7")
    watched.switch_to(Connection(), 100.0)  # type: ignore[arg-type]
    watched.update_count = 1
    assert watched.take_update_count(7, 100.1) == 1
    assert watched.take_update_count(8, 100.2) == 0  # the same update by the feed
    assert watched.take_update_count(9, 100.3) == 1  # one that only the feed had
    watched.update_count = 3
    assert watched.take_update_count(9, 100.4) == 1
    assert watched.take_update_count(9, 101.0 + OVERLAP_S) == 0
    watched.update_count = 4
    assert watched.take_update_count(30, 102.0 + OVERLAP_S) == 1  # the feed no longer counts
    assert not watched.leave_lost_connection()
    Connection.alive = False
    assert watched.leave_lost_connection()
