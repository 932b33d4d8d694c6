"""Principals never see each other's lists, results, resources, sessions or notifications.

For every method of the gateway in both eras, the response for another principal's object is
identical to that for a missing object and contains nothing of the other principal.
"""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier
from typing import Any

import pytest

from agents.gateway.dispatcher import GatewayDispatcher
from agents.models import Agent, Session
from agents.policies.services import PolicySpec, set_policy
from agents.sessions.services import send_message
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories
from tests.agents.gateway.conftest import GatewayClient, Reply, Stream
from tests.agents.gateway.isolation_cases import (
    NOWHERE,
    PERSONAL,
    ROOT,
    ROWS,
    Party,
    Probe,
    Row,
    create_party,
    create_twin,
)
from tests.agents.gateway.upstream_server import Upstream
from tests.processes import serve

pytestmark = pytest.mark.django_db(transaction=True)

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# The id of the stranger's own call, which is different each time.
CALL_ID = re.compile(r'"call_id": "[0-9a-f-]{36}"')
ERAS = {"modern": True, "handshake": False}
STRANGERS = ("a colleague", "a foreigner")
DISPATCHER = GatewayDispatcher()
TOLD_WITHIN_S = 5.0
TRIES = 4
SUBSCRIPTIONS = {"toolsListChanged": True, "resourcesListChanged": True, "promptsListChanged": True}


@pytest.fixture
def upstreams() -> Iterator[Callable[[str], Upstream]]:
    with ExitStack() as stack:
        yield lambda mark: stack.enter_context(Upstream(mark).listening())


@pytest.fixture(scope="module")
def modern_url() -> Iterator[str]:
    with serve("sdk_server.py", "http") as url:
        yield url


@pytest.fixture
def owner(
    acme: Organization, gateway_client: GatewayClient, upstreams: Callable[[str], Upstream]
) -> Party:
    return create_party(acme, gateway_client, upstreams("zanzibar"), Role.MEMBER)


def create_stranger(
    kind_of_stranger: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> Party:
    """Create a party with another agent of the organization, or of another organization."""
    if kind_of_stranger == "a colleague":
        return create_party(
            owner.agent.organization, owner.gateway_client, upstreams("borneo"), Role.MEMBER
        )
    return create_party(
        factories.create_organization("other"),
        owner.gateway_client,
        upstreams("cyprus"),
        Role.OWNER,
    )


@pytest.mark.parametrize("era", ERAS)
def test_every_method_is_covered(era: str) -> None:
    assert DISPATCHER.get_handlers(is_modern=ERAS[era]).keys() <= ROWS.keys()


@pytest.mark.parametrize("kind_of_stranger", STRANGERS)
@pytest.mark.parametrize("era", ERAS)
def test_objects_of_others_are_like_missing_ones(
    era: str, kind_of_stranger: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    stranger = create_stranger(kind_of_stranger, owner, upstreams)
    compare(
        stranger,
        owner,
        {method: ROWS[method] for method in DISPATCHER.get_handlers(is_modern=ERAS[era])},
        era,
    )


def test_equal_permissions_dont_share_started_objects(owner: Party) -> None:
    compare(create_twin(owner), owner, PERSONAL, "modern")


def compare(stranger: Party, owner: Party, rows: dict[str, Row], era: str) -> None:
    """Compare the responses for objects of the owner with those for missing objects."""
    as_stranger = EraClient(stranger, era)
    as_owner = EraClient(owner, era)
    for method, row in rows.items():
        for probe in row(stranger, owner):
            foreign = as_stranger(method, probe.path, probe.foreign, probe.headers[0])
            unknown = as_stranger(method, probe.path, probe.unknown, probe.headers[1])
            assert normalize(foreign, probe) == normalize(unknown, probe), (method, probe)
            if stranger.mark != owner.mark:
                text = normalize(foreign, probe)[1]
                assert not [
                    value for value in (owner.mark, *owner.ids.values()) if value in text
                ], text
            if probe.home:  # the owner's request succeeds, so it is valid
                own_reply = as_owner(method, probe.home, probe.foreign, probe.headers[0])
                assert not own_reply.result.get("isError"), own_reply


class EraClient:
    """Sends requests of an era to any endpoint, and opens sessions as needed.

    Request states exist only in the modern era.
    """

    def __init__(self, party: Party, era: str) -> None:
        self._party, self._modern = party, ERAS[era]
        self._sessions: dict[str, Any] = {}

    def __call__(
        self, method: str, path: str, params: dict[str, Any], headers: dict[str, str]
    ) -> Reply:
        party = self._party
        if self._modern:
            return party.ask(path, method, params, **headers)
        if path not in self._sessions:
            self._sessions[path] = party.gateway_client.handshake(path, token=party.token)
        reply: Reply = self._sessions[path].ask(method, params)
        return reply


def normalize(reply: Reply, probe: Probe) -> tuple[int, str]:
    """Return the status and text of a response without sent names and ids."""
    text = CALL_ID.sub("…", json.dumps({**reply.message, "id": None}, sort_keys=True))
    for name in sorted(probe.names, key=len, reverse=True):
        text = text.replace(json.dumps(name)[1:-1], "…").replace(repr(name), "…")
    return reply.status, text if probe.names == () else UUID.sub("#", text)


@pytest.mark.parametrize("kind_of_stranger", STRANGERS)
def test_an_endpoint_of_others_is_like_a_missing_one(
    kind_of_stranger: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    stranger = create_stranger(kind_of_stranger, owner, upstreams)
    for era, modern in ERAS.items():
        for method in DISPATCHER.get_handlers(is_modern=modern):
            for kind, slug in (("agents", owner.agent.slug), ("servers", owner.mark)):
                foreign_path, unknown_path = (f"{ROOT}/{kind}/{name}" for name in (slug, NOWHERE))
                probe = Probe(foreign_path, {}, {}, (slug, NOWHERE))
                replies = [
                    send_request(stranger, path, method, modern=modern)
                    for path in (foreign_path, unknown_path)
                ]
                assert normalize(replies[0], probe) == normalize(replies[1], probe), (era, method)
                assert replies[0].status == 404


def send_request(stranger: Party, path: str, method: str, *, modern: bool) -> Reply:
    if modern:
        return stranger.ask(path, method, {})
    return stranger.gateway_client._request(
        path, method, {}, {"Mcp_Session_Id": "x" * 32}, stranger.token
    )


@pytest.mark.parametrize("kind_of_stranger", ["a twin", *STRANGERS])
def test_a_session_of_others_is_like_a_missing_one(
    kind_of_stranger: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    stranger = (
        create_twin(owner)
        if kind_of_stranger == "a twin"
        else create_stranger(kind_of_stranger, owner, upstreams)
    )
    session = owner.gateway_client.handshake(owner.home, token=owner.token)
    session_id = session.headers["Mcp_Session_Id"]
    for method in DISPATCHER.get_handlers(is_modern=False):
        for path in (stranger.home, ROOT):
            replies = [
                stranger.gateway_client._request(
                    path,
                    method,
                    {},
                    {**session.headers, "Mcp_Session_Id": session_number},
                    stranger.token,
                )
                for session_number in (session_id, "0" * len(session_id))
            ]
            probe = Probe(path, {}, {}, (session_id, "0" * len(session_id)))
            assert normalize(replies[0], probe) == normalize(replies[1], probe), method
            assert replies[0].status == 404
    for verb in ("GET", "DELETE"):
        bearer = {"Authorization": f"Bearer {stranger.token}"}
        assert (
            stranger.gateway_client.send(
                verb, stranger.home, **{**session.headers, **bearer}
            ).status
            == 404
        )
    assert session.ask("ping").status == 200


def get_watched_uri(party: Party) -> str:
    return f"bonobot://sessions/{party.ids['session_id']}"


@pytest.mark.parametrize("kind_of_stranger", STRANGERS)
@pytest.mark.parametrize("era", ERAS)
def test_changes_for_others_arent_notified(
    era: str, kind_of_stranger: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    stranger = create_stranger(kind_of_stranger, owner, upstreams)
    uris = [get_watched_uri(owner), get_watched_uri(stranger)]
    if ERAS[era]:
        params = {"notifications": {**SUBSCRIPTIONS, "resourceSubscriptions": uris}}
        stream = stranger.gateway_client.listen(ROOT, params, stranger.token)
        granted = (stream.next() or {})["params"]["notifications"]
        assert granted["resourceSubscriptions"] == uris  # as for a missing one
    else:
        session = stranger.gateway_client.handshake(ROOT, token=stranger.token)
        for uri in uris:
            session.ask("resources/subscribe", {"uri": uri})
        stream = session.follow()
    try:
        assert collect_updates(stream, owner, stranger) == {get_watched_uri(stranger)}
    finally:
        stream.close()


def collect_updates(stream: Stream, owner: Party, stranger: Party) -> set[str]:
    """Return the URIs of updates after both sessions change, the stranger's last."""
    uris: set[str] = set()
    for party in (owner, stranger, stranger):
        administrator = factories.build_administrator(party.agent.organization)
        policy = PolicySpec("denylist", deny=(party.tool("echo"),))
        set_policy(administrator, party.agent, policy)  # doesn't change the tools at `/mcp`
        send_message(administrator, Session.objects.get(pk=party.ids["session_id"]), "And then?")
        while party is stranger:
            notification = get_next_update(stream, administrator, party)
            assert notification is not None
            assert notification["method"] == "notifications/resources/updated"
            uris.add(notification["params"]["uri"])
            if notification["params"]["uri"] == get_watched_uri(stranger):
                break
    return uris


def get_next_update(
    stream: Stream, administrator: Principal, party: Party
) -> dict[str, Any] | None:
    """Return the next notification.

    A stream of the handshake era doesn't report when it starts to watch, so the change is repeated
    after a timeout.
    """
    for _ in range(TRIES):
        try:
            return stream.next(within=TOLD_WITHIN_S)
        except TimeoutError:
            send_message(
                administrator, Session.objects.get(pk=party.ids["session_id"]), "And then?"
            )
    return stream.next()


@pytest.mark.parametrize("kind_of_stranger", STRANGERS)
def test_a_list_change_is_notified_only_to_its_principal(
    kind_of_stranger: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    stranger = create_stranger(kind_of_stranger, owner, upstreams)
    streams = [
        party.gateway_client.listen(party.home, {"notifications": SUBSCRIPTIONS}, party.token)
        for party in (owner, stranger)
    ]
    methods = [(stream.next() or {})["method"] for stream in streams]
    assert set(methods) == {"notifications/subscriptions/acknowledged"}
    try:
        for changed_party, stream in ((owner, streams[0]), (stranger, streams[1])):
            administrator = factories.build_administrator(changed_party.agent.organization)
            policy = PolicySpec("denylist", deny=(changed_party.tool("echo"),))
            set_policy(administrator, changed_party.agent, policy)
            assert (stream.next() or {})["method"] == "notifications/tools/list_changed"
        for stream in streams:  # each got only its own notification
            with pytest.raises(TimeoutError):
                stream.next(within=0.05)
    finally:
        for stream in streams:
            stream.close()


def test_responses_go_only_to_the_call_that_requested_them(
    owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    """One server requests input from two principals, which answer differently."""
    parties = {"Ann": owner, "Ben": create_twin(owner)}
    request = {"name": owner.tool("ask"), "arguments": {}}
    for name, party in parties.items():
        responses = {"name": {"action": "accept", "content": {"name": name}}}
        retry = {"requestState": party.states["tools/call"], "inputResponses": responses}
        content = party.ask(party.home, "tools/call", request | retry).result["content"]
        assert name in content[0]["text"]


@pytest.mark.parametrize("view", ["", "?view=search"])
@pytest.mark.parametrize("era", ERAS)
def test_progress_is_sent_only_to_its_caller(
    era: str,
    view: str,
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    modern_url: str,
) -> None:
    """Two principals call one server in parallel with the same progress token."""
    administrator = factories.build_administrator(acme)
    params = {"role": Role.MEMBER, "agent_ids": [helper.pk]}
    tokens = {steps: create_token(administrator, name=f"{steps}", **params)[1] for steps in (3, 5)}
    path, barrier = f"/mcp/agents/helper{view}", Barrier(len(tokens))

    def call_server(steps: int) -> Reply:
        arguments = {"steps": steps, "pause_s": 0.05}
        params: dict[str, Any] = {"name": "mcp_web_slow", "arguments": arguments}
        if view:
            params = {"name": "call_tool", "arguments": params}
        meta = {"progressToken": 1}
        if ERAS[era]:
            barrier.wait(TOLD_WITHIN_S)
            return gateway_client.modern(path, "tools/call", params, meta=meta, token=tokens[steps])
        session = gateway_client.handshake(path, token=tokens[steps])
        barrier.wait(TOLD_WITHIN_S)
        return session.ask("tools/call", {**params, "_meta": meta})

    factories.approve_server(acme, factories.create_http_server(acme, modern_url), helper)
    with ThreadPoolExecutor(len(tokens)) as threads:
        replies = dict(zip(tokens, threads.map(call_server, tokens), strict=True))
    for steps, reply in replies.items():
        progress = [p["params"] for p in reply.notifications if "progressToken" in p["params"]]
        assert [p["progress"] for p in progress] == list(range(1, steps + 1))
        assert {p["total"] for p in progress} == {steps}
