"""Build the admission of a call: its audit opening, budget reservations and rate charges.

What the calls of a principal to one target have in common is built once, as an `AdmissionPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import time
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from agents.budgets.admission_queue import AdmissionTimeouts
from agents.budgets.limits import (
    build_charge,
    build_global_charge,
    build_reservations,
    select_limits,
)
from agents.calls.definitions import FREE, CallPrice
from agents.calls.redaction import build_audited_arguments, redact_value
from agents.calls.root_limits import merge_limits
from agents.calls.settle_call import calculate_cost
from agents.calls.snapshots import SnapshotTool, Target
from agents.calls.types import CallContext, CallRequest
from agents.flow_labels.call_effects import build_flow_effects, list_used_stores
from agents.policies.decisions import PolicyDecision
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.text.masking import Masker
from bonobot.ledger.types import (
    Actor,
    Admission,
    BudgetReservation,
    FlowLabelEffect,
    Opening,
    RateCharge,
    Store,
)
from mcp_servers.flow_labels.tool_risk import list_declared_hints

# Seconds that a caller without a session waits for a budget that others have reserved.
CALLER_WAIT_S = 5
SECONDS_PER_DAY = 86_400
MAX_PLANS = 1_000  # in one snapshot; then all are built again
# The audit log's actions by method, of calls to a server and through an agent.
ACTIONS = {
    "resources/read": ("resource_read", "agent_resource_read"),
    "prompts/get": ("prompt_get", "agent_prompt_get"),
    "completion/complete": ("completion", "agent_completion"),
    "tools/call": ("tool_call", "agent_tool_call"),
}


@dataclass(frozen=True, slots=True)
class TargetDescription:
    """How the audit log describes a caller and its target, without the secrets `masker` knows."""

    masker: Masker
    actor: Actor
    client: str
    name: str
    tool_name: str
    resource_type: str
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AdmissionPlan:
    """What the admissions of a principal's calls of one target have in common, during a day."""

    target: Target
    principal: Principal
    client: str
    deadline_ms: int
    day: int
    description: TargetDescription
    reservations: tuple[BudgetReservation, ...]
    charges: tuple[RateCharge, ...]
    flows: tuple[FlowLabelEffect, ...]
    stores: tuple[Store, ...]


def build_admission(context: CallContext) -> Admission:
    """Return the admission of a decided call, with its approval where it needs one."""
    request, grant, plan = context.request, context.grant, get_admission_plan(context)
    flows = plan.flows
    # A later round trip only adds answers that people gave to the server's own requests.
    if grant is not None or request.continuation is not None:
        flows = tuple(replace(flow, blocking_labels=0) for flow in flows)
    return Admission(
        opening=build_opening(context, context.decision, plan.description),
        reservations=plan.reservations,
        charges=plan.charges,
        generation=context.snapshot.generation,
        flows=flows,
        stores=plan.stores if flows else (),
        approval=grant.approval if grant else None,
    )


def get_admission_plan(context: CallContext) -> AdmissionPlan:
    """Return the plan of a call; that of an ordinary tool call is kept in the snapshot."""
    request, target, principal = context.request, context.target, context.request.principal
    is_ordinary = request.method == "tools/call" and not request.session_id
    is_later_round_trip = request.continuation or (request.relay and request.relay.extra_params)
    if not is_ordinary or is_later_round_trip or context.root_limits:
        return _build_admission_plan(context)
    plans: dict[tuple[str, int], AdmissionPlan] = context.snapshot.memo.setdefault("plans", {})
    key = (target.name, id(principal))
    plan = plans.get(key)
    if (
        plan is None
        or plan.target is not target
        or plan.principal is not principal
        or plan.description.masker is not context.masker
        or plan.client != request.client
        or plan.deadline_ms != context.deadline_ms
        or plan.day != time() // SECONDS_PER_DAY
    ):
        if len(plans) >= MAX_PLANS:
            plans.clear()
        plan = plans[key] = _build_admission_plan(context)
    return plan


def _build_admission_plan(context: CallContext) -> AdmissionPlan:
    request, snapshot = context.request, context.snapshot
    stores = _list_used_stores(context)
    return AdmissionPlan(
        target=context.target,
        principal=request.principal,
        client=request.client,
        deadline_ms=context.deadline_ms,
        day=int(time() // SECONDS_PER_DAY),
        description=describe_target(context),
        reservations=_build_reservations(context),
        charges=_build_charges(context),
        flows=build_flow_effects(
            request.principal,
            context.target.labels,
            session_id=request.label_session_id,
            agent_id=snapshot.agent_id,
            stores=stores,
        ),
        stores=stores,
    )


def _list_used_stores(context: CallContext) -> tuple[Store, ...]:
    """Return the server store that a call reads or writes."""
    request, target = context.request, context.target
    store_use, continuation = target.store_use, request.continuation or request.relay
    if continuation and (continuation.extra_params or getattr(continuation, "updates", None)):
        store_use = store_use.with_answers()
    return list_used_stores(context.snapshot.organization_id, target.facts.server_id, store_use)


def choose_timeouts(request: CallRequest) -> AdmissionTimeouts:
    """Return how long a call waits: a session's long, others shortly and not for a rate limit.

    A call within another one doesn't wait long, because that one's reservation may be in its way.
    """
    session_wait_s = settings.BONOBOT_ADMISSION_WAIT_S
    caller_wait_s = min(CALLER_WAIT_S, session_wait_s)
    if request.session_id is None:
        return AdmissionTimeouts(0, caller_wait_s)
    return AdmissionTimeouts(session_wait_s, caller_wait_s if request.parent_id else session_wait_s)


def build_opening(
    context: CallContext,
    decision: PolicyDecision,
    description: TargetDescription,
    *,
    approval_id: UUID | None = None,
) -> Opening:
    """Return the opening of the audit entry: who calls what, with which arguments.

    `approval_id` is the approval that the call waits for. Such an entry gets its own id, because
    the call may still run later under its own, or wait for another approval.
    """
    request, snapshot, server = context.request, context.snapshot, context.server
    arguments, organization_id = request.arguments, snapshot.organization_id
    server_action, agent_action = ACTIONS[request.method]
    parent_id = request.parent_id or request.turn_id
    details: dict[str, Any] = {
        "tool_name": description.tool_name,
        **build_audited_arguments(arguments, organization_id, server, description.masker),
        # The entry of the call, or of the model turn, that requested this call.
        "parent_execution": str(parent_id) if parent_id else None,
        "via": request.via,
        **description.details,
        **_build_optional_details(context, decision, description.client, approval_id),
    }
    return Opening(
        call_id=generate_uuid7() if approval_id else request.call_id,
        organization_id=organization_id,
        action=agent_action if snapshot.agent_id else server_action,
        event_type="call",
        resource_type=description.resource_type,
        resource_id=description.name,
        actor=description.actor,
        decision=decision.verdict,
        rule=decision.rule,
        code=decision.code,
        details=details,
        agent_id=snapshot.agent_id,
        agent_name=snapshot.agent_name,
        server_id=server.id if server else None,
        server_name=server.name if server else "",
        tool_name=description.tool_name,
        session_id=request.session_id,
        parent_id=parent_id,
    )


def describe_target(context: CallContext) -> TargetDescription:
    """Return the description of the target, or of the unknown name, and of its caller."""
    request, organization_id = context.request, context.snapshot.organization_id
    target = context.target if context.is_resolved else None
    name = str(redact_value(request.tool, organization_id, context.server, context.masker))
    is_builtin = target is not None and target.facts.source == "builtin"
    return TargetDescription(
        context.masker,
        request.principal.actor,
        client=redact_value(request.client, organization_id, None, context.masker),
        name=name,
        tool_name=target.facts.own_name if target and request.method == "tools/call" else name,
        resource_type="builtin_tool" if is_builtin else f"mcp_{request.noun}",
        details=_build_target_details(context, target),
    )


def _build_target_details(context: CallContext, target: Target | None) -> dict[str, Any]:
    """Return the details that describe the target and its server."""
    details: dict[str, Any] = {}
    if server := context.server:
        details |= {"mcp_server_id": str(server.id), "mcp_server_name": server.name}
        details |= {"transport": server.endpoint.transport, "era": server.endpoint.era or ""}
    if target and target.digest:
        details["definition_digest"] = target.digest
    if target and target.labels:
        details["labels"] = [str(label) for label in target.labels]
    if isinstance(target, SnapshotTool) and (hints := list_declared_hints(target.declaration)):
        details["hints"] = hints
    return details


def _build_optional_details(
    context: CallContext, decision: PolicyDecision, client: str, approval_id: UUID | None
) -> dict[str, Any]:
    """Return the details that only some calls have."""
    request, snapshot = context.request, context.snapshot
    target = context.target if context.is_resolved else None
    details: dict[str, Any] = {}
    if request.repeats or request.continuation or request.relay:
        call_ids = [str(call_id) for call_id in sorted(request.earlier_call_ids)]
        details |= {"continues": call_ids} if call_ids else {}
    if client:
        details["client"] = client
    if request.method != "tools/call":
        details["method"] = request.method
        if target and target.facts.own_name != request.tool:
            details["template"] = target.facts.own_name
    if context.grant is not None:
        details |= context.grant.details
    if approval_id is not None:
        details |= {"approval_id": str(approval_id), "call_id": str(request.call_id)}
    has_shadow_policy = snapshot.draft is not None or snapshot.organization_draft is not None
    if has_shadow_policy and isinstance(target, SnapshotTool):
        shadow_decisions = snapshot.compare_shadow_policies(target, request.arguments, decision)
        for name, shadow_decision in shadow_decisions.items():
            details[name] = {"decision": shadow_decision.verdict, "rule": shadow_decision.rule}
    return details


def _build_reservations(context: CallContext) -> tuple[BudgetReservation, ...]:
    request, snapshot, server = context.request, context.snapshot, context.server
    limits = select_limits(
        snapshot.limits, server_id=server.id if server else None, session_id=request.session_id
    )
    if context.root_limits:
        limits = merge_limits(limits, context.root_limits)
    amounts = estimate_amounts(server.price if server else FREE, context.deadline_ms)
    return build_reservations(snapshot.organization_id, limits, amounts, timezone.now())


def _build_charges(context: CallContext) -> tuple[RateCharge, ...]:
    """Return the rate limits that a call is charged to, the narrowest first."""
    snapshot, server, principal = context.snapshot, context.server, context.request.principal
    organization_id = snapshot.organization_id
    organization_rate = snapshot.organization_calls_per_minute
    if organization_rate is None:
        organization_rate = settings.BONOBOT_ORG_CALLS_PER_MINUTE
    token_rate = principal.calls_per_minute or settings.BONOBOT_CALLS_PER_MINUTE
    rates: tuple[tuple[str, UUID | None, int | None], ...] = (
        ("token", principal.token_id, token_rate),
        ("agent", snapshot.agent_id, snapshot.calls_per_minute),
        ("server", server.id if server else None, server.calls_per_minute if server else None),
        ("organization", organization_id, organization_rate),
    )
    charges = [
        build_charge(organization_id, scope, scope_id, per_minute)
        for scope, scope_id, per_minute in rates
        if scope_id and per_minute
    ]
    if settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE:
        charges.append(build_global_charge(settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE))
    return tuple(charges)


def estimate_amounts(price: CallPrice, deadline_ms: int) -> dict[str, int]:
    """Return the maximum amounts of a call, to reserve before it."""
    amounts = {"calls": 1, "milliseconds": deadline_ms}
    return amounts if price.is_free else amounts | {"microusd": calculate_cost(price, deadline_ms)}
