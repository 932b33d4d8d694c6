"""Continue a client's handshake session in any process that receives its requests.

The SDK keeps sessions in one process. So their state is stored (`client_sessions`), and a process
that doesn't know a session opens one of its own with the stored parameters, under another ID that
only it uses. A session that was deleted, or belongs to someone else, is unknown everywhere.

Requests to the client carry the mark of their process in their ID. A response that reaches another
process, and each cancellation, is stored as a message for the others.
"""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from agents.gateway import client_sessions
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.client_sessions import SESSION_ID_HEADER, GatewaySessionStore
from agents.gateway.request_bodies import (
    Receive,
    Send,
    build_body_message,
    parse_object,
    replay_messages,
)
from agents.models import GatewaySessionState
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS
from bonobot.core.message_bus import get_bus
from bonobot.core.runtime import get_runtime

BUS_CHANNEL = "gateway-sessions"
SYNC_INTERVAL_S = 1.0
MAX_SEEN = 10_000
CANCELLED = "notifications/cancelled"
_DROPPED_HEADERS = frozenset(
    (
        *(SESSION_ID_HEADER.encode(), b"mcp-protocol-version", b"content-length"),
        *(b"content-type", b"accept", b"last-event-id", b"authorization"),
    )
)

Scope = dict[str, Any]
Handle = Callable[[Any, Receive, Send], Awaitable[None]]


@dataclass
class LocalSession:
    """This process's part of a client's session: its ID here, and the request that opened it."""

    local_id: str
    state_id: UUID
    scope: Scope


class SessionRouter:
    """The client's sessions that this process serves, by the IDs that clients use."""

    def __init__(self, store: GatewaySessionStore) -> None:
        self.id = uuid4()
        self._mark = self.id.hex[:12]
        self._store = store
        self._sessions: dict[str, LocalSession] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._handle: Handle | None = None
        self._syncing: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._seen: OrderedDict[UUID, None] = OrderedDict()

    async def add_session(
        self, session_id: str, caller: AuthenticatedClient, params: Mapping[str, Any], scope: Scope
    ) -> None:
        """Store a session that was opened here."""
        self._store.open_session(session_id, caller, params)
        session = self._store.find_session(session_id, caller)
        assert session is not None  # noqa: S101 - it was just added
        with suppress(*UNAVAILABLE_ERRORS):  # then it lives in this process only
            state_id = await get_runtime().run_orm(
                client_sessions.create_state, session_id, caller, params, session.log_level
            )
            if state_id is not None:
                session.state_id = state_id
                self._sessions[session_id] = LocalSession(session_id, state_id, _strip_scope(scope))

    async def route(
        self,
        caller: AuthenticatedClient,
        scope: Scope,
        send: Send,
        handle: Handle,
    ) -> tuple[Scope, Send]:
        """Return the scope and `send` of a request for this process's part of its session."""
        self._handle = handle
        session_id = _read_session_id(scope)
        if not session_id:
            return scope, self._mark_requests(send, {})
        try:
            local_id = await self._find_local_id(session_id, caller, scope)
        except UNAVAILABLE_ERRORS:
            local_id = session_id
        self._ensure_syncing()
        return _replace_session_id(scope, local_id), self._mark_requests(
            send, {local_id.encode(): session_id.encode()}
        )

    async def accept_message(self, scope: Scope, body: bytes) -> bytes | None:
        """Return a client's message as this process knows it; None if it is for another one.

        `scope` is the routed one.
        """
        if not any(word in body for word in (b'"result"', b'"error"', CANCELLED.encode())):
            return body  # a request
        message = parse_object(body)
        local_id = _read_session_id(scope)
        local = next(
            (session for session in self._sessions.values() if session.local_id == local_id), None
        )
        if message is None or local is None:
            return body
        if message.get("method") == CANCELLED:
            await self._send_to_others(local.state_id, message)
            return body
        mark, _, request_id = str(message.get("id", "")).partition(":")
        if "method" in message or not request_id:
            return body
        if mark != self._mark:
            await self._send_to_others(local.state_id, message)
            return None
        return self._unmark(message)

    async def delete_session(self, scope: Scope, caller: AuthenticatedClient) -> None:
        """Delete a session in all processes."""
        session_id = _read_session_id(scope)
        self._sessions.pop(session_id, None)
        await get_runtime().run_orm(client_sessions.delete_state, session_id, caller)
        get_bus().queue_wakeup(BUS_CHANNEL)

    def stop(self) -> None:
        """Stop synchronizing; the sessions continue in other processes."""
        if self._syncing is not None:
            self._syncing.cancel()

    async def _find_local_id(
        self, session_id: str, caller: AuthenticatedClient, scope: Scope
    ) -> str:
        """Return the ID of a session here; an unknown one if it isn't the caller's."""
        state = await get_runtime().run_orm(client_sessions.find_state, session_id, caller)
        local = self._sessions.get(session_id)
        if state is None:
            if local is not None and self._store.find_session(local.local_id, caller) is not None:
                await self._end_local(session_id)
            return session_id  # which only a session that couldn't be stored still has
        async with self._locks.setdefault(session_id, asyncio.Lock()):
            local = self._sessions.get(session_id)
            if local is None or self._store.find_session(local.local_id, caller) is None:
                local_id = await self._open_local(state, caller, scope)
                local = LocalSession(local_id, state.pk, _strip_scope(scope))
                self._sessions[session_id] = local
        self._locks.pop(session_id, None)
        if (session := self._store.find_session(local.local_id, caller)) is not None:
            session.log_level = state.log_level
        return local.local_id

    async def _open_local(
        self, state: GatewaySessionState, caller: AuthenticatedClient, scope: Scope
    ) -> str:
        """Open this process's part of a stored session, and return its ID."""
        initialize = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": state.params}
        local_id = await self._post(scope, "", initialize)
        await self._post(scope, local_id, {"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._store.open_session(local_id, caller, state.params)
        await self._store.restore_session(local_id, caller, state)
        return local_id

    async def _post(self, scope: Scope, local_id: str, message: Mapping[str, Any]) -> str:
        """Send a message to this process's session manager; return the session ID it answers."""
        assert self._handle is not None  # noqa: S101 - requests come first
        body, answered_id = json.dumps(message).encode(), ""

        async def send(part: dict[str, Any]) -> None:
            nonlocal answered_id
            if part["type"] == "http.response.start":
                answered_id = _read_session_id(part)

        request = _build_own_request(scope, "POST", local_id, len(body))
        receive = replay_messages([build_body_message(body)], _wait_forever)
        await self._handle(request, receive, send)
        return answered_id

    async def _end_local(self, session_id: str) -> None:
        """End this process's part of a session, with its streams and connections."""
        local = self._sessions.pop(session_id, None)
        if local is None or self._handle is None:
            return
        self._store.delete_session(local.local_id)

        async def send(_part: dict[str, Any]) -> None:
            return

        request = _build_own_request(local.scope, "DELETE", local.local_id, 0)
        receive = replay_messages([build_body_message(b"")], _wait_forever)
        await self._handle(request, receive, send)

    async def _send_to_others(self, state_id: UUID, message: Mapping[str, Any]) -> None:
        await get_runtime().run_orm(client_sessions.add_message, state_id, self.id, message)
        get_bus().queue_wakeup(BUS_CHANNEL)

    def _ensure_syncing(self) -> None:
        if self._syncing is None or self._syncing.done():
            self._syncing = get_runtime().create_task(self._run_syncing(), name="sync sessions")

    async def _run_syncing(self) -> None:
        wake = self._wake.set
        await get_bus().add_listener(BUS_CHANNEL, wake)
        try:
            while self._sessions:
                self._wake.clear()
                with suppress(*UNAVAILABLE_ERRORS):
                    await self._sync()
                with suppress(TimeoutError):
                    async with asyncio.timeout(SYNC_INTERVAL_S):
                        await self._wake.wait()
        finally:
            get_bus().remove_listener(BUS_CHANNEL, wake)

    async def _sync(self) -> None:
        """End sessions that ended elsewhere, and deliver what other processes received."""
        sessions = {local.state_id: (key, local) for key, local in self._sessions.items()}
        used_ids = [
            state_id
            for state_id, (_, local) in sessions.items()
            if self._store.is_in_use(local.local_id)
        ]
        save_counts = {
            state_id: self._store.get_save_count(sessions[state_id][1].local_id)
            for state_id in used_ids
        }
        orm = get_runtime().run_orm
        states = await orm(client_sessions.load_live_states, list(sessions), used_ids)
        for state_id in sessions.keys() - states.keys():
            await self._end_local(sessions[state_id][0])
        for state_id in used_ids:
            if state_id in states:
                await self._store.sync_session(
                    sessions[state_id][1].local_id, states[state_id], save_counts[state_id]
                )
        if not used_ids:
            return
        for key, state_id, body in await orm(
            client_sessions.load_messages, used_ids, self.id, list(self._seen)
        ):
            self._seen[key] = None
            if len(self._seen) > MAX_SEEN:
                self._seen.popitem(last=False)
            await self._deliver(sessions[state_id][1], body)

    async def _deliver(self, local: LocalSession, message: dict[str, Any]) -> None:
        is_own = str(message.get("id", "")).partition(":")[0] == self._mark
        if message.get("method") == CANCELLED:
            await self._post(local.scope, local.local_id, message)
        elif is_own and "method" not in message:
            await self._post(local.scope, local.local_id, json.loads(self._unmark(message)))

    def _unmark(self, message: Mapping[str, Any]) -> bytes:
        """Return a response with the ID that this process's session manager uses."""
        _, _, request_id = str(message["id"]).partition(":")
        with suppress(ValueError, RecursionError):
            return json.dumps({**message, "id": json.loads(request_id)}).encode()
        return json.dumps(message).encode()

    def _mark_requests(self, send: Send, session_ids: Mapping[bytes, bytes]) -> Send:
        """Return a `send` that marks requests to the client, and names the client's session ID."""

        async def send_marked(part: dict[str, Any]) -> None:
            if part["type"] == "http.response.start":
                headers = [(name, session_ids.get(value, value)) for name, value in part["headers"]]
                part = {**part, "headers": headers}
            elif b'"method"' in part.get("body", b"") and b'"id"' in part["body"]:
                part = {**part, "body": self._mark_events(part["body"])}
            await send(part)

        return send_marked

    def _mark_events(self, content: bytes) -> bytes:
        lines = content.split(b"\n")
        for index, line in enumerate(lines):
            if not line.startswith(b"data: {"):
                continue
            message = parse_object(line[6:])
            if message is not None and "method" in message and "id" in message:
                marked_id = f"{self._mark}:{json.dumps(message['id'])}"
                data = json.dumps({**message, "id": marked_id}).encode()
                lines[index] = b"data: " + data + (b"\r" if line.endswith(b"\r") else b"")
        return b"\n".join(lines)


def _read_session_id(scope: Mapping[str, Any]) -> str:
    """Return the session ID in the headers of a request or response; blank without one."""
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    name = SESSION_ID_HEADER.encode()
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), "")


def _replace_session_id(scope: Scope, session_id: str) -> Scope:
    name = SESSION_ID_HEADER.encode()
    headers = [item for item in scope["headers"] if item[0] != name]
    return {**scope, "headers": [*headers, (name, session_id.encode("latin-1"))]}


async def _wait_forever() -> dict[str, Any]:
    """Wait: a request of this process is never disconnected."""
    await asyncio.Event().wait()
    raise AssertionError


def _strip_scope(scope: Scope) -> Scope:
    """Return a request's scope without what belongs to that request alone."""
    headers = [item for item in scope["headers"] if item[0] not in _DROPPED_HEADERS]
    return {**scope, "headers": headers}


def _build_own_request(scope: Scope, method: str, session_id: str, length: int) -> Scope:
    """Return a request of this process to its own session manager, as the client's."""
    headers = [
        *_strip_scope(scope)["headers"],
        (b"content-type", b"application/json"),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-length", str(length).encode()),
    ]
    if session_id:
        headers.append((SESSION_ID_HEADER.encode(), session_id.encode("latin-1")))
    return {**scope, "method": method, "headers": headers}
