"""State of connected clients.

A modern request carries all of it. For a client of the handshake era, a session in this process
holds its capabilities, log level and watched resources.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone
from mcp.server.session import ServerSession

from agents.calls.pipeline import release_connections
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.client_request import (
    LOG_LEVELS,
    Context,
    GatewayRequest,
    build_holder,
    build_invalid_params_error,
    choose_holder,
    format_client_name,
    get_client_profile,
)
from agents.gateway.forwarded_requests import Kind
from agents.gateway.log_messages import LogForwarder
from agents.gateway.mcp_host import MAX_CONNECTIONS
from agents.gateway.protocol_versions import negotiate_version
from agents.gateway.resource_subscriptions import (
    WatchedResource,
    unwatch_resources,
    watch_resources,
)
from agents.models import GatewaySessionMessage, GatewaySessionState
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS, lock_rows
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

SESSION_ID_HEADER = "mcp-session-id"
MAX_SESSIONS = 10_000
MAX_WATCHED_RESOURCES = 1_000
DEFAULT_LOG_LEVEL = "debug"
# A session that is unused for this long has been ended by the SDK.
IDLE_S = 1_800.0
# After this long without a stream or a request, a session with a closed stream is disconnected.
DISCONNECT_GRACE_S = 30.0
# A session that is unused for this long has ended.
LIFETIME = timedelta(days=1)
TOUCH_INTERVAL = timedelta(minutes=1)
MESSAGE_LIFETIME = timedelta(minutes=5)
# Bytes of stored parameters and watched resources; larger ones stay in their process.
MAX_STATE_SIZE = 65_536


@dataclass
class GatewaySession:
    """The state of a handshake era client's session; `owner_key` is its caller's key."""

    owner_key: str = ""
    caller: AuthenticatedClient | None = None
    # The keys that own its connections; other sessions may share the second.
    holders: tuple[str, ...] = ()
    pending_count: int = 0
    # Its row, and the watched resources in it as far as this process has read or written them.
    state_id: UUID | None = None
    stored_uris: frozenset[str] = frozenset()
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)
    # Incremented when a save starts and when it ends, so it is odd during a save.
    save_count: int = 0
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    client_name: str = ""
    protocol_version: str = ""
    log_level: str = DEFAULT_LOG_LEVEL
    watched: dict[str, WatchedResource] = field(default_factory=dict)
    # Digests of the lists that the client knows, by kind.
    list_digests: dict[Kind, str] = field(default_factory=dict)
    server_session: ServerSession | None = None
    used_at: float = 0.0


class GatewaySessionStore:
    """The sessions of this process's handshake era clients, by id, limited in number."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, GatewaySession] = OrderedDict()
        self.logs = LogForwarder()
        # Number of open notification streams, by session id.
        self._open_streams: Counter[str] = Counter()
        # The session id of the only client on stdio.
        self._stdio_session_id = f"stdio-{uuid4()}"

    def build_request(self, context: Context, caller: AuthenticatedClient) -> GatewayRequest:
        """Return a request of the handshake era with its session's state."""
        session_id = self.get_session_id(context)
        session = self._get_or_create_session(session_id, context)
        session.owner_key, session.caller = caller.key, caller
        holder, shared_holder = _build_holders(session_id, caller, session.capabilities)
        if session_id:
            session.holders = (holder, shared_holder)
            for session_holder in session.holders:
                self.logs.add_subscriber(session_id, session, session_holder)
        return GatewayRequest(
            caller=caller,
            method=context.method,
            is_modern=False,
            holder=holder,
            shared_holder=shared_holder,
            subscriber=session_id,
            log_level=session.log_level,
            params=context.params or {},
            capabilities=session.capabilities,
            client_name=session.client_name,
            sdk_context=context,
        )

    def get_session_id(self, context: Context) -> str:
        """Return the session id of a request of the handshake era."""
        if context.request is None:
            return self._stdio_session_id
        return context.request.headers.get(SESSION_ID_HEADER) or ""

    def find_session(self, session_id: str, caller: AuthenticatedClient) -> GatewaySession | None:
        """Find a session of the caller."""
        known_session = self._sessions.get(session_id)
        return (
            known_session
            if known_session is not None and known_session.owner_key == caller.key
            else None
        )

    def find_stdio_session(self, caller: AuthenticatedClient) -> GatewaySession | None:
        """Find the session of the only client on stdio."""
        return self.find_session(self._stdio_session_id, caller)

    def open_session(
        self, session_id: str, caller: AuthenticatedClient, params: Mapping[str, Any]
    ) -> None:
        """Add a session over HTTP when its `initialize` request is answered."""
        session = self._sessions.get(session_id) or self._add_session(session_id)
        session.owner_key, session.caller = caller.key, caller
        session.protocol_version = negotiate_version(params.get("protocolVersion"))

    def register_session(self, context: Context, caller: AuthenticatedClient) -> None:
        """Register a session when it is initialized, so that it can be notified."""
        self._get_or_create_session(self.get_session_id(context), context).owner_key = caller.key

    @contextmanager
    def open_stream(self, session_id: str) -> Iterator[None]:
        """Mark a session's stream as open for the duration of the block."""
        self._open_streams[session_id] += 1
        try:
            yield
        finally:
            self._open_streams[session_id] -= 1
            if not self._open_streams[session_id]:
                del self._open_streams[session_id]
            if (session := self._sessions.get(session_id)) is not None:
                session.used_at = get_runtime().loop.time()
                get_runtime().loop.call_later(
                    DISCONNECT_GRACE_S, self._release_if_disconnected, session_id
                )

    def delete_session(self, session_id: str) -> None:
        """Delete a session and its resource watches."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.logs.remove_subscriber(session_id)
            self._release_connections(session)
            unwatch_resources(session.watched.values())
            session.watched.clear()

    @contextmanager
    def track_request(self, inbound: GatewayRequest) -> Iterator[None]:
        """Count a session's request as pending during the block."""
        session = None if inbound.is_modern else self._sessions.get(inbound.subscriber)
        if session is None:
            yield
            return
        session.pending_count += 1
        try:
            yield
        finally:
            session.pending_count -= 1
            session.used_at = get_runtime().loop.time()

    def is_in_use(self, session_id: str) -> bool:
        """Tell whether a session has an open stream or a pending request here."""
        session = self._sessions.get(session_id)
        is_pending = session is not None and session.pending_count > 0
        return is_pending or session_id in self._open_streams

    async def restore_session(
        self, session_id: str, caller: AuthenticatedClient, state: GatewaySessionState
    ) -> None:
        """Continue a stored session here; updates that were missed are reported."""
        if (session := self.find_session(session_id, caller)) is None:
            return
        session.state_id, session.log_level = state.pk, state.log_level
        session.list_digests = dict(state.list_digests)
        session.capabilities = state.params.get("capabilities") or {}
        await self.sync_session(session_id, state, session.save_count)
        for uri, known_state in state.watched.items():
            if uri in session.watched:
                session.watched[uri].state = known_state

    def get_save_count(self, session_id: str) -> int:
        """Return a session's save count, to pass to `sync_session` with a row that is read next."""
        session = self._sessions.get(session_id)
        return session.save_count if session is not None else 0

    async def sync_session(
        self, session_id: str, state: GatewaySessionState, save_count: int
    ) -> None:
        """Apply what a session's client changed in other processes.

        Ignores a row that may be older than what this process saved: if a save was in progress at
        `save_count`, or began since.
        """
        session = self._sessions.get(session_id)
        if session is None or session.caller is None:
            return
        if save_count % 2 or save_count != session.save_count:
            return
        session.log_level = state.log_level
        stored_uris = frozenset(state.watched)
        added_uris = stored_uris - session.stored_uris - session.watched.keys()
        removed_uris = session.stored_uris - stored_uris
        session.stored_uris = stored_uris
        if added_uris:
            holder, shared_holder = _build_holders(session_id, session.caller, session.capabilities)
            session.watched |= await watch_resources(
                session.caller,
                sorted(added_uris),
                lambda endpoint: choose_holder(endpoint, holder, shared_holder),
            )
        unwatch_resources(
            resource
            for uri in removed_uris
            if (resource := session.watched.pop(uri, None)) is not None
        )

    async def save_session(self, inbound: GatewayRequest, log_level: str | None = None) -> None:
        """Store a session's watched resources and known lists, and `log_level` if given.

        Only the resources that this process added or removed are changed.
        """
        session = self._sessions.get(inbound.subscriber)
        if session is None or session.state_id is None:
            return
        async with session.saving:
            session.save_count += 1
            watched = {uri: resource.state for uri, resource in session.watched.items()}
            stored_uris = session.stored_uris
            update = partial(
                update_state,
                session.state_id,
                log_level=log_level,
                list_digests=dict(session.list_digests),
                watched=watched,
                added_uris=watched.keys() - stored_uris,
                removed_uris=stored_uris - watched.keys(),
            )
            try:
                with suppress(*UNAVAILABLE_ERRORS):  # this process keeps it
                    if await get_runtime().run_orm(update):
                        session.stored_uris = frozenset(watched)
            finally:
                session.save_count += 1

    def delete_all_sessions(self) -> None:
        """Delete all sessions."""
        for session_id in list(self._sessions):
            self.delete_session(session_id)

    def set_log_level(self, inbound: GatewayRequest, level: str) -> None:
        """Set a session's minimum log level; raises `MCPError`."""
        if level not in LOG_LEVELS:
            raise build_invalid_params_error(f"`level` must be one of {', '.join(LOG_LEVELS)}")
        self._get_or_create_session(
            self.get_session_id(inbound.context), inbound.context
        ).log_level = level

    def can_add_watch(self, inbound: GatewayRequest, uri: str) -> bool:
        """Tell whether a session doesn't watch a resource yet; raises `MCPError` at the limit."""
        watched_resources = self._get_or_create_session(
            self.get_session_id(inbound.context), inbound.context
        ).watched
        if len(watched_resources) >= MAX_WATCHED_RESOURCES and uri not in watched_resources:
            raise build_invalid_params_error(
                f"a session watches {MAX_WATCHED_RESOURCES} resources at most"
            )
        return uri not in watched_resources

    def record_list(self, inbound: GatewayRequest, kind: Kind, digest: str) -> bool:
        """Record a list's digest, so that the session is notified of changes.

        Returns whether the client knew another one.
        """
        digests = self._get_or_create_session(
            self.get_session_id(inbound.context), inbound.context
        ).list_digests
        is_new, digests[kind] = digests.get(kind) != digest, digest
        return is_new

    def add_watches(
        self, inbound: GatewayRequest, resources: Mapping[str, WatchedResource]
    ) -> None:
        """Add resource watches to a session; it is notified while its stream is open."""
        session_id = self.get_session_id(inbound.context)
        session = self._get_or_create_session(session_id, inbound.context)
        if not session.watched:
            get_runtime().loop.call_later(IDLE_S, self._expire_session, session_id)
        unwatch_resources(session.watched[uri] for uri in resources if uri in session.watched)
        session.watched |= resources

    def remove_watch(self, inbound: GatewayRequest, uri: str) -> None:
        """Remove a resource watch from a session."""
        session = self._get_or_create_session(self.get_session_id(inbound.context), inbound.context)
        if (resource := session.watched.pop(uri, None)) is not None:
            unwatch_resources([resource])

    def _release_if_disconnected(self, session_id: str) -> None:
        """Close the connections of a session whose stream was closed, if it is gone."""
        session, now = self._sessions.get(session_id), get_runtime().loop.time()
        if session is not None and not self._is_connected(session_id, now):
            self._release_connections(session)

    def _is_connected(self, session_id: str, now: float) -> bool:
        """Tell whether a session has a stream or a request, or had one a moment ago."""
        session = self._sessions[session_id]
        is_busy = session_id in self._open_streams or session.pending_count > 0
        return is_busy or now - session.used_at < DISCONNECT_GRACE_S

    def _release_connections(self, session: GatewaySession) -> None:
        """Close a session's connections, and those that no other session still uses."""
        now = get_runtime().loop.time()
        used_holders = {
            holder
            for session_id, other_session in self._sessions.items()
            if other_session is not session and self._is_connected(session_id, now)
            for holder in other_session.holders
        }
        for holder in set(session.holders) - used_holders:
            get_runtime().create_task(_release_holder(holder), name="release connections")

    def _expire_session(self, session_id: str) -> None:
        """Delete an idle session; check again later if it is in use."""
        session, now = self._sessions.get(session_id), get_runtime().loop.time()
        if session is None or not session.watched:
            return
        if session_id in self._open_streams or now - session.used_at < IDLE_S:
            get_runtime().loop.call_later(IDLE_S, self._expire_session, session_id)
        else:
            self.delete_session(session_id)

    def _add_session(self, session_id: str) -> GatewaySession:
        session = self._sessions[session_id] = GatewaySession()
        session.used_at = get_runtime().loop.time()
        if len(self._sessions) > MAX_SESSIONS:
            self.delete_session(next(iter(self._sessions)))
        return session

    def _get_or_create_session(self, session_id: str, context: Context) -> GatewaySession:
        session = self._sessions.get(session_id)
        if session is None:  # the initialize request has no id yet
            session = self._add_session(session_id) if session_id else GatewaySession()
        if not session.client_name and (client_params := context.session.client_params) is not None:
            session.capabilities = client_params.capabilities.model_dump(
                by_alias=True, exclude_none=True
            )
            session.client_name = format_client_name(
                client_params.client_info.model_dump(exclude_none=True)
            )
        session.server_session = context.session
        session.used_at = get_runtime().loop.time()
        if session_id:
            self._sessions.move_to_end(session_id)
        return session


def build_modern_request(
    caller: AuthenticatedClient,
    method: str,
    params: Mapping[str, Any],
    context: Context | None = None,
    request_id: int | str | None = None,
) -> GatewayRequest:
    """Return a modern request, which carries its client's state.

    `context` is the SDK's, None for a request that is answered without it, by its `request_id`.
    """
    meta = params.get("_meta")
    profile = get_client_profile(caller, meta if isinstance(meta, dict) else {})
    return GatewayRequest(
        caller=caller,
        method=method,
        is_modern=True,
        holder=profile.holder,
        subscriber=profile.holder,
        log_level=profile.log_level,
        params=params,
        capabilities=profile.capabilities,
        client_name=profile.client_name,
        sdk_context=context,
        request_id=request_id,
        profile=profile,
    )


def _build_holders(
    session_id: str, caller: AuthenticatedClient, capabilities: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the keys that own a session's connections: its own, and the one it shares."""
    return f"gateway:{session_id}", f"{build_holder(caller, capabilities)}:handshake"


async def _release_holder(holder: str) -> None:
    """Close a holder's connections, including those of concurrent calls."""
    await release_connections(holder)
    for index in range(1, MAX_CONNECTIONS):
        await release_connections(f"{holder}:{index}")


def create_state(
    session_id: str, caller: AuthenticatedClient, params: Mapping[str, Any], log_level: str
) -> UUID | None:
    """Store a new session, and delete those of its organization that have ended."""
    if len(to_canonical_json(params)) > MAX_STATE_SIZE:
        return None
    now, organization_id = timezone.now(), caller.principal.organization_id
    GatewaySessionState.objects.filter(
        organization_id=organization_id, used_at__lt=now - LIFETIME
    ).delete()
    state = GatewaySessionState.objects.create(
        organization_id=organization_id,
        key_digest=compute_digest(session_id),
        owner_key=caller.key,
        params=params,
        log_level=log_level,
        used_at=now,
    )
    return state.pk


def find_state(session_id: str, caller: AuthenticatedClient) -> GatewaySessionState | None:
    """Return the caller's session with this ID, and record its use (one query, rarely two)."""
    now = timezone.now()
    state = (
        _list_live_states()
        .filter(
            organization_id=caller.principal.organization_id,
            key_digest=compute_digest(session_id),
            owner_key=caller.key,
        )
        .first()
    )
    if state is not None and state.used_at < now - TOUCH_INTERVAL:
        GatewaySessionState.objects.filter(pk=state.pk).update(used_at=now)
    return state


def update_state(
    state_id: UUID,
    *,
    log_level: str | None,
    list_digests: Mapping[Kind, str],
    watched: Mapping[str, str | None],
    added_uris: Collection[str],
    removed_uris: Collection[str],
) -> bool:
    """Store a session's log level if given, known lists, and changes of its watched resources.

    Return False if the session has ended or its state would be too large.
    """
    with transaction.atomic():
        rows = GatewaySessionState.objects.filter(pk=state_id)
        lock_rows(rows)
        state = rows.first()
        if state is None:
            return False
        state.log_level = log_level or state.log_level
        state.list_digests = dict(list_digests)
        state.watched = {
            uri: watched.get(uri, known_state)
            for uri, known_state in state.watched.items()
            if uri not in removed_uris
        } | {uri: watched[uri] for uri in added_uris}
        if len(to_canonical_json([state.list_digests, state.watched])) > MAX_STATE_SIZE:
            return False
        state.save(update_fields=["log_level", "list_digests", "watched"])
    return True


def delete_state(session_id: str, caller: AuthenticatedClient) -> None:
    """Delete the caller's session with this ID."""
    GatewaySessionState.objects.filter(
        key_digest=compute_digest(session_id), owner_key=caller.key
    ).delete()


def load_live_states(
    state_ids: Collection[UUID], used_ids: Collection[UUID]
) -> dict[UUID, GatewaySessionState]:
    """Return the sessions that haven't ended; `used_ids` have an open stream or a request."""
    now = timezone.now()
    GatewaySessionState.objects.filter(pk__in=used_ids, used_at__lt=now - TOUCH_INTERVAL).update(
        used_at=now
    )
    return {state.pk: state for state in _list_live_states().filter(pk__in=state_ids)}


def add_message(state_id: UUID, sender: UUID, body: Mapping[str, Any]) -> None:
    """Store a client's message for the other processes."""
    state = GatewaySessionState.objects.filter(pk=state_id).first()
    if state is None:
        return
    GatewaySessionMessage.objects.filter(
        created_at__lt=timezone.now() - MESSAGE_LIFETIME, state__organization=state.organization_id
    ).delete()
    GatewaySessionMessage.objects.create(
        organization_id=state.organization_id, state=state, sender=sender, body=dict(body)
    )


def load_messages(
    state_ids: Collection[UUID], receiver: UUID, seen_ids: Collection[UUID]
) -> list[tuple[UUID, UUID, dict[str, Any]]]:
    """Return the ids, sessions and bodies of messages that other processes received."""
    rows = (
        GatewaySessionMessage.objects.filter(state__in=state_ids)
        .exclude(sender=receiver)
        .exclude(pk__in=seen_ids)
    )
    return [(row.pk, row.state_id, row.body.open()) for row in rows]


def _list_live_states() -> QuerySet[GatewaySessionState]:
    return GatewaySessionState.objects.filter(used_at__gte=timezone.now() - LIFETIME)
