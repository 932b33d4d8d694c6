"""Admitting: the door's first half. Resolve, check, decide, ask where a person must, admit.

What was decided is compared with the policy generation when the call is admitted, so a change made
anywhere holds on the very next call. Each refusal and each question is written before it is raised.
"""

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from agents.consents import ApprovalRequired, Consent, consent
from agents.governance.policies import Decision
from agents.governance.roots import limits_of_root
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
from bonobot.lib.sayings import say
from bonobot.tenancy.roles import Action
from mcp_servers.schema_worker import check

# A snapshot can go stale between reading and admission again and again only in a storm of changes.
TRIES = 5
# Characters that URI templates look at.
FOUND_INLINE = 16_384


@dataclass(frozen=True, slots=True)
class Passed:
    """An admitted call: what decided it, and what was reserved for it.

    `request` is as it was asked for, by the principal as it was admitted.
    """

    request: Request
    snapshot: Snapshot
    target: Target
    admission: Admission


async def admit(request: Request) -> Passed:
    """Bring a call through the first half of the door.

    Raises `Refused` (`ApprovalRequired` where a person must say yes), `InvalidArguments`,
    `NotFound` (unknown tool) or the ledger's `Refusal`, each after it was written to the audit;
    `BadToken` where the caller's token has ended meanwhile.
    """
    request, snapshot = await _begun(request, fresh=False)
    asked: Decision | None = None
    for _ in range(TRIES):
        target = await _found(request, snapshot)
        try:
            target = _resolved(request, snapshot, target)
            await check(argument_schema(request, target), request.arguments, target.judgement)
            decision = _decided(request, snapshot, target)
            target = await _labelled(request, snapshot, target)
            if asked is not None and decision.allowed:
                decision = asked
            yes = await _consented(request, snapshot, target, decision)
            of_root = await limits_of_root(request.root)
            admitted = admission(request, snapshot, target, decision, yes, of_root)
            await writer().admit_async(admitted)
        except StaleSnapshot:
            request, snapshot = await _begun(request, fresh=True)
        except FlowBarred as barred:
            asked = Decision("ask", "flow", barred.code, str(barred), barred.remedy)
        except Problem as problem:
            if not isinstance(problem, Refusal) and await _is_stale(snapshot):
                request, snapshot = await _begun(request, fresh=True)
                continue
            await _refuse(request, snapshot, target, problem)
            raise
        else:
            return Passed(request, snapshot, target, admitted)
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
    request, snapshot = await _begun(request, fresh=True)
    target = _resolved(request, snapshot, await _found(request, snapshot))
    await check(argument_schema(request, target), request.arguments, target.judgement)
    decision = _decided(request, snapshot, target)
    if decision.verdict == "ask" and target.digest != passed.target.digest:
        raise Refused(
            say("`{tool}` was declared anew while it was being called.", tool=request.tool),
            code="definition_changed",
            rule=decision.rule,
            remedy="Call it again: a person is asked about it as it is now.",
        )
    return Passed(request, snapshot, target, passed.admission)


async def _is_stale(snapshot: Snapshot) -> bool:
    """Tell whether a refusal was decided on old rules: admission, which tells, wasn't reached."""
    now = await runtime().orm(generation, snapshot.organization_id)
    return now != snapshot.generation


async def _begun(request: Request, *, fresh: bool) -> tuple[Request, Snapshot]:
    """Return what decides the call: a snapshot, and the request by a principal not older than it.

    The principal is read after the snapshot's generation was, and admission compares that one: what
    both say holds at the same moment. Raises `NotFound` for what isn't the principal's.
    """
    snapshot = await _snapshot(request, fresh=fresh)
    request = await _renewed(request, snapshot, fresh=fresh)
    principal = request.principal
    ours = snapshot.organization_id == principal.organization_id
    if not ours or not principal.reaches(request.agent_id):
        if ours and request.renewed and not fresh and await _is_stale(snapshot):
            return await _begun(request, fresh=True)
        kind, key = _owner(request)
        raise NotFound(say("There is no {kind} {key!r} here.", kind=kind, key=str(key)), field=kind)
    await prepare(snapshot)
    return request, snapshot


async def _renewed(request: Request, snapshot: Snapshot, *, fresh: bool) -> Request:
    known = request.principal_generation
    if request.renewed is None or not (fresh or known is None or known < snapshot.generation):
        return request
    principal = await request.renewed()
    return replace(request, principal=principal, principal_generation=snapshot.generation)


def _owner(request: Request) -> tuple[str, UUID | None]:
    """Return whose snapshot decides: an agent's, or without one a server's."""
    if request.agent_id:
        return "agent", request.agent_id
    return "server", request.server_id


async def _snapshot(request: Request, *, fresh: bool) -> Snapshot:
    kind, key = _owner(request)
    if key is None:
        raise NotFound("Name an agent or a server.", field="agent")
    snapshot = None if fresh else snapshots().cached(kind, key)
    if snapshot is None:
        snapshot = await runtime().orm(snapshots().read, kind, key)
    return snapshot


async def _found(request: Request, snapshot: Snapshot) -> Target | None:
    """Find what is asked for, beside the loop where many templates read a long URI."""
    if effort(request, snapshot) <= FOUND_INLINE:
        return find(request, snapshot)
    return await asyncio.to_thread(find, request, snapshot)


def _resolved(request: Request, snapshot: Snapshot, target: Target | None) -> Target:
    request.principal.require(Action.USE_TOOLS if request.agent_id else Action.CALL_TOOLS)
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


async def _labelled(request: Request, snapshot: Snapshot, target: Target) -> Target:
    """Return the target with the labels that this very call brings, where its tool tells them."""
    tool = target.builtin if isinstance(target, Tool) else None
    if tool is None or tool.brings is None or snapshot.agent_id is None:
        return target
    found = await runtime().orm(tool.brings, snapshot.agent_id, request.arguments)
    return replace(target, labels=tuple(dict.fromkeys((*target.labels, *found))))


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
    asked: UUID | None = None
    if isinstance(problem, ApprovalRequired):
        decision, asked = Decision("ask", decision.rule, decision.code), problem.approval_id
    await writer().refuse_async(opening(request, snapshot, target, decision, asked=asked))
