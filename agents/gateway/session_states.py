"""Rows of handshake sessions: what any process needs to continue them. Queries only."""

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.utils import timezone

from agents.gateway.authentication import AuthenticatedClient
from agents.models import GatewaySessionMessage, GatewaySessionState
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

# A session that is unused for this long has ended.
LIFETIME = timedelta(days=1)
TOUCH_INTERVAL = timedelta(minutes=1)
MESSAGE_LIFETIME = timedelta(minutes=5)
# Bytes of stored parameters and watched resources; larger ones stay in their process.
MAX_STATE_SIZE = 65_536


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


def update_state(state_id: UUID, **values: Any) -> None:
    """Store a session's log level, watched resources or known lists."""
    if len(to_canonical_json(values)) <= MAX_STATE_SIZE:
        GatewaySessionState.objects.filter(pk=state_id).update(**values)


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
