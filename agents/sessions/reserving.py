"""Reserving: a model turn is admitted with what it may take of the budgets (FEATURES X5).

A bounded turn asks the model for no longer an answer than was set aside for it. Where the longest
answer doesn't fit into what is left of a budget, a shorter one is asked for; where not even a
useful one fits, the budget refuses.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any
from uuid import UUID

from django.utils import timezone

from agents.governance.limits import Limit, applying, reserves
from agents.governance.policies import agent_stage
from agents.governance.roots import Root, limits_of_root, together
from agents.governance.snapshots import Snapshot, snapshots
from agents.llm import port
from agents.llm.prices import price
from agents.requests import Refused
from bonobot.ledger.budgets import unit_of
from bonobot.ledger.entries import Admission, Opening, Reserve
from bonobot.ledger.refusals import BudgetExhausted, Refusal, StaleSnapshot
from bonobot.ledger.writer import writer
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say

# The longest answer where a budget stands and the endpoint names none: what every model can give.
ANSWER_TOKENS = 4096
# A shorter answer would be paid for and be of no use.
LEAST_ANSWER = 256
# Rules and budgets that change while a turn is admitted are read again this often.
TRIES = 5
# What an answer's length is bounded by; seconds are bounded by the endpoint's timeout.
MEASURED = frozenset({"tokens", "microusd"})


class UnpricedModel(Problem):
    """A money budget stands, and what the model costs can't be told (fails closed)."""

    code = "price_unknown"
    status = 403


class UnknownUsage(Problem):
    """A budget stands, and the model didn't tell what its last turn used (fails closed)."""

    code = "usage_unknown"
    status = 403


@dataclass(frozen=True, slots=True)
class Reserved:
    """What an admitted turn holds: decided on `snapshot`, answers of at most `max_tokens`.

    `estimate` is what its input was expected to take, in tokens.
    """

    snapshot: Snapshot
    estimate: int
    reserves: tuple[Reserve, ...]
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Asking:
    """A turn that asks to be admitted; `opening` makes its audit row from the moment's rules.

    `last` is what is written of the session's last turn that ended; `root` is there where another
    session began this one. `answer` is the longest that is of use, `extra` are limits beside those
    of the rules.
    """

    session_id: UUID
    endpoint: port.Endpoint
    estimate: int
    opening: Callable[[Snapshot, int], Opening]
    last: Mapping[str, Any] | None = None
    root: Root | None = None
    answer: int | None = None
    extra: tuple[Limit, ...] = ()


def opening_of(
    call_id: UUID,
    endpoint: port.Endpoint,
    snapshot: Snapshot,
    estimate: int,
    *,
    details: Mapping[str, Any],
    **more: Any,
) -> Opening:
    """Return the audit's first half of a request to a model; `more` says who asks, and why."""
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


async def reserve(asking: Asking, snapshot: Snapshot) -> Reserved:
    """Admit a turn by the rules of this very moment: a kill switch stops thinking, too.

    Raises `Refused` (halted, switched off), `Refusal`, `UnpricedModel` or `UnknownUsage`.
    """
    endpoint = asking.endpoint
    estimate = asking.estimate
    answer = asking.answer or endpoint.max_tokens or ANSWER_TOKENS
    least = min(LEAST_ANSWER, asking.answer or endpoint.max_tokens or LEAST_ANSWER)
    looked = False
    for _ in range(TRIES):
        await _refuse_halted(asking, snapshot, estimate)
        own = applying(snapshot.limits, server_id=None, session_id=asking.session_id)
        limits = (*together(own, await limits_of_root(asking.root)), *asking.extra)
        bounded = sorted(MEASURED & {limit.unit for limit in limits})
        if bounded and not looked:
            estimate, looked = _as_told(asking, bounded[0]), True
        expected = port.Usage(estimate, answer)
        held = _reserves(snapshot, limits, endpoint, expected)
        opening = asking.opening(snapshot, estimate)
        try:
            await _admit(opening, held, snapshot)
        except StaleSnapshot:
            snapshot = await runtime().orm(_read_again, snapshot)
        except BudgetExhausted as exhausted:
            shorter = fitting(endpoint, expected, exhausted)
            if shorter < least:
                await _write_refusal(opening, exhausted)
                raise
            answer = shorter
        else:
            return Reserved(snapshot, estimate, held, answer if bounded else endpoint.max_tokens)
    raise Refused(
        "The rules or the budgets changed while this turn was being decided.",
        code="rules_changing",
        remedy="Try again in a moment.",
        status=503,
    )


def fitting(endpoint: port.Endpoint, expected: port.Usage, exhausted: BudgetExhausted) -> int:
    """Return how many tokens of an answer fit into what is left of a budget; 0: none at all."""
    unit = unit_of(exhausted.rule)
    if unit not in MEASURED:
        return 0
    left = exhausted.left

    def fits(answer: int) -> bool:
        taken = _amount(unit, endpoint, replace(expected, output_tokens=answer))
        return taken is not None and taken <= left

    # A longer answer never costs less, so the longest is found by halving.
    fit, too_long = 0, expected.output_tokens
    if not fits(fit):
        return 0
    while too_long - fit > 1:
        middle = (fit + too_long) // 2
        fit, too_long = (middle, too_long) if fits(middle) else (fit, middle)
    return fit


def corrected(estimate: int, last: Mapping[str, Any] | None) -> int:
    """Return an estimate of input tokens, raised as far as the last turn's was too low."""
    if not last or not (guessed := last.get("estimated_input_tokens")):
        return estimate
    used = last.get("usage", {}).get("input_tokens", 0)
    return max(estimate, ceil(estimate * used / guessed))


def _amount(unit: str, endpoint: port.Endpoint, usage: port.Usage) -> int | None:
    if unit == "tokens":
        return usage.input_tokens + usage.output_tokens
    return price(endpoint, usage)


def _reserves(
    snapshot: Snapshot, limits: tuple[Limit, ...], endpoint: port.Endpoint, expected: port.Usage
) -> tuple[Reserve, ...]:
    amounts = {
        "tokens": expected.input_tokens + expected.output_tokens,
        "seconds": round(endpoint.timeout_s * 1000),
    }
    if any(limit.unit == "microusd" for limit in limits):
        cost = price(endpoint, expected)
        if cost is None:
            raise UnpricedModel(
                say("Nothing is known of the price of the model {model!r}.", model=endpoint.model),
                rule="budget:microusd",
                remedy="Enter its prices at the model endpoint, or remove the money budget.",
            )
        amounts["microusd"] = cost
    return reserves(snapshot.organization_id, limits, amounts, timezone.now())


def _as_told(asking: Asking, unit: str) -> int:
    """Return the estimate by what the last turn told; raises `UnknownUsage` where it didn't."""
    last = asking.last
    if last and last.get("endpoint", {}).get("id", asking.endpoint.id) != asking.endpoint.id:
        last = None  # another model's, which counts in its own way
    if last is not None and not last.get("usage_known", True):
        raise UnknownUsage(
            say(
                "The model {model!r} didn't tell how many tokens its last turn "
                "used, so its budget can't be kept.",
                model=asking.endpoint.model,
            ),
            rule=f"budget:{unit}",
            remedy="Use an endpoint that reports usage, or remove the budgets of tokens and money.",
        )
    return corrected(asking.estimate, last)


async def _refuse_halted(asking: Asking, snapshot: Snapshot, estimate: int) -> None:
    stage = agent_stage(snapshot.ruling.switches)
    if stage.allows:
        return
    opening = asking.opening(snapshot, estimate)
    await writer().refuse_async(replace(opening, decision="deny", code=stage.code, rule=stage.rule))
    raise Refused(stage.reason, code=stage.code, rule=stage.rule, remedy=stage.remedy)


async def _admit(opening: Opening, held: tuple[Reserve, ...], snapshot: Snapshot) -> None:
    try:
        await writer().admit_async(
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
    await writer().refuse_async(refused)


def _read_again(snapshot: Snapshot) -> Snapshot:
    if snapshot.agent_id is None:
        raise NotFound("There is no agent whose turn it is.", field="agent")
    return snapshots().read("agent", snapshot.agent_id)
