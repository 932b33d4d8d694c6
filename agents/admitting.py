"""Admitting: the door's first half. Resolve, check, decide, ask where a person must, admit.

What was decided is compared with the policy generation when the call is admitted, so a change made
anywhere holds on the very next call. Each refusal and each question is written before it is raised.
"""

import asyncio
from dataclasses import dataclass
from uuid import UUID

from agents.consents import ApprovalRequired, Consent, consent
from agents.governance.policies import Decision
from agents.governance.snapshots import Snapshot, Tool, snapshots
from agents.openings import admission, opening
from agents.redaction import prepare
from agents.requests import Refused, Request
from agents.targets import Target, argument_schema, effort, find, missing
from bonobot.ledger.entries import Admission
from bonobot.ledger.heads import generation
from bonobot.ledger.refusals import FlowBarred, Refusal, StaleSnapshot
from bonobot.ledger.writer import writer
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.roles import Action
from mcp_servers.schema_worker import check

# A snapshot can go stale between reading and admission again and again only in a storm of changes.
TRIES = 5
# Characters that URI templates look at.
FOUND_INLINE = 16_384


@dataclass(frozen=True, slots=True)
class Passed:
    """An admitted call: what decided it, and what was reserved for it."""

    snapshot: Snapshot
    target: Target
    admission: Admission


async def admit(request: Request) -> Passed:
    """Bring a call through the first half of the door.

    Raises `Refused` (`ApprovalRequired` where a person must say yes), `InvalidArguments`,
    `NotFound` (unknown tool) or the ledger's `Refusal`, each after it was written to the audit.
    """
    snapshot = await _snapshot(request, fresh=False)
    asked: Decision | None = None
    for _ in range(TRIES):
        target = await _found(request, snapshot)
        try:
            target = _resolved(request, snapshot, target)
            await check(argument_schema(request, target), request.arguments, target.judgement)
            decision = _decided(request, snapshot, target)
            if asked is not None and decision.allowed:
                decision = asked
            yes = await _consented(request, snapshot, target, decision)
            admitted = admission(request, snapshot, target, decision, yes)
            await writer().admit_async(admitted)
        except StaleSnapshot:
            snapshot = await _snapshot(request, fresh=True)
        except FlowBarred as barred:
            asked = Decision("ask", "flow", barred.code, str(barred), barred.remedy)
        except Problem as problem:
            if not isinstance(problem, Refusal) and await _is_stale(snapshot):
                snapshot = await _snapshot(request, fresh=True)
                continue
            await _refuse(request, snapshot, target, problem)
            raise
        else:
            return Passed(snapshot, target, admitted)
    raise Refused(
        "The rules changed while this call was being decided.",
        code="rules_changing",
        remedy="Try again in a moment.",
        status=503,
    )


async def again(request: Request, passed: Passed) -> Passed:
    """Decide an admitted call anew, by what its server is known to declare now; writes nothing.

    Raises as `admit`; where a person said yes, they said it to the definition as it was.
    """
    snapshot = await _snapshot(request, fresh=True)
    target = _resolved(request, snapshot, await _found(request, snapshot))
    await check(argument_schema(request, target), request.arguments, target.judgement)
    decision = _decided(request, snapshot, target)
    if decision.verdict == "ask" and target.digest != passed.target.digest:
        raise Refused(
            f"`{request.tool}` was declared anew while it was being called.",
            code="definition_changed",
            rule=decision.rule,
            remedy="Call it again: a person is asked about it as it is now.",
        )
    return Passed(snapshot, target, passed.admission)


async def _is_stale(snapshot: Snapshot) -> bool:
    """Tell whether a refusal was decided on old rules: admission, which tells, wasn't reached."""
    now = await runtime().orm(generation, snapshot.organization_id)
    return now != snapshot.generation


async def _snapshot(request: Request, *, fresh: bool) -> Snapshot:
    kind, key = ("agent", request.agent_id) if request.agent_id else ("server", request.server_id)
    if key is None:
        raise NotFound("Name an agent or a server.", field="agent")
    snapshot = None if fresh else snapshots().cached(kind, key)
    if snapshot is None:
        snapshot = await runtime().orm(snapshots().read, kind, key)
    principal = request.principal
    foreign = snapshot.organization_id != principal.organization_id
    if foreign or (principal.agent_id and principal.agent_id != request.agent_id):
        raise NotFound(f"There is no {kind} {str(key)!r} here.", field=kind)
    await prepare(snapshot)
    return snapshot


async def _found(request: Request, snapshot: Snapshot) -> Target | None:
    """Find what is asked for, beside the loop where many templates read a long URI."""
    if effort(request, snapshot) <= FOUND_INLINE:
        return find(request, snapshot)
    return await asyncio.to_thread(find, request, snapshot)


def _resolved(request: Request, snapshot: Snapshot, target: Target | None) -> Target:
    request.principal.require(Action.RUN_AGENTS if request.agent_id else Action.CALL_TOOLS)
    if target is None:
        raise missing(request, snapshot)
    return target


def _decided(request: Request, snapshot: Snapshot, target: Target) -> Decision:
    """Return the decision; raises `Refused` for a no that is not set aside to try it."""
    decision = target.decision
    if isinstance(target, Tool):
        decision = snapshot.decided(target, request.arguments)
    if decision.offered or _tries(request, decision):
        return decision
    raise Refused(
        decision.reason,
        code=decision.code,
        rule=decision.rule,
        remedy=decision.remedy,
        field={"tool": "tool", "resource": "uri"}.get(request.noun, "name"),
    )


def _tries(request: Request, decision: Decision) -> bool:
    """Tell whether somebody who may approve it tries a definition that waits for approval."""
    waits = decision.code in ("not_approved", "definition_changed")
    trying = request.unapproved and waits and request.agent_id is None
    return trying and request.principal.may(Action.APPROVE_DEFINITIONS)


async def _consented(
    request: Request, snapshot: Snapshot, target: Target, decision: Decision
) -> Consent | None:
    if decision.verdict != "ask":
        return None
    return await runtime().orm(consent, request, snapshot, target, decision)


async def _refuse(
    request: Request, snapshot: Snapshot, target: Target | None, problem: Problem
) -> None:
    """Write the refusal; without its row the caller gets the ledger's own error instead."""
    if isinstance(problem, Refusal) and problem.code == "audit_unavailable":
        return
    decision = Decision("deny", problem.rule or problem.code, problem.code)
    row_id: UUID | None = None
    if isinstance(problem, ApprovalRequired):
        # The call itself may still come, under its own id.
        decision, row_id = Decision("ask", decision.rule, decision.code), problem.approval_id
    await writer().refuse_async(opening(request, snapshot, target, decision, row_id=row_id))
