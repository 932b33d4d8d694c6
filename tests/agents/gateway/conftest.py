"""Fixtures of gateway tests: raw HTTP requests to its ASGI application in this process."""

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
    """A response: status, headers, JSON-RPC message, and the notifications before it."""

    status: int
    headers: dict[str, str]
    message: dict[str, Any]
    notifications: list[dict[str, Any]] = field(default_factory=list)
    # Everything that came in a stream, in order.
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def result(self) -> dict[str, Any]:
        assert "result" in self.message, self.message
        value: dict[str, Any] = self.message["result"]
        return value

    @property
    def error(self) -> dict[str, Any]:
        assert "error" in self.message, self.message
        value: dict[str, Any] = self.message["error"]
        return value

    @property
    def code(self) -> str:
        """The code of Bonobot's error, from the result or the JSON-RPC error."""
        if "result" in self.message:
            return str(self.result["_meta"]["bonobot/problem"]["code"])
        return str(self.error["data"]["code"])


class GatewayClient:
    """An MCP client that sends single requests to the gateway."""

    def __init__(self, mount: GatewayApplication, token: str) -> None:
        self.token = token
        self._mount = mount
        self._numbers = itertools.count(1)

    def send(self, verb: str, path: str, content: bytes = b"", **headers: str) -> Reply:
        """Send bytes; underscores in names of headers become hyphens."""
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
        request_params = {**(params or {}), "_meta": {**_build_meta(capabilities), **(meta or {})}}
        return self._request(
            path,
            method,
            request_params,
            {**_build_headers(method, request_params), **headers},
            token,
        )

    def listen(
        self,
        path: str,
        params: dict[str, Any],
        token: str | None = None,
        *,
        method: str = "subscriptions/listen",
        capabilities: dict[str, Any] | None = None,
    ) -> "Stream":
        """Send a request of the modern era and return the stream of its response."""
        request_params = {**params, "_meta": _build_meta(capabilities)}
        message = {
            "jsonrpc": "2.0",
            "id": next(self._numbers),
            "method": method,
            "params": request_params,
        }
        content = json.dumps(message).encode()
        bearer = {"Authorization": f"Bearer {token or self.token}"}
        return Stream(
            self._mount, "POST", path, {**_build_headers(method, request_params), **bearer}, content
        )

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
        initialization = self._request(path, "initialize", params, {}, token)
        session = Session(self, path, initialization, token)
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
        sent_headers = _complete_headers(headers)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.request(verb, path, content=content, headers=sent_headers)
        return _parse_reply(response)


class Session:
    """A session of the handshake era."""

    def __init__(
        self, gateway_client: GatewayClient, path: str, initialization: Reply, token: str | None
    ) -> None:
        self.initialization = initialization
        self._wire, self._path, self._token = gateway_client, path, token
        self.headers = {
            "Mcp_Session_Id": initialization.headers.get("mcp-session-id", ""),
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
        """Send a request and return the stream of its response."""
        number = next(self._wire._numbers)
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        content = json.dumps(message).encode()
        stream = Stream(self._wire._mount, "POST", self._path, self._with_bearer(), content)
        stream.number = number
        return stream

    def answer(self, request: dict[str, Any], **more: Any) -> None:
        """Answer a request of the server with a `result` or an `error`."""
        body = json.dumps({"jsonrpc": "2.0", "id": request["id"], **more}).encode()
        self._wire.send("POST", self._path, body, **self._with_bearer())

    def follow(self) -> "Stream":
        """Open the session's stream of server messages."""
        return Stream(self._wire._mount, "GET", self._path, self._with_bearer())

    def _with_bearer(self) -> dict[str, str]:
        token = self._wire.token if self._token is None else self._token
        return {"Authorization": f"Bearer {token}", **self.headers}


class Stream:
    """A streamed response, read message by message; must be closed."""

    def __init__(
        self,
        mount: GatewayApplication,
        verb: str,
        path: str,
        headers: dict[str, str],
        content: bytes = b"",
    ) -> None:
        self.status = 0
        self.number: int | None = None  # id of the request that it answers
        self._is_json = False  # a JSON body instead of events
        self._messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._closed = asyncio.Event()
        self._buffer = b""
        self._body = [{"type": "http.request", "body": content, "more_body": False}]
        scope = {
            **{"type": "http", "method": verb, "path": path, "query_string": b""},
            "headers": [
                (name.lower().encode(), value.encode())
                for name, value in {"Host": "localhost", **_complete_headers(headers)}.items()
            ],
        }
        self._response = get_runtime().spawn(mount(scope, self._receive, self._send), name="stream")

    def next(self, within: float = LONG_S) -> dict[str, Any] | None:
        """Return the next message, None at the end; raises `TimeoutError`."""
        return get_runtime().call(self._messages.get, timeout_s=within)

    def close(self) -> None:
        """Disconnect."""
        get_runtime().call(self._hang_up)

    async def _hang_up(self) -> None:
        self._closed.set()
        await asyncio.wrap_future(self._response)

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return self._body.pop()
        await self._closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._is_json = (b"content-type", b"application/json") in message["headers"]
            return
        *events, self._buffer = (self._buffer + message["body"].replace(b"\r", b"")).split(b"\n\n")
        for event in events:
            lines = [line[6:] for line in event.splitlines() if line.startswith(b"data: ")]
            if lines and lines[0]:
                self._messages.put_nowait(json.loads(lines[0]))
        if not message.get("more_body"):
            if self._is_json and self._buffer:
                self._messages.put_nowait(json.loads(self._buffer))
            self._messages.put_nowait(None)


def _build_meta(capabilities: dict[str, Any] | None) -> dict[str, Any]:
    return {
        f"{META}protocolVersion": MODERN,
        f"{META}clientInfo": {"name": "tests", "version": "1"},
        f"{META}clientCapabilities": capabilities or {},
    }


def _build_headers(method: str, params: dict[str, Any]) -> dict[str, str]:
    headers = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
    if (name := params.get("name") or params.get("uri")) and "/list" not in method:
        headers["Mcp_Name"] = name
    return headers


def _complete_headers(headers: dict[str, str]) -> dict[str, str]:
    return {
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }


def _parse_reply(response: httpx2.Response) -> Reply:
    headers = dict(response.headers)
    if headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
        messages = [json.loads(line) for line in lines if line]
        responses = [m for m in messages if "method" not in m]
        notifications = [m for m in messages if "method" in m]
        return Reply(
            response.status_code,
            headers,
            responses[-1] if responses else {},
            notifications,
            messages,
        )
    message = response.json() if response.content else {}
    return Reply(response.status_code, headers, message)


def token_of(principal: Principal, role: Role = Role.OWNER, **more: Any) -> str:
    """Create a token and return its text."""
    return create_token(principal, name="tests", role=role, **more)[1]


@pytest.fixture
def gateway_client(acme: Organization) -> Iterator[GatewayClient]:
    """A client of the gateway with an owner's token of the organization."""
    mount = GatewayApplication()
    yield GatewayClient(mount, token_of(factories.build_administrator(acme)))
    get_runtime().call(mount.stop)
    get_writer().close()
