"""Approving: a call that a person has to allow first, for a client that can show them where.

The person is sent to the approval's page by an elicitation of a web page; a modern client gets it
as a result (`input_required`), one of the handshake era is asked meanwhile. After a yes the same
call goes through the door again, which spends it. Other clients are told in words.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from agents.calls import ApprovalRequired
from agents.models import Approval
from bonobot.gateway.inbound import Inbound
from bonobot.lib.runtime import runtime

KEY = "bonobot-approval"
ELICIT = "elicitation/create"
LOOK_EVERY_S = 1.0
# A modern client's request is answered within this time, if need be by asking once more.
PATIENCE_S = 20.0


def can_show(capabilities: Mapping[str, Any]) -> bool:
    """Tell whether a client can send the person before it to a web page."""
    elicitation = capabilities.get("elicitation")
    return isinstance(elicitation, Mapping) and "url" in elicitation


def visit(problem: ApprovalRequired, *, modern: bool) -> dict[str, Any]:
    """Return the elicitation's parameters: where it is answered, and what is asked."""
    own = {} if modern else {"elicitationId": str(problem.approval_id)}
    return {"mode": "url", "message": str(problem), "url": problem.extra["approval_url"], **own}


def answered_no(responses: Mapping[str, Any]) -> bool:
    """Tell whether the person didn't want to go there."""
    answer = responses.get(KEY)
    return isinstance(answer, Mapping) and answer.get("action") in ("decline", "cancel")


async def asked(inbound: Inbound, problem: ApprovalRequired, within_s: float) -> bool:
    """Send the person there over a connection of the handshake era; tell whether it is answered."""
    answer = await inbound.ask(ELICIT, visit(problem, modern=False))
    if answer.get("action") != "accept":
        return False
    return await decided(problem.approval_id, within_s)


async def decided(approval_id: UUID, within_s: float) -> bool:
    """Wait until a person has answered; tell whether they have."""
    until = runtime().loop.time() + within_s
    while await runtime().orm(_waits, approval_id):
        if runtime().loop.time() >= until:
            return False
        await asyncio.sleep(LOOK_EVERY_S)
    return True


def _waits(approval_id: UUID) -> bool:
    return Approval.objects.filter(pk=approval_id, state=Approval.State.WAITING).exists()
