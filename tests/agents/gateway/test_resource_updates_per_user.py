"""Resource updates of servers where each person signs in: each gets their own, with their login.

Two people and a client without a person use one real server: in both eras of clients and servers,
at an agent and at the server itself. `test_two_processes` tests the same with two web processes.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings

from agents.models import Agent
from bonobot.accounts.members import remove_member
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens import oauth_grants
from mcp_servers.models import ResourceSubscription, Server
from mcp_servers.oauth_client.authorization_code import sign_out
from mcp_servers.oauth_client.revocation import revoke_former_members
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Session, Stream
from tests.agents.gateway.test_resource_updates import (
    ACKNOWLEDGED,
    AGENT,
    PRINT,
    READERS,
    SERVER,
    URI_PREFIXES,
    fast_cleanup,
    read_update,
)
from tests.resource_updates import PAPER, SECRET, create_news_server, edition_url, store_login
from tests.wait import eventually

__all__ = ["edition_url", "fast_cleanup"]
pytestmark = pytest.mark.django_db(transaction=True)

ERAS = ("modern", "handshake")
ALL_CLIENTS = list(product(ERAS, (AGENT, SERVER)))
for_all_clients = pytest.mark.parametrize("readers", ALL_CLIENTS, indirect=True, ids="-".join)
WATCHED = "resourceSubscriptions"


class Reader:
    """A person's client at an endpoint and the resources it watches."""

    def __init__(
        self, gateway_client: GatewayClient, principal: Principal, path: str, era: str
    ) -> None:
        self.principal, self.subject = principal, UUID(principal.id)
        self.gateway_client, self.path, self.era = gateway_client, path, era
        self.token = authorize_client(principal, path)
        self.session: Session | None = None
        self.stream: Stream | None = None

    def watch(self, *uris: str) -> list[str]:
        """Subscribe to resources and return the granted URIs."""
        own_uris = [URI_PREFIXES[self.path] + uri for uri in uris]
        if self.era == "modern":
            params = {"notifications": {WATCHED: own_uris}}
            self.stream = self.gateway_client.listen(self.path, params, self.token)
            acknowledgment = self.stream.next()
            assert acknowledgment is not None
            assert acknowledgment["method"] == ACKNOWLEDGED
            return list(acknowledgment["params"]["notifications"].get(WATCHED, []))
        self.session = self.gateway_client.handshake(self.path, token=self.token)
        self.stream = self.session.follow()
        messages = {
            uri: self.session.ask("resources/subscribe", {"uri": uri}).message for uri in own_uris
        }
        return [uri for uri, message in messages.items() if "result" in message]

    def call(self, tool: dict[str, str], uri: str) -> str:
        """Call a tool as this person."""
        params = {"name": tool[self.path], "arguments": {"uri": uri}}
        reply = self.gateway_client.modern(self.path, "tools/call", params, token=self.token)
        return str(reply.result["content"][0]["text"])

    def read_update(self) -> str:
        """Return the URI of the next update, without its prefix."""
        assert self.stream is not None
        return read_update(self.stream).removeprefix(URI_PREFIXES[self.path])

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


def authorize_client(principal: Principal, path: str, base_url: str = "") -> str:
    """Authorize a client at an endpoint and return its token."""
    user = User.objects.get(pk=principal.id)
    organization = Organization.objects.get(pk=principal.organization_id)
    scopes = [TokenScope.TOOLS]
    client: dict[str, Any] = {"client_id": "ide", "client": "IDE", "scopes": scopes}
    grant = oauth_grants.create_grant(
        user,
        organization,
        role=principal.role,
        resource=(base_url or settings.BONOBOT_URL) + path,
        **client,
    )
    text = oauth_grants.rotate_grant(grant, first=True)
    assert text is not None
    return text


@pytest.fixture
def people(acme: Organization) -> tuple[Principal, Principal]:
    return (
        factories.create_member(acme, Role.OPERATOR, "ann"),
        factories.create_member(acme, Role.OPERATOR, "ben"),
    )


@pytest.fixture(params=ERAS)
def news(
    request: Any,
    acme: Organization,
    helper: Agent,
    people: tuple[Principal, Principal],
    edition_url: Callable[..., str],
) -> Server:
    """A real server of each era at which both people have signed in."""
    args = ["people", *(["handshake"] if request.param == "handshake" else [])]
    return create_news_server(acme, helper, edition_url(*args), readers=people)


@pytest.fixture
def readers(
    request: Any, news: Server, gateway_client: GatewayClient, people: tuple[Principal, Principal]
) -> Iterator[tuple[Reader, Reader]]:
    era, path = getattr(request, "param", ("modern", AGENT))
    pair = (
        Reader(gateway_client, people[0], path, era),
        Reader(gateway_client, people[1], path, era),
    )
    yield pair
    for reader in pair:
        reader.close()


@for_all_clients
def test_each_person_gets_only_their_own_updates(readers: tuple[Reader, Reader]) -> None:
    ann, ben = readers
    for reader in readers:
        assert reader.watch(PAPER, SECRET) == [
            URI_PREFIXES[reader.path] + uri for uri in (PAPER, SECRET)
        ]
    ann.call(PRINT, PAPER)
    assert ann.read_update() == PAPER
    ben.call(PRINT, SECRET)
    assert ben.read_update() == SECRET  # nothing of Ann's came first
    ann.call(PRINT, SECRET)
    assert ann.read_update() == SECRET
    subjects = ResourceSubscription.objects.values_list("uri", "subject")
    assert set(subjects) == set(product((PAPER, SECRET), (ann.subject, ben.subject)))


def test_each_person_has_one_connection_with_their_own_login(
    readers: tuple[Reader, Reader], news: Server
) -> None:
    ann, ben = readers
    expected = format_counts(news, 1, calling=1)
    assert ann.watch(PAPER)
    assert ann.call(READERS, PAPER) == expected
    assert ben.call(READERS, PAPER) == "0 sessions, 0 streams"
    assert ben.watch(PAPER)
    assert (ann.call(READERS, PAPER), ben.call(READERS, PAPER)) == (expected, expected)


@pytest.mark.parametrize("news", ["modern"], indirect=True)
@pytest.mark.parametrize("readers", [(era, SERVER) for era in ERAS], indirect=True, ids=ERAS)
def test_a_person_without_a_login_is_refused(readers: tuple[Reader, Reader], news: Server) -> None:
    ann, ben = readers
    sign_out(ben.principal, news)
    before = ben.watch(PAPER, SECRET)
    ben.close()
    assert ann.watch(PAPER)
    assert ben.watch(PAPER, SECRET) == before == []
    ann.call(PRINT, PAPER)
    assert ann.read_update() == PAPER
    ben.close()
    store_login(news, ben.principal)
    assert ben.watch(PAPER) == [URI_PREFIXES[ben.path] + PAPER]
    ben.call(PRINT, PAPER)
    assert ben.read_update() == PAPER


@pytest.mark.parametrize("news", ["modern"], indirect=True)
def test_a_client_without_a_person_gets_no_subscription(
    readers: tuple[Reader, Reader], gateway_client: GatewayClient
) -> None:
    ann, _ = readers
    assert ann.watch(PAPER)
    for era, token in product(ERAS, (None, ann.token)):
        auth = {"token": token}
        reply = (
            gateway_client.handshake(ann.path, **auth).initialization
            if era == "handshake"
            else gateway_client.modern(ann.path, "server/discover", **auth)
        )
        declared = reply.result["capabilities"]["resources"].get("subscribe", False)
        assert declared is (token is not None)
    params = {"notifications": {WATCHED: [URI_PREFIXES[ann.path] + PAPER]}}
    stream = gateway_client.listen(ann.path, params)
    assert WATCHED not in (stream.next() or {})["params"]["notifications"]
    stream.close()
    session = gateway_client.handshake(ann.path)
    refused = session.ask("resources/subscribe", {"uri": URI_PREFIXES[ann.path] + PAPER})
    assert refused.error["code"] == -32602


@pytest.mark.usefixtures("fast_cleanup")
@pytest.mark.parametrize("news", ["modern"], indirect=True)
@pytest.mark.parametrize("action", ["signs out", "leaves"])
def test_a_removed_login_ends_its_subscriptions(
    action: str, readers: tuple[Reader, Reader], news: Server, acme: Organization
) -> None:
    ann, ben = readers
    assert ann.watch(PAPER)
    assert ben.watch(PAPER)
    assert ann.call(READERS, "") == format_counts(news, 2, calling=1)
    if action == "signs out":
        sign_out(ben.principal, news)
    else:
        factories.create_member(acme, Role.OWNER)  # an organization needs an owner
        administrator = factories.build_administrator(acme)
        remove_member(administrator, Membership.objects.get(user=ben.subject))
        revoke_former_members()
    expected = format_counts(news, 1, calling=1)
    eventually(lambda: ann.call(READERS, "") == expected, what="the end of the other's connection")
    ann.call(PRINT, PAPER)
    assert ann.read_update() == PAPER


@pytest.mark.usefixtures("fast_cleanup")
@pytest.mark.parametrize("news", ["modern"], indirect=True)
def test_a_person_who_switches_accounts_gets_updates_of_the_new_one(
    readers: tuple[Reader, Reader], news: Server
) -> None:
    _, ben = readers
    assert ben.watch(PAPER)
    store_login(news, ben.principal, "bert")
    assert ben.read_update() == PAPER  # an update may have been missed in between
    ben.call(PRINT, PAPER)
    assert ben.read_update() == PAPER


def format_counts(news: Server, connections: int, *, calling: int) -> str:
    """Return the server's report of this number of connections that follow a resource.

    In the handshake era, connections of users' calls follow it too.
    """
    modern = news.era == "modern"
    counts = (0, connections) if modern else (connections + calling, 0)
    return "{} sessions, {} streams".format(*counts)
