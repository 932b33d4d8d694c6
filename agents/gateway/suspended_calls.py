"""Suspended calls: a server waits for the client's answers, and any process can resume the call.

The client's request is answered with the server's requests (`input_required`) while the call stays
open; the client's next request brings the answers and waits for the call again. The server waits on
a live connection, which only the holding process has. After `BONOBOT_ANSWER_S` seconds without
answers, the server's request is rejected.

Another process that receives the answers stores them, encrypted, in the call's handoff row; the
holder resumes the call and stores the result there. Each step is a conditional UPDATE, so only one
process performs it. The Redis bus wakes both sides quickly; without it they poll. A holder without
a heartbeat for `HOLDER_TIMEOUT_S` is considered dead, and the call lost. If it was only slow, it
cancels the call.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone
from encrypted_model_fields.fields import decrypt_str, encrypt_str
from mcp.shared.exceptions import MCPError

from agents.calls.pipeline import CallOutcome
from agents.gateway.errors import build_mcp_error
from agents.models import CallHandoff
from bonobot.core.db.transactions import UNAVAILABLE_ERRORS, delete_in_order, update_in_order
from bonobot.core.message_bus import get_bus, wake_listeners
from bonobot.core.problems import Conflict, Problem
from bonobot.core.runtime import get_runtime

NO_ANSWER_CODE = -1


HELD, ASKED, TAKEN = CallHandoff.State.HELD, CallHandoff.State.ASKED, CallHandoff.State.TAKEN
ANSWERED, LEFT = CallHandoff.State.ANSWERED, CallHandoff.State.LEFT
# The bus channel that holders of calls listen on.
HOLDERS_CHANNEL = "held-calls"
# Older rows belong to processes that crashed.
ABANDONED_AFTER = timedelta(hours=1)
# Poll intervals of both sides; the longer one applies while the bus is connected.
POLL_INTERVAL_S = 0.25
FALLBACK_POLL_INTERVAL_S = 5.0
HEARTBEAT_INTERVAL_S = 2.0
HOLDER_TIMEOUT_S = 15.0
CallProgress = CallOutcome | dict[str, Any]


@dataclass(frozen=True, slots=True)
class HandoffStatus:
    """The state of a handoff: whether it has a result, the result, and the last heartbeat."""

    is_answered: bool
    result: str
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class HandoffRequests:
    """What other processes request of held calls: continue with answers, or end."""

    claimed: list[tuple[str, str]]
    abandoned: list[str]


def build_channel(call_id: str) -> str:
    """Return the bus channel for callers that wait for a call."""
    return f"held-call:{call_id}"


def create_handoff(organization_id: UUID, call_id: str) -> None:
    """Make a call available to other processes; deletes abandoned rows."""
    now = timezone.now()
    delete_in_order(CallHandoff.objects.filter(heartbeat_at__lt=now - ABANDONED_AFTER))
    CallHandoff.objects.create(pk=call_id, organization_id=organization_id, heartbeat_at=now)


def update_heartbeats(call_ids: Collection[str]) -> None:
    """Update the heartbeats of held calls (one query)."""
    update_in_order(CallHandoff.objects.filter(pk__in=call_ids), heartbeat_at=timezone.now())


def claim_requests(call_ids: Collection[str]) -> HandoffRequests:
    """Claim the requests for held calls (one query, plus one per claimed call)."""
    rows = CallHandoff.objects.filter(pk__in=call_ids, state__in=(ASKED, LEFT))
    requests = list(rows.values_list("pk", "state", "responses"))
    return HandoffRequests(
        claimed=[
            (str(pk), answers)
            for pk, state, answers in requests
            if state == ASKED
            and CallHandoff.objects.filter(pk=pk, state=ASKED).update(state=TAKEN, responses="")
        ],
        abandoned=[str(pk) for pk, state, _ in requests if state == LEFT],
    )


def save_result(call_id: str, result: str) -> None:
    """Save the result of a claimed call and wake its caller."""
    CallHandoff.objects.filter(pk=call_id, state=TAKEN).update(state=ANSWERED, result=result)
    wake_listeners(build_channel(call_id))


def delete_handoff(call_id: str) -> None:
    """Delete the row of a finished call and wake callers that wait for it."""
    CallHandoff.objects.filter(pk=call_id).exclude(state__in=(TAKEN, ANSWERED)).delete()
    wake_listeners(build_channel(call_id))


def send_answers(organization_id: UUID, call_id: str, answers: str) -> bool:
    """Save answers for the holder; False if the call isn't held or another caller is first."""
    handoffs = CallHandoff.objects.filter(pk=call_id, organization_id=organization_id)
    updated_count = handoffs.filter(state__in=(HELD, ANSWERED)).update(
        state=ASKED, responses=answers, result=""
    )
    wake_listeners(HOLDERS_CHANNEL)
    return updated_count > 0


def find_status(call_id: str) -> HandoffStatus | None:
    """Return the state of a handoff, or None if it is over (one query)."""
    row = CallHandoff.objects.filter(pk=call_id).first()
    return HandoffStatus(row.state == ANSWERED, row.result, row.heartbeat_at) if row else None


def abandon_call(call_id: str) -> bool:
    """Mark the call as abandoned, so that its holder ends it; False if it has a result."""
    handoffs = CallHandoff.objects.filter(pk=call_id, state__in=(ASKED, TAKEN))
    updated_count = handoffs.update(state=LEFT)
    wake_listeners(HOLDERS_CHANNEL)
    return updated_count > 0


def mark_received(call_id: str, *, is_over: bool) -> None:
    """Mark the result as received; deletes the row if the call is over."""
    row = CallHandoff.objects.filter(pk=call_id, state=ANSWERED)
    if is_over:
        row.delete()
    else:
        row.update(state=HELD, result="")


class SuspendedCall:
    """A running call and its server's pending requests."""

    def __init__(self) -> None:
        self.id = str(uuid4())
        self._pending: dict[str, tuple[Mapping[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._changed = asyncio.Event()
        self._task: asyncio.Task[CallOutcome] | None = None
        self._request_count = 0

    async def run(self, call: Callable[[], Awaitable[CallOutcome]]) -> CallOutcome | dict[str, Any]:
        """Start the call; return its outcome or its server's first requests."""
        self._task = get_runtime().loop.create_task(
            _run_call(call), name=f"suspended call {self.id}"
        )
        self._task.add_done_callback(lambda _: self._changed.set())
        return await self._wait_for_next()

    async def resume(self, responses: Mapping[str, Any]) -> CallOutcome | dict[str, Any]:
        """Pass on answers; return the outcome, or the pending and unanswered requests."""
        for key, answer in responses.items():
            _, future = self._pending.pop(key, ({}, None))
            if future is not None and not future.done() and isinstance(answer, dict):
                future.set_result(answer)
        return self.requests if self._pending else await self._wait_for_next()

    def cancel(self) -> None:
        """Cancel the call."""
        if self._task is not None:
            self._task.cancel()

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the call is done."""
        assert self._task is not None  # noqa: S101 - it was sent out
        self._task.add_done_callback(lambda _: callback())

    async def ask_client(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the client with its next result; raises `MCPError` if it doesn't answer in time."""
        self._request_count += 1
        key = f"ask-{self._request_count}"
        future: asyncio.Future[dict[str, Any]] = get_runtime().loop.create_future()
        self._pending[key] = ({"method": method, "params": dict(params)}, future)
        self._changed.set()
        try:
            async with asyncio.timeout(settings.BONOBOT_ANSWER_S):
                return await future
        except TimeoutError:
            raise MCPError(
                code=NO_ANSWER_CODE, message="The request expired without an answer."
            ) from None
        finally:
            self._pending.pop(key, None)

    @property
    def requests(self) -> dict[str, Any]:
        """The pending requests by key."""
        return {key: dict(request) for key, (request, _) in self._pending.items()}

    async def _wait_for_next(self) -> CallOutcome | dict[str, Any]:
        """Wait until the call is done or its server asks; cancel the call if the client leaves."""
        assert self._task is not None  # noqa: S101 - `run` comes first
        try:
            while not self._task.done() and not self._pending:
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return await self._task if self._task.done() else self.requests


async def _run_call(call: Callable[[], Awaitable[CallOutcome]]) -> CallOutcome:
    return await call()


class SuspendedCallRegistry:
    """The suspended calls of this process, and access to those of other processes."""

    def __init__(self) -> None:
        self._calls: dict[str, SuspendedCall] = {}
        self._resuming: dict[str, asyncio.Task[None]] = {}
        self._wake_event = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._heartbeat_at = 0.0

    async def register_call(self, call: SuspendedCall, organization_id: UUID) -> None:
        """Register a call, so that any process can resume it by its id until it is done."""
        self._calls[call.id] = call
        await get_runtime().run_orm(create_handoff, organization_id, call.id)
        call.add_done_callback(lambda: self._remove_call(call.id))
        if self._watching is None or self._watching.done():
            self._watching = get_runtime().create_task(self._watch_handoffs(), name="call handoffs")

    async def resume_call(
        self, organization_id: UUID, call_id: str, responses: Mapping[str, Any]
    ) -> CallProgress:
        """Pass on answers; return the outcome or the pending requests.

        Raises `MCPError` if the call is over, and what the call raises.
        """
        call = self._calls.get(call_id)
        if call is not None:
            return await call.resume(responses)
        encrypted_responses = _encrypt_payload(dict(responses))
        if not await get_runtime().run_orm(
            send_answers, organization_id, call_id, encrypted_responses
        ):
            raise _build_call_over_error()
        change_event = asyncio.Event()
        channel = build_channel(call_id)
        await get_bus().add_listener(channel, change_event.set)
        try:
            return await _wait_for_answer(call_id, change_event)
        except asyncio.CancelledError:
            get_runtime().spawn(
                get_runtime().run_orm(abandon_call, call_id), name="abandon a suspended call"
            )
            raise
        finally:
            get_bus().remove_listener(channel, change_event.set)

    def _remove_call(self, call_id: str) -> None:
        """Remove a finished call; close its handoff unless another process is resuming it."""
        self._calls.pop(call_id, None)
        if call_id not in self._resuming:
            get_runtime().spawn(
                get_runtime().run_orm(delete_handoff, call_id), name="delete a handoff"
            )

    async def _watch_handoffs(self) -> None:
        """Poll for answers received by other processes while calls are suspended."""
        wake = self._wake_event.set
        await get_bus().add_listener(HOLDERS_CHANNEL, wake)
        try:
            while call_ids := self._calls.keys() | self._resuming.keys():
                self._wake_event.clear()
                with suppress(*UNAVAILABLE_ERRORS):  # the database is unavailable; try again later
                    await self._process_handoffs(call_ids)
                await _wait_for_event(
                    self._wake_event,
                    FALLBACK_POLL_INTERVAL_S if get_bus().is_subscribed else POLL_INTERVAL_S,
                )
        finally:
            get_bus().remove_listener(HOLDERS_CHANNEL, wake)

    async def _process_handoffs(self, call_ids: set[str]) -> None:
        now = get_runtime().loop.time()
        if now - self._heartbeat_at >= HEARTBEAT_INTERVAL_S:
            self._heartbeat_at = now
            await get_runtime().run_orm(update_heartbeats, call_ids)
        handoffs = await get_runtime().run_orm(claim_requests, call_ids)
        for call_id, encrypted_responses in handoffs.claimed:
            if (call := self._calls.get(call_id)) is not None:
                resumption = self._resume_for_other_process(
                    call, _decrypt_payload(encrypted_responses)
                )
                self._resuming[call_id] = get_runtime().loop.create_task(
                    resumption, name=f"continue {call_id}"
                )
        for call_id in handoffs.abandoned:
            if (resuming_task := self._resuming.get(call_id)) is not None:
                resuming_task.cancel()
            elif (call := self._calls.get(call_id)) is not None:
                call.cancel()

    async def _resume_for_other_process(
        self, call: SuspendedCall, responses: Mapping[str, Any]
    ) -> None:
        try:
            result = _encode_result(await call.resume(responses))
        except Problem as problem:
            result = {"problem": _encode_problem(problem)}
        finally:
            self._resuming.pop(call.id, None)
        await get_runtime().run_orm(save_result, call.id, _encrypt_payload(result))


async def _wait_for_answer(call_id: str, change_event: asyncio.Event) -> CallProgress:
    """Wait for the result of another process's call; raises `MCPError` if its holder is dead."""
    clock = get_runtime().loop.time
    heartbeat_at, seen_at = None, clock()
    while True:
        change_event.clear()
        status = await get_runtime().run_orm(find_status, call_id)
        if status is None:
            raise _build_call_over_error()
        if status.is_answered:
            result = _decrypt_payload(status.result)
            await get_runtime().run_orm(mark_received, call_id, is_over="asked" not in result)
            return _decode_result(result)
        if status.heartbeat_at != heartbeat_at:
            heartbeat_at, seen_at = status.heartbeat_at, clock()
        silence_s = (timezone.now() - status.heartbeat_at).total_seconds()
        if silence_s > HOLDER_TIMEOUT_S or clock() - seen_at > HOLDER_TIMEOUT_S:
            if await get_runtime().run_orm(abandon_call, call_id):
                raise _build_call_lost_error()
            continue  # the holder has just answered
        await _wait_for_event(
            change_event,
            min(FALLBACK_POLL_INTERVAL_S, POLL_INTERVAL_S * 4)
            if get_bus().is_subscribed
            else POLL_INTERVAL_S,
        )


def _build_call_over_error() -> MCPError:
    return build_mcp_error(
        Conflict(
            "The call has ended or was already continued.",
            code="call_ended",
            remedy="Send the request again as a new call.",
        )
    )


def _build_call_lost_error() -> MCPError:
    return build_mcp_error(
        Conflict(
            "The process that ran this call stopped, and the call was lost.",
            code="call_lost",
            remedy="Its effect on the server isn't known. Check it before you call again.",
        )
    )


def _encode_result(progress: CallProgress) -> dict[str, Any]:
    return (
        {"outcome": asdict(progress)} if isinstance(progress, CallOutcome) else {"asked": progress}
    )


def _decode_result(result: Mapping[str, Any]) -> CallProgress:
    """Return a call's result; raises its `Problem`."""
    if "asked" in result:
        requests: dict[str, Any] = result["asked"]
        return requests
    if "problem" in result:
        problem = dict(result["problem"])
        raise Problem(problem.pop("detail"), **problem)
    outcome = dict(result["outcome"])
    # Processes of the previous release call it `exchange_id`.
    pending_call_id = outcome.pop("exchange_id", None) or outcome.get("pending_call_id")
    outcome["pending_call_id"] = pending_call_id and UUID(pending_call_id)
    return CallOutcome(**outcome | {"call_id": UUID(outcome["call_id"])})


def _encode_problem(problem: Problem) -> dict[str, Any]:
    names = ("detail", "code", "field", "remedy", "rule", "status", "retry_after", "extra")
    return {name: getattr(problem, name) for name in names}


def _encrypt_payload(value: Any) -> str:
    return encrypt_str(json.dumps(value, cls=DjangoJSONEncoder)).decode("ascii")


def _decrypt_payload(text: str) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(decrypt_str(text))
    return payload


async def _wait_for_event(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
