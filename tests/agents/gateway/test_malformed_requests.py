"""The gateway answers any malformed request without an internal error."""

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from tests.agents.gateway.conftest import META, MODERN, GatewayClient
from tests.approved_server import create_approved_server
from tests.conformance_server import serve_everything
from tests.selection import WHOLE

pytestmark = pytest.mark.django_db(transaction=True)

# Each run draws different requests.
EXAMPLES = 1_000 if os.environ.get("TEST_FUZZING") == "whole" else 250 if WHOLE else 60
LONGEST_S = 20
SESSION, LIVE = "Mcp-Session-Id", "a session that is open"
SERVED = ("/mcp/servers/everything", "/mcp/agents/helper", "/mcp")
# Existing endpoints are drawn more often than others.
PATHS = (
    *(SERVED * 8),
    *("/mcp/", "/mcp/servers/nothing", "/mcp/servers/", "/mcp/servers/../agents/helper", "/mcp/x"),
    *("/mcp//servers/everything", "/mcp/agents/%00", "/mcp/servers/everything/"),
    *("/mcp/servers/" + "a" * 300, "/.well-known/oauth-protected-resource/mcp"),
    "/.well-known/oauth-protected-resourceful",
)
VERBS = (*(("POST",) * 16), "GET", "DELETE", "PUT", "PATCH", "OPTIONS", "HEAD", "QUERY")
METHODS = (
    *("server/discover", "initialize", "ping", "tools/list", "tools/call", "resources/list"),
    *("resources/read", "resources/templates/list", "resources/subscribe", "prompts/list"),
    *("prompts/get", "completion/complete", "logging/setLevel", "tasks/get", "tasks/update"),
    *("tasks/cancel", "tasks/list", "notifications/initialized", "notifications/cancelled"),
    *("notifications/progress", "elicitation/create", "", "rpc.discover", "tools/call\n"),
)
REVISIONS = (MODERN, MODERN, "2025-11-25", "2025-06-18", "2024-11-05", "2099-01-01", "", "x")
SPECIAL = (
    *(None, True, -1, 0, 2**63, 10**400, 1.5, float("nan"), float("inf"), "", "\x00", "\ud800"),
    *("test_simple_text", "test://static-text", "../..", "test_simple_prompt", "x" * 5_000, [], {}),
    *("=?base64?!!?=", "‮", {"a": {"b": [[[[]]]]}}, [{}], {"": None}, {"_meta": 1}),
)

json_values = st.recursive(
    st.sampled_from(SPECIAL) | st.text(max_size=20) | st.integers() | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3)
    ),
    max_leaves=8,
)
PARAMS = st.dictionaries(
    st.sampled_from(
        (
            *("name", "uri", "arguments", "cursor", "ref", "argument", "level", "taskId"),
            *("inputResponses", "requestState", "protocolVersion", "capabilities", "clientInfo"),
            *("requestId", "progressToken", "_meta", "context", "task"),
        )
    ),
    json_values,
    max_size=5,
)
STAMPS = st.dictionaries(
    st.sampled_from(
        (
            *(f"{META}protocolVersion", f"{META}clientInfo", f"{META}clientCapabilities"),
            *(f"{META}logLevel", "progressToken", "traceparent", f"{META}subscriptionId", "x"),
        )
    ),
    json_values,
    max_size=4,
)
GOOD_STAMP = {
    f"{META}protocolVersion": MODERN,
    f"{META}clientInfo": {"name": "tests", "version": "1"},
    f"{META}clientCapabilities": {},
}
NAMES = (
    *("Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Host"),
    *("Mcp-Session-Id", "Origin", "Last-Event-ID", "Mcp-Param-Region", "X-Forwarded-Host"),
    *("Content-Encoding", "Authorization", "Expect", "traceparent"),
)
VALUES = st.sampled_from(
    (
        *("", " ", "x", "*/*", "text/event-stream", "application/json", "text/html", MODERN),
        *("application/json; charset=utf-16", "Bearer", "Bearer x", "Basic eDp5", "bearer " * 99),
        *("2025-11-25", "tools/call", "tools/list", "test_simple_text", "=?base64?SGVsbG8?=", "é"),
        *("gzip", "http://evil.example.com", "evil.example.com", "null", "-1", "a" * 9_000),
    )
) | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=30)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a mostly valid request with a missing or changed field."""
    params = draw(PARAMS)
    stamp = draw(st.sampled_from(("good", "altered", "none")))
    if stamp == "good":
        params["_meta"] = GOOD_STAMP
    elif stamp == "altered":
        params["_meta"] = {**GOOD_STAMP, **draw(STAMPS)}
    message: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": draw(st.integers(min_value=1) | json_values),
        "method": draw(st.sampled_from(METHODS)),
        "params": params,
    }
    changed = draw(st.dictionaries(st.sampled_from(tuple(message)), json_values, max_size=1))
    for name in draw(st.sets(st.sampled_from(("jsonrpc", "id", "params")), max_size=1)):
        del message[name]
    return {**message, **changed}


def _text(value: Any) -> bytes:
    return json.dumps(value).encode()


DEEP = b"[" * 20_000 + b"]" * 20_000
BODIES = st.one_of(
    st.lists(messages(), max_size=2).map(_text),
    json_values.map(_text),
    st.binary(max_size=200),
    st.sampled_from(
        (
            *(b"", b"{", b"\xff\xfe{}", b"null", DEEP, b'{"a":' * 5_000, b'{"id":1,"id":2}'),
            *(b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}', b"\xef\xbb\xbf{}", b"NaN"),
        )
    ),
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """Draw a body with mostly matching headers."""
    if draw(st.integers(0, 4)) == 0:
        return draw(BODIES), draw(HEADERS)
    message = draw(messages())
    params = message.get("params")
    fields = params if isinstance(params, dict) else {}
    name_value = next((fields[name] for name in ("name", "uri", "taskId") if name in fields), None)
    headers = {
        "MCP-Protocol-Version": draw(st.sampled_from(REVISIONS)),
        "Mcp-Method": _to_header(message.get("method")),
        "Mcp-Name": _to_header(name_value),
    }
    if draw(st.booleans()):
        headers[SESSION] = LIVE
    if draw(st.integers(0, 2)) == 0:
        headers |= draw(HEADERS)
    return _text(message), headers


def _to_header(value: Any) -> str:
    return value.encode("latin-1", "replace").decode("latin-1") if isinstance(value, str) else ""


HEADERS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)


@pytest.fixture(scope="module")
def everything_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_everything(tmp_path_factory.mktemp("everything")) as url:
        yield url


def test_malformed_requests_get_an_error_response(
    everything_url: str,
    gateway_client: GatewayClient,
    acme: Organization,
    caplog: pytest.LogCaptureFixture,
) -> None:
    published = create_approved_server(everything_url, acme)
    sessions = {
        path: gateway_client.handshake(path).headers["Mcp_Session_Id"] for path in published.paths
    }

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.sampled_from(VERBS), st.sampled_from(PATHS), requests())
    def ask(verb: str, path: str, request: tuple[bytes, dict[str, str]]) -> None:
        body, headers = request
        caplog.clear()
        if headers.get(SESSION) == LIVE:
            # Other verbs end the session or wait forever for notifications.
            number = sessions.get(path, "x") if verb == "POST" else "x"
            headers = {**headers, SESSION: number, "MCP-Protocol-Version": "2025-11-25"}
        bearer = {"Authorization": f"Bearer {gateway_client.token}"}
        status = get_runtime().call(
            _send_request, gateway_client, verb, path, body, bearer | headers
        )
        errors = [
            record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR
        ]
        assert (status < 500, errors) == (True, [])

    ask()


async def _send_request(
    gateway_client: GatewayClient, verb: str, path: str, body: bytes, headers: dict[str, str]
) -> int:
    """Send a request to the ASGI application and return the status."""
    sent_messages: list[dict[str, Any]] = []
    received = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if received:
            return received.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent_messages.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": verb,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"accept", b"application/json, text/event-stream"),
            (b"content-type", b"application/json"),
            *((name.lower().encode(), text.encode("latin-1")) for name, text in headers.items()),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    async with asyncio.timeout(LONGEST_S):
        await gateway_client._mount(scope, receive, send)
    status: int = sent_messages[0]["status"]
    return status
