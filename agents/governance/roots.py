"""The root of a session that another one began: who pays for it, and who holds what it has seen.

Agents that call agents spend of the root's budgets beside their own (DESIGN section 5), and all
sessions of one tree hold the flow labels together: what one has seen, the next one may pass on.
"""

from dataclasses import dataclass, replace
from uuid import UUID

from agents.governance.limits import Limit
from agents.governance.snapshots import snapshots
from bonobot.lib.runtime import runtime


@dataclass(frozen=True, slots=True)
class Root:
    """The session that a tree of sessions began with, and its agent."""

    session_id: UUID
    agent_id: UUID


async def limits_of_root(root: Root | None) -> tuple[Limit, ...]:
    """Return what a call in a tree is charged to beside its own agent's budgets.

    Read after the snapshot that the call is decided on: what changes later makes that one stale.
    """
    return await runtime().orm(_limits, root) if root else ()


def _limits(root: Root) -> tuple[Limit, ...]:
    found = []
    for limit in snapshots().current("agent", root.agent_id).limits:
        if limit.scope == "agent":
            found.append(limit)
        elif limit.scope == "session":
            found.append(replace(limit, scope_id=str(root.session_id)))
    return tuple(found)


def together(own: tuple[Limit, ...], of_root: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return the limits that hold, each once: an agent may be its own root."""
    return tuple(dict.fromkeys((*own, *of_root)))
