"""Resolve, check, decide and admit a call.

Admission compares the policy generation of the decision with the current one, so a policy change
applies from the next call on. Refusals and approval requests are recorded before they are raised.
"""

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from agents.calls.admit import build_admission, build_opening
from agents.calls.redaction import prepare
from agents.calls.require_approval import ApprovalGrant, ApprovalRequired, require_approval
from agents.calls.resolve import (
    Target,
    build_not_found_error,
    estimate_match_cost,
    find,
    get_argument_schema,
)
from agents.calls.root_limits import load_root_limits
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.calls.types import CallRefused, CallRequest
from agents.policies.decisions import PolicyDecision
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.queries import load_policy_generation
from bonobot.ledger.refusals import FlowNeedsApproval, Refusal, StaleSnapshot
from bonobot.ledger.types import Admission
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.schemas.subprocess_pool import check

# Only constant policy changes can make a snapshot stale this often between reading and admission.
TRIES = 5
# Characters to match against URI templates on the event loop; more go to a thread.
FOUND_INLINE = 16_384


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """An admitted call: the snapshot that decided it, its target, and what was reserved for it.

    `request` carries the principal as of the admission.
    """

    request: CallRequest
    snapshot: CallSnapshot
    target: Target
    admission: Admission


async def admit(request: CallRequest) -> AdmittedCall:
    """Resolve, check and decide a call, and admit it.

    Raises `CallRefused` (`ApprovalRequired` if a person must approve it), `InvalidArguments`,
    `NotFound` (unknown tool) or the ledger's `Refusal`, each after recording it in the audit log;
    `BadToken` if the caller's token is no longer valid.
    """
    request, snapshot = await _prepare_request(request, fresh=False)
    asked: PolicyDecision | None = None
    for _ in range(TRIES):
        target = await _find_target(request, snapshot)
        try:
            target = _require_target(request, snapshot, target)
            await check(get_argument_schema(request, target), request.arguments, target.judgement)
            decision = _decide_call(request, snapshot, target)
            target = await _add_call_labels(request, snapshot, target)
            if asked is not None and decision.allowed:
                decision = asked
            yes = await _check_approval(request, snapshot, target, decision)
            of_root = await load_root_limits(request.root)
            admitted = build_admission(request, snapshot, target, decision, yes, of_root)
            await get_writer().admit_async(admitted)
        except StaleSnapshot:
            request, snapshot = await _prepare_request(request, fresh=True)
        except FlowNeedsApproval as barred:
            asked = PolicyDecision("ask", "flow", barred.code, str(barred), barred.remedy)
        except Problem as problem:
            if not isinstance(problem, Refusal) and await _is_stale(snapshot):
                request, snapshot = await _prepare_request(request, fresh=True)
                continue
            await _record_refusal(request, snapshot, target, problem)
            raise
        else:
            return AdmittedCall(request, snapshot, target, admitted)
    raise CallRefused(
        "The rules changed while this call was being decided.",
        code="rules_changing",
        remedy="Try again in a moment.",
        status=503,
    )


async def decide_again(request: CallRequest, passed: AdmittedCall) -> AdmittedCall:
    """Decide an admitted call again with the server's current definitions; writes nothing.

    Raises as `admit_call` does. An approval is only valid for the definition it was given for.
    """
    request, snapshot = await _prepare_request(request, fresh=True)
    target = _require_target(request, snapshot, await _find_target(request, snapshot))
    await check(get_argument_schema(request, target), request.arguments, target.judgement)
    decision = _decide_call(request, snapshot, target)
    if decision.verdict == "ask" and target.digest != passed.target.digest:
        raise CallRefused(
            format_message(
                "`{tool}` was declared anew while it was being called.", tool=request.tool
            ),
            code="definition_changed",
            rule=decision.rule,
            remedy="Call it again: a person is asked about it as it is now.",
        )
    return AdmittedCall(request, snapshot, target, passed.admission)


async def _is_stale(snapshot: CallSnapshot) -> bool:
    """Return whether the snapshot is older than the current policy generation."""
    now = await get_runtime().orm(load_policy_generation, snapshot.organization_id)
    return now != snapshot.generation


async def _prepare_request(
    request: CallRequest, *, fresh: bool
) -> tuple[CallRequest, CallSnapshot]:
    """Return the request and the snapshot that decides it; the principal is at least as recent.

    The principal is read after the snapshot's generation, which admission compares, so both are
    valid at the same time. Raises `NotFound` for an agent or server the principal can't reach.
    """
    snapshot = await _snapshot(request, fresh=fresh)
    request = await _refresh_principal(request, snapshot, fresh=fresh)
    principal = request.principal
    ours = snapshot.organization_id == principal.organization_id
    if not ours or not principal.reaches(request.agent_id):
        if ours and request.renewed and not fresh and await _is_stale(snapshot):
            return await _prepare_request(request, fresh=True)
        kind, key = _get_snapshot_key(request)
        raise NotFound(
            format_message("There is no {kind} {key!r} here.", kind=kind, key=str(key)), field=kind
        )
    await prepare(snapshot)
    return request, snapshot


async def _refresh_principal(
    request: CallRequest, snapshot: CallSnapshot, *, fresh: bool
) -> CallRequest:
    known = request.principal_generation
    if request.renewed is None or not (fresh or known is None or known < snapshot.generation):
        return request
    principal = await request.renewed()
    return replace(request, principal=principal, principal_generation=snapshot.generation)


def _get_snapshot_key(request: CallRequest) -> tuple[str, UUID | None]:
    """Return the snapshot's kind and id: the agent, or the server if there is no agent."""
    if request.agent_id:
        return "agent", request.agent_id
    return "server", request.server_id


async def _snapshot(request: CallRequest, *, fresh: bool) -> CallSnapshot:
    kind, key = _get_snapshot_key(request)
    if key is None:
        raise NotFound("Name an agent or a server.", field="agent")
    snapshot = None if fresh else get_snapshot_cache().cached(kind, key)
    if snapshot is None:
        snapshot = await get_runtime().orm(get_snapshot_cache().read, kind, key)
    return snapshot


async def _find_target(request: CallRequest, snapshot: CallSnapshot) -> Target | None:
    """Find the target; in a thread if many templates have to match a long URI."""
    if estimate_match_cost(request, snapshot) <= FOUND_INLINE:
        return find(request, snapshot)
    return await asyncio.to_thread(find, request, snapshot)


def _require_target(request: CallRequest, snapshot: CallSnapshot, target: Target | None) -> Target:
    request.principal.require(Action.USE_TOOLS if request.agent_id else Action.CALL_TOOLS)
    if target is None:
        raise build_not_found_error(request, snapshot)
    return target


def _decide_call(request: CallRequest, snapshot: CallSnapshot, target: Target) -> PolicyDecision:
    """Return the decision; raises `CallRefused` for a denial that isn't a reviewer's trial."""
    decision = target.decision
    if isinstance(target, SnapshotTool):
        decision = snapshot.decided(target, request.arguments)
    if decision.offered or _is_unapproved_trial(request, decision):
        return decision
    raise CallRefused(
        decision.reason,
        code=decision.code,
        rule=decision.rule,
        remedy=decision.remedy,
        field={"tool": "tool", "resource": "uri"}.get(request.noun, "name"),
    )


async def _add_call_labels(request: CallRequest, snapshot: CallSnapshot, target: Target) -> Target:
    """Return the target with the labels that this call's arguments add, if its tool reports any."""
    tool = target.builtin if isinstance(target, SnapshotTool) else None
    if tool is None or tool.brings is None or snapshot.agent_id is None:
        return target
    found = await get_runtime().orm(tool.brings, snapshot.agent_id, request.arguments)
    return replace(target, labels=tuple(dict.fromkeys((*target.labels, *found))))


def _is_unapproved_trial(request: CallRequest, decision: PolicyDecision) -> bool:
    """Return whether a reviewer is trying a definition that is pending review."""
    waits = decision.code in ("not_approved", "definition_changed")
    trying = request.unapproved and waits and request.agent_id is None
    return trying and request.principal.may(Action.APPROVE_DEFINITIONS)


async def _check_approval(
    request: CallRequest, snapshot: CallSnapshot, target: Target, decision: PolicyDecision
) -> ApprovalGrant | None:
    if decision.verdict != "ask":
        return None
    return await get_runtime().orm(require_approval, request, snapshot, target, decision)


async def _record_refusal(
    request: CallRequest, snapshot: CallSnapshot, target: Target | None, problem: Problem
) -> None:
    """Record the refusal; raises the ledger's error if it can't be written."""
    if isinstance(problem, Refusal) and problem.code == "audit_unavailable":
        return
    decision = PolicyDecision("deny", problem.rule or problem.code, problem.code)
    asked: UUID | None = None
    if isinstance(problem, ApprovalRequired):
        decision, asked = PolicyDecision("ask", decision.rule, decision.code), problem.approval_id
    await get_writer().refuse_async(build_opening(request, snapshot, target, decision, asked=asked))
