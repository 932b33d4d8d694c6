"""One model turn: reserve the budget, ask the model, settle, and save the reply."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from agents.calls.root_limits import RootSession
from agents.calls.snapshots import CallSnapshot
from agents.images import store_images
from agents.llm import interface as llm_interface
from agents.llm.token_estimates import estimate_tokens
from agents.model_endpoints.request_budget import (
    ReservationRequest,
    build_opening,
    reserve_model_request,
    settle_model_request,
)
from agents.models import Step
from agents.sessions import step_store
from agents.sessions.connect_servers import list_connected_servers
from agents.sessions.leases import LeaseLost, SessionLease
from agents.sessions.partial_output import ModelTextReporter
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.db.transactions import get_transaction_batcher
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import tracing
from bonobot.ledger.types import BudgetReservation, Outcome


@dataclass(frozen=True)
class CompletedTurn:
    """A model's saved reply, the steps of its calls, and whether messages arrived until then."""

    reply: llm_interface.ModelReply
    call_steps: list[Step]
    has_new_messages: bool


class SessionTurn:
    """A model turn of a leased session; `max_tokens` limits its answer (None: no limit).

    `last_turn` is the payload of the session's last completed turn.
    """

    def __init__(
        self,
        lease: SessionLease,
        principal: Principal,
        snapshot: CallSnapshot,
        endpoint: llm_interface.ModelEndpointConfig,
        last_turn: Mapping[str, Any] | None = None,
        root: RootSession | None = None,
    ) -> None:
        self.lease = lease
        self.principal = principal
        self.snapshot = snapshot
        self.endpoint = endpoint
        self._last_turn, self._root = last_turn, root
        self._reservations: tuple[BudgetReservation, ...] = ()
        self._estimated_tokens = 0
        self.max_tokens: int | None = None

    async def run(
        self,
        model: llm_interface.LanguageModel,
        messages: Sequence[llm_interface.Message],
        *,
        turn_number: int,
        instructions: str,
        tools: Sequence[llm_interface.ToolSpec],
        output_schema: Mapping[str, Any] | None = None,
        check_reply: Callable[[llm_interface.ModelReply], object] = lambda reply: None,
    ) -> CompletedTurn:
        """Ask the model and save its reply.

        `check_reply` is called before the calls are saved, and may raise. Raises `ModelError`,
        what `request_budget.reserve` raises, and `SessionStopped` if a person asked to cancel the
        run by the time the reply is saved.
        """
        call_id = generate_uuid7()
        estimated_tokens = estimate_tokens(messages, instructions, tools)
        await self._reserve_budget(call_id, turn_number, estimated_tokens)
        step = await self._append_intent(call_id, turn_number, perf_counter())
        text_reporter = ModelTextReporter(self.lease, step, self.snapshot.organization_id)
        request = llm_interface.LanguageModelRequest(
            messages,
            instructions=instructions,
            tools=tools,
            max_tokens=self.max_tokens,
            on_text=text_reporter,
            on_thinking=text_reporter.add_thinking,
            output_schema=output_schema,
        )
        reply, cost = await self._fetch_reply(
            partial(model.request, request), step, call_id, text_reporter
        )
        try:
            check_reply_not_empty(self.endpoint, reply)
            check_reply(reply)
        except Problem as problem:
            await get_runtime().run_orm(self._save_rejected_reply, step, reply, cost, problem)
            raise
        return await get_transaction_batcher().run(self._save_reply, step, reply, cost)

    async def _fetch_reply(
        self,
        request: Callable[[], Awaitable[llm_interface.ModelReply]],
        step: Step,
        call_id: UUID,
        text_reporter: ModelTextReporter,
    ) -> tuple[llm_interface.ModelReply, int]:
        """Return the model's reply and its settled cost; on failure, save the reason in the step.

        If canceled, save the text so far.
        """
        started_at = perf_counter()
        try:
            reply = await self._trace_request(request)
        except Problem as problem:
            await self._settle_request(call_id, "error", started_at, None, code=problem.code)
            payload = self._describe_failure(problem)
            finish = partial(step_store.finish_step, turns=1)
            await get_runtime().run_orm(finish, self.lease, step, Step.State.FAILED, payload)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(
                self._settle_request(call_id, "cancelled", started_at, None, code="cancelled")
            )
            await asyncio.shield(
                get_runtime().run_orm(
                    step_store.save_partial_output, self.lease, step, text_reporter.output
                )
            )
            raise
        return reply, await self._settle_request(call_id, "ok", started_at, reply.usage)

    async def _trace_request(
        self, request: Callable[[], Awaitable[llm_interface.ModelReply]]
    ) -> llm_interface.ModelReply:
        """Send the request in a span with OpenTelemetry's GenAI attributes."""
        endpoint = self.endpoint
        with tracing.start_span(
            f"chat {endpoint.model}",
            kind="client",
            gen_ai__operation__name="chat",
            gen_ai__provider__name=endpoint.kind,
            gen_ai__request__model=endpoint.model,
            gen_ai__conversation__id=str(self.lease.session_id),
        ) as span:
            reply = await request()
            if span is not None:
                tracing.set_span_attributes(span, gen_ai__response__finish_reasons=(reply.finish,))
            if span is not None and reply.usage is not None:
                usage = reply.usage
                tracing.set_span_attributes(span, gen_ai__usage__input_tokens=usage.input_tokens)
                tracing.set_span_attributes(span, gen_ai__usage__output_tokens=usage.output_tokens)
            return reply

    def _save_images(self, reply: llm_interface.ModelReply) -> dict[str, Any]:
        """Store the reply's images; return their references for the step."""
        if not reply.images:
            return {}
        return {"images": store_images(self.snapshot.organization_id, reply.images)}

    def _describe_failure(self, problem: Problem) -> dict[str, Any]:
        """Return the payload of a failed turn, with what is needed to choose the next endpoint."""
        description = problem.as_dict() | {"endpoint": self._describe_endpoint()}
        if isinstance(problem, llm_interface.ModelError):
            description["retryable"] = problem.retryable
        return description

    def _describe_endpoint(self) -> dict[str, str]:
        endpoint = self.endpoint
        return {
            "id": endpoint.id,
            "name": endpoint.title,
            "kind": endpoint.kind,
            "model": endpoint.model,
        }

    def _save_rejected_reply(
        self, step: Step, reply: llm_interface.ModelReply, cost: int, problem: Problem
    ) -> None:
        """Save a rejected reply as failed; its usage and cost still count."""
        usage = reply.usage or llm_interface.TokenUsage(0, 0)
        step_store.finish_step(
            self.lease,
            step,
            Step.State.FAILED,
            self._describe_failure(problem)
            | {"usage": _serialize_usage(usage), "cost_microusd": cost},
            turns=1,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            cost_microusd=cost,
        )

    async def _append_intent(self, call_id: UUID, turn_number: int, started_at: float) -> Step:
        """Append the turn's step; on `LeaseLost`, settle the reservation and raise."""
        try:
            return await get_transaction_batcher().run(
                step_store.append_step,
                self.lease,
                Step.Kind.MODEL,
                {"text": ""},
                state=Step.State.INTENT,
                turn=turn_number,
                call_id=call_id,
            )
        except LeaseLost:
            await self._settle_request(call_id, "error", started_at, None, code="superseded")
            raise

    def _save_reply(self, step: Step, reply: llm_interface.ModelReply, cost: int) -> CompletedTurn:
        """Save the reply, then look for messages and cancellation requests."""
        usage = reply.usage or llm_interface.TokenUsage(0, 0)
        payload = {
            "text": reply.text,
            **({"thinking": reply.thinking} if reply.thinking else {}),
            "message": reply.message,
            "servers": list_connected_servers(self.snapshot),
            **self._save_images(reply),
            "finish": reply.finish,
            "endpoint": self._describe_endpoint(),
            "usage": _serialize_usage(usage),
            "usage_known": reply.usage is not None,
            "estimated_input_tokens": self._estimated_tokens,
            "cost_microusd": cost,
        }
        call_steps = step_store.finish_turn(
            self.lease,
            step,
            payload,
            reply.calls,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            cost_microusd=cost,
        )
        return CompletedTurn(reply, call_steps, bool(step_store.list_new_messages(self.lease)))

    async def _reserve_budget(self, call_id: UUID, turn_number: int, estimated_tokens: int) -> None:
        request = ReservationRequest(
            self.lease.session_id,
            endpoint=self.endpoint,
            estimate=estimated_tokens,
            build_opening=partial(
                build_opening,
                call_id,
                self.endpoint,
                details={"turn": turn_number},
                action="agent_model_turn",
                actor=self.principal.actor,
                rule="turn",
                session_id=self.lease.session_id,
            ),
            last_turn=self._last_turn,
            root=self._root,
        )
        reservation = await reserve_model_request(request, self.snapshot)
        self.snapshot, self._reservations = reservation.snapshot, reservation.reservations
        self._estimated_tokens, self.max_tokens = reservation.estimate, reservation.max_tokens

    async def _settle_request(
        self,
        call_id: UUID,
        outcome: Outcome,
        started_at: float,
        usage: llm_interface.TokenUsage | None,
        code: str = "",
    ) -> int:
        """Settle the reservation and return the cost."""
        return await settle_model_request(
            call_id,
            self.snapshot.organization_id,
            self.endpoint,
            self._reservations,
            outcome=outcome,
            started_at=started_at,
            usage=usage,
            code=code,
        )


def check_reply_not_empty(
    endpoint: llm_interface.ModelEndpointConfig, reply: llm_interface.ModelReply
) -> None:
    """Raise `ModelError` (`model_no_answer`) for a reply without text, calls and images."""
    if reply.text.strip() or reply.calls or reply.images:
        return
    reason = {
        "content_filter": "the provider's content filter blocked the answer",
        "length": "it reached its maximum answer length before it produced any text",
    }.get(reply.finish, "it stopped without output")
    raise llm_interface.ModelError(
        format_message(
            "The model {title!r} returned an empty answer: {why}.", title=endpoint.title, why=reason
        ),
        code="model_no_answer",
        remedy="Rephrase the message, allow longer answers, or choose another model.",
        retryable=reply.finish not in ("content_filter", "length"),
    )


def _serialize_usage(usage: llm_interface.TokenUsage) -> dict[str, int]:
    """Return a usage for a step, without zero counts except the two totals."""
    counts = asdict(usage)
    return {
        name: count
        for name, count in counts.items()
        if count or name in ("input_tokens", "output_tokens")
    }
