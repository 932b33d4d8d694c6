"""No token passthrough: a client's token is in no byte that Bonobot sends.

The gateway is called with a token in every part of a request except the arguments, which are passed
to the server unchanged. Every recipient records what it gets: servers of both eras, a child
process's command line, environment and input, an authorization server, a model. The token is
neither in a row, a log record nor a response.
"""

import asyncio
import logging
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps

from agents.gateway.client_request import LOG_LEVEL_KEY
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent
from agents.services import AgentSpec, update_agent
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.runtime import get_runtime
from bonobot.core.text import masking
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.conftest import run_to_rest, runner
from tests.agents.gateway.conftest import META, GatewayClient, Reply
from tests.agents.gateway.organization_server.conftest import running_worker
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, attach_upstream
from tests.parts import ROOT
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest
from tests.traces import collect_spans

__all__ = ["run_to_rest", "runner", "running_worker"]
pytestmark = pytest.mark.django_db(transaction=True)

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AGENT = "/mcp/agents/helper"


class RecordingServer(RawHttp):
    """A server that records every byte it receives."""

    recorded = b""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        copy = asyncio.StreamReader()

        async def record() -> None:
            while data := await reader.read(65_536):
                self.recorded += data
                copy.feed_data(data)
            copy.feed_eof()

        task = asyncio.ensure_future(record())
        try:
            await super()._serve(copy, writer)
        finally:
            task.cancel()


@pytest.fixture
def token(acme: Organization) -> str:
    administrator = factories.build_administrator(acme)
    return create_token(administrator, name="shown", role=Role.OPERATOR)[1]


@pytest.fixture
def token_forms(token: str) -> set[str]:
    """All encoded forms of the token and its secret, and the stored digest."""
    secret = token.split("_", 2)[2]
    stored = Token.objects.get(name="shown").digest
    return (
        masking._build_encoded_forms(token)
        | masking._build_encoded_forms(secret)
        | {stored, secret[:12]}
    )


@pytest.fixture
def start_recorder() -> Iterator[Callable[[Any], RecordingServer]]:
    """Return a function that starts a recording server."""
    with ExitStack() as stack:

        def start(respond: Any) -> RecordingServer:
            http = RecordingServer(respond)
            listening = http.listening()
            get_runtime().call(listening.__aenter__)
            stack.callback(lambda: get_runtime().call(listening.__aexit__, None, None, None))
            return http

        yield start


def upstream(
    mark: str, start_recorder: Callable[[Any], RecordingServer], *, handshake: bool = False
) -> Upstream:
    server = Upstream(mark, handshake=handshake)
    server.http = start_recorder(server.http.respond)
    return server


def headers(token: str) -> dict[str, str]:
    """Headers other than `Authorization` in which clients or proxies may send the token."""
    basic = b64encode(f"me:{token}".encode()).decode()
    return {
        "Cookie": f"session={token}; other={token}",
        "X_Api_Key": token,
        "X_Forwarded_Authorization": f"Bearer {token}",
        "Proxy_Authorization": f"Basic {basic}",
        "Traceparent": TRACE,
        "Tracestate": f"vendor={token}",
        "Baggage": f"token={token}",
        "User_Agent": token,
        "Last_Event_ID": token,
    }


def meta(token: str) -> Json:
    """The token in `_meta`, of which servers get the unknown keys."""
    return {
        f"{META}clientInfo": {"name": token, "version": token},
        "traceparent": TRACE,
        "tracestate": f"vendor={token}",
        "baggage": f"token={token}",
        "authorization": f"Bearer {token}",
        "example.com/basic": b64encode(f"me:{token}".encode()).decode(),
        "example.com/deep": [{"x": [token]}, {token: 1}, token.split("_", 2)[2]],
        "example.com/kept": "unchanged",
        "progressToken": token,
        LOG_LEVEL_KEY: token,
    }


def find_forms(text: Any, token_forms: set[str]) -> list[str]:
    content = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    return [form for form in token_forms if form in content]


def send_all_methods(
    gateway_client: GatewayClient, token: str, path: str, mark: str, tool: str = "echo"
) -> list[Reply]:
    """Send the token in every way with every method, in both eras."""
    name = f"mcp_{mark}_{tool}"
    requests: dict[str, Json] = {
        "tools/call": {"name": name, "arguments": {}},
        "resources/read": {"uri": f"{mark}+mem://{mark}"},
        "prompts/get": {"name": f"{mark}.{mark}-greet"},
        "completion/complete": {
            "ref": {"type": "ref/prompt", "name": f"{mark}.{mark}-greet"},
            "argument": {"name": "name", "value": ""},
        },
        "tools/list": {},
        "server/discover": {},
    }
    more = {"token": token, "meta": meta(token), **headers(token)}
    replies = [
        gateway_client.modern(path, method, params, **more) for method, params in requests.items()
    ]
    session = gateway_client.handshake(path, token=token)
    session.headers |= headers(token)
    session_meta = {"authorization": f"Bearer {token}", "example.com/kept": "unchanged"}
    for method, params in requests.items():
        if method != "server/discover":
            replies.append(session.ask(method, {**params, "_meta": session_meta}))
    return replies


def test_servers_of_both_eras_never_receive_the_token(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    token: str,
    token_forms: set[str],
    start_recorder: Callable[[Any], RecordingServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    modern, handshake = (
        upstream("anew", start_recorder),
        upstream("bygone", start_recorder, handshake=True),
    )
    for server in (modern, handshake):
        attach_upstream(server, acme, helper)
    with caplog.at_level(logging.DEBUG), collect_spans() as spans:
        for server in (modern, handshake):
            replies = send_all_methods(gateway_client, token, AGENT, server.mark)
            assert replies[0].result["content"], replies[0]
            assert not [reply for reply in replies if find_forms(reply, token_forms - {token})]
            assert not find_forms(server.http.recorded, token_forms)
            assert b"tools/call" in server.http.recorded
            # Everything else is passed on.
            assert TRACE[:35].encode() in server.http.recorded
            assert b"unchanged" in server.http.recorded
        call = {"name": "mcp_anew_work", "arguments": {}}
        more = {"token": token, "meta": meta(token), "capabilities": ABLE, **headers(token)}
        task = gateway_client.modern(AGENT, "tools/call", call, **more).result["taskId"]
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            params = {"taskId": task, "inputResponses": {}}
            assert gateway_client.modern(AGENT, method, params, **more, Mcp_Name=task).result
        spans_text = [span.to_json() + repr(span.context) for span in spans.get_finished_spans()]
        assert spans_text
        assert not find_forms(spans_text, token_forms)
        assert b"tasks/cancel" in modern.http.recorded
        assert not find_forms(modern.http.recorded, token_forms)
    assert not find_forms(caplog.text, token_forms)
    assert not find_in_rows(token_forms)


def find_in_rows(token_forms: set[str]) -> list[str]:
    """Return where the database has the token, except in its own row."""
    matches = []
    for model in apps.get_models():
        for row in model._base_manager.values():
            text = repr({**row, "digest": ""} if model is Token else row)
            matches += [f"{model.__name__}: {form}" for form in find_forms(text, token_forms)]
    return matches


def test_a_child_process_never_receives_the_token(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    token: str,
    token_forms: set[str],
    tmp_path: Path,
) -> None:
    tape = tmp_path / "tape"
    command = [str(ROOT / "tests" / "servers" / "stdin_recorder.py"), str(tape)]
    config = {"command": sys.executable, "args": command}
    administrator = factories.build_administrator(acme)
    spec = ServerSpec(name="taped", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(acme, create_server(administrator, spec), helper)
    params = {"name": "mcp_taped_echo", "arguments": {"said": "by the caller"}}
    more = {"token": token, "meta": meta(token), **headers(token)}
    try:
        assert gateway_client.modern(AGENT, "tools/call", params, **more).result["content"]
        recorded = tape.read_text(encoding="utf-8")
    finally:
        get_runtime().call(get_connection_pool().forget_server, server.pk)
    assert "by the caller" in recorded
    assert "unchanged" in recorded
    assert not find_forms(recorded, token_forms)


def test_a_failed_sign_in_doesnt_reveal_the_token(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    token: str,
    token_forms: set[str],
    start_recorder: Callable[[Any], RecordingServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server and its authorization metadata require another token."""
    requires_sign_in = False

    def respond(request: RecordedRequest) -> Any:
        if requires_sign_in or request.verb == "GET":
            path = '/.well-known/oauth-protected-resource"'
            challenge = f'Bearer error="invalid_token", resource_metadata="{recorder.url}{path}'
            return raw_http_server.response(401, b"{}", WWW_Authenticate=challenge)
        return server._modern(request)

    server = Upstream("closing")
    recorder = server.http = start_recorder(respond)
    attach_upstream(server, acme, helper)
    requires_sign_in = True
    with caplog.at_level(logging.DEBUG):
        replies = send_all_methods(gateway_client, token, AGENT, "closing")
        rejected = [
            gateway_client.modern(AGENT, "tools/list", token=f"{token}x", **headers(token)),
            gateway_client.modern("/mcp/nothing", "tools/list", token=token, **headers(token)),
            gateway_client.send(
                "POST", AGENT, b"{}", Authorization=f"Basic {token}", **headers(token)
            ),
        ]
    assert replies[0].result["isError"]
    assert [reply.status for reply in rejected] == [401, 404, 401]
    assert not [
        reply for reply in (*replies, *rejected) if find_forms(reply, token_forms - {token})
    ]
    assert b"tools/call" in recorder.recorded
    assert not find_forms(recorder.recorded, token_forms)
    assert not find_forms(caplog.text, token_forms)
    assert not find_in_rows(token_forms)


def test_models_and_their_servers_never_receive_the_token(
    acme: Organization,
    helper: Agent,
    gateway_client: GatewayClient,
    token: str,
    token_forms: set[str],
    start_recorder: Callable[[Any], RecordingServer],
    running_worker: None,
) -> None:
    recorder = start_recorder(
        lambda request: raw_http_server.response(400, b'{"error": {"message": "No."}}')
    )
    administrator = factories.build_administrator(acme)
    model = save_endpoint(
        administrator,
        ModelEndpointSpec(
            name="Taped",
            kind="openai",
            model="m",
            base_url=recorder.url,
            api_key="k-e-y-1234",
            allow_private=True,
        ),
    )
    update_agent(administrator, helper, AgentSpec(name="Helper", model_endpoint=model))
    params = {"name": "helper_chat", "arguments": {"message": "Hello there", "wait_s": 30}}
    more = {"token": token, "meta": meta(token), **headers(token)}
    result = gateway_client.modern("/mcp", "tools/call", params, **more).result["structuredContent"]
    assert result["resting"]
    assert b"Hello there" in recorder.recorded
    assert not find_forms(recorder.recorded, token_forms)
    assert not find_in_rows(token_forms)
