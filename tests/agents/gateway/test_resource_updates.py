"""Resource updates of servers of both eras for clients of both eras."""

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
from tests.agents.gateway.conftest import GatewayClient, Session, Stream, token_of
from tests.resource_updates import PAPER, SECRET, WEATHER, create_news_server, edition_url
from tests.wait import eventually

__all__ = ["edition_url"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT, SERVER = "/mcp/agents/helper", "/mcp/servers/news"
UPDATED = "notifications/resources/updated"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
URI_PREFIXES = {AGENT: "news+", SERVER: ""}
PRINT = {AGENT: "mcp_news_print", SERVER: "print"}
READERS = {AGENT: "mcp_news_readers", SERVER: "readers"}


@pytest.fixture(params=["modern", "handshake"])
def news(
    request: Any, acme: Organization, helper: Agent, edition_url: Callable[..., str]
) -> Server:
    """A real server of each era."""
    args = ["handshake"] if request.param == "handshake" else []
    return create_news_server(acme, helper, edition_url(*args))


@pytest.fixture
def modern_news(acme: Organization, helper: Agent, edition_url: Callable[..., str]) -> Server:
    return create_news_server(acme, helper, edition_url())


@pytest.fixture
def fast_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete unused subscriptions soon."""
    monkeypatch.setattr(leases, "UNWANTED_AFTER", timedelta(seconds=2))
    monkeypatch.setattr(resource_updated, "BEAT_S", 0.0)


def read_update(stream: Stream) -> str:
    notification = stream.next()
    assert notification is not None
    assert notification["method"] == UPDATED
    return str(notification["params"]["uri"])


def call(gateway_client: GatewayClient, path: str, tool: dict[str, str], uri: str) -> str:
    params = {"name": tool[path], "arguments": {"uri": uri}}
    return str(gateway_client.modern(path, "tools/call", params).result["content"][0]["text"])


def open_stream(
    gateway_client: GatewayClient, path: str, *uris: str, **more: Any
) -> tuple[Stream, list[str]]:
    """Subscribe to resources; return the stream and the granted URIs."""
    subscriptions = {"resourceSubscriptions": [URI_PREFIXES[path] + uri for uri in uris]}
    stream = gateway_client.listen(path, {"notifications": subscriptions}, **more)
    acknowledgment = stream.next()
    assert acknowledgment is not None
    assert acknowledgment["method"] == ACKNOWLEDGED
    return stream, acknowledgment["params"]["notifications"].get("resourceSubscriptions", [])


def subscribe(session: Session, uri: str) -> dict[str, Any]:
    return session.ask("resources/subscribe", {"uri": uri}).message


@pytest.mark.parametrize("path", [AGENT, SERVER])
def test_a_modern_client_subscribes_to_resources_of_both_eras(
    path: str, news: Server, gateway_client: GatewayClient
) -> None:
    stream, granted = open_stream(gateway_client, path, PAPER, SECRET, "news://nothing")
    assert granted == [URI_PREFIXES[path] + PAPER, URI_PREFIXES[path] + SECRET]
    for uri in (SECRET, PAPER):
        call(gateway_client, path, PRINT, uri)
        assert read_update(stream) == URI_PREFIXES[path] + uri
    stream.close()


@pytest.mark.parametrize("path", [AGENT, SERVER])
def test_a_handshake_client_subscribes_to_resources_of_both_eras(
    path: str, news: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(path)
    assert session.initialization.result["capabilities"]["resources"]["subscribe"] is True
    stream = session.follow()
    for uri in (PAPER, SECRET, PAPER):  # subscribing twice is allowed
        assert "result" in subscribe(session, URI_PREFIXES[path] + uri)
    call(gateway_client, path, PRINT, PAPER)
    assert read_update(stream) == URI_PREFIXES[path] + PAPER
    session.ask("resources/unsubscribe", {"uri": URI_PREFIXES[path] + PAPER})
    call(gateway_client, path, PRINT, PAPER)
    call(gateway_client, path, PRINT, SECRET)
    assert read_update(stream) == URI_PREFIXES[path] + SECRET
    stream.close()


def test_an_update_before_the_stream_opens_is_sent_when_it_opens(
    news: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(AGENT)
    subscribe(session, URI_PREFIXES[AGENT] + PAPER)
    row = ResourceSubscription.objects.get()
    for _ in range(2):
        call(gateway_client, AGENT, PRINT, PAPER)
    eventually(lambda: ResourceSubscription.objects.get(pk=row.pk).changes, what="the change")
    stream = session.follow()
    assert read_update(stream) == URI_PREFIXES[AGENT] + PAPER
    stream.close()
    before = ResourceSubscription.objects.get().changes
    call(gateway_client, AGENT, PRINT, PAPER)  # also between two streams
    eventually(lambda: ResourceSubscription.objects.get().changes > before, what="the next change")
    second = session.follow()
    assert read_update(second) == URI_PREFIXES[AGENT] + PAPER
    second.close()


def test_an_update_of_a_sub_resource_is_sent_for_the_resource(
    modern_news: Server, gateway_client: GatewayClient
) -> None:
    session = gateway_client.handshake(SERVER)
    stream = session.follow()
    subscribe(session, PAPER)
    get_runtime().call(report_sub_resource_change, modern_news)
    assert read_update(stream) == PAPER
    stream.close()


async def report_sub_resource_change(server: Server) -> None:
    feed = resource_updated.get_resource_watcher()._feeds[leases.UpdateSource(server.pk)]
    for holder in ("somebody else", feed.holder):
        notice = ChangeNotification("resources", f"{PAPER}/sport", holder)
        resource_updated.handle_change_notification(server.pk, notice)


def test_subscriptions_refused_by_the_server_arent_granted(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    edition_url: Callable[..., str],
) -> None:
    create_news_server(acme, helper, edition_url("handshake"))
    stream, granted = open_stream(gateway_client, SERVER, WEATHER, PAPER)
    assert granted == [PAPER]
    stream.close()
    session = gateway_client.handshake(SERVER)
    refused = subscribe(session, WEATHER)["error"]
    unknown = subscribe(session, "news://nothing")["error"]
    assert (refused["code"], unknown["code"]) == (-32602, -32602)
    assert unknown["data"] == {"uri": "news://nothing"}


def test_unsupported_subscriptions_arent_declared(
    library: Server, gateway_client: GatewayClient
) -> None:
    path = "/mcp/servers/library"
    for capabilities in (
        gateway_client.handshake(path).initialization.result["capabilities"],
        gateway_client.modern(path, "server/discover").result["capabilities"],
    ):
        assert capabilities["resources"] == {"listChanged": True}
    refused = subscribe(gateway_client.handshake(path), "lib://rules")["error"]
    assert refused["code"] == -32602


@pytest.mark.usefixtures("fast_cleanup")
def test_many_clients_share_one_subscription_that_ends_with_the_last(
    modern_news: Server, gateway_client: GatewayClient
) -> None:
    streams = [open_stream(gateway_client, path, PAPER)[0] for path in (AGENT, SERVER, SERVER)]
    session = gateway_client.handshake(AGENT)
    subscribe(session, URI_PREFIXES[AGENT] + PAPER)
    assert call(gateway_client, SERVER, READERS, PAPER) == "0 sessions, 1 streams"
    call(gateway_client, SERVER, PRINT, PAPER)
    assert [read_update(stream) for stream in streams] == [
        URI_PREFIXES[AGENT] + PAPER,
        PAPER,
        PAPER,
    ]
    for stream in streams:
        stream.close()
    assert call(gateway_client, SERVER, READERS, PAPER) == "0 sessions, 1 streams"
    gateway_client.send("DELETE", AGENT, **session._with_bearer())
    eventually(lambda: not ResourceSubscription.objects.exists(), what="the end of the row")
    eventually(
        lambda: call(gateway_client, SERVER, READERS, PAPER) == "0 sessions, 0 streams",
        what="the end of the stream at the server",
    )


@pytest.mark.usefixtures("fast_cleanup")
def test_an_idle_session_loses_its_subscriptions(
    modern_news: Server, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "IDLE_S", 0.2)
    session = gateway_client.handshake(SERVER)
    stream = session.follow()
    subscribe(session, PAPER)
    call(gateway_client, SERVER, PRINT, PAPER)
    assert read_update(stream) == PAPER
    stream.close()
    eventually(lambda: not ResourceSubscription.objects.exists(), what="the end of the row")


def test_a_lost_permission_ends_the_updates(
    acme: Organization, helper: Agent, modern_news: Server, gateway_client: GatewayClient
) -> None:
    administrator = factories.build_administrator(acme)
    token = token_of(administrator)
    other_stream, _ = open_stream(gateway_client, SERVER, PAPER, token=token)
    session = gateway_client.handshake(AGENT)
    stream = session.follow()
    for uri in (PAPER, SECRET):
        subscribe(session, URI_PREFIXES[AGENT] + uri)
    attach_server(administrator, helper, modern_news, allowed_resources=[SECRET])
    revoke_token(administrator, Token.objects.get(key=token.split("_")[1]))
    call(gateway_client, SERVER, PRINT, PAPER)
    call(gateway_client, SERVER, PRINT, SECRET)
    notifications = [stream.next() for _ in range(2)]
    methods = {n["method"]: n for n in notifications if n}
    assert methods[UPDATED]["params"]["uri"] == URI_PREFIXES[AGENT] + SECRET
    assert PAPER not in json.dumps(notifications)
    remaining = list(iter(other_stream.next, None))
    assert UPDATED not in json.dumps(remaining)
    repeated = subscribe(session, URI_PREFIXES[AGENT] + PAPER)
    assert "result" in repeated  # it was already subscribed, and gets no more updates
    new = subscribe(gateway_client.handshake(AGENT), URI_PREFIXES[AGENT] + PAPER)
    assert new["error"]["code"] == -32602
    stream.close()


def test_sessions_of_others_arent_ended(modern_news: Server, gateway_client: GatewayClient) -> None:
    session = gateway_client.handshake(SERVER)
    subscribe(session, PAPER)
    path = "/mcp/agents/helper"
    gateway_client.send("DELETE", path, **session._with_bearer())
    mount: GatewayApplication = gateway_client._mount
    (remaining,) = mount.dispatcher.sessions._sessions.values()
    assert list(remaining.watched) == [PAPER]


def test_the_number_of_subscriptions_per_session_is_limited(
    modern_news: Server, gateway_client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_sessions, "MAX_WATCHED_RESOURCES", 1)
    session = gateway_client.handshake(SERVER)
    assert "result" in subscribe(session, PAPER)
    assert "result" in subscribe(session, PAPER)
    assert subscribe(session, SECRET)["error"]["code"] == -32602
    monkeypatch.setattr(resource_updated, "MAX_WATCHED", 1)
    stream, granted = open_stream(gateway_client, SERVER, SECRET)
    assert granted == []
    stream.close()
