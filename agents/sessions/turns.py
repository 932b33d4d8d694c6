"""One model turn: reserved before, asked, settled after, written down (FEATURES A10, X5)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic, perf_counter
from uuid import UUID, uuid4

from django.db import transaction
from django.utils import timezone

from agents.governance.limits import reserves
from agents.governance.snapshots import Snapshot
from agents.llm import port
from agents.llm.prices import estimate_tokens, price
from agents.models import Step
from agents.sessions import rows
from agents.sessions.runners import Hold
from bonobot.ledger.entries import Admission, Opening, Outcome, Reserve, Settlement
from bonobot.ledger.refusals import Refusal
from bonobot.ledger.writer import writer
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal

# What an answer is reserved with, since nobody knows its length beforehand.
ANSWER_TOKENS = 4096
# Watchers see the text grow this often; each time is one small UPDATE.
SHOWN_EVERY_S = 0.3


class UnpricedModel(Problem):
    """A money budget stands, and what the model costs can't be told (fails closed)."""

    code = "price_unknown"
    status = 403


class Turn:
    """A model turn of a held session."""

    def __init__(
        self, hold: Hold, principal: Principal, snapshot: Snapshot, endpoint: port.Endpoint
    ) -> None:
        self.hold = hold
        self.principal = principal
        self.snapshot = snapshot
        self.endpoint = endpoint
        self._reserved: tuple[Reserve, ...] = ()

    async def take(
        self,
        model: port.Model,
        messages: Sequence[port.Message],
        *,
        number: int,
        instructions: str,
        tools: Sequence[port.ToolSpec],
    ) -> tuple[port.Reply, list[Step]]:
        """Ask the model; return its reply, and the steps of the calls that it asks for.

        Raises `ModelError`, `Refusal` or `UnpricedModel`.
        """
        orm = runtime().orm
        call_id = uuid4()
        estimate = estimate_tokens(messages, instructions, tools)
        self._reserve(port.Usage(estimate, ANSWER_TOKENS))
        await self._admit(call_id, number, estimate)
        step = await orm(
            rows.append,
            self.hold,
            Step.Kind.MODEL,
            {"text": ""},
            state=Step.State.INTENT,
            turn=number,
            call_id=call_id,
        )
        began = perf_counter()
        try:
            reply = await model.request(
                messages, instructions=instructions, tools=tools, on_text=_Shown(self.hold, step)
            )
        except Problem as problem:
            await self._settle(call_id, "error", began, None, code=problem.code)
            await orm(rows.finish, self.hold, step, Step.State.FAILED, problem.as_dict(), turns=1)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._settle(call_id, "cancelled", began, None, code="cancelled"))
            raise
        cost = await self._settle(call_id, "ok", began, reply.usage)
        return reply, await orm(self._written, step, reply, cost)

    def _written(self, step: Step, reply: port.Reply, cost: int) -> list[Step]:
        """Write the reply and the intents of its calls at once: neither is there alone."""
        usage = reply.usage or port.Usage(0, 0)
        payload = {
            "text": reply.text,
            "message": reply.message,
            "finish": reply.finish,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
            "cost_microusd": cost,
        }
        with transaction.atomic():
            rows.finish(
                self.hold,
                step,
                Step.State.DONE,
                payload,
                turns=1,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                cost_microusd=cost,
            )
            return rows.begin_calls(self.hold, step.turn, reply.calls)

    def _reserve(self, expected: port.Usage) -> None:
        limits = self.snapshot.limits
        amounts = {"tokens": expected.input_tokens + expected.output_tokens}
        if any(limit.unit == "microusd" for limit in limits):
            cost = price(self.endpoint, expected)
            if cost is None:
                raise UnpricedModel(
                    f"Nothing is known of the price of the model {self.endpoint.model!r}.",
                    rule="budget:microusd",
                    remedy="Enter its prices at the model endpoint, or remove the money budget.",
                )
            amounts["microusd"] = cost
        self._reserved = reserves(self.snapshot.organization_id, limits, amounts, timezone.now())

    async def _admit(self, call_id: UUID, number: int, estimate: int) -> None:
        opening = Opening(
            call_id=call_id,
            organization_id=self.snapshot.organization_id,
            action="agent_model_turn",
            event_type="model",
            resource_type="model_endpoint",
            resource_id=self.endpoint.model or self.endpoint.kind,
            actor=self.principal.actor,
            decision="allow",
            rule="turn",
            code="",
            details={"turn": number, "estimated_input_tokens": estimate},
            agent_id=self.snapshot.agent_id,
            agent_name=self.snapshot.agent_name,
            session_id=self.hold.session_id,
        )
        try:
            await writer().admit_async(
                Admission(opening=opening, reserves=self._reserved, charges=(), generation=None)
            )
        except Refusal as refusal:
            if refusal.code != "audit_unavailable":
                refused = replace(opening, decision="deny", code=refusal.code, rule=refusal.rule)
                await writer().refuse_async(refused)
            raise

    async def _settle(
        self,
        call_id: UUID,
        outcome: Outcome,
        began: float,
        usage: port.Usage | None,
        code: str = "",
    ) -> int:
        """Settle the reservation and return the cost; unknown usage settles as reserved."""
        known = usage or port.Usage(0, 0)
        cost = (price(self.endpoint, usage) or 0) if usage else 0
        actual = {"tokens": known.input_tokens + known.output_tokens, "microusd": cost}
        charged = usage is None and outcome != "error"
        duration_ms = round((perf_counter() - began) * 1000)
        await writer().settle_async(
            Settlement(
                call_id=call_id,
                organization_id=self.snapshot.organization_id,
                outcome=outcome,
                code=code,
                duration_ms=duration_ms,
                details={"execution_time_ms": duration_ms},
                actuals=tuple(
                    (
                        reserve.key,
                        reserve.amount,
                        reserve.amount if charged else actual[_unit(reserve)],
                    )
                    for reserve in self._reserved
                ),
                input_tokens=known.input_tokens,
                output_tokens=known.output_tokens,
                cost_microusd=cost,
            )
        )
        return cost


def _unit(reserve: Reserve) -> str:
    return "microusd" if ":microusd:" in reserve.key else "tokens"


class _Shown:
    """Writes the growing text into the step, at most every `SHOWN_EVERY_S` seconds."""

    def __init__(self, hold: Hold, step: Step) -> None:
        self._hold, self._step = hold, step
        self._text = ""
        self._next = monotonic() + SHOWN_EVERY_S

    async def __call__(self, piece: str) -> None:
        self._text += piece
        if monotonic() >= self._next:
            self._next = monotonic() + SHOWN_EVERY_S
            await runtime().orm(rows.show_partial, self._hold, self._step, self._text)
