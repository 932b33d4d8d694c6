"""Requests that are answered without the SDK get the response that the SDK would give."""

import asyncio
import json
import os
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.gateway import direct_requests, transports
from agents.gateway.direct_requests import DirectResponder
from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.client.pool import get_connection_pool
from tests import factories
from tests.agents.gateway.conftest import META, MODERN, GatewayClient, Stream, token_of
from tests.agents.gateway.test_malformed_requests import NAMES, VALUES, json_values
from tests.selection import WHOLE
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)

EXAMPLES = 2_000 if os.environ.get("TEST_FUZZING") == "whole" else 150 if WHOLE else 60
MANY = 1_000_000  # calls per minute: no limit is reached
PATH = "/mcp/agents/helper"
ECHO, REGION, FAIL = "mcp_direct_echo", "mcp_direct_region", "mcp_direct_fail"
ODD_TEXT = "é\u202e\ud800\x00"
UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
AUDIT_FIELDS = ("action", "decision", "code", "outcome", "tool_name", "agent_name", "resource_id")
Headers = list[tuple[str, str]]
Response = tuple[int, dict[str, str], bytes]


class DirectServer:
    """A modern server with a tool whose argument is also sent as a header, and a resource."""

    def __init__(self) -> None:
        self.http = RawHttp(self._respond)
        self.released = asyncio.Event()

    def _respond(self, request: RecordedRequest) -> Any:
        region = {"type": "string", "x-mcp-header": "Region"}
        schemas = {
            "echo": {"type": "object", "properties": {"text": {"type": "string"}}},
            "region": {"type": "object", "properties": {"region": region}},
            "fail": {"type": "object"},
            "wait": {"type": "object"},
            "watch": {"type": "object"},
        }
        tools = [
            {
                "name": name,
                "inputSchema": schema,
                "annotations": {"readOnlyHint": name == "watch"},
            }
            for name, schema in schemas.items()
        ]
        resource = {"uri": "test://text", "name": "text"}
        results: dict[str, Any] = {
            "server/discover": {
                "supportedVersions": [MODERN],
                "capabilities": {"tools": {}, "resources": {}},
            },
            "tools/list": {"tools": tools},
            "resources/list": {"resources": [resource]},
            "resources/read": {"contents": [{"uri": "test://text", "text": ODD_TEXT}]},
        }
        if request.method != "tools/call":
            return raw_http_server.result(request, results.get(request.method, {}))
        if request.tool in ("wait", "watch"):
            return self._wait(request)
        if request.tool == "fail":
            return raw_http_server.error(request, -32000, 200, {"a": None, "b": 1.5})
        arguments = request.message["params"].get("arguments")
        content = [{"type": "text", "text": json.dumps(arguments), "annotations": None}]
        return raw_http_server.result(request, {"content": content, "structuredContent": arguments})

    def take_calls(self) -> list[Any]:
        """Return the methods and parameters of the requests since the last time."""
        requests = [(request.method, request.message.get("params")) for request in self.http.asked]
        for _, params in requests:
            params.get("_meta", {}).pop("progressToken", None)  # a number of the connection
        self.http.asked.clear()
        return requests

    async def _wait(self, request: RecordedRequest) -> Any:
        yield raw_http_server.STREAM
        await self.released.wait()
        message = {"jsonrpc": "2.0", "id": request.id, "result": {"content": []}}
        yield raw_http_server.event(message)


@pytest.fixture
def direct_server(acme: Organization, helper: Agent) -> Iterator[DirectServer]:
    """A server attached to the agent, which allows all of its tools."""
    server = DirectServer()
    listening = server.http.listening()
    get_runtime().call(listening.__aenter__)
    row = factories.create_http_server(acme, server.http.url, "direct")
    factories.approve_server(acme, row)
    administrator = factories.build_administrator(acme)
    attach_server(administrator, helper, row, allowed_resources=["test://text"])
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=MANY)
    yield server
    get_runtime().call(get_connection_pool().forget_server, row.pk)
    get_runtime().call(listening.__aexit__, None, None, None)
    get_writer().close()


def _call(name: str, arguments: Any) -> dict[str, Any]:
    return {"method": "tools/call", "params": {"name": name, "arguments": arguments}}


REQUESTS: tuple[dict[str, Any], ...] = (
    _call(ECHO, {"text": "hello"}),
    _call(ECHO, {"text": ODD_TEXT}),
    _call(ECHO, {"text": 1}),
    _call(REGION, {"region": "eu"}),
    _call(REGION, {}),
    _call(FAIL, {}),
    _call("mcp_direct_missing", {}),
    {"method": "tools/list", "params": {}},
    {"method": "tools/list", "params": {"cursor": "x"}},
    {"method": "resources/read", "params": {"uri": "direct+test://text"}},
    {"method": "resources/read", "params": {"uri": "test://text"}},
    {"method": "resources/read", "params": {"uri": "test://missing"}},
)
META_VALUES = st.sampled_from((MODERN, "2025-11-25", "2099-01-01", None, 1, {}, {"sampling": {}}))
META_KEYS = st.sampled_from(
    (
        *(f"{META}protocolVersion", f"{META}clientInfo", f"{META}clientCapabilities"),
        *(f"{META}logLevel", "progressToken", "traceparent", "x"),
    )
)
BODIES = {
    "a truncated body": lambda body: body[:-1],
    "text after the message": lambda body: body + b"x",
    "a batch": lambda body: b"[" + body + b"]",
    "a byte order mark": lambda body: b"\xef\xbb\xbf" + body,
    "UTF-16": lambda body: body.decode().encode("utf-16"),
    "invalid UTF-8": lambda body: body.replace(b"hello", b"\xff\xfe"),
    "a repeated field": lambda body: body[:-1] + b',"method":"tools/list"}',
    "an escaped name": lambda body: body.replace(b'"method"', b'"\\u006dethod"'),
    "a deep value": lambda body: body.replace(b'"hello"', b"[" * 20_000 + b"]" * 20_000),
    "not a number": lambda body: body.replace(b'"hello"', b"NaN"),
    "a number without end": lambda body: body.replace(b'"hello"', b"9" * 5_000),
}
CHANGES = ("message", "params", "meta", "header", "body")
Changed = tuple[bytes, Headers]


@st.composite
def requests(draw: st.DrawFn) -> Changed:
    """Draw a valid request with up to two changes."""
    message = json.loads(json.dumps(draw(st.sampled_from(REQUESTS))))
    message |= {"jsonrpc": "2.0", "id": draw(st.sampled_from((1, "a", 2**70)))}
    params = message["params"]
    params["_meta"] = {
        f"{META}protocolVersion": MODERN,
        f"{META}clientInfo": {"name": "tests", "version": "1"},
        f"{META}clientCapabilities": {},
    }
    name = params.get("name") or params.get("uri")
    headers = [
        *(("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")),
        *(("Host", "localhost"), ("MCP-Protocol-Version", MODERN)),
        *(("Mcp-Method", message["method"]), *([("Mcp-Name", name)] if name else [])),
        *([("Mcp-Param-Region", "eu")] if "region" in params.get("arguments", {}) else []),
    ]
    change_body = None
    for change in draw(st.lists(st.sampled_from(CHANGES), max_size=2)):
        if change == "message":
            key = draw(st.sampled_from(("jsonrpc", "id", "method", "params", "result", "x")))
            _change(message, key, draw(st.none() | json_values))
        elif change == "params":
            key = draw(st.sampled_from(("name", "uri", "arguments", "cursor", "requestState", "x")))
            _change(params, key, draw(st.none() | json_values))
        elif change == "meta" and isinstance(params.get("_meta"), dict):
            _change(params["_meta"], draw(META_KEYS), draw(META_VALUES))
        elif change == "header":
            headers = draw(_changed_headers(headers))
        else:
            change_body = BODIES[draw(st.sampled_from(tuple(BODIES)))]
    body = json.dumps(message).encode()
    return (change_body(body) if change_body else body), headers


def _change(target: dict[str, Any], key: str, value: Any) -> None:
    """Set a field; delete it if it has this value already, or for None."""
    if value is None or target.get(key) == value:
        target.pop(key, None)
    else:
        target[key] = value


@st.composite
def _changed_headers(draw: st.DrawFn, headers: Headers) -> Headers:
    """Remove, repeat, replace or add a header."""
    index = draw(st.integers(0, len(headers) - 1))
    others = [*headers[:index], *headers[index + 1 :]]
    name, value = headers[index]
    added = draw(
        st.sampled_from(
            (
                *([], [(name, value)] * 2, [(name, value.upper())], [(name, f" {value}")]),
                *([(name, "")], [(name, value), (name, "x")]),
            )
        )
        | st.tuples(st.sampled_from((name, *NAMES)), VALUES).map(lambda pair: [pair])
    )
    return [*others, *added]


def test_a_request_gets_the_same_response_with_and_without_the_sdk(
    acme: Organization, gateway_client: GatewayClient, direct_server: DirectServer
) -> None:
    direct_count = 0
    administrator = factories.build_administrator(acme)
    gateway_client.token = token_of(administrator, calls_per_minute=MANY)
    accept = DirectResponder.accept_request

    async def accept_and_count(*args: Any) -> Any:
        nonlocal direct_count
        request = await accept(*args)
        direct_count += request is not None
        return request

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(requests())
    def compare(request: Changed) -> None:
        with patch.object(DirectResponder, "accept_request", accept_and_count):
            response, calls = _send(gateway_client, *request), direct_server.take_calls()
        with patch.object(transports, "is_direct_candidate", return_value=False):
            assert response == _send(gateway_client, *request)
        assert calls == direct_server.take_calls()

    for request in REQUESTS:  # so that snapshots are cached
        _send(gateway_client, json.dumps(request).encode(), [])
    direct_server.take_calls()
    compare()
    assert direct_count > EXAMPLES // 4
    # A repeated refusal is counted, not added.
    rows = AuditRow.objects.filter(event_type="call").exclude(outcome="refused").order_by("seq")
    assert list(rows.values_list(*AUDIT_FIELDS)[::2]) == list(rows.values_list(*AUDIT_FIELDS)[1::2])


def _send(gateway_client: GatewayClient, body: bytes, headers: Headers) -> Response:
    """Send a request; return its status, headers and body without generated ids."""
    pairs = [("Authorization", f"Bearer {gateway_client.token}"), *headers]
    fields = [(name.lower().encode(), value.encode("latin-1")) for name, value in pairs]
    parts = get_runtime().call(_exchange, gateway_client, body, fields)
    response_headers = {name.decode(): value.decode() for name, value in parts[0]["headers"]}
    response_headers.pop("mcp-session-id", None)  # random, of a new session
    content = b"".join(part["body"] for part in parts[1:])
    return parts[0]["status"], response_headers, UUID.sub(b"ID", content)


async def _exchange(
    gateway_client: GatewayClient, body: bytes, fields: list[tuple[bytes, bytes]]
) -> list[dict[str, Any]]:
    """Send a request to the ASGI application in two parts; return the parts of the response."""
    parts: list[dict[str, Any]] = []
    halves = (body[: len(body) // 2], body[len(body) // 2 :])
    received = [
        {"type": "http.request", "body": halves[1], "more_body": False},
        {"type": "http.request", "body": halves[0], "more_body": True},
    ]

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        parts.append(message)

    scope = {
        **{"type": "http", "method": "POST", "path": PATH, "query_string": b""},
        **{"headers": fields, "client": ("127.0.0.1", 1)},
    }
    async with asyncio.timeout(20):
        await gateway_client._mount(scope, receive, send)
    return parts


def _open_stream(gateway_client: GatewayClient, tool: str = "wait") -> Stream:
    """Call a tool that waits, and return the response."""
    return gateway_client.listen(PATH, {"name": f"mcp_direct_{tool}"}, method="tools/call")


def test_a_response_becomes_a_stream_when_the_call_takes_long(
    gateway_client: GatewayClient,
    direct_server: DirectServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(direct_requests, "WATCH_DELAY_S", 0.0)
    monkeypatch.setattr(direct_requests, "PING_INTERVAL_S", 0.01)
    pinged = asyncio.Event()
    ping = direct_requests._Response._ping

    async def ping_and_tell(response: Any) -> None:
        await ping(response)
        pinged.set()

    monkeypatch.setattr(direct_requests._Response, "_ping", ping_and_tell)
    stream = _open_stream(gateway_client)
    get_runtime().call(pinged.wait, timeout_s=20)
    get_runtime().loop.call_soon_threadsafe(direct_server.released.set)
    message = stream.next()
    assert message is not None
    assert (stream.status, stream._is_json) == (200, False)
    assert message["result"]["content"] == []
    assert stream.next() is None


@pytest.mark.parametrize(("tool", "outcome"), [("wait", "unknown"), ("watch", "cancelled")])
def test_a_call_is_canceled_when_its_client_disconnects(
    gateway_client: GatewayClient, direct_server: DirectServer, tool: str, outcome: str
) -> None:
    stream = _open_stream(gateway_client, tool)
    eventually(lambda: "tools/call" in direct_server.http.methods())
    stream.close()
    get_runtime().call(direct_server.http.cut.wait, timeout_s=20)
    entry = AuditRow.objects.filter(tool_name=tool).get()
    # A call that may have had an effect is unknown.
    assert (entry.outcome, entry.code) == (outcome, "cancelled")
