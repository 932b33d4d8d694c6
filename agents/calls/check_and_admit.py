"""Resolve, check, decide and admit a call.

Admission compares the policy generation of the decision with the current one, so a policy change
applies from the next call on. Refusals and approval requests are recorded before they are raised.
"""

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from django.conf import settings

from agents.budgets.admission_queue import (
    AdmissionPatience,
    AdmissionTicket,
    get_admission_queue,
)
from agents.calls.admit import build_admission, build_opening
from agents.calls.redaction import ensure_masker_loaded
from agents.calls.require_approval import ApprovalGrant, ApprovalRequired, require_approval
from agents.calls.resolve import (
    Target,
    build_not_found_error,
    estimate_match_cost,
    find_target,
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
from mcp_servers.schemas.subprocess_pool import check_tool_arguments

# Only constant policy changes can make a snapshot stale this often between reading and admission.
MAX_ATTEMPTS = 5
# Characters to match against URI templates on the event loop; more go to a thread.
MAX_INLINE_MATCH_COST = 16_384
# Seconds that a caller without a session waits for a budget that others have reserved.
CALLER_WAIT_S = 5


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """An admitted call: the snapshot that decided it, its target, and what was reserved for it.

    `request` carries the principal as of the admission.
    """

    request: CallRequest
    snapshot: CallSnapshot
    target: Target
    admission: Admission


async def admit_call(request: CallRequest) -> AdmittedCall:
    """Resolve, check and decide a call, and admit it.

    Raises `CallRefused` (`ApprovalRequired` if a person must approve it), `InvalidArguments`,
    `NotFound` (unknown tool) or the ledger's `Refusal`, each after recording it in the audit log;
    `BadToken` if the caller's token is no longer valid.
    """
    with get_admission_queue().open_ticket(_choose_patience(request)) as ticket:
        return await _decide_and_admit(request, ticket)


def _choose_patience(request: CallRequest) -> AdmissionPatience:
    """Return how long a call waits: a session's long, others shortly and not for a rate limit.

    A call within another one doesn't wait long, because that one's reservation may be in its way.
    """
    session_wait_s = settings.BONOBOT_ADMISSION_WAIT_S
    caller_wait_s = min(CALLER_WAIT_S, session_wait_s)
    if request.session_id is None:
        return AdmissionPatience(0, caller_wait_s)
    return AdmissionPatience(session_wait_s, caller_wait_s if request.parent_id else session_wait_s)


async def _decide_and_admit(request: CallRequest, ticket: AdmissionTicket) -> AdmittedCall:
    request, snapshot = await _prepare_request(request, fresh=False)
    flow_decision: PolicyDecision | None = None
    for _ in range(MAX_ATTEMPTS):
        target = await _find_target(request, snapshot)
        request = _use_listed_name(request, target)
        try:
            target = _require_target(request, snapshot, target)
            await check_tool_arguments(
                get_argument_schema(request, target), request.arguments, target.schema_verdict
            )
            decision = _decide_call(request, snapshot, target)
            target = await _add_call_labels(request, snapshot, target)
            if flow_decision is not None and decision.allowed:
                decision = flow_decision
            grant = await _check_approval(request, snapshot, target, decision)
            root_limits = await load_root_limits(request.root)
            admission = build_admission(request, snapshot, target, decision, grant, root_limits)
            await get_admission_queue().admit_call(ticket, admission)
        except StaleSnapshot:
            request, snapshot = await _prepare_request(request, fresh=True)
        except FlowNeedsApproval as refusal:
            flow_decision = PolicyDecision(
                "ask", "flow", refusal.code, str(refusal), refusal.remedy
            )
        except Problem as problem:
            if not isinstance(problem, Refusal) and await _is_stale(snapshot):
                request, snapshot = await _prepare_request(request, fresh=True)
                continue
            await _record_refusal(request, snapshot, target, problem)
            raise
        else:
            return AdmittedCall(request, snapshot, target, admission)
    last_error = CallRefused(
        "The rules changed while this call was being evaluated.",
        code="rules_changing",
        remedy="Try again shortly.",
        status=503,
    )
    await _record_refusal(request, snapshot, target, last_error)
    raise last_error


async def redecide_call(request: CallRequest, admitted: AdmittedCall) -> AdmittedCall:
    """Decide an admitted call again with the server's current definitions; writes nothing.

    Raises as `admit_call` does. An approval is only valid for the definition it was given for.
    """
    request, snapshot = await _prepare_request(request, fresh=True)
    target = _require_target(request, snapshot, await _find_target(request, snapshot))
    request = _use_listed_name(request, target)
    await check_tool_arguments(
        get_argument_schema(request, target), request.arguments, target.schema_verdict
    )
    decision = _decide_call(request, snapshot, target)
    if decision.verdict == "ask" and target.digest != admitted.target.digest:
        raise CallRefused(
            format_message(
                "The definition of `{tool}` changed during the call.", tool=request.tool
            ),
            code="definition_changed",
            rule=decision.rule,
            remedy="Call it again. Approval is then requested for the current definition.",
        )
    return AdmittedCall(request, snapshot, target, admitted.admission)


async def _is_stale(snapshot: CallSnapshot) -> bool:
    """Return whether the snapshot is older than the current policy generation."""
    generation = await get_runtime().run_orm(load_policy_generation, snapshot.organization_id)
    return generation != snapshot.generation


async def _prepare_request(
    request: CallRequest, *, fresh: bool
) -> tuple[CallRequest, CallSnapshot]:
    """Return the request and the snapshot that decides it; the principal is at least as recent.

    The principal is read after the snapshot's generation, which admission compares, so both are
    valid at the same time. Raises `NotFound` for an agent or server the principal can't reach.
    """
    snapshot = await _load_snapshot(request, fresh=fresh)
    request = await _refresh_principal(request, snapshot, fresh=fresh)
    principal = request.principal
    is_same_organization = snapshot.organization_id == principal.organization_id
    if not is_same_organization or not principal.can_access_agent(request.agent_id):
        if (
            is_same_organization
            and request.renew_principal
            and not fresh
            and await _is_stale(snapshot)
        ):
            return await _prepare_request(request, fresh=True)
        kind, key = _get_snapshot_key(request)
        raise NotFound(
            format_message("The {kind} {key!r} doesn't exist.", kind=kind, key=str(key)), field=kind
        )
    await ensure_masker_loaded(snapshot)
    return request, snapshot


async def _refresh_principal(
    request: CallRequest, snapshot: CallSnapshot, *, fresh: bool
) -> CallRequest:
    known_generation = request.principal_generation
    if request.renew_principal is None or not (
        fresh or known_generation is None or known_generation < snapshot.generation
    ):
        return request
    principal = await request.renew_principal()
    return replace(request, principal=principal, principal_generation=snapshot.generation)


def _get_snapshot_key(request: CallRequest) -> tuple[str, UUID | None]:
    """Return the snapshot's kind and id: the agent, or the server if there is no agent."""
    if request.agent_id:
        return "agent", request.agent_id
    return "server", request.server_id


async def _load_snapshot(request: CallRequest, *, fresh: bool) -> CallSnapshot:
    kind, key = _get_snapshot_key(request)
    if key is None:
        raise NotFound("Specify an agent or a server.", field="agent")
    snapshot = None if fresh else get_snapshot_cache().find_cached(kind, key)
    if snapshot is None:
        snapshot = await get_runtime().run_orm(get_snapshot_cache().load, kind, key)
    return snapshot


async def _find_target(request: CallRequest, snapshot: CallSnapshot) -> Target | None:
    """Find the target; in a thread if many templates have to match a long URI."""
    if estimate_match_cost(request, snapshot) <= MAX_INLINE_MATCH_COST:
        return find_target(request, snapshot)
    return await asyncio.to_thread(find_target, request, snapshot)


def _use_listed_name(request: CallRequest, target: Target | None) -> CallRequest:
    """Return the request with the tool's listed name, if it was called by one of another style."""
    if isinstance(target, SnapshotTool) and target.name != request.tool:
        return replace(request, tool=target.name)
    return request


def _require_target(request: CallRequest, snapshot: CallSnapshot, target: Target | None) -> Target:
    request.principal.require(Action.USE_TOOLS if request.agent_id else Action.CALL_TOOLS)
    if target is None:
        raise build_not_found_error(request, snapshot)
    return target


def _decide_call(request: CallRequest, snapshot: CallSnapshot, target: Target) -> PolicyDecision:
    """Return the decision; raises `CallRefused` for a denial that isn't a reviewer's trial."""
    decision = target.decision
    if isinstance(target, SnapshotTool):
        decision = snapshot.decide_call(target, request.arguments)
    if decision.is_callable or _is_unapproved_trial(request, decision):
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
    if tool is None or tool.list_result_labels is None or snapshot.agent_id is None:
        return target
    call_labels = await get_runtime().run_orm(
        tool.list_result_labels, snapshot.agent_id, request.arguments
    )
    return replace(target, labels=tuple(dict.fromkeys((*target.labels, *call_labels))))


def _is_unapproved_trial(request: CallRequest, decision: PolicyDecision) -> bool:
    """Return whether a reviewer is trying a definition that is pending review."""
    is_pending_review = decision.code in ("not_approved", "definition_changed")
    is_trial = request.allow_unapproved and is_pending_review and request.agent_id is None
    return is_trial and request.principal.may(Action.APPROVE_DEFINITIONS)


async def _check_approval(
    request: CallRequest, snapshot: CallSnapshot, target: Target, decision: PolicyDecision
) -> ApprovalGrant | None:
    if decision.verdict != "ask":
        return None
    return await get_runtime().run_orm(require_approval, request, snapshot, target, decision)


async def _record_refusal(
    request: CallRequest, snapshot: CallSnapshot, target: Target | None, problem: Problem
) -> None:
    """Record the refusal; raises the ledger's error if it can't be written."""
    if isinstance(problem, Refusal) and problem.code == "audit_unavailable":
        return
    decision = PolicyDecision("deny", problem.rule or problem.code, problem.code)
    approval_id: UUID | None = None
    if isinstance(problem, ApprovalRequired):
        decision, approval_id = (
            PolicyDecision("ask", decision.rule, decision.code),
            problem.approval_id,
        )
    await get_writer().record_refusal_async(
        build_opening(request, snapshot, target, decision, approval_id=approval_id)
    )
