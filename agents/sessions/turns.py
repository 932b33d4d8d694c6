"""One model turn: reserved before, asked, settled after, written down (FEATURES A10, X5)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from time import monotonic, perf_counter
from typing import Any
from uuid import UUID, uuid4

from agents.governance.limits import actuals
from agents.governance.snapshots import Snapshot
from agents.llm import port
from agents.llm.prices import estimate_tokens, price
from agents.models import Step
from agents.pictures import keep
from agents.sessions import rows
from agents.sessions.connected import connected
from agents.sessions.reserving import Asking, reserve
from agents.sessions.runners import Hold, Lost
from bonobot.ledger.budgets import unit_of
from bonobot.ledger.entries import Opening, Outcome, Reserve, Settlement
from bonobot.ledger.writer import writer
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal

# Watchers see the text grow this often; each time is one small UPDATE.
SHOWN_EVERY_S = 0.3


class Turn:
    """A model turn of a held session; its answer has at most `max_tokens`, None: nobody says."""

    def __init__(
        self, hold: Hold, principal: Principal, snapshot: Snapshot, endpoint: port.Endpoint
    ) -> None:
        self.hold = hold
        self.principal = principal
        self.snapshot = snapshot
        self.endpoint = endpoint
        self._reserved: tuple[Reserve, ...] = ()
        self._estimate = 0
        self.max_tokens: int | None = None

    async def take(
        self,
        model: port.Model,
        messages: Sequence[port.Message],
        *,
        number: int,
        instructions: str,
        tools: Sequence[port.ToolSpec],
        allowed: Callable[[port.Reply], object] = lambda reply: None,
    ) -> tuple[port.Reply, list[Step]]:
        """Ask the model; return its reply, and the steps of the calls that it asks for.

        `allowed` looks at the reply before any of its calls is written, and may raise. Raises
        `ModelError`, and what `reserving.reserve` raises.
        """
        orm = runtime().orm
        call_id = uuid4()
        estimate = estimate_tokens(messages, instructions, tools)
        await self._let_in(call_id, number, estimate)
        step = await self._intent(call_id, number, perf_counter())
        request = partial(
            model.request,
            messages,
            instructions=instructions,
            tools=tools,
            max_tokens=self.max_tokens,
            on_text=_Shown(self.hold, step),
        )
        reply, cost = await self._answered(request, step, call_id)
        try:
            self._says_something(reply)
            allowed(reply)
        except Problem as problem:
            await orm(self._refused, step, reply, cost, problem)
            raise
        return reply, await orm(self._written, step, reply, cost)

    async def _answered(
        self, request: Callable[[], Awaitable[port.Reply]], step: Step, call_id: UUID
    ) -> tuple[port.Reply, int]:
        """Return the model's reply and its cost, settled; a step without a reply says why."""
        began = perf_counter()
        try:
            reply = await request()
        except Problem as problem:
            await self._settle(call_id, "error", began, None, code=problem.code)
            payload = self._failed(problem)
            finish = partial(rows.finish, turns=1)
            await runtime().orm(finish, self.hold, step, Step.State.FAILED, payload)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._settle(call_id, "cancelled", began, None, code="cancelled"))
            raise
        return reply, await self._settle(call_id, "ok", began, reply.usage)

    def _says_something(self, reply: port.Reply) -> None:
        """Raise `ModelError` (`model_no_answer`) for a reply without text, calls and images."""
        if reply.text.strip() or reply.calls or reply.images:
            return
        why = {
            "content_filter": "its provider's filter held the answer back",
            "length": "its longest answer was used up before it said anything",
        }.get(reply.finish, "it stopped without a word")
        raise port.ModelError(
            f"The model {self.endpoint.title!r} answered nothing: {why}.",
            code="model_no_answer",
            remedy="Ask in other words, allow longer answers, or choose another model.",
            retryable=reply.finish not in ("content_filter", "length"),
        )

    def _drawn(self, reply: port.Reply) -> dict[str, Any]:
        """Keep what the model drew, and return how the step names it."""
        if not reply.images:
            return {}
        return {"images": keep(self.snapshot.organization_id, reply.images)}

    def _failed(self, problem: Problem) -> dict[str, Any]:
        """Return what the step of a failed turn says: enough to decide who is asked next."""
        found = problem.as_dict() | {"endpoint": self._who()}
        if isinstance(problem, port.ModelError):
            found["retryable"] = problem.retryable
        return found

    def _who(self) -> dict[str, str]:
        found = self.endpoint
        return {"id": found.id, "name": found.title, "kind": found.kind, "model": found.model}

    def _refused(self, step: Step, reply: port.Reply, cost: int, problem: Problem) -> None:
        """Write that a reply was of no use; what it cost counts all the same."""
        usage = reply.usage or port.Usage(0, 0)
        rows.finish(
            self.hold,
            step,
            Step.State.FAILED,
            self._failed(problem) | {"usage": _told(usage), "cost_microusd": cost},
            turns=1,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_microusd=cost,
        )

    async def _intent(self, call_id: UUID, number: int, began: float) -> Step:
        """Write that the model is asked; raises `Lost`, with nothing left reserved for the turn."""
        try:
            return await runtime().orm(
                rows.append,
                self.hold,
                Step.Kind.MODEL,
                {"text": ""},
                state=Step.State.INTENT,
                turn=number,
                call_id=call_id,
            )
        except Lost:
            await self._settle(call_id, "error", began, None, code="superseded")
            raise

    def _written(self, step: Step, reply: port.Reply, cost: int) -> list[Step]:
        usage = reply.usage or port.Usage(0, 0)
        payload = {
            "text": reply.text,
            "message": reply.message,
            "servers": connected(self.snapshot),
            **self._drawn(reply),
            "finish": reply.finish,
            "endpoint": self._who(),
            "usage": _told(usage),
            "usage_known": reply.usage is not None,
            "estimated_input_tokens": self._estimate,
            "cost_microusd": cost,
        }
        return rows.finish_turn(
            self.hold,
            step,
            payload,
            reply.calls,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_microusd=cost,
        )

    async def _let_in(self, call_id: UUID, number: int, estimate: int) -> None:
        asking = Asking(
            self.hold.session_id, self.endpoint, estimate, partial(self._opening, call_id, number)
        )
        reserved = await reserve(asking, self.snapshot)
        self.snapshot, self._reserved = reserved.snapshot, reserved.reserves
        self._estimate, self.max_tokens = reserved.estimate, reserved.max_tokens

    def _opening(self, call_id: UUID, number: int, snapshot: Snapshot, estimate: int) -> Opening:
        return Opening(
            call_id=call_id,
            organization_id=snapshot.organization_id,
            action="agent_model_turn",
            event_type="model",
            resource_type="model_endpoint",
            resource_id=self.endpoint.model or self.endpoint.kind,
            actor=self.principal.actor,
            decision="allow",
            rule="turn",
            code="",
            details={
                "turn": number,
                "estimated_input_tokens": estimate,
                "endpoint_id": self.endpoint.id,
                "endpoint": self.endpoint.title,
            },
            agent_id=snapshot.agent_id,
            agent_name=snapshot.agent_name,
            session_id=self.hold.session_id,
        )

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


def _told(usage: port.Usage) -> dict[str, int]:
    """Return a usage as a step tells it: what is nothing isn't said, but for the two sums."""
    said = asdict(usage)
    return {name: n for name, n in said.items() if n or name in ("input_tokens", "output_tokens")}


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
