"""Decide a call: its snapshot and principal, its target, its arguments, and the policy's decision.

Refusals and approval requests are recorded before they are raised to the caller.
"""

import asyncio
from copy import copy
from dataclasses import replace
from uuid import UUID

from agents.approvals.ended_requests import set_request_entry, take_recorded_refusal
from agents.calls.admit import build_opening, describe_target
from agents.calls.redaction import ensure_masker_loaded
from agents.calls.require_approval import ApprovalRequired, CallNotApproved
from agents.calls.resolve import (
    build_not_found_error,
    estimate_match_cost,
    find_target,
    get_argument_schema,
)
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.calls.types import CallContext, CallRefused, CallRequest
from agents.policies.decisions import PolicyDecision
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.admission import Refusal
from bonobot.ledger.policy_generations import load_policy_generation
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.schemas.subprocess_pool import check_tool_arguments

# Characters to match against URI templates on the event loop; more go to a thread.
MAX_INLINE_MATCH_COST = 16_384


async def prepare_call(context: CallContext, *, fresh: bool) -> None:
    """Set the snapshot that decides the call, and a principal that is at least as recent.

    The principal is read after the snapshot's generation, which admission compares, so both are
    valid at the same time. Raises `NotFound` for an agent or server the principal can't reach.
    """
    request, cache = context.request, get_snapshot_cache()
    kind, key = ("agent", request.agent_id) if request.agent_id else ("server", request.server_id)
    if key is None:
        raise NotFound("Specify an agent or a server.", field="agent")
    snapshot = None if fresh else cache.find_cached(kind, key)
    if snapshot is None:
        snapshot = await get_runtime().run_orm(cache.load, kind, key)
    known_generation = request.principal_generation
    if request.renew_principal is not None and (
        fresh or known_generation is None or known_generation < snapshot.generation
    ):
        principal = await request.renew_principal()
        request = replace(request, principal=principal, principal_generation=snapshot.generation)
    context.request = request
    is_same_organization = snapshot.organization_id == request.principal.organization_id
    if not is_same_organization or not request.principal.can_access_agent(request.agent_id):
        can_be_stale = is_same_organization and request.renew_principal and not fresh
        if can_be_stale and await is_stale(snapshot):
            await prepare_call(context, fresh=True)
            return
        raise NotFound(
            format_message("The {kind} {name!r} doesn't exist.", kind=kind, name=str(key)),
            field=kind,
        )
    context.snapshot = snapshot
    # The target of an earlier snapshot has to be resolved again.
    context.is_resolved, context.server, context.deadline_ms = False, None, 0
    context.masker = await ensure_masker_loaded(snapshot)


async def resolve_target(context: CallContext) -> None:
    """Set the target of the call, and the tool's listed name if it was called by another one.

    Raises `NotFound` for an unknown name, and `Forbidden`.
    """
    request, snapshot = context.request, context.snapshot
    if (
        request.method == "resources/read"
        and estimate_match_cost(request, snapshot) > MAX_INLINE_MATCH_COST
    ):
        target = await asyncio.to_thread(find_target, request, snapshot)
    else:
        target = find_target(request, snapshot)
    if target is not None:
        context.target, context.is_resolved = target, True
        server_id = target.facts.server_id
        context.server = server = snapshot.servers.get(server_id) if server_id else None
        if server is not None:
            read_s = server.endpoint.read_s
            seconds = read_s if request.timeout_s is None else request.timeout_s
            context.deadline_ms = round(seconds * 1000)
        if isinstance(target, SnapshotTool) and target.name != request.tool:
            context.request = replace(request, tool=target.name)
    request.principal.require(Action.USE_TOOLS if request.agent_id else Action.CALL_TOOLS)
    if target is None:
        raise build_not_found_error(request, snapshot)


async def check_call_arguments(context: CallContext) -> None:
    """Check the arguments against the target's schema, and set their size.

    Raises `InvalidArguments`.
    """
    request, target = context.request, context.target
    schema = get_argument_schema(request, target)
    context.arguments_size = await check_tool_arguments(
        schema, request.arguments, target.schema_verdict
    )


def decide_call(context: CallContext, flow_decision: PolicyDecision | None = None) -> None:
    """Set the decision; `flow_decision` replaces one that allows the call.

    Raises `CallRefused` for a denial that isn't a reviewer's trial.
    """
    request, target = context.request, context.target
    decision = target.decision
    if isinstance(target, SnapshotTool):
        decision = context.snapshot.decide_call(target, request.arguments, context.arguments_size)
    if decision.verdict == "deny" and not _is_unapproved_trial(request, decision):
        raise CallRefused(
            decision.reason,
            code=decision.code,
            rule=decision.rule,
            remedy=decision.remedy,
            field={"tool": "tool", "resource": "uri"}.get(request.noun, "name"),
        )
    context.decision = flow_decision if flow_decision and decision.allowed else decision
    context.grant = None


def _is_unapproved_trial(request: CallRequest, decision: PolicyDecision) -> bool:
    """Return whether a reviewer is trying a definition that is pending review."""
    is_pending_review = decision.code in ("not_approved", "definition_changed")
    is_trial = request.allow_unapproved and is_pending_review and request.agent_id is None
    return is_trial and request.principal.may(Action.APPROVE_DEFINITIONS)


async def add_call_labels(context: CallContext) -> None:
    """Add the labels that this call's arguments give to its target, if its tool reports any."""
    target, agent_id = context.target, context.snapshot.agent_id
    tool = target.builtin if isinstance(target, SnapshotTool) else None
    if tool is None or tool.list_result_labels is None or agent_id is None:
        return
    call_labels = await get_runtime().run_orm(
        tool.list_result_labels, agent_id, context.request.arguments
    )
    context.target = replace(target, labels=tuple(dict.fromkeys((*target.labels, *call_labels))))


async def redecide_call(context: CallContext) -> CallContext:
    """Decide an admitted call again with the server's current definitions; writes nothing.

    Returns a copy with the current snapshot and target. Raises as `admit_call` does. An approval
    is only valid for the definition it was given for.
    """
    redecided = copy(context)
    await prepare_call(redecided, fresh=True)
    await resolve_target(redecided)
    await check_call_arguments(redecided)
    decide_call(redecided)
    decision = redecided.decision
    if decision.verdict == "ask" and redecided.target.digest != context.target.digest:
        raise CallRefused(
            format_message(
                "The definition of `{tool}` changed during the call.", tool=redecided.request.tool
            ),
            code="definition_changed",
            rule=decision.rule,
            remedy="Call it again. Approval is then requested for the current definition.",
        )
    return redecided


async def is_stale(snapshot: CallSnapshot) -> bool:
    """Return whether the snapshot is older than the current policy generation."""
    generation = await get_runtime().run_orm(load_policy_generation, snapshot.organization_id)
    return generation != snapshot.generation


def build_rules_changing_error() -> CallRefused:
    """Return the error for a call whose rules change faster than it can be decided."""
    return CallRefused(
        "The rules changed while this call was being evaluated.",
        code="rules_changing",
        remedy="Try again shortly.",
        status=503,
    )


async def record_refusal(context: CallContext, problem: Problem) -> None:
    """Record the refusal; raises the ledger's error if it can't be written."""
    if isinstance(problem, Refusal) and problem.code == "audit_unavailable":
        return
    run_orm = get_runtime().run_orm
    if isinstance(problem, CallNotApproved) and await run_orm(
        take_recorded_refusal, problem.approval_id
    ):
        return
    decision = PolicyDecision("deny", problem.rule or problem.code, problem.code)
    approval_id: UUID | None = None
    if isinstance(problem, ApprovalRequired):
        decision = PolicyDecision("ask", decision.rule, decision.code)
        approval_id = problem.approval_id
    entry_id = await get_writer().record_refusal_async(
        build_opening(context, decision, describe_target(context), approval_id=approval_id)
    )
    if approval_id is not None:
        await run_orm(set_request_entry, approval_id, entry_id)
