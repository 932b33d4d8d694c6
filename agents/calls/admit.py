"""Build the admission of a call: its audit opening, budget reservations and rate charges."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from agents.budgets.call_costs import FREE, estimate_amounts
from agents.budgets.limits import (
    BudgetLimit,
    build_charge,
    build_global_charge,
    build_reservations,
    select_limits,
)
from agents.calls.audited_arguments import build_audited_arguments
from agents.calls.redaction import get_organization_masker, redact_value
from agents.calls.require_approval import ApprovalGrant
from agents.calls.resolve import Target
from agents.calls.root_limits import merge_limits
from agents.calls.snapshots import CallSnapshot, ServerFacts, SnapshotTool
from agents.calls.types import CallRequest
from agents.flow_labels.rules import build_flow_effects, list_used_stores
from agents.policies.decisions import PolicyDecision
from bonobot.core.db.fields import generate_uuid7
from bonobot.ledger.types import Admission, BudgetReservation, Opening, RateCharge, Store


def build_admission(
    request: CallRequest,
    snapshot: CallSnapshot,
    target: Target,
    decision: PolicyDecision,
    grant: ApprovalGrant | None = None,
    root_limits: tuple[BudgetLimit, ...] = (),
) -> Admission:
    """Return the admission of a decided call, with its approval where it needs one.

    `root_limits` are the budgets of the root session, if another session started this one.
    """
    stores = _list_used_stores(request, snapshot, target)
    flows = build_flow_effects(
        request.principal,
        target.labels,
        session_id=request.label_session_id,
        agent_id=snapshot.agent_id,
        stores=stores,
    )
    # A later leg only adds answers that people gave to the server's own requests.
    if grant is not None or request.continuation is not None:
        flows = tuple(replace(flow, blocking_labels=0) for flow in flows)
    return Admission(
        opening=build_opening(request, snapshot, target, decision, grant=grant),
        reservations=_build_reservations(request, snapshot, target, root_limits),
        charges=_build_charges(request, snapshot, target),
        generation=snapshot.generation,
        flows=flows,
        stores=stores if flows else (),
        approval=grant.approval if grant else None,
    )


def _list_used_stores(
    request: CallRequest, snapshot: CallSnapshot, target: Target
) -> tuple[Store, ...]:
    """Return the server store that a call reads or writes."""
    store_use, continuation = target.store_use, request.continuation or request.relay
    if continuation and (continuation.extra_params or getattr(continuation, "updates", None)):
        store_use = store_use.with_answers()
    return list_used_stores(snapshot.organization_id, target.facts.server_id, store_use)


def build_opening(
    request: CallRequest,
    snapshot: CallSnapshot,
    target: Target | None,
    decision: PolicyDecision,
    *,
    grant: ApprovalGrant | None = None,
    approval_id: UUID | None = None,
) -> Opening:
    """Return the opening of the audit entry: who calls what, with which arguments.

    `approval_id` is the approval that the call waits for. Such an entry gets its own id, because
    the call may still run later under its own, or wait for another approval.
    """
    server = _find_server(snapshot, target)
    redacted_name = _redact_name(request, snapshot, target, server)
    tool_name = (
        target.facts.own_name if target and request.method == "tools/call" else redacted_name
    )
    return Opening(
        call_id=generate_uuid7() if approval_id else request.call_id,
        organization_id=snapshot.organization_id,
        action=_get_action(request, snapshot),
        event_type="call",
        resource_type=_get_resource_type(request, target),
        resource_id=redacted_name,
        actor=request.principal.actor,
        decision=decision.verdict,
        rule=decision.rule,
        code=decision.code,
        details={
            **_build_details(request, snapshot, tool_name, target, server),
            **_build_approval_details(grant, approval_id, request),
            **_build_shadow_details(request, snapshot, target, decision),
        },
        agent_id=snapshot.agent_id,
        agent_name=snapshot.agent_name,
        server_id=server.id if server else None,
        server_name=server.name if server else "",
        tool_name=tool_name,
        session_id=request.session_id,
        parent_id=request.parent_id or request.turn_id,
    )


def _redact_name(
    request: CallRequest, snapshot: CallSnapshot, target: Target | None, server: ServerFacts | None
) -> str:
    """Return the requested name with secrets masked; cached for known tools."""
    if target is None or request.method != "tools/call":
        return str(redact_value(request.tool, snapshot.organization_id, server))
    masker, memo = get_organization_masker(snapshot.organization_id), snapshot.memo
    cached = memo.get(("named", request.tool))
    if cached is None or cached[0] is not masker:
        cached = masker, str(redact_value(request.tool, snapshot.organization_id, server))
        memo["named", request.tool] = cached
    return str(cached[1])


def _build_details(
    request: CallRequest,
    snapshot: CallSnapshot,
    tool_name: str,
    target: Target | None,
    server: ServerFacts | None,
) -> dict[str, Any]:
    organization_id = snapshot.organization_id
    details: dict[str, Any] = {
        "tool_name": tool_name,
        **build_audited_arguments(request.arguments, organization_id, server),
        "parent_execution": _format_parent(request),
        "via": request.via,
        **_build_target_details(snapshot, target, server),
    }
    if request.legs:
        details["continues"] = [str(leg) for leg in sorted(request.legs)]
    if request.client:
        details["client"] = redact_value(request.client, organization_id, None)
    if request.method != "tools/call":
        details["method"] = request.method
        if target and target.facts.own_name != request.tool:
            details["template"] = target.facts.own_name
    return details


def _format_parent(request: CallRequest) -> str | None:
    """Return the id of the entry of the call, or of the model turn, that requested this call."""
    parent_id = request.parent_id or request.turn_id
    return str(parent_id) if parent_id else None


def _build_target_details(
    snapshot: CallSnapshot, target: Target | None, server: ServerFacts | None
) -> Mapping[str, Any]:
    """Return the details that describe the target and its server; cached for tools."""
    key = ("about", target.name, target.labels) if isinstance(target, SnapshotTool) else None
    if key and (cached := snapshot.memo.get(key)) is not None:
        cached_details: Mapping[str, Any] = cached
        return cached_details
    details: dict[str, Any] = {}
    if server:
        details |= {"mcp_server_id": str(server.id), "mcp_server_name": server.name}
        details |= {"transport": server.endpoint.transport, "era": server.endpoint.era or ""}
    if target and target.digest:
        details["definition_digest"] = target.digest
    if target and target.labels:
        details["labels"] = list(target.labels)
    if key:
        snapshot.memo[key] = details
    return details


def _build_approval_details(
    grant: ApprovalGrant | None, approval_id: UUID | None, request: CallRequest
) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if grant is not None:
        approval = grant.approval
        details["approval_id"] = str(approval.id) if approval else "session"
    if approval_id is not None:
        details |= {"approval_id": str(approval_id), "call_id": str(request.call_id)}
    return details


def _build_shadow_details(
    request: CallRequest, snapshot: CallSnapshot, target: Target | None, decision: PolicyDecision
) -> dict[str, Any]:
    """Return the shadow policies' decisions that differ from the actual one."""
    if not isinstance(target, SnapshotTool):
        return {}
    shadow_decisions = snapshot.compare_shadow_policies(target, request.arguments, decision)
    return {
        name: {"decision": shadow_decision.verdict, "rule": shadow_decision.rule}
        for name, shadow_decision in shadow_decisions.items()
    }


def _find_server(snapshot: CallSnapshot, target: Target | None) -> ServerFacts | None:
    server_id = target.facts.server_id if target else None
    return snapshot.servers.get(server_id) if server_id else None


def _get_action(request: CallRequest, snapshot: CallSnapshot) -> str:
    server_action, agent_action = {
        "resources/read": ("resource_read", "agent_resource_read"),
        "prompts/get": ("prompt_get", "agent_prompt_get"),
        "completion/complete": ("completion", "agent_completion"),
    }.get(request.method, ("tool_call", "agent_tool_call"))
    return agent_action if snapshot.agent_id else server_action


def _get_resource_type(request: CallRequest, target: Target | None) -> str:
    is_builtin = target is not None and target.facts.source == "builtin"
    return "builtin_tool" if is_builtin else f"mcp_{request.noun}"


def calculate_deadline_ms(request: CallRequest, server: ServerFacts | None) -> int:
    """Return how long a call may run, in milliseconds; 0 for built-in tools."""
    if server is None:
        return 0
    seconds = server.endpoint.read_s if request.timeout_s is None else request.timeout_s
    return round(seconds * 1000)


def _build_reservations(
    request: CallRequest,
    snapshot: CallSnapshot,
    target: Target,
    root_limits: tuple[BudgetLimit, ...],
) -> tuple[BudgetReservation, ...]:
    server = _find_server(snapshot, target)
    limits = select_limits(
        snapshot.limits, server_id=server.id if server else None, session_id=request.session_id
    )
    amounts = estimate_amounts(
        server.price if server else FREE, calculate_deadline_ms(request, server)
    )
    limits = merge_limits(limits, root_limits)
    return build_reservations(snapshot.organization_id, limits, amounts, timezone.now())


def _build_charges(
    request: CallRequest, snapshot: CallSnapshot, target: Target
) -> tuple[RateCharge, ...]:
    """Return the rate limits that a call is charged to, the narrowest first."""
    organization_id = snapshot.organization_id
    server = _find_server(snapshot, target)
    rates: list[tuple[str, UUID | None, int | None]] = [
        ("token", request.principal.token_id, _get_token_rate(request)),
        ("agent", snapshot.agent_id, snapshot.calls_per_minute),
        ("server", server.id if server else None, server.calls_per_minute if server else None),
        ("organization", organization_id, _get_organization_rate(snapshot)),
    ]
    charges = [
        build_charge(organization_id, scope, scope_id, per_minute)
        for scope, scope_id, per_minute in rates
        if scope_id and per_minute
    ]
    if settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE:
        charges.append(build_global_charge(settings.BONOBOT_GLOBAL_CALLS_PER_MINUTE))
    return tuple(charges)


def _get_token_rate(request: CallRequest) -> int:
    rate: int = request.principal.calls_per_minute or settings.BONOBOT_CALLS_PER_MINUTE
    return rate


def _get_organization_rate(snapshot: CallSnapshot) -> int:
    configured_rate = snapshot.organization_calls_per_minute
    rate: int = (
        settings.BONOBOT_ORG_CALLS_PER_MINUTE if configured_rate is None else configured_rate
    )
    return rate
