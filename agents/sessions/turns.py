"""One model turn: reserve the budget, ask the model, settle, and save the reply."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from agents.calls.root_limits import RootSession
from agents.calls.snapshots import CallSnapshot
from agents.images import keep
from agents.llm import interface as llm_interface
from agents.llm.pricing import estimate_tokens
from agents.model_endpoints.request_budget import ReservationRequest, build_opening, reserve, settle
from agents.models import Step
from agents.sessions import step_store
from agents.sessions.leases import LeaseLost, SessionLease
from agents.sessions.partial_output import ModelTextReporter
from agents.sessions.run_context import list_connected_servers
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.db.transactions import get_transaction_batcher
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import tracing
from bonobot.ledger.types import BudgetReservation, Opening, Outcome


class SessionTurn:
    """A model turn of a leased session; `max_tokens` limits its answer (None: no limit).

    `last_turn` is the payload of the session's last completed turn.
    """

    def __init__(
        self,
        hold: SessionLease,
        principal: Principal,
        snapshot: CallSnapshot,
        endpoint: llm_interface.ModelEndpointConfig,
        last: Mapping[str, Any] | None = None,
        root: RootSession | None = None,
    ) -> None:
        self.hold = hold
        self.principal = principal
        self.snapshot = snapshot
        self.endpoint = endpoint
        self._last, self._root = last, root
        self._reserved: tuple[BudgetReservation, ...] = ()
        self._estimate = 0
        self.max_tokens: int | None = None

    async def take(
        self,
        model: llm_interface.LanguageModel,
        messages: Sequence[llm_interface.Message],
        *,
        number: int,
        instructions: str,
        tools: Sequence[llm_interface.ToolSpec],
        allowed: Callable[[llm_interface.ModelReply], object] = lambda reply: None,
    ) -> tuple[llm_interface.ModelReply, list[Step]]:
        """Ask the model; return its reply and the steps of its calls.

        `check_reply` is called before the calls are saved, and may raise. Raises `ModelError`, and
        what `request_budget.reserve` raises.
        """
        call_id = generate_uuid7()
        estimate = estimate_tokens(messages, instructions, tools)
        await self._let_in(call_id, number, estimate)
        step = await self._intent(call_id, number, perf_counter())
        writing = ModelTextReporter(self.hold, step, self.snapshot.organization_id)
        request = partial(
            model.request,
            messages,
            instructions=instructions,
            tools=tools,
            max_tokens=self.max_tokens,
            on_text=writing,
        )
        reply, cost = await self._answered(request, step, call_id, writing)
        try:
            check_reply_not_empty(self.endpoint, reply)
            allowed(reply)
        except Problem as problem:
            await get_runtime().orm(self._refused, step, reply, cost, problem)
            raise
        return reply, await get_transaction_batcher().do(self._written, step, reply, cost)

    async def _answered(
        self,
        request: Callable[[], Awaitable[llm_interface.ModelReply]],
        step: Step,
        call_id: UUID,
        writing: ModelTextReporter,
    ) -> tuple[llm_interface.ModelReply, int]:
        """Return the model's reply and its settled cost; on failure, save the reason in the step.

        If canceled, save the text so far.
        """
        began = perf_counter()
        try:
            reply = await self._traced(request)
        except Problem as problem:
            await self._settle(call_id, "error", began, None, code=problem.code)
            payload = self._failed(problem)
            finish = partial(step_store.finish, turns=1)
            await get_runtime().orm(finish, self.hold, step, Step.State.FAILED, payload)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._settle(call_id, "cancelled", began, None, code="cancelled"))
            await asyncio.shield(
                get_runtime().orm(step_store.show_partial, self.hold, step, writing.text)
            )
            raise
        return reply, await self._settle(call_id, "ok", began, reply.usage)

    async def _traced(
        self, request: Callable[[], Awaitable[llm_interface.ModelReply]]
    ) -> llm_interface.ModelReply:
        """Send the request in a span with OpenTelemetry's GenAI attributes."""
        asked = self.endpoint
        with tracing.start_span(
            f"chat {asked.model}",
            kind="client",
            gen_ai__operation__name="chat",
            gen_ai__provider__name=asked.kind,
            gen_ai__request__model=asked.model,
            gen_ai__conversation__id=str(self.hold.session_id),
        ) as span:
            reply = await request()
            if span is not None:
                tracing.note(span, gen_ai__response__finish_reasons=(reply.finish,))
            if span is not None and reply.usage is not None:
                used = reply.usage
                tracing.note(span, gen_ai__usage__input_tokens=used.input_tokens)
                tracing.note(span, gen_ai__usage__output_tokens=used.output_tokens)
            return reply

    def _drawn(self, reply: llm_interface.ModelReply) -> dict[str, Any]:
        """Store the reply's images; return their references for the step."""
        if not reply.images:
            return {}
        return {"images": keep(self.snapshot.organization_id, reply.images)}

    def _failed(self, problem: Problem) -> dict[str, Any]:
        """Return the payload of a failed turn, with what is needed to choose the next endpoint."""
        found = problem.as_dict() | {"endpoint": self._who()}
        if isinstance(problem, llm_interface.ModelError):
            found["retryable"] = problem.retryable
        return found

    def _who(self) -> dict[str, str]:
        found = self.endpoint
        return {"id": found.id, "name": found.title, "kind": found.kind, "model": found.model}

    def _refused(
        self, step: Step, reply: llm_interface.ModelReply, cost: int, problem: Problem
    ) -> None:
        """Save a rejected reply as failed; its usage and cost still count."""
        usage = reply.usage or llm_interface.TokenUsage(0, 0)
        step_store.finish(
            self.hold,
            step,
            Step.State.FAILED,
            self._failed(problem) | {"usage": _serialize_usage(usage), "cost_microusd": cost},
            turns=1,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_microusd=cost,
        )

    async def _intent(self, call_id: UUID, number: int, began: float) -> Step:
        """Append the turn's step; on `LeaseLost`, settle the reservation and raise."""
        try:
            return await get_transaction_batcher().do(
                step_store.append,
                self.hold,
                Step.Kind.MODEL,
                {"text": ""},
                state=Step.State.INTENT,
                turn=number,
                call_id=call_id,
            )
        except LeaseLost:
            await self._settle(call_id, "error", began, None, code="superseded")
            raise

    def _written(self, step: Step, reply: llm_interface.ModelReply, cost: int) -> list[Step]:
        usage = reply.usage or llm_interface.TokenUsage(0, 0)
        payload = {
            "text": reply.text,
            "message": reply.message,
            "servers": list_connected_servers(self.snapshot),
            **self._drawn(reply),
            "finish": reply.finish,
            "endpoint": self._who(),
            "usage": _serialize_usage(usage),
            "usage_known": reply.usage is not None,
            "estimated_input_tokens": self._estimate,
            "cost_microusd": cost,
        }
        return step_store.finish_turn(
            self.hold,
            step,
            payload,
            reply.calls,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost_microusd=cost,
        )

    async def _let_in(self, call_id: UUID, number: int, estimate: int) -> None:
        asking = ReservationRequest(
            self.hold.session_id,
            self.endpoint,
            estimate,
            partial(self._opening, call_id, number),
            self._last,
            self._root,
        )
        reserved = await reserve(asking, self.snapshot)
        self.snapshot, self._reserved = reserved.snapshot, reserved.reserves
        self._estimate, self.max_tokens = reserved.estimate, reserved.max_tokens

    def _opening(
        self, call_id: UUID, number: int, snapshot: CallSnapshot, estimate: int
    ) -> Opening:
        return build_opening(
            call_id,
            self.endpoint,
            snapshot,
            estimate,
            details={"turn": number},
            action="agent_model_turn",
            actor=self.principal.actor,
            rule="turn",
            session_id=self.hold.session_id,
        )

    async def _settle(
        self,
        call_id: UUID,
        outcome: Outcome,
        began: float,
        usage: llm_interface.TokenUsage | None,
        code: str = "",
    ) -> int:
        """Settle the reservation and return the cost."""
        return await settle(
            call_id,
            self.snapshot.organization_id,
            self.endpoint,
            self._reserved,
            outcome=outcome,
            began=began,
            usage=usage,
            code=code,
        )


def check_reply_not_empty(
    endpoint: llm_interface.ModelEndpointConfig, reply: llm_interface.ModelReply
) -> None:
    """Raise `ModelError` (`model_no_answer`) for a reply without text, calls and images."""
    if reply.text.strip() or reply.calls or reply.images:
        return
    why = {
        "content_filter": "its provider's filter held the answer back",
        "length": "its longest answer was used up before it said anything",
    }.get(reply.finish, "it stopped without a word")
    raise llm_interface.ModelError(
        format_message(
            "The model {title!r} answered nothing: {why}.", title=endpoint.title, why=why
        ),
        code="model_no_answer",
        remedy="Ask in other words, allow longer answers, or choose another model.",
        retryable=reply.finish not in ("content_filter", "length"),
    )


def _serialize_usage(usage: llm_interface.TokenUsage) -> dict[str, int]:
    """Return a usage for a step, without zero counts except the two totals."""
    said = asdict(usage)
    return {name: n for name, n in said.items() if n or name in ("input_tokens", "output_tokens")}
