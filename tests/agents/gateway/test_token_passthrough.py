"""Tokens stay: what a client shows to the gateway is in no byte that goes out (no passthrough).

The gateway is called with a token in every place of a request where one can stand, the arguments
excepted: they are the caller's own words, and go to the server as they are. Every byte that then
goes out is kept by who gets it: servers of both eras, a child's command line, environment and
input, a sign-in, a model. Nor is a token in a row, in a log record, or in an answer.
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
from tests.agents.conftest import runner, take
from tests.agents.gateway.conftest import META, Reply, Wire
from tests.agents.gateway.organization_server.conftest import at_work
from tests.agents.gateway.upstream_server import ABLE, Json, Upstream, give
from tests.parts import ROOT
from tests.servers import raw_http_server
from tests.servers.raw_http_server import Asked, RawHttp
from tests.traces import collected

__all__ = ["at_work", "runner", "take"]
pytestmark = pytest.mark.django_db(transaction=True)

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
AGENT = "/mcp/agents/helper"


class Taped(RawHttp):
    """Keeps every byte that comes."""

    tape = b""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kept = asyncio.StreamReader()

        async def keep() -> None:
            while data := await reader.read(65_536):
                self.tape += data
                kept.feed_data(data)
            kept.feed_eof()

        keeping = asyncio.ensure_future(keep())
        try:
            await super()._serve(kept, writer)
        finally:
            keeping.cancel()


@pytest.fixture
def token(acme: Organization) -> str:
    boss = factories.build_administrator(acme)
    return create_token(boss, name="shown", role=Role.OPERATOR)[1]


@pytest.fixture
def sought(token: str) -> set[str]:
    """The token in all forms in which texts travel, its secret alone, and what is stored of it."""
    secret = token.split("_", 2)[2]
    stored = Token.objects.get(name="shown").digest
    return (
        masking._build_encoded_forms(token)
        | masking._build_encoded_forms(secret)
        | {stored, secret[:12]}
    )


@pytest.fixture
def tapes() -> Iterator[Callable[[Any], Taped]]:
    """Have an endpoint listen that keeps what it gets."""
    with ExitStack() as made:

        def tape(respond: Any) -> Taped:
            http = Taped(respond)
            listening = http.listening()
            get_runtime().call(listening.__aenter__)
            made.callback(lambda: get_runtime().call(listening.__aexit__, None, None, None))
            return http

        yield tape


def upstream(mark: str, tapes: Callable[[Any], Taped], *, old: bool = False) -> Upstream:
    found = Upstream(mark, old=old)
    found.http = tapes(found.http.respond)
    return found


def headers(token: str) -> dict[str, str]:
    """A token wherever a client, or a proxy before us, might put it beside `Authorization`."""
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
    """The same in `_meta`, of which a server gets what isn't this hop's."""
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


def holds(text: Any, sought: set[str]) -> list[str]:
    found = text.decode("latin-1") if isinstance(text, bytes) else str(text)
    return [form for form in sought if form in found]


def calls(wire: Wire, token: str, path: str, mark: str, tool: str = "echo") -> list[Reply]:
    """Send a token along in every way with every method, in both eras."""
    name = f"mcp_{mark}_{tool}"
    asked: dict[str, Json] = {
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
    found = [wire.modern(path, method, params, **more) for method, params in asked.items()]
    session = wire.handshake(path, token=token)
    session.headers |= headers(token)
    told = {"authorization": f"Bearer {token}", "example.com/kept": "unchanged"}
    for method, params in asked.items():
        if method != "server/discover":
            found.append(session.ask(method, {**params, "_meta": told}))
    return found


def test_servers_of_both_eras_never_receive_the_token(
    acme: Organization,
    helper: Agent,
    wire: Wire,
    token: str,
    sought: set[str],
    tapes: Callable[[Any], Taped],
    caplog: pytest.LogCaptureFixture,
) -> None:
    new, old = upstream("anew", tapes), upstream("bygone", tapes, old=True)
    for one in (new, old):
        give(one, acme, helper)
    with caplog.at_level(logging.DEBUG), collected() as spans:
        for one in (new, old):
            replies = calls(wire, token, AGENT, one.mark)
            assert replies[0].result["content"], replies[0]
            assert not [reply for reply in replies if holds(reply, sought - {token})]
            assert not holds(one.http.tape, sought)
            assert b"tools/call" in one.http.tape
            # What isn't the token goes on.
            assert TRACE[:35].encode() in one.http.tape
            assert b"unchanged" in one.http.tape
        begun = {"name": "mcp_anew_work", "arguments": {}}
        more = {"token": token, "meta": meta(token), "capabilities": ABLE, **headers(token)}
        task = wire.modern(AGENT, "tools/call", begun, **more).result["taskId"]
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            about = {"taskId": task, "inputResponses": {}}
            assert wire.modern(AGENT, method, about, **more, Mcp_Name=task).result
        traced = [span.to_json() + repr(span.context) for span in spans.get_finished_spans()]
        assert traced
        assert not holds(traced, sought)
        assert b"tasks/cancel" in new.http.tape
        assert not holds(new.http.tape, sought)
    assert not holds(caplog.text, sought)
    assert not held_in_rows(sought)


def held_in_rows(sought: set[str]) -> list[str]:
    """Return where the database holds it, but for the token's own row."""
    stored = []
    for model in apps.get_models():
        for row in model._base_manager.values():
            text = repr({**row, "digest": ""} if model is Token else row)
            stored += [f"{model.__name__}: {form}" for form in holds(text, sought)]
    return stored


def test_a_child_process_never_receives_the_token(
    acme: Organization, helper: Agent, wire: Wire, token: str, sought: set[str], tmp_path: Path
) -> None:
    tape = tmp_path / "tape"
    command = [str(ROOT / "tests" / "servers" / "stdin_recorder.py"), str(tape)]
    config = {"command": sys.executable, "args": command}
    boss = factories.build_administrator(acme)
    spec = ServerSpec(name="taped", transport_type="stdio", endpoint_config=config)
    server = factories.approve_server(acme, create_server(boss, spec), helper)
    params = {"name": "mcp_taped_echo", "arguments": {"said": "by the caller"}}
    more = {"token": token, "meta": meta(token), **headers(token)}
    try:
        assert wire.modern(AGENT, "tools/call", params, **more).result["content"]
        kept = tape.read_text(encoding="utf-8")
    finally:
        get_runtime().call(get_connection_pool().forget_server, server.pk)
    assert "by the caller" in kept
    assert "unchanged" in kept
    assert not holds(kept, sought)


def test_a_failed_sign_in_doesnt_reveal_the_token(
    acme: Organization,
    helper: Agent,
    wire: Wire,
    token: str,
    sought: set[str],
    tapes: Callable[[Any], Taped],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server asks for another token, and so does the way to it."""
    closed = False

    def respond(asked: Asked) -> Any:
        if closed or asked.verb == "GET":
            found = '/.well-known/oauth-protected-resource"'
            wanted = f'Bearer error="invalid_token", resource_metadata="{taped.url}{found}'
            return raw_http_server.response(401, b"{}", WWW_Authenticate=wanted)
        return open_one._modern(asked)

    open_one = Upstream("closing")
    taped = open_one.http = tapes(respond)
    give(open_one, acme, helper)
    closed = True
    with caplog.at_level(logging.DEBUG):
        replies = calls(wire, token, AGENT, "closing")
        refused = [
            wire.modern(AGENT, "tools/list", token=f"{token}x", **headers(token)),
            wire.modern("/mcp/nothing", "tools/list", token=token, **headers(token)),
            wire.send("POST", AGENT, b"{}", Authorization=f"Basic {token}", **headers(token)),
        ]
    assert replies[0].result["isError"]
    assert [reply.status for reply in refused] == [401, 404, 401]
    assert not [reply for reply in (*replies, *refused) if holds(reply, sought - {token})]
    assert b"tools/call" in taped.tape
    assert not holds(taped.tape, sought)
    assert not holds(caplog.text, sought)
    assert not held_in_rows(sought)


def test_models_and_their_servers_never_receive_the_token(
    acme: Organization,
    helper: Agent,
    wire: Wire,
    token: str,
    sought: set[str],
    tapes: Callable[[Any], Taped],
    at_work: None,
) -> None:
    taped = tapes(lambda asked: raw_http_server.response(400, b'{"error": {"message": "No."}}'))
    boss = factories.build_administrator(acme)
    model = save_endpoint(
        boss,
        ModelEndpointSpec(
            name="Taped",
            kind="openai",
            model="m",
            base_url=taped.url,
            api_key="k-e-y-1234",
            allow_private=True,
        ),
    )
    update_agent(boss, helper, AgentSpec(name="Helper", model_endpoint=model))
    params = {"name": "helper_chat", "arguments": {"message": "Hello there", "wait_s": 30}}
    more = {"token": token, "meta": meta(token), **headers(token)}
    found = wire.modern("/mcp", "tools/call", params, **more).result["structuredContent"]
    assert found["resting"]
    assert b"Hello there" in taped.tape
    assert not holds(taped.tape, sought)
    assert not held_in_rows(sought)
