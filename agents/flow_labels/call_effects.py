"""The effects of a call on flow labels. No I/O.

A session accumulates the labels of its calls; without a session, the token and the agent do until
they are idle for a day. A caller that holds private data and untrusted content needs an approval
for external effects. A call's labels apply to later calls, since its arguments were written before
its result was known.
"""

from collections.abc import Iterable
from functools import lru_cache
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.ledger.types import FlowLabelEffect, Store
from mcp_servers.flow_labels import FlowLabel, build_flow_key, encode_labels
from mcp_servers.flow_labels.store_use import StoreUse
from mcp_servers.flow_labels.token_labels import HELD_LABELS, IDLE_S

EXTERNAL_EFFECT = encode_labels((FlowLabel.SENDS_OUT,))
# There are few sets of labels, and each call has one.
_encode_label_set = lru_cache(maxsize=256)(encode_labels)


def build_flow_effects(
    principal: Principal,
    labels: Iterable[str],
    *,
    session_id: UUID | None = None,
    agent_id: UUID | None = None,
    stores: tuple[Store, ...] = (),
) -> tuple[FlowLabelEffect, ...]:
    """Return the label effects of a call; none if it has no labels and uses no stores."""
    label_bits = _encode_label_set(tuple(labels))
    if not label_bits and not stores:
        return ()
    blocking_labels = HELD_LABELS if label_bits & EXTERNAL_EFFECT else 0
    keys = build_flow_keys(principal, session_id=session_id, agent_id=agent_id)
    idle_s = None if session_id else IDLE_S
    return tuple(
        FlowLabelEffect(key, label_bits & HELD_LABELS, blocking_labels, idle_s) for key in keys
    )


def build_flow_keys(
    principal: Principal, *, session_id: UUID | None = None, agent_id: UUID | None = None
) -> tuple[str, ...]:
    """Return the ledger keys of the holders of the labels.

    Empty for a person who calls a server's tool directly: no model is involved.
    """
    organization_id = principal.organization_id
    if session_id is not None:
        return (build_flow_key(organization_id, "session", session_id),)
    token_keys = (
        (build_flow_key(organization_id, "token", principal.id),)
        if principal.kind == "token"
        else ()
    )
    return (
        (*token_keys, build_flow_key(organization_id, "agent", agent_id))
        if agent_id
        else token_keys
    )


def list_used_stores(
    organization_id: UUID, server_id: UUID | None, use: StoreUse
) -> tuple[Store, ...]:
    """Return the server store that a call reads or writes; none for built-in tools."""
    if server_id is None or not (use.reads or use.writes):
        return ()
    return (Store(build_flow_key(organization_id, "server", server_id), use.reads, use.writes),)
