"""Settling what was reserved for a model: for a session's turn, or for a server's request."""

from collections.abc import Sequence
from time import perf_counter
from uuid import UUID

from agents.governance.limits import actuals
from agents.llm import port
from agents.llm.prices import price
from bonobot.ledger.budgets import unit_of
from bonobot.ledger.entries import Outcome, Reserve, Settlement
from bonobot.ledger.writer import writer


async def settle(
    call_id: UUID,
    organization_id: UUID,
    endpoint: port.Endpoint,
    reserved: Sequence[Reserve],
    *,
    outcome: Outcome,
    began: float,
    usage: port.Usage | None,
    code: str = "",
) -> int:
    """Settle the reservation and return the cost; unknown usage settles as reserved."""
    known = usage or port.Usage(0, 0)
    cost = (price(endpoint, usage) or 0) if usage else 0
    duration_ms = round((perf_counter() - began) * 1000)
    took = {
        "tokens": known.input_tokens + known.output_tokens,
        "microusd": cost,
        "seconds": min(duration_ms, round(endpoint.timeout_s * 1000)),
    }
    if usage is None and outcome != "error":
        held = {unit_of(one.key): one.amount for one in reserved}
        took |= {unit: held[unit] for unit in ("tokens", "microusd") if unit in held}
    await writer().settle_async(
        Settlement(
            call_id=call_id,
            organization_id=organization_id,
            outcome=outcome,
            code=code,
            duration_ms=duration_ms,
            details={"execution_time_ms": duration_ms},
            actuals=actuals(reserved, took),
            input_tokens=known.input_tokens,
            output_tokens=known.output_tokens,
            cost_microusd=cost,
            kind="model",
        ),
        patient=True,
    )
    return cost
