"""The root session of a tree of sessions, and its budget limits.

Child sessions are charged to the root's budgets as well as their own, and all sessions of a tree
share their flow labels, because one may pass on what another has seen.
"""

from dataclasses import dataclass, replace
from uuid import UUID

from agents.budgets.limits import BudgetLimit
from agents.calls.snapshots import get_snapshot_cache
from bonobot.core.runtime import get_runtime


@dataclass(frozen=True, slots=True)
class RootSession:
    """The first session of a tree of sessions, and its agent."""

    session_id: UUID
    agent_id: UUID


async def load_root_limits(root: RootSession | None) -> tuple[BudgetLimit, ...]:
    """Return the root's limits that a call is charged to in addition to those of its own agent.

    Read after the call's snapshot, so that a later change makes the snapshot stale.
    """
    return await get_runtime().run_orm(_load_limits, root) if root else ()


def _load_limits(root: RootSession) -> tuple[BudgetLimit, ...]:
    limits = []
    for limit in get_snapshot_cache().load_current("agent", root.agent_id).limits:
        if limit.scope == "agent":
            limits.append(limit)
        elif limit.scope == "session":
            limits.append(replace(limit, scope_id=str(root.session_id)))
    return tuple(limits)


def merge_limits(
    own_limits: tuple[BudgetLimit, ...], root_limits: tuple[BudgetLimit, ...]
) -> tuple[BudgetLimit, ...]:
    """Return both sets of limits without duplicates: an agent may be its own root."""
    return tuple(dict.fromkeys((*own_limits, *root_limits)))
