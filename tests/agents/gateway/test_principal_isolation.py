"""Apart: two principals never see each other's lists, results, resources, sessions or notices.

For every method that the gateway serves, in both eras: what is somebody else's answers as what
doesn't exist does, to the letter, and nothing of somebody else's stands in any answer.
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
from tests.agents.gateway.conftest import Reply, Stream, Wire
from tests.agents.gateway.isolation_cases import (
    NOWHERE,
    PERSONAL,
    ROOT,
    ROWS,
    Party,
    Probe,
    Row,
    party,
    twin,
)
from tests.agents.gateway.upstream_server import Upstream
from tests.processes import served

pytestmark = pytest.mark.django_db(transaction=True)

NUMBER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# Of the stranger's own call, each time another one.
CALL = re.compile(r'"call_id": "[0-9a-f-]{36}"')
ERAS = {"modern": True, "handshake": False}
STRANGERS = ("a colleague", "a foreigner")
SERVED = GatewayDispatcher()
TOLD_WITHIN_S = 5.0
TRIES = 4
LISTENED = {"toolsListChanged": True, "resourcesListChanged": True, "promptsListChanged": True}


@pytest.fixture
def upstreams() -> Iterator[Callable[[str], Upstream]]:
    with ExitStack() as made:
        yield lambda mark: made.enter_context(Upstream(mark).listening())


@pytest.fixture(scope="module")
def modern_url() -> Iterator[str]:
    with served("sdk_server.py", "http") as url:
        yield url


@pytest.fixture
def owner(acme: Organization, wire: Wire, upstreams: Callable[[str], Upstream]) -> Party:
    return party(acme, wire, upstreams("zanzibar"), Role.MEMBER)


def strange(who: str, owner: Party, upstreams: Callable[[str], Upstream]) -> Party:
    """Return a token of the same organization for another agent, or another organization's."""
    if who == "a colleague":
        return party(owner.agent.organization, owner.wire, upstreams("borneo"), Role.MEMBER)
    return party(
        factories.create_organization("other"), owner.wire, upstreams("cyprus"), Role.OWNER
    )


@pytest.mark.parametrize("era", ERAS)
def test_every_method_is_covered(era: str) -> None:
    assert SERVED.get_handlers(is_modern=ERAS[era]).keys() <= ROWS.keys()


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("era", ERAS)
def test_objects_of_others_are_like_missing_ones(
    era: str, who: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    me = strange(who, owner, upstreams)
    compare(me, owner, {one: ROWS[one] for one in SERVED.get_handlers(is_modern=ERAS[era])}, era)


def test_equal_permissions_dont_share_started_objects(owner: Party) -> None:
    compare(twin(owner), owner, PERSONAL, "modern")


def compare(me: Party, owner: Party, rows: dict[str, Row], era: str) -> None:
    """Hold what a stranger is answered against what a name that nothing has is answered."""
    asked = Asked(me, era)
    at_home = Asked(owner, era)
    for method, row in rows.items():
        for probe in row(me, owner):
            sent = asked(method, probe.path, probe.foreign, probe.headers[0])
            other = asked(method, probe.path, probe.unknown, probe.headers[1])
            assert told(sent, probe) == told(other, probe), (method, probe)
            if me.mark != owner.mark:
                seen = told(sent, probe)[1]
                assert not [one for one in (owner.mark, *owner.ids.values()) if one in seen], seen
            if probe.home:  # so it is a sound request, which its owner gets an answer to
                own = at_home(method, probe.home, probe.foreign, probe.headers[0])
                assert not own.result.get("isError"), own


class Asked:
    """Asks in an era, at any address; sessions are opened as they are needed.

    Those of the handshake era can't be asked back: states are the modern era's.
    """

    def __init__(self, who: Party, era: str) -> None:
        self._who, self._modern = who, ERAS[era]
        self._sessions: dict[str, Any] = {}

    def __call__(
        self, method: str, path: str, params: dict[str, Any], headers: dict[str, str]
    ) -> Reply:
        who = self._who
        if self._modern:
            return who.ask(path, method, params, **headers)
        if path not in self._sessions:
            self._sessions[path] = who.wire.handshake(path, token=who.token)
        found: Reply = self._sessions[path].ask(method, params)
        return found


def told(reply: Reply, probe: Probe) -> tuple[int, str]:
    """Return what an answer tells, without the names that were sent, its number and its call's."""
    text = CALL.sub("…", json.dumps({**reply.message, "id": None}, sort_keys=True))
    for name in sorted(probe.names, key=len, reverse=True):
        text = text.replace(json.dumps(name)[1:-1], "…").replace(repr(name), "…")
    return reply.status, text if probe.names == () else NUMBER.sub("#", text)


@pytest.mark.parametrize("who", STRANGERS)
def test_an_endpoint_of_others_is_like_a_missing_one(
    who: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    me = strange(who, owner, upstreams)
    for era, modern in ERAS.items():
        for method in SERVED.get_handlers(is_modern=modern):
            for kind, slug in (("agents", owner.agent.slug), ("servers", owner.mark)):
                there, nowhere = (f"{ROOT}/{kind}/{one}" for one in (slug, NOWHERE))
                probe = Probe(there, {}, {}, (slug, NOWHERE))
                both = [opened(me, path, method, modern=modern) for path in (there, nowhere)]
                assert told(both[0], probe) == told(both[1], probe), (era, method)
                assert both[0].status == 404


def opened(me: Party, path: str, method: str, *, modern: bool) -> Reply:
    if modern:
        return me.ask(path, method, {})
    return me.wire._request(path, method, {}, {"Mcp_Session_Id": "x" * 32}, me.token)


@pytest.mark.parametrize("who", ["a twin", *STRANGERS])
def test_a_session_of_others_is_like_a_missing_one(
    who: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    me = twin(owner) if who == "a twin" else strange(who, owner, upstreams)
    own = owner.wire.handshake(owner.home, token=owner.token)
    number = own.headers["Mcp_Session_Id"]
    for method in SERVED.get_handlers(is_modern=False):
        for path in (me.home, ROOT):
            both = [
                me.wire._request(path, method, {}, {**own.headers, "Mcp_Session_Id": one}, me.token)
                for one in (number, "0" * len(number))
            ]
            probe = Probe(path, {}, {}, (number, "0" * len(number)))
            assert told(both[0], probe) == told(both[1], probe), method
            assert both[0].status == 404
    for verb in ("GET", "DELETE"):
        bearer = {"Authorization": f"Bearer {me.token}"}
        assert me.wire.send(verb, me.home, **{**own.headers, **bearer}).status == 404
    assert own.ask("ping").status == 200


def watched(one: Party) -> str:
    return f"bonobot://sessions/{one.ids['session_id']}"


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.parametrize("era", ERAS)
def test_changes_for_others_arent_notified(
    era: str, who: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    me = strange(who, owner, upstreams)
    uris = [watched(owner), watched(me)]
    if ERAS[era]:
        asked = {"notifications": {**LISTENED, "resourceSubscriptions": uris}}
        stream = me.wire.listen(ROOT, asked, me.token)
        granted = (stream.next() or {})["params"]["notifications"]
        assert granted["resourceSubscriptions"] == uris  # as of one that isn't there
    else:
        session = me.wire.handshake(ROOT, token=me.token)
        for uri in uris:
            session.ask("resources/subscribe", {"uri": uri})
        stream = session.follow()
    try:
        assert heard(stream, owner, me) == {watched(me)}
    finally:
        stream.close()


def heard(stream: Stream, owner: Party, me: Party) -> set[str]:
    """Return what is told when both sessions go on, the stranger's own again behind it."""
    told_of: set[str] = set()
    for one in (owner, me, me):
        boss = factories.build_administrator(one.agent.organization)
        policy = PolicySpec("denylist", deny=(one.tool("echo"),))
        set_policy(boss, one.agent, policy)  # at `/mcp` nobody sees another tool for it
        send_message(boss, Session.objects.get(pk=one.ids["session_id"]), "And then?")
        while one is me:
            notice = told_once_watched(stream, boss, one)
            assert notice is not None
            assert notice["method"] == "notifications/resources/updated"
            told_of.add(notice["params"]["uri"])
            if notice["params"]["uri"] == watched(me):
                break
    return told_of


def told_once_watched(stream: Stream, boss: Principal, one: Party) -> dict[str, Any] | None:
    """Return the next notice. A stream of the handshake era doesn't say from when on it watches,
    so a change that may have come before is made again."""
    for _ in range(TRIES):
        try:
            return stream.next(within=TOLD_WITHIN_S)
        except TimeoutError:
            send_message(boss, Session.objects.get(pk=one.ids["session_id"]), "And then?")
    return stream.next()


@pytest.mark.parametrize("who", STRANGERS)
def test_a_list_change_is_notified_only_to_its_principal(
    who: str, owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    me = strange(who, owner, upstreams)
    streams = [
        one.wire.listen(one.home, {"notifications": LISTENED}, one.token) for one in (owner, me)
    ]
    methods = [(stream.next() or {})["method"] for stream in streams]
    assert set(methods) == {"notifications/subscriptions/acknowledged"}
    try:
        for changed, stream in ((owner, streams[0]), (me, streams[1])):
            boss = factories.build_administrator(changed.agent.organization)
            gone = PolicySpec("denylist", deny=(changed.tool("echo"),))
            set_policy(boss, changed.agent, gone)
            assert (stream.next() or {})["method"] == "notifications/tools/list_changed"
        for stream in streams:  # each was told of the one change that is its own
            with pytest.raises(TimeoutError):
                stream.next(within=0.05)
    finally:
        for stream in streams:
            stream.close()


def test_responses_go_only_to_the_call_that_requested_them(
    owner: Party, upstreams: Callable[[str], Upstream]
) -> None:
    """Two principals are asked at once by one server, and each says something else."""
    both = {"Ann": owner, "Ben": twin(owner)}
    request = {"name": owner.tool("ask"), "arguments": {}}
    for name, one in both.items():
        said = {"name": {"action": "accept", "content": {"name": name}}}
        back = {"requestState": one.states["tools/call"], "inputResponses": said}
        content = one.ask(one.home, "tools/call", request | back).result["content"]
        assert name in content[0]["text"]


@pytest.mark.parametrize("era", ERAS)
def test_progress_is_sent_only_to_its_caller(
    era: str, acme: Organization, helper: Agent, wire: Wire, modern_url: str
) -> None:
    """Two principals call one server at once, under the same progress token."""
    boss = factories.build_administrator(acme)
    said = {"role": Role.MEMBER, "agent_ids": [helper.pk]}
    tokens = {steps: create_token(boss, name=f"{steps}", **said)[1] for steps in (3, 5)}
    path, together = "/mcp/agents/helper", Barrier(len(tokens))

    def called(steps: int) -> Reply:
        arguments = {"steps": steps, "pause_s": 0.05}
        said = {"name": "mcp_web_slow", "arguments": arguments}
        meta = {"progressToken": 1}
        if ERAS[era]:
            together.wait(TOLD_WITHIN_S)
            return wire.modern(path, "tools/call", said, meta=meta, token=tokens[steps])
        session = wire.handshake(path, token=tokens[steps])
        together.wait(TOLD_WITHIN_S)
        return session.ask("tools/call", {**said, "_meta": meta})

    factories.approve_server(acme, factories.create_http_server(acme, modern_url), helper)
    with ThreadPoolExecutor(len(tokens)) as threads:
        replies = dict(zip(tokens, threads.map(called, tokens), strict=True))
    for steps, reply in replies.items():
        progress = [one["params"] for one in reply.told if "progressToken" in one["params"]]
        assert [one["progress"] for one in progress] == list(range(1, steps + 1))
        assert {one["total"] for one in progress} == {steps}
