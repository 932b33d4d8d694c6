"""Suspended calls: a server waits for the client's answers, and any process can resume the call.

The client's request is answered with the server's requests (`input_required`) while the call stays
open; the client's next request brings the answers and waits for the call again. The server waits on
a live connection, which only the holding process has. After `BONOBOT_ANSWER_S` seconds without
answers, the server's request is rejected.

Another process that receives the answers stores them, encrypted, in the call's handoff row; the
holder resumes the call and stores the result there (`agents.calls.handoff`). A holder without a
heartbeat for `HOLDER_TIMEOUT_S` is considered dead, and the call lost. If it was only slow, it
cancels the call.
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
    """A running call and its server's pending requests."""

    def __init__(self) -> None:
        self.id = str(uuid4())
        self._asked: dict[str, tuple[Mapping[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._news = asyncio.Event()
        self._task: asyncio.Task[CallOutcome] | None = None
        self._number = 0

    async def run(self, call: Callable[[], Awaitable[CallOutcome]]) -> CallOutcome | dict[str, Any]:
        """Start the call; return its outcome or its server's first requests."""
        self._task = get_runtime().loop.create_task(_run_call(call), name=f"held call {self.id}")
        self._task.add_done_callback(lambda _: self._news.set())
        return await self._next()

    async def go_on(self, responses: Mapping[str, Any]) -> CallOutcome | dict[str, Any]:
        """Pass on answers; return the outcome, or the pending and unanswered requests."""
        for key, answer in responses.items():
            _, waiting = self._asked.pop(key, ({}, None))
            if waiting is not None and not waiting.done() and isinstance(answer, dict):
                waiting.set_result(answer)
        return self.requests if self._asked else await self._next()

    def end(self) -> None:
        """Cancel the call."""
        if self._task is not None:
            self._task.cancel()

    def when_over(self, over: Callable[[], object]) -> None:
        """Call `callback` when the call is done."""
        assert self._task is not None  # noqa: S101 - it was sent out
        self._task.add_done_callback(lambda _: over())

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the client with its next result; raises `MCPError` if it doesn't answer in time."""
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
        """The pending requests by key."""
        return {key: dict(asked) for key, (asked, _) in self._asked.items()}

    async def _next(self) -> CallOutcome | dict[str, Any]:
        """Wait until the call is done or its server asks; cancel the call if the client leaves."""
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


# Poll intervals of both sides; the longer one applies while the bus is connected.
LOOK_EVERY_S = 0.25
SURE_EVERY_S = 5.0
BEAT_EVERY_S = 2.0
GONE_S = 15.0

Found = CallOutcome | dict[str, Any]


class SuspendedCallRegistry:
    """The suspended calls of this process, and access to those of other processes."""

    def __init__(self) -> None:
        self._calls: dict[str, SuspendedCall] = {}
        self._going: dict[str, asyncio.Task[None]] = {}
        self._soon = asyncio.Event()
        self._attending: asyncio.Task[None] | None = None
        self._beaten_at = 0.0

    async def keep(self, call: SuspendedCall, organization_id: UUID) -> None:
        """Register a call, so that any process can resume it by its id until it is done."""
        self._calls[call.id] = call
        await get_runtime().orm(handoff.create_handoff, organization_id, call.id)
        call.when_over(lambda: self._forget(call.id))
        if self._attending is None or self._attending.done():
            self._attending = get_runtime().begin(self._attend(), name="held calls")

    async def go_on(
        self, organization_id: UUID, call_id: str, responses: Mapping[str, Any]
    ) -> Found:
        """Pass on answers; return the outcome or the pending requests.

        Raises `MCPError` if the call is over, and what the call raises.
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
        """Remove a finished call; close its handoff unless another process is resuming it."""
        self._calls.pop(call_id, None)
        if call_id not in self._going:
            get_runtime().spawn(get_runtime().orm(handoff.close, call_id), name="close a held call")

    async def _attend(self) -> None:
        """Poll for answers received by other processes while calls are suspended."""
        woken = self._soon.set
        await get_bus().listen(handoff.HOLDERS, woken)
        try:
            while held := self._calls.keys() | self._going.keys():
                self._soon.clear()
                with suppress(*AWAY):  # the database is unavailable; try again later
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
    """Wait for the result of another process's call; raises `MCPError` if its holder is dead."""
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
            continue  # the holder has just answered
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
    """Return a call's result; raises its `Problem`."""
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
