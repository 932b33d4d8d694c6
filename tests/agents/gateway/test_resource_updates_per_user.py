"""Personal updates: where each person signs in, each is told of their own, by their own login.

Two people and a program that is nobody's at one real server: in both eras of clients and servers,
at an agent and at the server itself. What one follows is nothing to the others, in no answer,
notice or connection. That two web processes tell each person what is theirs, `test_two_processes`
shows.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from uuid import UUID

import pytest
from django.conf import settings

from agents.models import Agent
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.services import remove_member
from bonobot.accounts.tokens import services as tokens
from mcp_servers.models import ResourceSubscription, Server
from mcp_servers.oauth_client.authorization_code import sign_out
from mcp_servers.oauth_client.revocation import revoke_former_members
from tests import factories
from tests.agents.gateway.conftest import Session, Stream, Wire
from tests.agents.gateway.test_resource_updates import (
    ACKNOWLEDGED,
    AGENT,
    HERE,
    PRINT,
    READERS,
    SERVER,
    at_once,
    told,
)
from tests.resource_updates import PAPER, SECRET, print_edition, sign_in, subscribed
from tests.wait import eventually

__all__ = ["at_once", "print_edition"]
pytestmark = pytest.mark.django_db(transaction=True)

ERAS = ("modern", "handshake")
EVERYWHERE = list(product(ERAS, (AGENT, SERVER)))
everywhere = pytest.mark.parametrize("readers", EVERYWHERE, indirect=True, ids="-".join)
WATCHED = "resourceSubscriptions"


class Reader:
    """A person, the program that acts for them at an address, and what it watches."""

    def __init__(self, wire: Wire, principal: Principal, path: str, era: str) -> None:
        self.principal, self.subject = principal, UUID(principal.id)
        self.wire, self.path, self.era = wire, path, era
        self.token = let_in(principal, path)
        self.session: Session | None = None
        self.stream: Stream | None = None

    def watch(self, *uris: str) -> list[str]:
        """Begin to watch, and return what is granted."""
        here = [HERE[self.path] + uri for uri in uris]
        if self.era == "modern":
            asked = {"notifications": {WATCHED: here}}
            self.stream = self.wire.listen(self.path, asked, self.token)
            first = self.stream.next()
            assert first is not None
            assert first["method"] == ACKNOWLEDGED
            return list(first["params"]["notifications"].get(WATCHED, []))
        self.session = self.wire.handshake(self.path, token=self.token)
        self.stream = self.session.follow()
        said = {uri: self.session.ask("resources/subscribe", {"uri": uri}).message for uri in here}
        return [uri for uri, one in said.items() if "result" in one]

    def call(self, tool: dict[str, str], uri: str) -> str:
        """Call a tool as this person."""
        params = {"name": tool[self.path], "arguments": {"uri": uri}}
        answer = self.wire.modern(self.path, "tools/call", params, token=self.token)
        return str(answer.result["content"][0]["text"])

    def hears(self) -> str:
        """Return the resource that is told of next, by its own URI."""
        assert self.stream is not None
        return told(self.stream).removeprefix(HERE[self.path])

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


def let_in(principal: Principal, path: str, at: str = "") -> str:
    """Let a program in at an address, and return its token."""
    user = User.objects.get(pk=principal.id)
    where = Organization.objects.get(pk=principal.organization_id)
    scopes = [TokenScope.TOOLS]
    said: dict[str, Any] = {"client_id": "ide", "client": "IDE", "scopes": scopes}
    given = tokens.create_grant(
        user, where, role=principal.role, resource=(at or settings.BONOBOT_URL) + path, **said
    )
    text = tokens.rotate_grant(given, first=True)
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
    print_edition: Callable[..., str],
) -> Server:
    """A real server of each era, where both have signed in."""
    how = ["people", *(["handshake"] if request.param == "handshake" else [])]
    return subscribed(acme, helper, print_edition(*how), readers=people)


@pytest.fixture
def readers(
    request: Any, news: Server, wire: Wire, people: tuple[Principal, Principal]
) -> Iterator[tuple[Reader, Reader]]:
    era, path = getattr(request, "param", ("modern", AGENT))
    made = Reader(wire, people[0], path, era), Reader(wire, people[1], path, era)
    yield made
    for one in made:
        one.close()


@everywhere
def test_each_person_gets_only_their_own_updates(readers: tuple[Reader, Reader]) -> None:
    ann, ben = readers
    for one in readers:
        assert one.watch(PAPER, SECRET) == [HERE[one.path] + uri for uri in (PAPER, SECRET)]
    ann.call(PRINT, PAPER)
    assert ann.hears() == PAPER
    ben.call(PRINT, SECRET)
    assert ben.hears() == SECRET  # first of all: nothing of Ann's came before it
    ann.call(PRINT, SECRET)
    assert ann.hears() == SECRET
    subjects = ResourceSubscription.objects.values_list("uri", "subject")
    assert set(subjects) == set(product((PAPER, SECRET), (ann.subject, ben.subject)))


def test_each_person_has_one_connection_with_their_own_login(
    readers: tuple[Reader, Reader], news: Server
) -> None:
    ann, ben = readers
    one = counted(news, 1, calling=1)
    assert ann.watch(PAPER)
    assert ann.call(READERS, PAPER) == one
    assert ben.call(READERS, PAPER) == "0 sessions, 0 streams"
    assert ben.watch(PAPER)
    assert (ann.call(READERS, PAPER), ben.call(READERS, PAPER)) == (one, one)


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
    assert ann.hears() == PAPER
    ben.close()
    sign_in(news, ben.principal)
    assert ben.watch(PAPER) == [HERE[ben.path] + PAPER]
    ben.call(PRINT, PAPER)
    assert ben.hears() == PAPER


@pytest.mark.parametrize("news", ["modern"], indirect=True)
def test_a_client_without_a_person_gets_no_subscription(
    readers: tuple[Reader, Reader], wire: Wire
) -> None:
    ann, _ = readers
    assert ann.watch(PAPER)
    for era, token in product(ERAS, (None, ann.token)):
        at = {"token": token}
        found = (
            wire.handshake(ann.path, **at).opened
            if era == "handshake"
            else wire.modern(ann.path, "server/discover", **at)
        )
        promised = found.result["capabilities"]["resources"].get("subscribe", False)
        assert promised is (token is not None)
    asked = {"notifications": {WATCHED: [HERE[ann.path] + PAPER]}}
    stream = wire.listen(ann.path, asked)
    assert WATCHED not in (stream.next() or {})["params"]["notifications"]
    stream.close()
    session = wire.handshake(ann.path)
    refused = session.ask("resources/subscribe", {"uri": HERE[ann.path] + PAPER})
    assert refused.error["code"] == -32602


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("news", ["modern"], indirect=True)
@pytest.mark.parametrize("how", ["signs out", "leaves"])
def test_a_removed_login_ends_its_subscriptions(
    how: str, readers: tuple[Reader, Reader], news: Server, acme: Organization
) -> None:
    ann, ben = readers
    assert ann.watch(PAPER)
    assert ben.watch(PAPER)
    assert ann.call(READERS, "") == counted(news, 2, calling=1)
    if how == "signs out":
        sign_out(ben.principal, news)
    else:
        factories.create_member(acme, Role.OWNER)  # somebody has to stay
        boss = factories.build_administrator(acme)
        remove_member(boss, Membership.objects.get(user=ben.subject))
        revoke_former_members()
    one = counted(news, 1, calling=1)
    eventually(lambda: ann.call(READERS, "") == one, what="the end of the other's connection")
    ann.call(PRINT, PAPER)
    assert ann.hears() == PAPER


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("news", ["modern"], indirect=True)
def test_a_person_who_switches_accounts_gets_updates_of_the_new_one(
    readers: tuple[Reader, Reader], news: Server
) -> None:
    _, ben = readers
    assert ben.watch(PAPER)
    sign_in(news, ben.principal, "bert")
    assert ben.hears() == PAPER  # what may have been missed between the two
    ben.call(PRINT, PAPER)
    assert ben.hears() == PAPER


def counted(news: Server, connections: int, *, calling: int) -> str:
    """Return how the server counts that many connections that follow one resource each.

    In the handshake era, connections of people's calls follow it too.
    """
    modern = news.era == "modern"
    counts = (0, connections) if modern else (connections + calling, 0)
    return "{} sessions, {} streams".format(*counts)
