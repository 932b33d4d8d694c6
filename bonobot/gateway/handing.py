"""Handing over: a client goes on with a held call at any process, whichever of them holds it.

The process that got the client's answers leaves them, sealed, in the call's row; the holder goes
on with them, and leaves what came of it there (`agents.handovers`). A holder that shows no sign of
life for `GONE_S` is given up: its connection to the server is gone with it, and so is the call. One
that was only slow finds that, and ends the call.
"""

import asyncio
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from uuid import UUID

from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone
from encrypted_model_fields.fields import decrypt_str, encrypt_str
from mcp.shared.exceptions import MCPError

from agents import handovers
from agents.calls import Outcome
from bonobot.gateway.failures import error_of
from bonobot.gateway.held import HeldCall
from bonobot.lib.bus import bus
from bonobot.lib.patience import AWAY
from bonobot.lib.problems import Conflict, Problem
from bonobot.lib.runtime import runtime

# How often either end looks by itself; the longer where rings are heard.
LOOK_EVERY_S = 0.25
SURE_EVERY_S = 5.0
BEAT_EVERY_S = 2.0
GONE_S = 15.0

Found = Outcome | dict[str, Any]


class HeldCalls:
    """The held calls of this process, and the way to those of others."""

    def __init__(self) -> None:
        self._calls: dict[str, HeldCall] = {}
        self._going: dict[str, asyncio.Task[None]] = {}
        self._soon = asyncio.Event()
        self._attending: asyncio.Task[None] | None = None
        self._beaten_at = 0.0

    async def keep(self, call: HeldCall, organization_id: UUID) -> None:
        """Have a call found again by its id, from any process, until it is over."""
        self._calls[call.id] = call
        await runtime().orm(handovers.hold, organization_id, call.id)
        call.when_over(lambda: self._forget(call.id))
        if self._attending is None or self._attending.done():
            self._attending = runtime().begin(self._attend(), name="held calls")

    async def go_on(
        self, organization_id: UUID, call_id: str, responses: Mapping[str, Any]
    ) -> Found:
        """Hand answers over; return the outcome, or what is asked now.

        Raises `MCPError` for a call that is over, and what the call raises.
        """
        call = self._calls.get(call_id)
        if call is not None:
            return await call.go_on(responses)
        said = _sealed(dict(responses))
        if not await runtime().orm(handovers.pass_on, organization_id, call_id, said):
            raise _over()
        news = asyncio.Event()
        place = handovers.place(call_id)
        await bus().listen(place, news.set)
        try:
            return await _answered(call_id, news)
        except asyncio.CancelledError:
            runtime().spawn(runtime().orm(handovers.leave, call_id), name="leave a held call")
            raise
        finally:
            bus().leave(place, news.set)

    def _forget(self, call_id: str) -> None:
        """Forget a call that is over; one that is gone on with elsewhere is told of there."""
        self._calls.pop(call_id, None)
        if call_id not in self._going:
            runtime().spawn(runtime().orm(handovers.close, call_id), name="close a held call")

    async def _attend(self) -> None:
        """Look for answers that other processes were given, for as long as calls are held."""
        woken = self._soon.set
        await bus().listen(handovers.HOLDERS, woken)
        try:
            while held := self._calls.keys() | self._going.keys():
                self._soon.clear()
                with suppress(*AWAY):  # a database that is away is looked at again
                    await self._look(held)
                await _within(self._soon, SURE_EVERY_S if bus().hears else LOOK_EVERY_S)
        finally:
            bus().leave(handovers.HOLDERS, woken)

    async def _look(self, held: set[str]) -> None:
        now = runtime().loop.time()
        if now - self._beaten_at >= BEAT_EVERY_S:
            self._beaten_at = now
            await runtime().orm(handovers.beat, held)
        asked = await runtime().orm(handovers.take, held)
        for call_id, said in asked.taken:
            if (call := self._calls.get(call_id)) is not None:
                going = self._go_on_for_another(call, _opened(said))
                self._going[call_id] = runtime().loop.create_task(going, name=f"go on {call_id}")
        for call_id in asked.left:
            if (going_on := self._going.get(call_id)) is not None:
                going_on.cancel()
            elif (call := self._calls.get(call_id)) is not None:
                call.end()

    async def _go_on_for_another(self, call: HeldCall, responses: Mapping[str, Any]) -> None:
        try:
            told = _told(await call.go_on(responses))
        except Problem as problem:
            told = {"problem": _known(problem)}
        finally:
            self._going.pop(call.id, None)
        await runtime().orm(handovers.answer, call.id, _sealed(told))


async def _answered(call_id: str, news: asyncio.Event) -> Found:
    """Wait for what came of a call elsewhere; raises `MCPError` where its holder is gone."""
    clock = runtime().loop.time
    beaten_at, since = None, clock()
    while True:
        news.clear()
        look = await runtime().orm(handovers.look, call_id)
        if look is None:
            raise _over()
        if look.answered:
            told = _opened(look.found)
            await runtime().orm(handovers.received, call_id, over="asked" not in told)
            return _found(told)
        if look.beaten_at != beaten_at:
            beaten_at, since = look.beaten_at, clock()
        silent = (timezone.now() - look.beaten_at).total_seconds()
        if silent > GONE_S or clock() - since > GONE_S:
            if await runtime().orm(handovers.leave, call_id):
                raise _lost()
            continue  # it has answered just now
        await _within(news, min(SURE_EVERY_S, LOOK_EVERY_S * 4) if bus().hears else LOOK_EVERY_S)


def _over() -> MCPError:
    return error_of(
        Conflict(
            "The call that this goes on with is over, or gone on with.",
            code="call_over",
            remedy="Send it anew.",
        )
    )


def _lost() -> MCPError:
    return error_of(
        Conflict(
            "The process that held this call is gone, and the call with it.",
            code="call_lost",
            remedy="What it did at its server isn't known. Send it anew.",
        )
    )


def _told(found: Found) -> dict[str, Any]:
    return {"outcome": asdict(found)} if isinstance(found, Outcome) else {"asked": found}


def _found(told: Mapping[str, Any]) -> Found:
    """Return what came of a call, or raise it."""
    if "asked" in told:
        asked: dict[str, Any] = told["asked"]
        return asked
    if "problem" in told:
        problem = dict(told["problem"])
        raise Problem(problem.pop("detail"), **problem)
    outcome = told["outcome"]
    exchange_id = outcome["exchange_id"] and UUID(outcome["exchange_id"])
    return Outcome(**{**outcome, "call_id": UUID(outcome["call_id"]), "exchange_id": exchange_id})


def _known(problem: Problem) -> dict[str, Any]:
    names = ("detail", "code", "field", "remedy", "rule", "status", "retry_after", "extra")
    return {name: getattr(problem, name) for name in names}


def _sealed(value: Any) -> str:
    return encrypt_str(json.dumps(value, cls=DjangoJSONEncoder)).decode("ascii")


def _opened(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(decrypt_str(text))
    return found


async def _within(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
