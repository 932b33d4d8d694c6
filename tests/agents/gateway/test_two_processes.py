"""Two real web processes on one database behave like one.

It is one test, because starting the processes takes longer than all requests.
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
    GatewayClient,
    Reply,
    _build_headers,
    _build_meta,
    _complete_headers,
    _parse_reply,
    token_of,
)
from tests.agents.gateway.test_resource_updates import PRINT, UPDATED, URI_PREFIXES
from tests.agents.gateway.test_resource_updates_per_user import (
    WATCHED,
    authorize_client,
    news,
    people,
)
from tests.agents.gateway.upstream_server import ABLE, ANSWERS, Json, Upstream, attach_upstream
from tests.processes import Web
from tests.resource_updates import PAPER, edition_url

__all__ = ["acme", "edition_url", "helper", "news", "people"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.whole("postgres")]

AGENT = "/mcp/agents/helper"
SUBSCRIPTIONS = {"toolsListChanged": True}


class Remote(GatewayClient):
    """A client of the gateway of a web process."""

    def __init__(self, web: Web, token: str) -> None:
        super().__init__(None, token)  # type: ignore[arg-type]  # not in this process
        self.web, self.url = web, web.url

    def send(self, verb: str, path: str, content: bytes = b"", **headers: str) -> Reply:
        sent_headers = _complete_headers(headers)
        response = httpx2.request(
            verb, self.url + path, content=content, headers=sent_headers, timeout=LONG_S
        )
        return _parse_reply(response)

    def rest(self, verb: str, path: str, body: Json) -> Json:
        bearer = {"Authorization": f"Bearer {self.token}"}
        response = httpx2.request(verb, f"{self.url}/api/{path}", json=body, headers=bearer)
        assert response.is_success, response.text
        result: Json = response.json()
        return result

    @contextmanager
    def open_stream(self, params: Json) -> Iterator[Iterator[Json]]:
        """Open a stream and yield its messages."""
        method = "subscriptions/listen"
        request_params = {**params, "_meta": _build_meta(None)}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": request_params}
        bearer = {"Authorization": f"Bearer {self.token}"}
        headers = _complete_headers({**_build_headers(method, request_params), **bearer})
        with httpx2.stream(
            "POST", self.url + AGENT, json=message, headers=headers, timeout=LONG_S
        ) as response:
            lines = (line[6:] for line in response.iter_lines() if line.startswith("data: {"))
            yield map(json.loads, lines)


@pytest.fixture
def upstreams(acme: Organization, helper: Agent) -> Iterator[tuple[Upstream, Upstream]]:
    """A modern server, and one of the handshake era."""
    with (
        Upstream("anew").listening() as modern,
        Upstream("bygone", handshake=True).listening() as handshake,
    ):
        for upstream in (modern, handshake):
            attach_upstream(upstream, acme, helper)
        yield modern, handshake


@pytest.fixture
def gateways(
    acme: Organization,
    helper: Agent,
    upstreams: tuple[Upstream, Upstream],
    start_web: Callable[..., Web],
) -> tuple[Remote, Remote]:
    token = token_of(factories.build_administrator(acme))
    web = start_web()
    second_gateway = start_web(BONOBOT_URL=web.url)  # tokens of people are valid for one URL
    return Remote(web, token), Remote(second_gateway, token)


@pytest.mark.parametrize("news", ["modern"], indirect=True)
def test_two_web_processes_behave_like_one(
    gateways: tuple[Remote, Remote],
    upstreams: tuple[Upstream, Upstream],
    people: tuple[Principal, Principal],
    news: Server,
) -> None:
    check_updates_per_person(gateways, people)
    check_lists_and_calls(gateways)
    check_request_states(gateways)
    check_suspended_calls(gateways, upstreams[1])
    check_tasks(gateways)
    check_sessions(gateways)
    check_change_notifications(gateways)
    check_lost_calls(gateways, upstreams[1])


def call_tool(gateway_client: Remote, tool: str, **more: Any) -> Json:
    params = {"name": f"mcp_{tool}", "arguments": more.pop("arguments", {}), **more}
    return gateway_client.modern(AGENT, "tools/call", params, capabilities=ABLE).result


def text(result: Json) -> str:
    return str(result["content"][0]["text"])


def check_updates_per_person(
    gateways: tuple[Remote, Remote], people: tuple[Principal, Principal]
) -> None:
    base_url = gateways[0].url
    ann, ben = (
        [
            Remote(gateway.web, authorize_client(person, AGENT, base_url=base_url))
            for gateway in gateways
        ]
        for person in people
    )
    params = {"notifications": {WATCHED: [URI_PREFIXES[AGENT] + PAPER]}}
    with ExitStack() as open_streams:
        streams = {
            gateway: open_streams.enter_context(gateway.open_stream(params))
            for gateway in (*ann, ben[1])
        }
        for stream in streams.values():
            assert next(stream)["params"]["notifications"] == params["notifications"]
        assert ResourceSubscription.objects.values("holder").distinct().count() == len(gateways)
        for person, index in ((ann, 1), (ben, 0), (ann, 0)):
            uri = {"uri": PAPER}
            person[index].modern(AGENT, "tools/call", {"name": PRINT[AGENT], "arguments": uri})
            for gateway in person:
                if gateway in streams:
                    assert next(streams[gateway])["method"] == UPDATED
        changes = dict(ResourceSubscription.objects.values_list("subject", "changes"))
    assert changes == {UUID(people[0].id): 2, UUID(people[1].id): 1}


def check_lists_and_calls(gateways: tuple[Remote, Remote]) -> None:
    listed = [gateway.modern(AGENT, "tools/list").result["tools"] for gateway in gateways]
    assert listed[0] == listed[1]
    for number, gateway in zip(range(6), cycle(gateways), strict=False):
        assert f'{{"n": {number}}}' in text(
            call_tool(gateway, "anew_echo", arguments={"n": number})
        )


def check_request_states(gateways: tuple[Remote, Remote]) -> None:
    for first, second in (gateways, gateways[::-1]):
        pending = call_tool(first, "anew_ask")
        assert pending["resultType"] == "input_required"
        retry = {"requestState": pending["requestState"], "inputResponses": ANSWERS}
        assert "Ann" in text(call_tool(second, "anew_ask", **retry))


def check_suspended_calls(gateways: tuple[Remote, Remote], handshake: Upstream) -> None:
    arguments = {"times": 3}
    result = call_tool(gateways[0], "bygone_ask", arguments=arguments)
    names = iter(("Ann", "Ben", "Cho"))
    for gateway in (gateways[1], gateways[0], gateways[1]):
        result = call_tool(
            gateway, "bygone_ask", arguments=arguments, **build_retry(result, next(names))
        )
    assert result["resultType"] == "complete"
    assert all(name in text(result) for name in ("Ann", "Ben", "Cho"))
    assert len(handshake.client_responses) == 3


def check_tasks(gateways: tuple[Remote, Remote]) -> None:
    task_id = call_tool(gateways[0], "anew_work")["taskId"]
    options: Any = {"capabilities": ABLE, "Mcp_Name": task_id}
    task = gateways[1].modern(AGENT, "tasks/get", {"taskId": task_id}, **options).result
    assert (task["status"], task["taskId"]) == ("completed", task_id)


def check_sessions(gateways: tuple[Remote, Remote]) -> None:
    session = gateways[0].handshake(AGENT)
    assert session.ask("tools/list").result["tools"]
    session._wire = gateways[1]
    assert session.ask("tools/list").result["tools"]
    assert session.end().status == 200
    for gateway in gateways:
        session._wire = gateway
        assert session.ask("tools/list").status == 404


def check_change_notifications(gateways: tuple[Remote, Remote]) -> None:
    with gateways[0].open_stream({"notifications": SUBSCRIPTIONS}) as notifications:
        assert next(notifications)["method"] == "notifications/subscriptions/acknowledged"
        policy = {"mode": "denylist", "deny": ["mcp_anew_echo"]}
        gateways[1].rest("PUT", "agents/helper/tool-policy", policy)
        assert next(notifications)["method"] == "notifications/tools/list_changed"
    for gateway in gateways:
        reply = gateway.modern(AGENT, "tools/call", {"name": "mcp_anew_echo", "arguments": {}})
        assert reply.error["code"] == -32602


def check_lost_calls(gateways: tuple[Remote, Remote], handshake: Upstream) -> None:
    holder, second_gateway = gateways
    responses_before, calls_before = len(handshake.client_responses), count_calls(handshake)
    retry = build_retry(call_tool(holder, "bygone_ask", arguments={"times": 1}))
    holder.web.kill()
    # Expire the heartbeat; otherwise the other process waits for it.
    expired_at = timezone.now() - timedelta(seconds=HOLDER_TIMEOUT_S + 1)
    CallHandoff.objects.update(heartbeat_at=expired_at)
    params = {"name": "mcp_bygone_ask", "arguments": {"times": 1}, **retry}
    for code in ("call_lost", "call_ended"):
        error = second_gateway.modern(AGENT, "tools/call", params, capabilities=ABLE).error
        assert (error["code"], error["data"]["code"]) == (-32602, code)
    assert (len(handshake.client_responses), count_calls(handshake)) == (
        responses_before,
        calls_before + 1,
    )
    pending = call_tool(second_gateway, "bygone_ask", arguments={"times": 1})
    result = call_tool(second_gateway, "bygone_ask", arguments={"times": 1}, **build_retry(pending))
    assert "Ann" in text(result)


def build_retry(pending: Json, name: str = "Ann") -> Json:
    """Build a retry with answers to all requests and the state."""
    answer = {"action": "accept", "content": {"name": name}}
    responses = dict.fromkeys(pending["inputRequests"], answer)
    return {"requestState": pending["requestState"], "inputResponses": responses}


def count_calls(upstream: Upstream) -> int:
    return upstream.http.methods().count("tools/call")
