"""One model turn: reserved before, asked, settled after, written down (FEATURES A10, X5)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from agents.governance.roots import Root
from agents.governance.snapshots import Snapshot
from agents.llm import port
from agents.llm.prices import estimate_tokens
from agents.models import Step
from agents.pictures import keep
from agents.sessions import rows
from agents.sessions.connected import connected
from agents.sessions.live import Writing
from agents.sessions.reserving import Asking, opening_of, reserve
from agents.sessions.runners import Hold, Lost
from agents.sessions.settling import settle
from bonobot.ledger.entries import Opening, Outcome, Reserve
from bonobot.lib import tracing
from bonobot.lib.ordered_ids import ordered_id
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.lib.together import together
from bonobot.tenancy.principals import Principal


class Turn:
    """A model turn of a held session; its answer has at most `max_tokens`, None: nobody says.

    `last` is what is written of the session's last turn that ended.
    """

    def __init__(
        self,
        hold: Hold,
        principal: Principal,
        snapshot: Snapshot,
        endpoint: port.Endpoint,
        last: Mapping[str, Any] | None = None,
        root: Root | None = None,
    ) -> None:
        self.hold = hold
        self.principal = principal
        self.snapshot = snapshot
        self.endpoint = endpoint
        self._last, self._root = last, root
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
        call_id = ordered_id()
        estimate = estimate_tokens(messages, instructions, tools)
        await self._let_in(call_id, number, estimate)
        step = await self._intent(call_id, number, perf_counter())
        writing = Writing(self.hold, step, self.snapshot.organization_id)
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
            says_something(self.endpoint, reply)
            allowed(reply)
        except Problem as problem:
            await runtime().orm(self._refused, step, reply, cost, problem)
            raise
        return reply, await together().do(self._written, step, reply, cost)

    async def _answered(
        self,
        request: Callable[[], Awaitable[port.Reply]],
        step: Step,
        call_id: UUID,
        writing: Writing,
    ) -> tuple[port.Reply, int]:
        """Return the model's reply and its cost, settled; a step without a reply says why.

        Where it is cut off, the step keeps what was written so far.
        """
        began = perf_counter()
        try:
            reply = await self._traced(request)
        except Problem as problem:
            await self._settle(call_id, "error", began, None, code=problem.code)
            payload = self._failed(problem)
            finish = partial(rows.finish, turns=1)
            await runtime().orm(finish, self.hold, step, Step.State.FAILED, payload)
            raise
        except asyncio.CancelledError:
            await asyncio.shield(self._settle(call_id, "cancelled", began, None, code="cancelled"))
            await asyncio.shield(runtime().orm(rows.show_partial, self.hold, step, writing.text))
            raise
        return reply, await self._settle(call_id, "ok", began, reply.usage)

    async def _traced(self, request: Callable[[], Awaitable[port.Reply]]) -> port.Reply:
        """Ask, as a span by the GenAI conventions."""
        asked = self.endpoint
        with tracing.span(
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
            return await together().do(
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

    def _opening(self, call_id: UUID, number: int, snapshot: Snapshot, estimate: int) -> Opening:
        return opening_of(
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
        usage: port.Usage | None,
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


def says_something(endpoint: port.Endpoint, reply: port.Reply) -> None:
    """Raise `ModelError` (`model_no_answer`) for a reply without text, calls and images."""
    if reply.text.strip() or reply.calls or reply.images:
        return
    why = {
        "content_filter": "its provider's filter held the answer back",
        "length": "its longest answer was used up before it said anything",
    }.get(reply.finish, "it stopped without a word")
    raise port.ModelError(
        say("The model {title!r} answered nothing: {why}.", title=endpoint.title, why=why),
        code="model_no_answer",
        remedy="Ask in other words, allow longer answers, or choose another model.",
        retryable=reply.finish not in ("content_filter", "length"),
    )


def _told(usage: port.Usage) -> dict[str, int]:
    """Return a usage as a step tells it: what is nothing isn't said, but for the two sums."""
    said = asdict(usage)
    return {name: n for name, n in said.items() if n or name in ("input_tokens", "output_tokens")}
