"""Upstream waits for the client's answer; any process resumes.

The process that got the client's answers leaves them, sealed, in the call's row; the holder goes on
with them, and leaves what came of it there (`agents.calls.handoff`). A holder that shows no sign of
life for `GONE_S` is given up: its connection to the server is gone with it, and so is the call. One
that was only slow finds that, and ends the call.

The client's request is answered with what the server asks (`input_required`), and the call stays
out; the client's next request brings the answers, and waits for the call again. What
waits is a live connection, so it is in one process, to which others pass on; a client
that stays away is told as a refusal to the server after `BONOBOT_ANSWER_S`.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone
from encrypted_model_fields.fields import decrypt_str, encrypt_str
from mcp.shared.exceptions import MCPError

from agents.calls import handoff
from agents.calls.pipeline import CallOutcome
from agents.gateway.errors import build_mcp_error
from bonobot.core.db.transactions import AWAY
from bonobot.core.problems import Conflict, Problem
from bonobot.core.redis_bus import get_bus
from bonobot.core.runtime import get_runtime

REFUSED = -1


class SuspendedCall:
    """A call that is out, and what its server waits to be told."""

    def __init__(self) -> None:
        self.id = str(uuid4())
        self._asked: dict[str, tuple[Mapping[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[CallOutcome] | None = None
        self._number = 0

    async def run(self, call: Callable[[], Awaitable[CallOutcome]]) -> CallOutcome | dict[str, Any]:
        """Send the call out; return its outcome, or what its server asks first."""
        self._task = get_runtime().loop.create_task(_run_call(call), name=f"held call {self.id}")
        self._task.add_done_callback(lambda _: self._news.set())
        return await self._next()

    async def go_on(self, responses: Mapping[str, Any]) -> CallOutcome | dict[str, Any]:
        """Hand answers over; return the outcome, or what is asked now: what is missing, again."""
        for key, answer in responses.items():
            _, waiting = self._asked.pop(key, ({}, None))
            if waiting is not None and not waiting.done() and isinstance(answer, dict):
                waiting.set_result(answer)
        return self.requests if self._asked else await self._next()

    def end(self) -> None:
        """End the call: nobody waits for it."""
        if self._task is not None:
            self._task.cancel()

    def when_over(self, over: Callable[[], object]) -> None:
        """Have `over` called when the call is."""
        assert self._task is not None  # noqa: S101 - it was sent out
        self._task.add_done_callback(lambda _: over())

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Have the client asked by its next answer; raises `MCPError` where it stays away."""
        self._number += 1
        key = f"ask-{self._number}"
        waiting: asyncio.Future[dict[str, Any]] = get_runtime().loop.create_future()
        self._asked[key] = ({"method": method, "params": dict(params)}, waiting)
        self._news.set()
        try:
            async with asyncio.timeout(settings.BONOBOT_ANSWER_S):
                return await waiting
        except TimeoutError:
            raise MCPError(code=REFUSED, message="Nobody answered in time.") from None
        finally:
            self._asked.pop(key, None)

    @property
    def requests(self) -> dict[str, Any]:
        """What is asked now, by keys."""
        return {key: dict(asked) for key, (asked, _) in self._asked.items()}

    async def _next(self) -> CallOutcome | dict[str, Any]:
        """Wait until the call is over, or asks; a client that leaves meanwhile ends the call."""
        assert self._task is not None  # noqa: S101 - `run` comes first
        try:
            while not self._task.done() and not self._asked:
                self._news.clear()
                await self._news.wait()
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return await self._task if self._task.done() else self.requests


async def _run_call(call: Callable[[], Awaitable[CallOutcome]]) -> CallOutcome:
    return await call()


# How often either end looks by itself; the longer where rings are heard.
LOOK_EVERY_S = 0.25
SURE_EVERY_S = 5.0
BEAT_EVERY_S = 2.0
GONE_S = 15.0

Found = CallOutcome | dict[str, Any]


class SuspendedCallRegistry:
    """The held calls of this process, and the way to those of others."""

    def __init__(self) -> None:
        self._calls: dict[str, SuspendedCall] = {}
        self._going: dict[str, asyncio.Task[None]] = {}
        self._soon = asyncio.Event()
        self._attending: asyncio.Task[None] | None = None
        self._beaten_at = 0.0

    async def keep(self, call: SuspendedCall, organization_id: UUID) -> None:
        """Have a call found again by its id, from any process, until it is over."""
        self._calls[call.id] = call
        await get_runtime().orm(handoff.create_handoff, organization_id, call.id)
        call.when_over(lambda: self._forget(call.id))
        if self._attending is None or self._attending.done():
            self._attending = get_runtime().begin(self._attend(), name="held calls")

    async def go_on(
        self, organization_id: UUID, call_id: str, responses: Mapping[str, Any]
    ) -> Found:
        """Hand answers over; return the outcome, or what is asked now.

        Raises `MCPError` for a call that is over, and what the call raises.
        """
        call = self._calls.get(call_id)
        if call is not None:
            return await call.go_on(responses)
        said = _seal_payload(dict(responses))
        if not await get_runtime().orm(handoff.send_answers, organization_id, call_id, said):
            raise _build_call_over_error()
        news = asyncio.Event()
        place = handoff.build_channel(call_id)
        await get_bus().listen(place, news.set)
        try:
            return await _wait_for_answer(call_id, news)
        except asyncio.CancelledError:
            get_runtime().spawn(get_runtime().orm(handoff.leave, call_id), name="leave a held call")
            raise
        finally:
            get_bus().leave(place, news.set)

    def _forget(self, call_id: str) -> None:
        """Forget a call that is over; one that is gone on with elsewhere is told of there."""
        self._calls.pop(call_id, None)
        if call_id not in self._going:
            get_runtime().spawn(get_runtime().orm(handoff.close, call_id), name="close a held call")

    async def _attend(self) -> None:
        """Look for answers that other processes were given, for as long as calls are held."""
        woken = self._soon.set
        await get_bus().listen(handoff.HOLDERS, woken)
        try:
            while held := self._calls.keys() | self._going.keys():
                self._soon.clear()
                with suppress(*AWAY):  # a database that is away is looked at again
                    await self._look(held)
                await _wait_for_event(self._soon, SURE_EVERY_S if get_bus().hears else LOOK_EVERY_S)
        finally:
            get_bus().leave(handoff.HOLDERS, woken)

    async def _look(self, held: set[str]) -> None:
        now = get_runtime().loop.time()
        if now - self._beaten_at >= BEAT_EVERY_S:
            self._beaten_at = now
            await get_runtime().orm(handoff.update_heartbeats, held)
        asked = await get_runtime().orm(handoff.take, held)
        for call_id, said in asked.taken:
            if (call := self._calls.get(call_id)) is not None:
                going = self._go_on_for_another(call, _unseal_payload(said))
                self._going[call_id] = get_runtime().loop.create_task(
                    going, name=f"go on {call_id}"
                )
        for call_id in asked.left:
            if (going_on := self._going.get(call_id)) is not None:
                going_on.cancel()
            elif (call := self._calls.get(call_id)) is not None:
                call.end()

    async def _go_on_for_another(self, call: SuspendedCall, responses: Mapping[str, Any]) -> None:
        try:
            told = _encode_result(await call.go_on(responses))
        except Problem as problem:
            told = {"problem": _encode_problem(problem)}
        finally:
            self._going.pop(call.id, None)
        await get_runtime().orm(handoff.answer, call.id, _seal_payload(told))


async def _wait_for_answer(call_id: str, news: asyncio.Event) -> Found:
    """Wait for what came of a call elsewhere; raises `MCPError` where its holder is gone."""
    clock = get_runtime().loop.time
    beaten_at, since = None, clock()
    while True:
        news.clear()
        look = await get_runtime().orm(handoff.find_status, call_id)
        if look is None:
            raise _build_call_over_error()
        if look.answered:
            told = _unseal_payload(look.found)
            await get_runtime().orm(handoff.mark_received, call_id, over="asked" not in told)
            return _decode_result(told)
        if look.beaten_at != beaten_at:
            beaten_at, since = look.beaten_at, clock()
        silent = (timezone.now() - look.beaten_at).total_seconds()
        if silent > GONE_S or clock() - since > GONE_S:
            if await get_runtime().orm(handoff.leave, call_id):
                raise _build_call_lost_error()
            continue  # it has answered just now
        await _wait_for_event(
            news, min(SURE_EVERY_S, LOOK_EVERY_S * 4) if get_bus().hears else LOOK_EVERY_S
        )


def _build_call_over_error() -> MCPError:
    return build_mcp_error(
        Conflict(
            "The call that this goes on with is over, or gone on with.",
            code="call_over",
            remedy="Send it anew.",
        )
    )


def _build_call_lost_error() -> MCPError:
    return build_mcp_error(
        Conflict(
            "The process that held this call is gone, and the call with it.",
            code="call_lost",
            remedy="What it did at its server isn't known. Send it anew.",
        )
    )


def _encode_result(found: Found) -> dict[str, Any]:
    return {"outcome": asdict(found)} if isinstance(found, CallOutcome) else {"asked": found}


def _decode_result(told: Mapping[str, Any]) -> Found:
    """Return what came of a call, or raise it."""
    if "asked" in told:
        asked: dict[str, Any] = told["asked"]
        return asked
    if "problem" in told:
        problem = dict(told["problem"])
        raise Problem(problem.pop("detail"), **problem)
    outcome = told["outcome"]
    exchange_id = outcome["exchange_id"] and UUID(outcome["exchange_id"])
    return CallOutcome(
        **{**outcome, "call_id": UUID(outcome["call_id"]), "exchange_id": exchange_id}
    )


def _encode_problem(problem: Problem) -> dict[str, Any]:
    names = ("detail", "code", "field", "remedy", "rule", "status", "retry_after", "extra")
    return {name: getattr(problem, name) for name in names}


def _seal_payload(value: Any) -> str:
    return encrypt_str(json.dumps(value, cls=DjangoJSONEncoder)).decode("ascii")


def _unseal_payload(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(decrypt_str(text))
    return found


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
