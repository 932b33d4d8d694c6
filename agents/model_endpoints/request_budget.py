"""Reserve and settle the budget of one model request.

Under a budget, the answer is limited to the reserved tokens. If the longest answer exceeds the
remaining budget, a shorter one is requested; if even `MIN_ANSWER_TOKENS` exceed it, the request is
refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from time import perf_counter
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from agents.budgets.admission_queue import AdmissionTicket, AdmissionTimeouts, get_admission_queue
from agents.budgets.limits import BudgetLimit, build_reservations, select_limits
from agents.calls.root_limits import RootSession, load_root_limits, merge_limits
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.calls.types import CallRefused
from agents.llm import interface as llm_interface
from agents.llm.pricing import build_expected_usage, calculate_price
from agents.policies.decisions import evaluate_agent_stage
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.admission import BudgetExhausted, Refusal, StaleSnapshot
from bonobot.ledger.budgets import parse_unit, settle_reservations
from bonobot.ledger.types import Admission, BudgetReservation, Opening, Outcome, Settlement
from bonobot.ledger.writer.writer_thread import get_writer

# Answer limit under a budget if the endpoint sets none; every model supports it.
DEFAULT_ANSWER_TOKENS = 4096
# A shorter answer would cost money and be useless.
MIN_ANSWER_TOKENS = 256
# Attempts to admit a request while policies or budgets change.
MAX_ATTEMPTS = 5
# Budget units that limit the answer's length; the endpoint's timeout limits seconds.
BOUNDED_UNITS = frozenset({"tokens", "microusd"})


class UnpricedModel(Problem):
    """There is a money budget, but the model's price is unknown (fails closed)."""

    code = "price_unknown"
    status = 403


class UnknownUsage(Problem):
    """There is a budget, but the model didn't report the usage of its last turn (fails closed)."""

    code = "usage_unknown"
    status = 403


@dataclass(frozen=True, slots=True)
class ModelReservation:
    """The reservations of an admitted turn, decided on `snapshot`.

    `estimate` is the expected input, `max_tokens` the limit of the answer, both in tokens.
    """

    snapshot: CallSnapshot
    estimate: int
    reservations: tuple[BudgetReservation, ...]
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A turn to admit; `build_opening` builds its audit entry from the current snapshot.

    `last_turn` has the details of the session's last finished turn; `root` is set if another
    session started this one. `max_answer_tokens` is the longest useful answer, `extra_limits` apply
    in addition to the snapshot's. `wait_s` is how long the turn waits for budgets that others have
    reserved (default: `BONOBOT_ADMISSION_WAIT_S`).
    """

    session_id: UUID
    endpoint: llm_interface.ModelEndpointConfig
    estimate: int
    build_opening: Callable[[CallSnapshot, int], Opening]
    last_turn: Mapping[str, Any] | None = None
    root: RootSession | None = None
    max_answer_tokens: int | None = None
    extra_limits: tuple[BudgetLimit, ...] = ()
    wait_s: float | None = None


def build_opening(
    call_id: UUID,
    endpoint: llm_interface.ModelEndpointConfig,
    snapshot: CallSnapshot,
    estimate: int,
    *,
    details: Mapping[str, Any],
    **fields: Any,
) -> Opening:
    """Return the opening audit entry of a model request; `fields` are added to it."""
    return Opening(
        call_id=call_id,
        organization_id=snapshot.organization_id,
        event_type="model",
        resource_type="model_endpoint",
        resource_id=endpoint.model or endpoint.kind,
        decision="allow",
        code="",
        details={
            **details,
            "estimated_input_tokens": estimate,
            "endpoint_id": endpoint.id,
            "endpoint": endpoint.title,
        },
        agent_id=snapshot.agent_id,
        agent_name=snapshot.agent_name,
        **fields,
    )


async def reserve_model_request(
    request: ReservationRequest, snapshot: CallSnapshot
) -> ModelReservation:
    """Admit a turn by the current policies, budgets and kill switches.

    The answer is shortened to what isn't spent of the budgets, and waits for what others have only
    reserved. Raises `CallRefused` (halted, disabled), `Refusal`, `UnpricedModel` or `UnknownUsage`.
    """
    wait_s = settings.BONOBOT_ADMISSION_WAIT_S if request.wait_s is None else request.wait_s
    queue = get_admission_queue()
    ticket = AdmissionTicket(AdmissionTimeouts(0, wait_s))
    try:
        return await _reserve_request(request, snapshot, ticket)
    finally:
        queue.close_ticket(ticket)


async def _reserve_request(
    request: ReservationRequest, snapshot: CallSnapshot, ticket: AdmissionTicket
) -> ModelReservation:
    endpoint = request.endpoint
    estimate = request.estimate
    answer = request.max_answer_tokens or endpoint.max_tokens or DEFAULT_ANSWER_TOKENS
    min_answer = min(
        MIN_ANSWER_TOKENS, request.max_answer_tokens or endpoint.max_tokens or MIN_ANSWER_TOKENS
    )
    is_corrected, stale_attempts = False, 0
    while stale_attempts < MAX_ATTEMPTS:
        await _check_kill_switch(request, snapshot, estimate)
        own_limits = select_limits(snapshot.limits, server_id=None, session_id=request.session_id)
        limits = (
            *merge_limits(own_limits, await load_root_limits(request.root)),
            *request.extra_limits,
        )
        bounded_units = sorted(BOUNDED_UNITS & {limit.unit for limit in limits})
        if bounded_units and not is_corrected:
            estimate, is_corrected = _correct_by_last_turn(request, bounded_units[0]), True
        expected = build_expected_usage(endpoint, estimate, answer)
        reservations = _build_reservations(snapshot, limits, endpoint, expected)
        opening = request.build_opening(snapshot, estimate)
        try:
            await _admit_request(ticket, opening, reservations, snapshot)
        except StaleSnapshot:
            stale_attempts += 1
            snapshot = await get_runtime().run_orm(_reload_snapshot, snapshot)
        except BudgetExhausted as exhausted:
            shorter_answer = compute_fitting_tokens(endpoint, expected, exhausted)
            if shorter_answer < min_answer:
                await _write_refusal(opening, exhausted)
                raise
            answer = shorter_answer
        else:
            return ModelReservation(
                snapshot, estimate, reservations, answer if bounded_units else endpoint.max_tokens
            )
    raise CallRefused(
        "The rules or budgets changed while this turn was being evaluated.",
        code="rules_changing",
        remedy="Try again shortly.",
        status=503,
    )


def compute_fitting_tokens(
    endpoint: llm_interface.ModelEndpointConfig,
    expected: llm_interface.TokenUsage,
    exhausted: BudgetExhausted,
) -> int:
    """Return how many answer tokens fit into the remaining budget, 0 if none."""
    unit = parse_unit(exhausted.rule)
    if unit not in BOUNDED_UNITS:
        return 0
    remaining_amount = exhausted.remaining

    def is_affordable(answer: int) -> bool:
        used_amount = _measure_usage(unit, endpoint, replace(expected, output_tokens=answer))
        return used_amount is not None and used_amount <= remaining_amount

    # The cost grows with the answer's length, so use binary search.
    fit, too_long = 0, expected.output_tokens
    if not is_affordable(fit):
        return 0
    while too_long - fit > 1:
        middle = (fit + too_long) // 2
        fit, too_long = (middle, too_long) if is_affordable(middle) else (fit, middle)
    return fit


def correct_estimate(estimate: int, last_turn: Mapping[str, Any] | None) -> int:
    """Scale an estimate of input tokens up by the error of the last turn's estimate."""
    if not last_turn or not (last_estimate := last_turn.get("estimated_input_tokens")):
        return estimate
    used_amount = last_turn.get("usage", {}).get("input_tokens", 0)
    return max(estimate, ceil(estimate * used_amount / last_estimate))


def _measure_usage(
    unit: str, endpoint: llm_interface.ModelEndpointConfig, usage: llm_interface.TokenUsage
) -> int | None:
    if unit == "tokens":
        return usage.input_tokens + usage.output_tokens
    return calculate_price(endpoint, usage)


def _build_reservations(
    snapshot: CallSnapshot,
    limits: tuple[BudgetLimit, ...],
    endpoint: llm_interface.ModelEndpointConfig,
    expected: llm_interface.TokenUsage,
) -> tuple[BudgetReservation, ...]:
    amounts = {
        "tokens": expected.input_tokens + expected.output_tokens,
        "milliseconds": round(endpoint.timeout_s * 1000),
    }
    if any(limit.unit == "microusd" for limit in limits):
        cost = calculate_price(endpoint, expected)
        if cost is None:
            raise UnpricedModel(
                format_message(
                    "The price of the model {model!r} is unknown.", model=endpoint.model
                ),
                rule="budget:microusd",
                remedy="Enter the model's prices on the model endpoint, or delete the money "
                "budget.",
            )
        amounts["microusd"] = cost
    return build_reservations(snapshot.organization_id, limits, amounts, timezone.now())


def _correct_by_last_turn(request: ReservationRequest, unit: str) -> int:
    """Return the estimate corrected by the last turn; raises `UnknownUsage`."""
    last_turn = request.last_turn
    if (
        last_turn
        and last_turn.get("endpoint", {}).get("id", request.endpoint.id) != request.endpoint.id
    ):
        last_turn = None  # other models count tokens differently
    if last_turn is not None and not last_turn.get("usage_known", True):
        raise UnknownUsage(
            format_message(
                "The model {model!r} didn't report the token usage of its last turn, so "
                "its budget can't be enforced.",
                model=request.endpoint.model,
            ),
            rule=f"budget:{unit}",
            remedy="Use an endpoint that reports usage, or delete the token and money budgets.",
        )
    return correct_estimate(request.estimate, last_turn)


async def _check_kill_switch(
    request: ReservationRequest, snapshot: CallSnapshot, estimate: int
) -> None:
    stage = evaluate_agent_stage(snapshot.effective_policy.switches)
    if stage.allows:
        return
    opening = request.build_opening(snapshot, estimate)
    await get_writer().record_refusal_async(
        replace(opening, decision="deny", code=stage.code, rule=stage.rule)
    )
    raise CallRefused(stage.reason, code=stage.code, rule=stage.rule, remedy=stage.remedy)


async def _admit_request(
    ticket: AdmissionTicket,
    opening: Opening,
    reservations: tuple[BudgetReservation, ...],
    snapshot: CallSnapshot,
) -> None:
    admission = Admission(
        opening=opening, reservations=reservations, charges=(), generation=snapshot.generation
    )
    try:
        await get_admission_queue().admit_call(ticket, admission)
    except (StaleSnapshot, BudgetExhausted):
        raise
    except Refusal as refusal:
        if refusal.code != "audit_unavailable":
            await _write_refusal(opening, refusal)
        raise


async def _write_refusal(opening: Opening, refusal: Refusal) -> None:
    denied_opening = replace(opening, decision="deny", code=refusal.code, rule=refusal.rule)
    await get_writer().record_refusal_async(denied_opening)


def _reload_snapshot(snapshot: CallSnapshot) -> CallSnapshot:
    if snapshot.agent_id is None:
        raise NotFound("This turn has no agent.", field="agent")
    return get_snapshot_cache().load("agent", snapshot.agent_id)


async def settle_model_request(
    call_id: UUID,
    organization_id: UUID,
    endpoint: llm_interface.ModelEndpointConfig,
    reserved: Sequence[BudgetReservation],
    *,
    outcome: Outcome,
    started_at: float,
    usage: llm_interface.TokenUsage | None,
    code: str = "",
) -> int:
    """Settle the reservation and return the cost; unknown usage settles as reserved."""
    known_usage = usage or llm_interface.TokenUsage(0, 0)
    cost = (calculate_price(endpoint, usage) or 0) if usage else 0
    duration_ms = round((perf_counter() - started_at) * 1000)
    actual_usage = {
        "tokens": known_usage.input_tokens + known_usage.output_tokens,
        "microusd": cost,
        "milliseconds": min(duration_ms, round(endpoint.timeout_s * 1000)),
    }
    if usage is None and outcome != "error":
        reserved_amounts = {
            parse_unit(reservation.key): reservation.amount for reservation in reserved
        }
        actual_usage |= {
            unit: reserved_amounts[unit]
            for unit in ("tokens", "microusd")
            if unit in reserved_amounts
        }
    await get_writer().settle_call_async(
        Settlement(
            call_id=call_id,
            organization_id=organization_id,
            outcome=outcome,
            code=code,
            duration_ms=duration_ms,
            details={"execution_time_ms": duration_ms} | _describe_cache_use(known_usage),
            actuals=settle_reservations(reserved, actual_usage),
            input_tokens=known_usage.input_tokens,
            output_tokens=known_usage.output_tokens,
            cost_microusd=cost,
            kind="model",
        ),
        wait_for_database=True,
    )
    get_admission_queue().notify_settled(reserved)
    return cost


def _describe_cache_use(usage: llm_interface.TokenUsage) -> dict[str, int]:
    """Return the input tokens that the provider read from its cache and wrote to it, if any."""
    counts = {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {name: count for name, count in counts.items() if count}
