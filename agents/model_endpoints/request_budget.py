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

from django.utils import timezone

from agents.budgets.limits import BudgetLimit, build_reservations, build_settlements, select_limits
from agents.calls.root_limits import RootSession, load_root_limits, merge_limits
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.calls.types import CallRefused
from agents.llm import interface as llm_interface
from agents.llm.pricing import calculate_price
from agents.policies.decisions import evaluate_agent_stage
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.budgets import parse_unit
from bonobot.ledger.refusals import BudgetExhausted, Refusal, StaleSnapshot
from bonobot.ledger.types import Admission, BudgetReservation, Opening, Outcome, Settlement
from bonobot.ledger.writer.writer_thread import get_writer

# Answer limit under a budget if the endpoint sets none; every model supports it.
ANSWER_TOKENS = 4096
# A shorter answer would cost money and be useless.
LEAST_ANSWER = 256
# Attempts to admit a request while policies or budgets change.
TRIES = 5
# Budget units that limit the answer's length; the endpoint's timeout limits seconds.
MEASURED = frozenset({"tokens", "microusd"})


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
    reserves: tuple[BudgetReservation, ...]
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class ReservationRequest:
    """A turn to admit; `build_opening` builds its audit entry from the current snapshot.

    `last_turn` has the details of the session's last finished turn; `root` is set if another
    session started this one. `max_answer_tokens` is the longest useful answer, `extra_limits` apply
    in addition to the snapshot's.
    """

    session_id: UUID
    endpoint: llm_interface.ModelEndpointConfig
    estimate: int
    opening: Callable[[CallSnapshot, int], Opening]
    last: Mapping[str, Any] | None = None
    root: RootSession | None = None
    answer: int | None = None
    extra: tuple[BudgetLimit, ...] = ()


def build_opening(
    call_id: UUID,
    endpoint: llm_interface.ModelEndpointConfig,
    snapshot: CallSnapshot,
    estimate: int,
    *,
    details: Mapping[str, Any],
    **more: Any,
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
        **more,
    )


async def reserve(asking: ReservationRequest, snapshot: CallSnapshot) -> ModelReservation:
    """Admit a turn by the current policies, budgets and kill switches.

    Raises `CallRefused` (halted, disabled), `Refusal`, `UnpricedModel` or `UnknownUsage`.
    """
    endpoint = asking.endpoint
    estimate = asking.estimate
    answer = asking.answer or endpoint.max_tokens or ANSWER_TOKENS
    least = min(LEAST_ANSWER, asking.answer or endpoint.max_tokens or LEAST_ANSWER)
    looked = False
    for _ in range(TRIES):
        await _check_kill_switch(asking, snapshot, estimate)
        own = select_limits(snapshot.limits, server_id=None, session_id=asking.session_id)
        limits = (*merge_limits(own, await load_root_limits(asking.root)), *asking.extra)
        bounded = sorted(MEASURED & {limit.unit for limit in limits})
        if bounded and not looked:
            estimate, looked = _as_told(asking, bounded[0]), True
        expected = llm_interface.TokenUsage(estimate, answer)
        held = _build_reserves(snapshot, limits, endpoint, expected)
        opening = asking.opening(snapshot, estimate)
        try:
            await _admit(opening, held, snapshot)
        except StaleSnapshot:
            snapshot = await get_runtime().orm(_read_again, snapshot)
        except BudgetExhausted as exhausted:
            shorter = compute_fitting_tokens(endpoint, expected, exhausted)
            if shorter < least:
                await _write_refusal(opening, exhausted)
                raise
            answer = shorter
        else:
            return ModelReservation(
                snapshot, estimate, held, answer if bounded else endpoint.max_tokens
            )
    raise CallRefused(
        "The rules or the budgets changed while this turn was being decided.",
        code="rules_changing",
        remedy="Try again in a moment.",
        status=503,
    )


def compute_fitting_tokens(
    endpoint: llm_interface.ModelEndpointConfig,
    expected: llm_interface.TokenUsage,
    exhausted: BudgetExhausted,
) -> int:
    """Return how many answer tokens fit into the remaining budget, 0 if none."""
    unit = parse_unit(exhausted.rule)
    if unit not in MEASURED:
        return 0
    left = exhausted.left

    def fits(answer: int) -> bool:
        taken = _measure_usage(unit, endpoint, replace(expected, output_tokens=answer))
        return taken is not None and taken <= left

    # The cost grows with the answer's length, so use binary search.
    fit, too_long = 0, expected.output_tokens
    if not fits(fit):
        return 0
    while too_long - fit > 1:
        middle = (fit + too_long) // 2
        fit, too_long = (middle, too_long) if fits(middle) else (fit, middle)
    return fit


def correct_estimate(estimate: int, last: Mapping[str, Any] | None) -> int:
    """Scale an estimate of input tokens up by the error of the last turn's estimate."""
    if not last or not (guessed := last.get("estimated_input_tokens")):
        return estimate
    used = last.get("usage", {}).get("input_tokens", 0)
    return max(estimate, ceil(estimate * used / guessed))


def _measure_usage(
    unit: str, endpoint: llm_interface.ModelEndpointConfig, usage: llm_interface.TokenUsage
) -> int | None:
    if unit == "tokens":
        return usage.input_tokens + usage.output_tokens
    return calculate_price(endpoint, usage)


def _build_reserves(
    snapshot: CallSnapshot,
    limits: tuple[BudgetLimit, ...],
    endpoint: llm_interface.ModelEndpointConfig,
    expected: llm_interface.TokenUsage,
) -> tuple[BudgetReservation, ...]:
    amounts = {
        "tokens": expected.input_tokens + expected.output_tokens,
        "seconds": round(endpoint.timeout_s * 1000),
    }
    if any(limit.unit == "microusd" for limit in limits):
        cost = calculate_price(endpoint, expected)
        if cost is None:
            raise UnpricedModel(
                format_message(
                    "Nothing is known of the price of the model {model!r}.", model=endpoint.model
                ),
                rule="budget:microusd",
                remedy="Enter its prices at the model endpoint, or remove the money budget.",
            )
        amounts["microusd"] = cost
    return build_reservations(snapshot.organization_id, limits, amounts, timezone.now())


def _as_told(asking: ReservationRequest, unit: str) -> int:
    """Return the estimate corrected by the last turn; raises `UnknownUsage`."""
    last = asking.last
    if last and last.get("endpoint", {}).get("id", asking.endpoint.id) != asking.endpoint.id:
        last = None  # other models count tokens differently
    if last is not None and not last.get("usage_known", True):
        raise UnknownUsage(
            format_message(
                "The model {model!r} didn't tell how many tokens its last turn "
                "used, so its budget can't be kept.",
                model=asking.endpoint.model,
            ),
            rule=f"budget:{unit}",
            remedy="Use an endpoint that reports usage, or remove the budgets of tokens and money.",
        )
    return correct_estimate(asking.estimate, last)


async def _check_kill_switch(
    asking: ReservationRequest, snapshot: CallSnapshot, estimate: int
) -> None:
    stage = evaluate_agent_stage(snapshot.ruling.switches)
    if stage.allows:
        return
    opening = asking.opening(snapshot, estimate)
    await get_writer().refuse_async(
        replace(opening, decision="deny", code=stage.code, rule=stage.rule)
    )
    raise CallRefused(stage.reason, code=stage.code, rule=stage.rule, remedy=stage.remedy)


async def _admit(
    opening: Opening, held: tuple[BudgetReservation, ...], snapshot: CallSnapshot
) -> None:
    try:
        await get_writer().admit_async(
            Admission(opening=opening, reserves=held, charges=(), generation=snapshot.generation)
        )
    except (StaleSnapshot, BudgetExhausted):
        raise
    except Refusal as refusal:
        if refusal.code != "audit_unavailable":
            await _write_refusal(opening, refusal)
        raise


async def _write_refusal(opening: Opening, refusal: Refusal) -> None:
    refused = replace(opening, decision="deny", code=refusal.code, rule=refusal.rule)
    await get_writer().refuse_async(refused)


def _read_again(snapshot: CallSnapshot) -> CallSnapshot:
    if snapshot.agent_id is None:
        raise NotFound("There is no agent whose turn it is.", field="agent")
    return get_snapshot_cache().read("agent", snapshot.agent_id)


async def settle(
    call_id: UUID,
    organization_id: UUID,
    endpoint: llm_interface.ModelEndpointConfig,
    reserved: Sequence[BudgetReservation],
    *,
    outcome: Outcome,
    began: float,
    usage: llm_interface.TokenUsage | None,
    code: str = "",
) -> int:
    """Settle the reservation and return the cost; unknown usage settles as reserved."""
    known = usage or llm_interface.TokenUsage(0, 0)
    cost = (calculate_price(endpoint, usage) or 0) if usage else 0
    duration_ms = round((perf_counter() - began) * 1000)
    took = {
        "tokens": known.input_tokens + known.output_tokens,
        "microusd": cost,
        "seconds": min(duration_ms, round(endpoint.timeout_s * 1000)),
    }
    if usage is None and outcome != "error":
        held = {parse_unit(one.key): one.amount for one in reserved}
        took |= {unit: held[unit] for unit in ("tokens", "microusd") if unit in held}
    await get_writer().settle_async(
        Settlement(
            call_id=call_id,
            organization_id=organization_id,
            outcome=outcome,
            code=code,
            duration_ms=duration_ms,
            details={"execution_time_ms": duration_ms},
            actuals=build_settlements(reserved, took),
            input_tokens=known.input_tokens,
            output_tokens=known.output_tokens,
            cost_microusd=cost,
            kind="model",
        ),
        patient=True,
    )
    return cost
