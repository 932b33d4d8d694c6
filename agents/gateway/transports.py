"""The gateway's transports: Streamable HTTP (mounted before Django) and stdio.

Clients are authenticated before a request's body is read. The token is verified for each request,
so a revoked one is rejected at once. The SDK's session manager runs in one task of the process's
event loop, started with the first request.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, get_args

from django.conf import settings
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from agents.gateway.authentication import (
    AuthenticatedClient,
    authenticate_client,
    build_resource_metadata,
    set_current_client,
)
from agents.gateway.batches import (
    BATCH_VERSION,
    BatchResponse,
    build_batch_error,
    is_batch,
    parse_batch,
)
from agents.gateway.client_sessions import SESSION_ID_HEADER
from agents.gateway.direct_requests import DirectResponder, is_direct_candidate
from agents.gateway.dispatcher import GatewayDispatcher
from agents.gateway.errors import build_problem_headers
from agents.gateway.forwarded_requests import Kind
from agents.gateway.organization_server.management_tools import prepare_management_tools
from agents.gateway.protocol_versions import VERSION_HEADER, find_version_conflict
from agents.gateway.request_bodies import (
    Receive,
    Send,
    build_body_message,
    parse_object,
    read_body,
    replay_messages,
)
from agents.gateway.routes import METADATA_PATH, ROOT_PATH, GatewayAddress, parse_path
from agents.gateway.session_router import SessionRouter
from bonobot.accounts.external_issuers.services import list_announced_issuers
from bonobot.core.http import cors
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.protocol_versions import HANDSHAKE_VERSIONS

MAX_TOKEN_LENGTH = 8_192
NO_STORE_HEADERS = [(b"cache-control", b"no-store")]

Scope = dict[str, Any]
# A stdio client has no network address, so tokens restricted to networks are rejected.
NO_ADDRESS = ""


class MissingToken(Problem):
    """A request without a token."""

    code = "not_authenticated"
    status = 401
    title = "No token"


class GatewayApplication:
    """The ASGI application of the gateway's paths."""

    def __init__(self) -> None:
        self.dispatcher = GatewayDispatcher()
        self.router = SessionRouter(self.dispatcher.sessions)
        self._direct = DirectResponder(self.dispatcher.answer_directly, build_security_settings)
        self._manager: StreamableHTTPSessionManager | None = None
        self._starting = asyncio.Lock()
        self._stop = asyncio.Event()
        self._manager_task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a request to one of the gateway's paths."""
        headers = _decode_headers(scope)
        if scope["method"] == "OPTIONS" and cors.is_preflight("OPTIONS", headers):
            start = {"type": "http.response.start", "status": HTTPStatus.NO_CONTENT}
            await send(start | {"headers": cors.build_preflight_headers(headers)})
            await send({"type": "http.response.body"})
            return
        if "origin" in headers:
            send = cors.wrap_send_with_cors(send, headers)
        if scope["path"].startswith(METADATA_PATH):
            metadata = await load_resource_metadata(scope["path"].removeprefix(METADATA_PATH))
            await _send_json(send, 200, metadata)
            return
        address = parse_path(scope["path"], scope.get("query_string", b""))
        try:
            caller = await _authenticate_request(headers, scope, address)
        except Problem as problem:
            await _send_json(
                send,
                problem.status,
                problem.as_dict(),
                build_problem_headers(problem, address),
                "application/problem+json",
            )
            return
        if scope["method"] == "POST" and is_direct_candidate(headers, scope["headers"]):
            body, replay = await read_body(receive)
            request = await self._direct.accept_request(caller, headers, body or b"")
            if request is not None:
                await self._direct.respond(caller, request, receive, send)
                return
            receive = replay
        set_current_client(caller)
        await self._forward_to_sdk(caller, headers, scope, receive, send)

    async def stop(self) -> None:
        """End all sessions, suspended calls and streams."""
        self.router.stop()
        await self.dispatcher.stop()
        if self._manager_task is not None:
            self._stop.set()
            await self._manager_task

    async def _forward_to_sdk(
        self,
        caller: AuthenticatedClient,
        headers: Mapping[str, str],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request with the SDK's session manager."""
        scope = {**scope, "user": _build_user(caller)}
        manager = await self._get_manager()
        client_scope, is_handshake = scope, _is_handshake(headers)
        if is_handshake:
            scope, send = await self.router.route(caller, scope, send, manager.handle_request)
        if scope["method"] == "POST":
            await self._answer_post(caller, scope, receive, send)
            return
        session_id = _decode_headers(scope).get(SESSION_ID_HEADER, "")
        sessions = self.dispatcher.sessions
        ends_session = (
            scope["method"] == "DELETE"
            and is_handshake
            and sessions.find_session(session_id, caller) is not None
        )
        if ends_session:  # before the response: the next request must not restore the session
            await self.router.delete_session(client_scope, caller)
        async with self._notify_session(caller, session_id if scope["method"] == "GET" else ""):
            await manager.handle_request(scope, receive, send)
        if ends_session:
            sessions.delete_session(session_id)

    async def _answer_post(
        self, caller: AuthenticatedClient, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body, receive = await read_body(receive)
        if body is not None and (conflict := find_version_conflict(scope["headers"], body)):
            await _send_json(send, HTTPStatus.BAD_REQUEST, conflict)
            return
        if body is not None and is_batch(body):
            await self._answer_batch(caller, body, scope, receive, send)
            return
        if body is not None and b'"initialize"' in body:
            send = self._register_on_answer(caller, body, scope, send)
        elif body is not None:
            accepted = await self.router.accept_message(scope, body)
            if accepted is None:  # another process waits for it
                await _send_accepted(send)
                return
            if accepted is not body:
                receive = replay_messages([build_body_message(accepted)], receive)
        manager = await self._get_manager()
        await manager.handle_request(scope, receive, send)

    async def _answer_batch(
        self, caller: AuthenticatedClient, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        session_id = _decode_headers(scope).get(SESSION_ID_HEADER, "")
        session = self.dispatcher.sessions.find_session(session_id, caller)
        messages: list[dict[str, Any]] | str = (
            f"Batches are only supported in sessions of MCP {BATCH_VERSION}."
        )
        if session is not None and session.protocol_version == BATCH_VERSION:
            messages = parse_batch(body)
        if isinstance(messages, str):
            await _send_json(send, HTTPStatus.BAD_REQUEST, build_batch_error(messages))
            return
        accepted = [
            await self.router.accept_message(scope, json.dumps(message).encode())
            for message in messages
        ]
        own_messages = [json.loads(message) for message in accepted if message is not None]
        manager = await self._get_manager()
        await BatchResponse(scope, receive, send).answer(own_messages, manager.handle_request)

    def _register_on_answer(
        self, caller: AuthenticatedClient, body: bytes, scope: Scope, send: Send
    ) -> Send:
        """Return a `send` that adds the session before its `initialize` request is answered."""
        message, session_id = parse_object(body) or {}, ""

        async def send_and_register(part: dict[str, Any]) -> None:
            nonlocal session_id
            if part["type"] == "http.response.start":
                session_id = _decode_headers(part).get(SESSION_ID_HEADER, "")
            elif session_id and b'"result"' in part.get("body", b""):
                params = message.get("params") or {}
                await self.router.add_session(session_id, caller, params, scope)
                session_id = ""
            await send(part)

        return send_and_register if message.get("method") == "initialize" else send

    @asynccontextmanager
    async def _notify_session(
        self, caller: AuthenticatedClient, session_id: str
    ) -> AsyncIterator[None]:
        """Send change notifications while a session's notification stream is open."""
        if not session_id:
            yield
            return
        sessions = self.dispatcher.sessions
        find_session = partial(sessions.find_session, session_id, caller)
        notifier = get_runtime().spawn(
            self.dispatcher.change_streams.notify_session(caller, find_session),
            name=f"tell {session_id}",
        )
        try:
            with sessions.open_stream(session_id):
                yield
        finally:
            notifier.cancel()

    async def _get_manager(self) -> StreamableHTTPSessionManager:
        if self._manager is None:
            async with self._starting:
                if self._manager is None:
                    ready: asyncio.Future[StreamableHTTPSessionManager] = (
                        get_runtime().loop.create_future()
                    )
                    self._manager_task = get_runtime().loop.create_task(
                        self._run_manager(ready), name="gateway"
                    )
                    get_runtime().on_close(self.stop)
                    self._manager = await ready
        return self._manager

    async def _run_manager(self, ready: "asyncio.Future[StreamableHTTPSessionManager]") -> None:
        """Enter and exit the manager in the same task, as it requires."""
        manager = StreamableHTTPSessionManager(
            self.dispatcher.server, security_settings=build_security_settings()
        )
        async with manager.run():
            ready.set_result(manager)
            await self._stop.wait()


def _is_handshake(headers: Mapping[str, str]) -> bool:
    """Tell whether a request's version header, or its absence, is of the handshake era."""
    return headers.get(VERSION_HEADER.decode(), "") in ("", *HANDSHAKE_VERSIONS)


def is_gateway_path(path: str) -> bool:
    """Tell whether a path is the gateway's."""
    return path == ROOT_PATH or path.startswith((f"{ROOT_PATH}/", METADATA_PATH))


def build_security_settings() -> TransportSecuritySettings:
    """Return the allowed hosts and origins, against DNS rebinding."""
    hosts = [host for host in settings.ALLOWED_HOSTS if host]
    allowed_hosts = [*hosts, *(f"{host}:*" for host in hosts)]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection="*" not in hosts,
        allowed_hosts=allowed_hosts,
        allowed_origins=[
            settings.BONOBOT_URL,
            *settings.BONOBOT_CORS_ORIGINS,
            *(f"{scheme}://{host}" for host in allowed_hosts for scheme in ("http", "https")),
        ],
    )


async def load_resource_metadata(path: str) -> dict[str, Any]:
    """Return the protected resource metadata of an address (RFC 9728)."""
    own_issuers = (settings.BONOBOT_URL,) if settings.BONOBOT_OAUTH else ()
    issuers = (*own_issuers, *await get_runtime().run_orm(list_announced_issuers))
    return build_resource_metadata(settings.BONOBOT_URL + (path or ROOT_PATH), issuers=issuers)


async def _authenticate_request(
    headers: Mapping[str, str], scope: Scope, address: GatewayAddress | None
) -> AuthenticatedClient:
    kind, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not token or len(token) > MAX_TOKEN_LENGTH:
        raise MissingToken(
            "Send a token: `Authorization: Bearer …`.",
            remedy="Create one: `bonobot tokens create NAME --role ROLE`.",
        )
    # Authenticate before reporting an unknown address.
    remote_address, *_ = scope.get("client") or ("",)
    client = await authenticate_client(
        token, address or GatewayAddress("organization"), remote_address
    )
    if address is None:
        raise Problem("No results.", code="unknown_endpoint", status=404)
    return client


def _build_user(caller: AuthenticatedClient) -> AuthenticatedUser:
    """Return the SDK's user for a caller; the SDK binds a session to it."""
    return AuthenticatedUser(
        AccessToken(token="", client_id=caller.key, scopes=[], subject=caller.principal.id)
    )


def _decode_headers(scope: Scope) -> dict[str, str]:
    # ASGI servers send names in lower case.
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


async def _send_accepted(send: Any) -> None:
    """Send status 202."""
    headers = [(b"content-length", b"0")]
    start = {"type": "http.response.start", "status": HTTPStatus.ACCEPTED}
    await send(start | {"headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def _send_json(
    send: Any,
    status: int,
    body: Mapping[str, Any],
    headers: list[tuple[bytes, bytes]] | None = None,
    content_type: str = "application/json",
) -> None:
    content = json.dumps(body).encode()
    base_headers = [
        (b"content-type", content_type.encode()),
        (b"content-length", str(len(content)).encode()),
    ]
    start = {"type": "http.response.start", "status": status}
    await send(start | {"headers": [*base_headers, *NO_STORE_HEADERS, *(headers or ())]})
    await send({"type": "http.response.body", "body": content})


async def count_declarations(token: str, address: GatewayAddress) -> dict[str, int]:
    """Count the declarations at an address by kind; raises as `authenticate_client`."""
    caller, dispatcher = await authenticate_client(token, address, NO_ADDRESS), GatewayDispatcher()
    return {kind: len(await dispatcher.list_declarations(caller, kind)) for kind in get_args(Kind)}


async def serve_stdio(token: str, address: GatewayAddress) -> None:
    """Serve an address until standard input ends; raises as `authenticate_client`."""
    caller = await authenticate_client(token, address, NO_ADDRESS)
    if address.kind == "organization":
        await get_runtime().run_orm(prepare_management_tools)
    dispatcher = GatewayDispatcher(partial(authenticate_client, token, address, NO_ADDRESS))
    find_session = partial(dispatcher.sessions.find_stdio_session, caller)
    async with stdio_server() as (read_stream, write_stream):
        notifier = get_runtime().loop.create_task(
            dispatcher.change_streams.notify_session(caller, find_session)
        )
        try:
            options = dispatcher.server.create_initialization_options()
            await dispatcher.server.run(read_stream, write_stream, options)
        finally:
            notifier.cancel()
            dispatcher.change_streams.stop()
            with suppress(asyncio.CancelledError):
                await notifier
