"""Two processes: two real web processes on one database answer a client as one.

All of it is one test, since two processes take longer to start than all that they are asked.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from itertools import cycle
from typing import Any
from uuid import UUID

import httpx2
import pytest
from django.utils import timezone

from agents.gateway.suspended_calls import HOLDER_TIMEOUT_S
from agents.models import Agent, CallHandoff
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from mcp_servers.models import ResourceSubscription, Server
from tests import factories
from tests.agents.conftest import acme, helper
from tests.agents.gateway.conftest import (
    LONG_S,
    Reply,
    Wire,
    _named,
    _reply,
    _spelled,
    _stamp,
    token_of,
)
from tests.agents.gateway.test_resource_updates import HERE, PRINT, UPDATED
from tests.agents.gateway.test_resource_updates_per_user import WATCHED, let_in, news, people
from tests.agents.gateway.upstream_server import ABLE, ANSWERS, Json, Upstream, give
from tests.processes import Web
from tests.resource_updates import PAPER, print_edition

__all__ = ["acme", "helper", "news", "people", "print_edition"]
pytestmark = pytest.mark.django_db(transaction=True)

AGENT = "/mcp/agents/helper"
LISTENED = {"toolsListChanged": True}


class Remote(Wire):
    """Asks the gateway of a web process, over its socket."""

    def __init__(self, web: Web, token: str) -> None:
        super().__init__(None, token)  # type: ignore[arg-type]  # nothing of it is in this process
        self.web, self.url = web, web.url

    def send(self, verb: str, path: str, content: bytes = b"", **headers: str) -> Reply:
        named = _spelled(headers)
        answer = httpx2.request(
            verb, self.url + path, content=content, headers=named, timeout=LONG_S
        )
        return _reply(answer)

    def rest(self, verb: str, path: str, body: Json) -> Json:
        bearer = {"Authorization": f"Bearer {self.token}"}
        answer = httpx2.request(verb, f"{self.url}/api/{path}", json=body, headers=bearer)
        assert answer.is_success, answer.text
        found: Json = answer.json()
        return found

    @contextmanager
    def listening(self, params: Json) -> Iterator[Iterator[Json]]:
        """Open a stream, and yield what is told on it."""
        method = "subscriptions/listen"
        said = {**params, "_meta": _stamp(None)}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": said}
        bearer = {"Authorization": f"Bearer {self.token}"}
        headers = _spelled({**_named(method, said), **bearer})
        with httpx2.stream(
            "POST", self.url + AGENT, json=message, headers=headers, timeout=LONG_S
        ) as answer:
            lines = (line[6:] for line in answer.iter_lines() if line.startswith("data: {"))
            yield map(json.loads, lines)


@pytest.fixture
def upstreams(acme: Organization, helper: Agent) -> Iterator[tuple[Upstream, Upstream]]:
    """A modern server, and one of the handshake era."""
    with Upstream("anew").listening() as new, Upstream("bygone", old=True).listening() as old:
        for one in (new, old):
            give(one, acme, helper)
        yield new, old


@pytest.fixture
def pair(
    acme: Organization,
    helper: Agent,
    upstreams: tuple[Upstream, Upstream],
    start_web: Callable[..., Web],
) -> tuple[Remote, Remote]:
    token = token_of(factories.build_administrator(acme))
    web = start_web()
    other = start_web(BONOBOT_URL=web.url)  # tokens of people are good at one address
    return Remote(web, token), Remote(other, token)


@pytest.mark.parametrize("news", ["modern"], indirect=True)
def test_two_web_processes_behave_like_one(
    pair: tuple[Remote, Remote],
    upstreams: tuple[Upstream, Upstream],
    people: tuple[Principal, Principal],
    news: Server,
) -> None:
    each_person_is_told_what_is_theirs(pair, people)
    lists_and_calls_alternate(pair)
    a_state_of_one_is_good_at_the_other(pair)
    a_held_call_goes_on_at_either(pair, upstreams[1])
    a_task_of_one_is_known_to_the_other(pair)
    a_session_of_the_handshake_era_is_served_by_both(pair)
    a_change_made_at_one_is_told_at_the_other(pair)
    a_call_ends_with_the_process_that_holds_it(pair, upstreams[1])


def called(wire: Remote, tool: str, **more: Any) -> Json:
    params = {"name": f"mcp_{tool}", "arguments": more.pop("arguments", {}), **more}
    return wire.modern(AGENT, "tools/call", params, capabilities=ABLE).result


def text(result: Json) -> str:
    return str(result["content"][0]["text"])


def each_person_is_told_what_is_theirs(
    pair: tuple[Remote, Remote], people: tuple[Principal, Principal]
) -> None:
    at = pair[0].url
    ann, ben = ([Remote(one.web, let_in(who, AGENT, at=at)) for one in pair] for who in people)
    asked = {"notifications": {WATCHED: [HERE[AGENT] + PAPER]}}
    with ExitStack() as open_streams:
        streams = {one: open_streams.enter_context(one.listening(asked)) for one in (*ann, ben[1])}
        for stream in streams.values():
            assert next(stream)["params"]["notifications"] == asked["notifications"]
        assert ResourceSubscription.objects.values("holder").distinct().count() == len(pair)
        for who, where in ((ann, 1), (ben, 0), (ann, 0)):
            uri = {"uri": PAPER}
            who[where].modern(AGENT, "tools/call", {"name": PRINT[AGENT], "arguments": uri})
            for one in who:
                if one in streams:
                    assert next(streams[one])["method"] == UPDATED
        changes = dict(ResourceSubscription.objects.values_list("subject", "changes"))
    assert changes == {UUID(people[0].id): 2, UUID(people[1].id): 1}


def lists_and_calls_alternate(pair: tuple[Remote, Remote]) -> None:
    listed = [one.modern(AGENT, "tools/list").result["tools"] for one in pair]
    assert listed[0] == listed[1]
    for number, one in zip(range(6), cycle(pair), strict=False):
        assert f'{{"n": {number}}}' in text(called(one, "anew_echo", arguments={"n": number}))


def a_state_of_one_is_good_at_the_other(pair: tuple[Remote, Remote]) -> None:
    for first, second in (pair, pair[::-1]):
        asked = called(first, "anew_ask")
        assert asked["resultType"] == "input_required"
        back = {"requestState": asked["requestState"], "inputResponses": ANSWERS}
        assert "Ann" in text(called(second, "anew_ask", **back))


def a_held_call_goes_on_at_either(pair: tuple[Remote, Remote], old: Upstream) -> None:
    arguments = {"times": 3}
    found = called(pair[0], "bygone_ask", arguments=arguments)
    names = iter(("Ann", "Ben", "Cho"))
    for one in (pair[1], pair[0], pair[1]):
        found = called(one, "bygone_ask", arguments=arguments, **answers(found, next(names)))
    assert found["resultType"] == "complete"
    assert all(name in text(found) for name in ("Ann", "Ben", "Cho"))
    assert len(old.asked_back) == 3


def a_task_of_one_is_known_to_the_other(pair: tuple[Remote, Remote]) -> None:
    number = called(pair[0], "anew_work")["taskId"]
    sent: Any = {"capabilities": ABLE, "Mcp_Name": number}
    task = pair[1].modern(AGENT, "tasks/get", {"taskId": number}, **sent).result
    assert (task["status"], task["taskId"]) == ("completed", number)


def a_session_of_the_handshake_era_is_served_by_both(pair: tuple[Remote, Remote]) -> None:
    session = pair[0].handshake(AGENT)
    assert session.ask("tools/list").result["tools"]
    session._wire = pair[1]
    assert session.ask("tools/list").result["tools"]
    assert session.end().status == 200
    for process in pair:
        session._wire = process
        assert session.ask("tools/list").status == 404


def a_change_made_at_one_is_told_at_the_other(pair: tuple[Remote, Remote]) -> None:
    with pair[0].listening({"notifications": LISTENED}) as told:
        assert next(told)["method"] == "notifications/subscriptions/acknowledged"
        policy = {"mode": "denylist", "deny": ["mcp_anew_echo"]}
        pair[1].rest("PUT", "agents/helper/tool-policy", policy)
        assert next(told)["method"] == "notifications/tools/list_changed"
    for one in pair:
        refused = one.modern(AGENT, "tools/call", {"name": "mcp_anew_echo", "arguments": {}})
        assert refused.error["code"] == -32602


def a_call_ends_with_the_process_that_holds_it(pair: tuple[Remote, Remote], old: Upstream) -> None:
    holding, other = pair
    heard, called_before = len(old.asked_back), calls_at(old)
    back = answers(called(holding, "bygone_ask", arguments={"times": 1}))
    holding.web.kill()
    # As if its client had taken its time; else the other one waits so long for a sign of life.
    long_ago = timezone.now() - timedelta(seconds=HOLDER_TIMEOUT_S + 1)
    CallHandoff.objects.update(heartbeat_at=long_ago)
    params = {"name": "mcp_bygone_ask", "arguments": {"times": 1}, **back}
    for code in ("call_lost", "call_over"):
        refused = other.modern(AGENT, "tools/call", params, capabilities=ABLE).error
        assert (refused["code"], refused["data"]["code"]) == (-32602, code)
    assert (len(old.asked_back), calls_at(old)) == (heard, called_before + 1)
    again = called(other, "bygone_ask", arguments={"times": 1})
    done = called(other, "bygone_ask", arguments={"times": 1}, **answers(again))
    assert "Ann" in text(done)


def answers(asked: Json, name: str = "Ann") -> Json:
    """What a client sends back: an answer to all that was asked, and the state."""
    said = {"action": "accept", "content": {"name": name}}
    responses = dict.fromkeys(asked["inputRequests"], said)
    return {"requestState": asked["requestState"], "inputResponses": responses}


def calls_at(upstream: Upstream) -> int:
    return upstream.http.methods().count("tools/call")
