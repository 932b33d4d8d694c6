"""Tickets: what a client knows a server's task by, sealed to its principal and its address."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from mcp.shared.exceptions import MCPError

from agents.calls import Outcome
from agents.governance.unfinished import BadRequest, unfinished
from bonobot.gateway.failures import error_of
from bonobot.gateway.hosting import askable
from bonobot.gateway.inbound import Inbound
from bonobot.gateway.states import seal
from bonobot.lib.problems import Problem

TASK = "task"
# Members of a task, beside what it has come to.
SHOWN = ("status", "statusMessage", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs")
# How long a task is known whose server doesn't say for how long it is.
LONGEST_MS = 30 * 24 * 3_600_000


def begun(inbound: Inbound, server_id: UUID, tool: str, outcome: Outcome) -> dict[str, Any]:
    """Return what a client is told of a call that became a task; or raises `MCPError`."""
    try:
        found = unfinished(outcome.result, askable(inbound.capabilities))
    except BadRequest as fault:
        raise wrong(fault) from None
    assert found is not None  # noqa: S101 - it is a task, or it would not be here
    held = {
        "server": str(server_id),
        "task": found.task_id,
        "tool": tool,
        "call": str(outcome.call_id),
    }
    lifetime = timedelta(milliseconds=min(found.ttl_ms or LONGEST_MS, LONGEST_MS))
    sealed = seal(inbound.visitor, TASK, held, lifetime=lifetime)
    return {"resultType": TASK, "taskId": sealed, **shown(outcome.result)}


def shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of a server's task that say how it is."""
    return {"ttlMs": None} | {name: found[name] for name in SHOWN if name in found}


def wrong(fault: BadRequest) -> MCPError:
    """Return the error of a server that asks for what it may not."""
    problem = Problem(f"The server did wrong: {fault}.", code="protocol_error", status=502)
    return error_of(problem)
