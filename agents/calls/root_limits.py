"""The root of a session that another one began: who pays for it, and who holds what it has seen.

Agents that call agents spend of the root's budgets beside their own, and all
sessions of one tree hold the flow labels together: what one has seen, the next one may pass on.
"""

from dataclasses import dataclass, replace
from uuid import UUID

from agents.budgets.limits import BudgetLimit
from agents.calls.snapshots import get_snapshot_cache
from bonobot.core.runtime import get_runtime


@dataclass(frozen=True, slots=True)
class RootSession:
    """The session that a tree of sessions began with, and its agent."""

    session_id: UUID
    agent_id: UUID


async def load_root_limits(root: RootSession | None) -> tuple[BudgetLimit, ...]:
    """Return what a call in a tree is charged to beside its own agent's budgets.

    Read after the snapshot that the call is decided on: what changes later makes that one stale.
    """
    return await get_runtime().orm(_load_limits, root) if root else ()


def _load_limits(root: RootSession) -> tuple[BudgetLimit, ...]:
    found = []
    for limit in get_snapshot_cache().current("agent", root.agent_id).limits:
        if limit.scope == "agent":
            found.append(limit)
        elif limit.scope == "session":
            found.append(replace(limit, scope_id=str(root.session_id)))
    return tuple(found)


def merge_limits(
    own: tuple[BudgetLimit, ...], of_root: tuple[BudgetLimit, ...]
) -> tuple[BudgetLimit, ...]:
    """Return the limits that hold, each once: an agent may be its own root."""
    return tuple(dict.fromkeys((*own, *of_root)))
