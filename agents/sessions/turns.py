"""One model turn: reserved before, asked, settled after, written down (FEATURES A10, X5)."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic, perf_counter
from uuid import UUID, uuid4

from django.db import transaction
from django.utils import timezone

from agents.governance.limits import actuals, applying, reserves
from agents.governance.policies import agent_stage
from agents.governance.snapshots import Snapshot, snapshots
from agents.llm import port
from agents.llm.prices import estimate_tokens, price
from agents.models import Step
from agents.requests import Refused
from agents.sessions import rows
from agents.sessions.connected import connected
from agents.sessions.runners import Hold
from bonobot.ledger.budgets import unit_of
from bonobot.ledger.entries import Admission, Opening, Outcome, Reserve, Settlement
from bonobot.ledger.refusals import Refusal, StaleSnapshot
from bonobot.ledger.writer import writer
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal

# What an answer is reserved with, since nobody knows its length beforehand.
ANSWER_TOKENS = 4096
# Rules that change while a turn is admitted are read again this often.
TRIES = 5
# Watchers see the text grow this often; each time is one small UPDATE.
SHOWN_EVERY_S = 0.3


class UnpricedModel(Problem):
    """A money budget stands, and what the model costs can't be told (fails closed)."""

    code = "price_unknown"
    status = 403


class UnknownUsage(Problem):
    """A budget stands, and the model didn't tell what its last turn used (fails closed)."""

    code = "usage_unknown"
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

        Raises `ModelError`, `Refused` (halted, switched off), `Refusal`, `UnpricedModel` or
        `UnknownUsage`.
        """
        orm = runtime().orm
        call_id = uuid4()
        estimate = estimate_tokens(messages, instructions, tools)
        await self._let_in(call_id, number, estimate)
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
            "servers": connected(self.snapshot),
            "finish": reply.finish,
            "usage": {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens},
            "usage_known": reply.usage is not None,
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
        limits = applying(self.snapshot.limits, server_id=None, session_id=self.hold.session_id)
        amounts = {
            "tokens": expected.input_tokens + expected.output_tokens,
            "seconds": round(self.endpoint.timeout_s * 1000),
        }
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

    async def _told_its_usage(self) -> None:
        """Raise `UnknownUsage` where tokens or money are bounded and the last turn can't count."""
        bounded = {unit_of(one.key) for one in self._reserved} & {"tokens", "microusd"}
        if bounded and not await runtime().orm(rows.usage_known, self.hold.session_id):
            raise UnknownUsage(
                f"The model {self.endpoint.model!r} didn't tell how many tokens its last turn "
                "used, so its budget can't be kept.",
                rule=f"budget:{sorted(bounded)[0]}",
                remedy="Use an endpoint that reports usage, or remove the budgets of tokens and "
                "money.",
            )

    async def _let_in(self, call_id: UUID, number: int, estimate: int) -> None:
        """Admit the turn by the rules of this very moment: a kill switch stops thinking, too."""
        for _ in range(TRIES):
            opening = self._opening(call_id, number, estimate)
            stage = agent_stage(self.snapshot.ruling.switches)
            if not stage.allows:
                refused = replace(opening, decision="deny", code=stage.code, rule=stage.rule)
                await writer().refuse_async(refused)
                raise Refused(stage.reason, code=stage.code, rule=stage.rule, remedy=stage.remedy)
            self._reserve(port.Usage(estimate, ANSWER_TOKENS))
            await self._told_its_usage()
            try:
                await self._admit(opening)
            except StaleSnapshot:
                self.snapshot = await runtime().orm(_read_again, self.snapshot)
            else:
                return
        raise Refused(
            "The rules changed while this turn was being decided.",
            code="rules_changing",
            remedy="Try again in a moment.",
            status=503,
        )

    def _opening(self, call_id: UUID, number: int, estimate: int) -> Opening:
        return Opening(
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

    async def _admit(self, opening: Opening) -> None:
        try:
            await writer().admit_async(
                Admission(
                    opening=opening,
                    reserves=self._reserved,
                    charges=(),
                    generation=self.snapshot.generation,
                )
            )
        except StaleSnapshot:
            raise
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
        duration_ms = round((perf_counter() - began) * 1000)
        took = {
            "tokens": known.input_tokens + known.output_tokens,
            "microusd": cost,
            "seconds": min(duration_ms, round(self.endpoint.timeout_s * 1000)),
        }
        if usage is None and outcome != "error":
            held = {unit_of(one.key): one.amount for one in self._reserved}
            took |= {unit: held[unit] for unit in ("tokens", "microusd") if unit in held}
        await writer().settle_async(
            Settlement(
                call_id=call_id,
                organization_id=self.snapshot.organization_id,
                outcome=outcome,
                code=code,
                duration_ms=duration_ms,
                details={"execution_time_ms": duration_ms},
                actuals=actuals(self._reserved, took),
                input_tokens=known.input_tokens,
                output_tokens=known.output_tokens,
                cost_microusd=cost,
            )
        )
        return cost


def _read_again(snapshot: Snapshot) -> Snapshot:
    if snapshot.agent_id is None:
        raise NotFound("There is no agent whose turn it is.", field="agent")
    return snapshots().read("agent", snapshot.agent_id)


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
