"""What a call does to flow labels. Pure.

A session accumulates what its calls touch; a token and an agent that are called without one do,
until they were idle for a day. Whoever holds private data and untrusted content may send something
out only with a person's yes. The labels of a call count for those after it: its own arguments were
made before it was answered.
"""

from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.ledger.types import FlowLabelEffect, Store
from mcp_servers.flow_labels import FlowLabel, encode_labels
from mcp_servers.flow_labels.store_labels import server_store
from mcp_servers.flow_labels.store_use import StoreUse

IDLE_S = 24 * 3600
SEEN = encode_labels((FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT))


def build_flows(
    principal: Principal,
    labels: Iterable[str],
    *,
    session_id: UUID | None = None,
    agent_id: UUID | None = None,
    stores: tuple[Store, ...] = (),
) -> tuple[FlowLabelEffect, ...]:
    """Return the flows of a call with these labels; none where nothing is brought or left."""
    found = encode_labels(labels)
    if not found and not stores:
        return ()
    barred = SEEN if found & encode_labels((FlowLabel.SENDS_OUT,)) else 0
    keys = build_flow_keys(principal, session_id=session_id, agent_id=agent_id)
    idle_s = None if session_id else IDLE_S
    return tuple(FlowLabelEffect(key, found & SEEN, barred, idle_s) for key in keys)


def build_flow_keys(
    principal: Principal, *, session_id: UUID | None = None, agent_id: UUID | None = None
) -> tuple[str, ...]:
    """Return the ledger's keys of who holds the labels.

    None for a person who calls a server's tool by hand: no model read the answers, and what is
    sent is what they wrote.
    """
    organization_id = principal.organization_id
    if session_id is not None:
        return (build_flow_key(organization_id, "session", session_id),)
    token = (
        (build_flow_key(organization_id, "token", principal.id),)
        if principal.kind == "token"
        else ()
    )
    return (*token, build_flow_key(organization_id, "agent", agent_id)) if agent_id else token


def used_stores(organization_id: UUID, server_id: UUID | None, use: StoreUse) -> tuple[Store, ...]:
    """Return the store that a call of a server's definition reads or writes; none of ours."""
    if server_id is None or not (use.reads or use.writes):
        return ()
    return (Store(server_store(organization_id, server_id), use.reads, use.writes),)


@lru_cache(maxsize=4096)
def build_flow_key(organization_id: UUID, kind: str, key: UUID | str) -> str:
    """Return the ledger's key of a `session`, an `agent` or a `token`."""
    return f"flow:{organization_id}:{kind}:{key}"
