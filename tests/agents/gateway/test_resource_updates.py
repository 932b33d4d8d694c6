"""Updates: clients of both eras are told when a resource of a server of either era changes."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from agents.gateway import client_sessions
from agents.gateway.transports import GatewayApplication
from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.tokens.services import revoke_token
from bonobot.core.runtime import get_runtime
from mcp_servers.client.change_notifications import ChangeNotification
from mcp_servers.models import ResourceSubscription, Server
from mcp_servers.subscriptions import leases, resource_updated
from tests import factories
from tests.agents.gateway.conftest import Session, Stream, Wire, token_of
from tests.resource_updates import PAPER, SECRET, WEATHER, print_edition, subscribed
from tests.wait import eventually

__all__ = ["print_edition"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT, SERVER = "/mcp/agents/helper", "/mcp/servers/news"
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
HERE = {AGENT: "news+", SERVER: ""}
PRINT = {AGENT: "mcp_news_print", SERVER: "print"}
READERS = {AGENT: "mcp_news_readers", SERVER: "readers"}


@pytest.fixture(params=["modern", "handshake"])
def news(
    request: Any, acme: Organization, helper: Agent, print_edition: Callable[..., str]
) -> Server:
    """A real server of each era."""
    how = ["handshake"] if request.param == "handshake" else []
    return subscribed(acme, helper, print_edition(*how))


@pytest.fixture
def modern_news(acme: Organization, helper: Agent, print_edition: Callable[..., str]) -> Server:
    return subscribed(acme, helper, print_edition())


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what nobody wants any more let go of soon."""
    monkeypatch.setattr(leases, "UNWANTED_AFTER", timedelta(seconds=2))
    monkeypatch.setattr(resource_updated, "BEAT_S", 0.0)


def told(stream: Stream) -> str:
    found = stream.next()
    assert found is not None
    assert found["method"] == UPDATED
    return str(found["params"]["uri"])


def call(wire: Wire, path: str, tool: dict[str, str], uri: str) -> str:
    params = {"name": tool[path], "arguments": {"uri": uri}}
    return str(wire.modern(path, "tools/call", params).result["content"][0]["text"])


def listening(wire: Wire, path: str, *uris: str, **more: Any) -> tuple[Stream, list[str]]:
    """Listen to resources, and return the stream and those that are granted."""
    wanted = {"resourceSubscriptions": [HERE[path] + uri for uri in uris]}
    stream = wire.listen(path, {"notifications": wanted}, **more)
    first = stream.next()
    assert first is not None
    assert first["method"] == ACKNOWLEDGED
    return stream, first["params"]["notifications"].get("resourceSubscriptions", [])


def subscribe(session: Session, uri: str) -> dict[str, Any]:
    return session.ask("resources/subscribe", {"uri": uri}).message


@pytest.mark.parametrize("path", [AGENT, SERVER])
def test_a_modern_client_subscribes_to_resources_of_both_eras(
    path: str, news: Server, wire: Wire
) -> None:
    stream, granted = listening(wire, path, PAPER, SECRET, "news://nothing")
    assert granted == [HERE[path] + PAPER, HERE[path] + SECRET]
    for uri in (SECRET, PAPER):
        call(wire, path, PRINT, uri)
        assert told(stream) == HERE[path] + uri
    stream.close()


@pytest.mark.parametrize("path", [AGENT, SERVER])
def test_a_handshake_client_subscribes_to_resources_of_both_eras(
    path: str, news: Server, wire: Wire
) -> None:
    session = wire.handshake(path)
    assert session.opened.result["capabilities"]["resources"]["subscribe"] is True
    stream = session.follow()
    for uri in (PAPER, SECRET, PAPER):  # the second time is the first
        assert "result" in subscribe(session, HERE[path] + uri)
    call(wire, path, PRINT, PAPER)
    assert told(stream) == HERE[path] + PAPER
    session.ask("resources/unsubscribe", {"uri": HERE[path] + PAPER})
    call(wire, path, PRINT, PAPER)
    call(wire, path, PRINT, SECRET)
    assert told(stream) == HERE[path] + SECRET
    stream.close()


def test_an_update_before_the_stream_opens_is_sent_when_it_opens(news: Server, wire: Wire) -> None:
    session = wire.handshake(AGENT)
    subscribe(session, HERE[AGENT] + PAPER)
    row = ResourceSubscription.objects.get()
    for _ in range(2):
        call(wire, AGENT, PRINT, PAPER)
    eventually(lambda: ResourceSubscription.objects.get(pk=row.pk).changes, what="the change")
    stream = session.follow()
    assert told(stream) == HERE[AGENT] + PAPER
    stream.close()
    before = ResourceSubscription.objects.get().changes
    call(wire, AGENT, PRINT, PAPER)  # between two streams it is the same
    eventually(lambda: ResourceSubscription.objects.get().changes > before, what="the next change")
    again = session.follow()
    assert told(again) == HERE[AGENT] + PAPER
    again.close()


def test_an_update_of_a_sub_resource_is_sent_for_the_resource(
    modern_news: Server, wire: Wire
) -> None:
    session = wire.handshake(SERVER)
    stream = session.follow()
    subscribe(session, PAPER)
    get_runtime().call(part_changed, modern_news)
    assert told(stream) == PAPER
    stream.close()


async def part_changed(server: Server) -> None:
    feed = resource_updated.get_resource_watcher()._feeds[leases.UpdateSource(server.pk)]
    for holder in ("somebody else", feed.holder):
        notice = ChangeNotification("resources", f"{PAPER}/sport", holder)
        resource_updated.handle_change_notification(server.pk, notice)


def test_subscriptions_refused_by_the_server_arent_granted(
    acme: Organization, helper: Agent, wire: Wire, print_edition: Callable[..., str]
) -> None:
    subscribed(acme, helper, print_edition("handshake"))
    stream, granted = listening(wire, SERVER, WEATHER, PAPER)
    assert granted == [PAPER]
    stream.close()
    session = wire.handshake(SERVER)
    refused = subscribe(session, WEATHER)["error"]
    unknown = subscribe(session, "news://nothing")["error"]
    assert (refused["code"], unknown["code"]) == (-32602, -32602)
    assert unknown["data"] == {"uri": "news://nothing"}


def test_unsupported_subscriptions_arent_declared(library: Server, wire: Wire) -> None:
    path = "/mcp/servers/library"
    for capabilities in (
        wire.handshake(path).opened.result["capabilities"],
        wire.modern(path, "server/discover").result["capabilities"],
    ):
        assert capabilities["resources"] == {"listChanged": True}
    refused = subscribe(wire.handshake(path), "lib://rules")["error"]
    assert refused["code"] == -32602


@pytest.mark.usefixtures("at_once")
def test_many_clients_share_one_subscription_that_ends_with_the_last(
    modern_news: Server, wire: Wire
) -> None:
    streams = [listening(wire, path, PAPER)[0] for path in (AGENT, SERVER, SERVER)]
    session = wire.handshake(AGENT)
    subscribe(session, HERE[AGENT] + PAPER)
    assert call(wire, SERVER, READERS, PAPER) == "0 sessions, 1 streams"
    call(wire, SERVER, PRINT, PAPER)
    assert [told(one) for one in streams] == [HERE[AGENT] + PAPER, PAPER, PAPER]
    for one in streams:
        one.close()
    assert call(wire, SERVER, READERS, PAPER) == "0 sessions, 1 streams"
    wire.send("DELETE", AGENT, **session._with_bearer())
    eventually(lambda: not ResourceSubscription.objects.exists(), what="the end of the row")
    eventually(
        lambda: call(wire, SERVER, READERS, PAPER) == "0 sessions, 0 streams",
        what="the end of the stream at the server",
    )


@pytest.mark.usefixtures("at_once")
def test_an_idle_session_loses_its_subscriptions(
    modern_news: Server, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "IDLE_S", 0.2)
    session = wire.handshake(SERVER)
    stream = session.follow()
    subscribe(session, PAPER)
    call(wire, SERVER, PRINT, PAPER)
    assert told(stream) == PAPER
    stream.close()
    eventually(lambda: not ResourceSubscription.objects.exists(), what="the end of the row")


def test_a_lost_permission_ends_the_updates(
    acme: Organization, helper: Agent, modern_news: Server, wire: Wire
) -> None:
    boss = factories.build_administrator(acme)
    token = token_of(boss)
    other, _ = listening(wire, SERVER, PAPER, token=token)
    session = wire.handshake(AGENT)
    stream = session.follow()
    for uri in (PAPER, SECRET):
        subscribe(session, HERE[AGENT] + uri)
    attach_server(boss, helper, modern_news, allowed_resources=[SECRET])
    revoke_token(boss, Token.objects.get(key=token.split("_")[1]))
    call(wire, SERVER, PRINT, PAPER)
    call(wire, SERVER, PRINT, SECRET)
    found = [stream.next() for _ in range(2)]
    methods = {one["method"]: one for one in found if one}
    assert methods[UPDATED]["params"]["uri"] == HERE[AGENT] + SECRET
    assert PAPER not in json.dumps(found)
    last = list(iter(other.next, None))
    assert UPDATED not in json.dumps(last)
    refused = subscribe(session, HERE[AGENT] + PAPER)
    assert "result" in refused  # it is subscribed to already, and told of no more
    again = subscribe(wire.handshake(AGENT), HERE[AGENT] + PAPER)
    assert again["error"]["code"] == -32602
    stream.close()


def test_sessions_of_others_arent_ended(modern_news: Server, wire: Wire) -> None:
    session = wire.handshake(SERVER)
    subscribe(session, PAPER)
    path = "/mcp/agents/helper"
    wire.send("DELETE", path, **session._with_bearer())
    mount: GatewayApplication = wire._mount
    (kept,) = mount.dispatcher.sessions._sessions.values()
    assert list(kept.watched) == [PAPER]


def test_the_number_of_subscriptions_per_session_is_limited(
    modern_news: Server, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "MAX_WATCHED_RESOURCES", 1)
    session = wire.handshake(SERVER)
    assert "result" in subscribe(session, PAPER)
    assert "result" in subscribe(session, PAPER)
    assert subscribe(session, SECRET)["error"]["code"] == -32602
    monkeypatch.setattr(resource_updated, "MAX_WATCHED", 1)
    stream, granted = listening(wire, SERVER, SECRET)
    assert granted == []
    stream.close()
