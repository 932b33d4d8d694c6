"""Mounting: the gateway's addresses over HTTP, before Django (DESIGN section 4).

Who asks is known before anything of a request is read: without a token that may be used here,
nothing is. The SDK's manager runs in one task of the process's loop, from the first request on.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from django.conf import settings
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from bonobot.gateway import origins
from bonobot.gateway.challenges import challenge, resource_metadata
from bonobot.gateway.clients import SESSION_ID
from bonobot.gateway.places import ROOT, Address, read
from bonobot.gateway.serving import Serving
from bonobot.gateway.visitors import Visitor, entered, welcome
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.issuers import announced
from bonobot.tenancy.roles import Scope as Wanted

METADATA = "/.well-known/oauth-protected-resource"
LONGEST_TOKEN = 8_192
PRIVATE = [(b"cache-control", b"no-store")]

Scope = dict[str, Any]


class NoToken(Problem):
    """A request without a token: nobody is let in without one (FEATURES D7)."""

    code = "not_authenticated"
    status = 401
    title = "No token"


class Mount:
    """The ASGI application of the gateway's paths."""

    def __init__(self) -> None:
        self.serving = Serving()
        self._manager: StreamableHTTPSessionManager | None = None
        self._starting = asyncio.Lock()
        self._stop = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request to one of the gateway's paths."""
        headers = _headers(scope)
        if origins.asks_first(scope["method"], headers):
            start = {"type": "http.response.start", "status": HTTPStatus.NO_CONTENT}
            await send(start | {"headers": origins.allowing(headers)})
            await send({"type": "http.response.body"})
            return
        send = origins.letting_read(send, headers)
        if scope["path"].startswith(METADATA):
            told = await metadata(scope["path"].removeprefix(METADATA))
            await _answer(send, 200, told)
            return
        address = read(scope["path"])
        try:
            visitor = await _visitor(scope, address)
        except Problem as problem:
            await _refuse(send, problem, address)
            return
        entered(visitor)
        manager = await self._running()
        scope = {**scope, "user": _as_user(visitor)}
        number = headers.get(SESSION_ID, "")
        async with self._following(visitor, number if scope["method"] == "GET" else ""):
            await manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE" and self.serving.clients.session(number, visitor):
            self.serving.clients.forget(number)

    async def stop(self) -> None:
        """End all sessions and streams."""
        self.serving.listening.stop()
        self.serving.clients.close()
        if self._owner is not None:
            self._stop.set()
            await self._owner

    @asynccontextmanager
    async def _following(self, visitor: Visitor, number: str) -> AsyncIterator[None]:
        """Have changes told on the stream that a session keeps open for what comes unasked."""
        if not number:
            yield
            return
        clients = self.serving.clients
        session = partial(clients.session, number, visitor)
        telling = runtime().spawn(
            self.serving.listening.follow(visitor, session), name=f"tell {number}"
        )
        try:
            with clients.open_stream(number):
                yield
        finally:
            telling.cancel()

    async def _running(self) -> StreamableHTTPSessionManager:
        if self._manager is None:
            async with self._starting:
                if self._manager is None:
                    ready: asyncio.Future[StreamableHTTPSessionManager] = (
                        runtime().loop.create_future()
                    )
                    self._owner = runtime().loop.create_task(self._own(ready), name="gateway")
                    runtime().on_close(self.stop)
                    self._manager = await ready
        return self._manager

    async def _own(self, ready: "asyncio.Future[StreamableHTTPSessionManager]") -> None:
        """Enter and leave the manager in one task, as it must be."""
        manager = StreamableHTTPSessionManager(self.serving.server, security_settings=security())
        async with manager.run():
            ready.set_result(manager)
            await self._stop.wait()


def serves(path: str) -> bool:
    """Tell whether a path is the gateway's."""
    return path == ROOT or path.startswith((f"{ROOT}/", METADATA))


def security() -> TransportSecuritySettings:
    """Return the hosts and origins that may be named, against rebinding of names."""
    hosts = [host for host in settings.ALLOWED_HOSTS if host]
    named = [*hosts, *(f"{host}:*" for host in hosts)]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection="*" not in hosts,
        allowed_hosts=named,
        allowed_origins=[
            settings.BONOBOT_URL,
            *settings.BONOBOT_CORS_ORIGINS,
            *(f"{scheme}://{host}" for host in named for scheme in ("http", "https")),
        ],
    )


async def metadata(path: str) -> dict[str, Any]:
    """Return what says where tokens for an address come from (RFC 9728)."""
    own = (settings.BONOBOT_URL,) if settings.BONOBOT_OAUTH else ()
    issuers = (*own, *await runtime().orm(announced))
    return resource_metadata(settings.BONOBOT_URL + (path or ROOT), issuers=issuers)


async def _visitor(scope: Scope, address: Address | None) -> Visitor:
    kind, _, token = _headers(scope).get("authorization", "").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > LONGEST_TOKEN:
        raise NoToken(
            "Send a token: `Authorization: Bearer …`.",
            remedy="Make one: `bonobot tokens create NAME --role ROLE`.",
        )
    # What is no address at all is still only told to who may know.
    caller, *_ = scope.get("client") or ("",)
    visitor = await welcome(token, address or Address("organization"), caller)
    if address is None:
        raise Problem("There is nothing here.", code="unknown_endpoint", status=404)
    return visitor


def _as_user(visitor: Visitor) -> AuthenticatedUser:
    """Return the visitor as the SDK compares it: a session belongs to its principal and place."""
    return AuthenticatedUser(
        AccessToken(token="", client_id=visitor.key, scopes=[], subject=visitor.principal.id)
    )


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def _refuse(send: Any, problem: Problem, address: Address | None) -> None:
    """Answer with problem details, and where a token would do, with where it comes from."""
    headers = []
    if problem.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        path = address.path if address else ROOT
        told = challenge(f"{settings.BONOBOT_URL}{METADATA}{path}", problem, _usual(address))
        headers.append((b"www-authenticate", told.encode("latin-1")))
    await _answer(send, problem.status, problem.as_dict(), headers, "application/problem+json")


def _usual(address: Address | None) -> str:
    """Return the scope that a program should ask its person for here; blank for nobody to ask."""
    if not settings.BONOBOT_OAUTH or address is None:
        return ""
    return Wanted.AGENTS if address.kind == "organization" else Wanted.TOOLS


async def _answer(
    send: Any,
    status: int,
    body: Mapping[str, Any],
    headers: list[tuple[bytes, bytes]] | None = None,
    kind: str = "application/json",
) -> None:
    content = json.dumps(body).encode()
    sent = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]
    start = {"type": "http.response.start", "status": status}
    await send(start | {"headers": [*sent, *PRIVATE, *(headers or ())]})
    await send({"type": "http.response.body", "body": content})
