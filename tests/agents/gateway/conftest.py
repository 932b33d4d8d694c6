"""Fixtures of the gateway's tests: its ASGI application on this process's loop, asked raw."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest

from agents.gateway.transports import GatewayApplication
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from tests import factories
from tests.agents.conftest import acme, effects, helper, library, workshop

__all__ = ["acme", "effects", "helper", "library", "workshop"]

MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
LONG_S = 30


@dataclass(frozen=True)
class Reply:
    """What came back: the status, the headers, the answer, and what was told before it."""

    status: int
    headers: dict[str, str]
    message: dict[str, Any]
    told: list[dict[str, Any]] = field(default_factory=list)
    # Everything that came in a stream, in order.
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.message, self.message
        found: dict[str, Any] = self.message["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.message, self.message
        found: dict[str, Any] = self.message["error"]
        return found

    @property
    def code(self) -> str:
        """Our own code of a refusal, wherever it stands."""
        if "result" in self.message:
            return str(self.result["_meta"]["bonobot/problem"]["code"])
        return str(self.error["data"]["code"])


class Wire:
    """Asks the gateway as a client would, request by request."""

    def __init__(self, mount: GatewayApplication, token: str) -> None:
        self.token = token
        self._mount = mount
        self._numbers = itertools.count(1)

    def send(self, verb: str, path: str, content: bytes = b"", **headers: str) -> Reply:
        """Send bytes; underscores in the names of headers stand for hyphens."""
        return get_runtime().call(self._send, verb, path, content, headers)

    def modern(
        self,
        path: str,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        capabilities: dict[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
        token: str | None = None,
        **headers: str,
    ) -> Reply:
        """Send a request of the modern era."""
        said = {**(params or {}), "_meta": {**_stamp(capabilities), **(meta or {})}}
        return self._request(path, method, said, {**_named(method, said), **headers}, token)

    def listen(
        self,
        path: str,
        params: dict[str, Any],
        token: str | None = None,
        *,
        method: str = "subscriptions/listen",
        capabilities: dict[str, Any] | None = None,
    ) -> "Stream":
        """Send a request of the modern era, and read its answer as it comes."""
        said = {**params, "_meta": _stamp(capabilities)}
        message = {"jsonrpc": "2.0", "id": next(self._numbers), "method": method, "params": said}
        content = json.dumps(message).encode()
        bearer = {"Authorization": f"Bearer {token or self.token}"}
        return Stream(self._mount, "POST", path, {**_named(method, said), **bearer}, content)

    def handshake(
        self,
        path: str,
        *,
        token: str | None = None,
        capabilities: dict[str, Any] | None = None,
        version: str = "2025-11-25",
    ) -> "Session":
        """Open a session of the handshake era."""
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "tests", "version": "1"},
        }
        opened = self._request(path, "initialize", params, {}, token)
        session = Session(self, path, opened, token)
        session.tell("notifications/initialized")
        return session

    def _request(
        self,
        path: str,
        method: str,
        params: dict[str, Any],
        headers: dict[str, str],
        token: str | None,
        number: int | None = None,
    ) -> Reply:
        message = {"jsonrpc": "2.0", "id": number or next(self._numbers), "method": method}
        body = json.dumps({**message, "params": params}).encode()
        bearer = self.token if token is None else token
        return self.send("POST", path, body, Authorization=f"Bearer {bearer}", **headers)

    async def _send(self, verb: str, path: str, content: bytes, headers: dict[str, str]) -> Reply:
        transport = httpx2.ASGITransport(self._mount, raise_app_exceptions=True)
        named = _spelled(headers)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.request(verb, path, content=content, headers=named)
        return _reply(response)


class Session:
    """A session of the handshake era."""

    def __init__(self, wire: Wire, path: str, opened: Reply, token: str | None) -> None:
        self.opened = opened
        self._wire, self._path, self._token = wire, path, token
        self.headers = {
            "Mcp_Session_Id": opened.headers.get("mcp-session-id", ""),
            "MCP_Protocol_Version": "2025-11-25",
        }

    def ask(self, method: str, params: dict[str, Any] | None = None, **more: Any) -> Reply:
        """Send a request."""
        token = more.pop("token", self._token)
        path = more.pop("path", self._path)
        return self._wire._request(path, method, params or {}, self.headers, token)

    def tell(self, method: str, params: dict[str, Any] | None = None) -> Reply:
        """Send a notification."""
        message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        body = json.dumps(message).encode()
        return self._wire.send("POST", self._path, body, **self._with_bearer())

    def end(self) -> Reply:
        """End the session."""
        return self._wire.send("DELETE", self._path, **self._with_bearer())

    def begin(self, method: str, params: dict[str, Any]) -> "Stream":
        """Send a request, and read its answer as it comes."""
        number = next(self._wire._numbers)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        content = json.dumps(message).encode()
        stream = Stream(self._wire._mount, "POST", self._path, self._with_bearer(), content)
        stream.number = number
        return stream

    def answer(self, asked: dict[str, Any], **more: Any) -> None:
        """Answer what the session was asked, with a `result` or an `error`."""
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **more}).encode()
        self._wire.send("POST", self._path, body, **self._with_bearer())

    def follow(self) -> "Stream":
        """Open the stream on which the session is told what comes unasked."""
        return Stream(self._wire._mount, "GET", self._path, self._with_bearer())

    def _with_bearer(self) -> dict[str, str]:
        token = self._wire.token if self._token is None else self._token
        return {"Authorization": f"Bearer {token}", **self.headers}


class Stream:
    """An answer that goes on: what is told on it, message by message; to be closed."""

    def __init__(
        self,
        mount: GatewayApplication,
        verb: str,
        path: str,
        headers: dict[str, str],
        content: bytes = b"",
    ) -> None:
        self.status = 0
        self.number: int | None = None  # of the request that it answers
        self._whole = False  # told in one piece, in place of events
        self._told: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._rest = b""
        self._body = [{"type": "http.request", "body": content, "more_body": False}]
        scope = {
            **{"type": "http", "method": verb, "path": path, "query_string": b""},
            "headers": [
                (name.lower().encode(), value.encode())
                for name, value in {"Host": "localhost", **_spelled(headers)}.items()
            ],
        }
        self._answering = get_runtime().spawn(
            mount(scope, self._receive, self._send), name="stream"
        )

    def next(self, within: float = LONG_S) -> dict[str, Any] | None:
        """Return what is told next, None at the end; raises `TimeoutError`."""
        return get_runtime().call(self._told.get, timeout_s=within)

    def close(self) -> None:
        """Hang up."""
        get_runtime().call(self._hang_up)

    async def _hang_up(self) -> None:
        self._gone.set()
        await asyncio.wrap_future(self._answering)

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return self._body.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._whole = (b"content-type", b"application/json") in message["headers"]
            return
        *events, self._rest = (self._rest + message["body"].replace(b"\r", b"")).split(b"\n\n")
        for one in events:
            lines = [line[6:] for line in one.splitlines() if line.startswith(b"data: ")]
            if lines and lines[0]:
                self._told.put_nowait(json.loads(lines[0]))
        if not message.get("more_body"):
            if self._whole and self._rest:
                self._told.put_nowait(json.loads(self._rest))
            self._told.put_nowait(None)


def _stamp(capabilities: dict[str, Any] | None) -> dict[str, Any]:
    return {
        f"{META}protocolVersion": MODERN,
        f"{META}clientInfo": {"name": "tests", "version": "1"},
        f"{META}clientCapabilities": capabilities or {},
    }


def _named(method: str, said: dict[str, Any]) -> dict[str, str]:
    named = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
    if (name := said.get("name") or said.get("uri")) and "/list" not in method:
        named["Mcp_Name"] = name
    return named


def _spelled(headers: dict[str, str]) -> dict[str, str]:
    return {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }


def _reply(response: httpx2.Response) -> Reply:
    headers = dict(response.headers)
    if headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        messages = [json.loads(line) for line in lines if line]
        answers = [one for one in messages if "method" not in one]
        told = [one for one in messages if "method" in one]
        return Reply(response.status_code, headers, answers[-1] if answers else {}, told, messages)
    message = response.json() if response.content else {}
    return Reply(response.status_code, headers, message)


def token_of(who: Principal, role: Role = Role.OWNER, **more: Any) -> str:
    """Make a token and return its text."""
    return create_token(who, name="tests", role=role, **more)[1]


@pytest.fixture
def wire(acme: Organization) -> Iterator[Wire]:
    """The gateway, asked with an owner's token of the organization."""
    mount = GatewayApplication()
    yield Wire(mount, token_of(factories.build_administrator(acme)))
    get_runtime().call(mount.stop)
    get_writer().close()
