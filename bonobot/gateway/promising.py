"""Promising: a call that a person has to allow is a task for a client that takes tasks.

What the client knows it by is sealed to the principal and the address, as with tasks of servers.
"""

from collections.abc import Mapping
from typing import Any

from django.utils import timezone

from agents.calls import ApprovalRequired
from agents.governance.unfinished import BadRequest, asked
from agents.models import Promise
from agents.promises import promise
from bonobot.gateway import approving
from bonobot.gateway.failures import refused
from bonobot.gateway.hosting import askable
from bonobot.gateway.inbound import Inbound
from bonobot.gateway.states import seal
from bonobot.gateway.tickets import TASK, wrong
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime

HELD = "promise"
POLL_MS = 2_000
State = Promise.State


async def begun(
    inbound: Inbound, problem: ApprovalRequired, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Promise the call, durably, and return what the client is told of its task."""
    kept = {**request, "meta": inbound.own_meta, "client": inbound.client}
    row = await runtime().orm(promise, problem.approval_id, kept)
    number = seal(inbound.visitor, TASK, {HELD: str(row.pk)}, lifetime=row.ends_at - timezone.now())
    told = standing(inbound, row)
    told.pop("inputRequests", None)
    return {"resultType": TASK, "taskId": number, **told}


def standing(inbound: Inbound, row: Promise) -> dict[str, Any]:
    """Return how a promised call stands, as `tasks/get` tells it."""
    return _times(row) | _status(inbound, row)


def _status(inbound: Inbound, row: Promise) -> dict[str, Any]:
    if row.state == State.WAITING:
        return _waiting(inbound, row)
    if row.state == State.CANCELLED:
        return {"status": "cancelled"}
    if row.state == State.DONE:
        return _over(row.answer.open())
    if row.state != State.ASKING:
        return {"status": "working"}
    found = row.answer.open()
    given = found.get("given", {})
    missing = {key: one for key, one in found["requests"].items() if key not in given}
    try:
        requests = asked(missing, askable(inbound.capabilities))
    except BadRequest as fault:
        raise wrong(fault) from None
    return {"status": "input_required", "inputRequests": requests}


def _waiting(inbound: Inbound, row: Promise) -> dict[str, Any]:
    """Say where a person allows the call; a client that can is asked to show it, once."""
    problem = ApprovalRequired(row.approval)
    told = {"statusMessage": f"{problem} {problem.remedy.partition(';')[0]}."}
    if row.visited or not approving.can_show(inbound.capabilities):
        return {"status": "working", **told}
    visit = {"method": approving.ELICIT, "params": approving.visit(problem, modern=True)}
    return {"status": "input_required", "inputRequests": {approving.KEY: visit}, **told}


def _over(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a call has come to: only an error of the protocol's is a task that failed."""
    if "error" in answer:
        return {"status": "failed", "error": answer["error"]}
    if "refused" in answer:
        return {"status": "completed", "result": refused(_problem(answer["refused"]))}
    return {"status": "completed", "result": answer["result"]}


def _problem(told: Mapping[str, Any]) -> Problem:
    known = ("code", "field", "remedy", "rule", "retry_after")
    more = {name: told[name] for name in told.keys() - {*known, "detail"}}
    return Problem(
        str(told.get("detail", "")), extra=more, **{k: told[k] for k in known if k in told}
    )


def _times(row: Promise) -> dict[str, Any]:
    ttl = row.ends_at - row.created_at
    return {
        "createdAt": row.created_at.isoformat(),
        "lastUpdatedAt": row.updated_at.isoformat(),
        "ttlMs": round(ttl.total_seconds() * 1_000),
        "pollIntervalMs": POLL_MS,
    }
