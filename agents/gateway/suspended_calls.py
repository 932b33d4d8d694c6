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
from collections.abc import Callable, Collection, Coroutine, Mapping
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

# MCP's code for a sampling request that the user rejected.
NO_ANSWER_CODE = -1
# The bus channel that holders of calls listen on.
HOLDERS_CHANNEL = "held-calls"
# Older rows belong to processes that crashed.
ABANDONED_AFTER = timedelta(hours=1)
# Poll intervals without the bus, and while it is connected: of holders, and of waiting callers.
POLL_INTERVAL_S = 0.25
HOLDER_FALLBACK_POLL_INTERVAL_S = 5.0
CALLER_FALLBACK_POLL_INTERVAL_S = 1.0
HEARTBEAT_INTERVAL_S = 2.0
HOLDER_TIMEOUT_S = 15.0
State = CallHandoff.State
# The outcome of a call, or its server's pending requests by key.
CallProgress = CallOutcome | dict[str, Any]


@dataclass(frozen=True, slots=True)
class HandoffStatus:
    """The state of a handoff: whether it has a result, the result, and the last heartbeat."""

    is_answered: bool
    result: str
    heartbeat_at: datetime


@dataclass(frozen=True, slots=True)
class HandoffRequests:
    """What other processes request of held calls.

    `claimed` are the IDs of calls to resume, with encrypted answers; `abandoned` those to cancel.
    """

    claimed: list[tuple[str, str]]
    abandoned: list[str]


def build_call_channel(call_id: str) -> str:
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
    rows = CallHandoff.objects.filter(pk__in=call_ids, state__in=(State.ASKED, State.LEFT))
    requests = list(rows.values_list("pk", "state", "responses"))
    return HandoffRequests(
        claimed=[
            (str(pk), answers)
            for pk, state, answers in requests
            if state == State.ASKED and _claim_answers(pk)
        ],
        abandoned=[str(pk) for pk, state, _ in requests if state == State.LEFT],
    )


def save_result(call_id: str, result: str) -> None:
    """Save the result of a claimed call and wake its caller."""
    handoffs = CallHandoff.objects.filter(pk=call_id, state=State.TAKEN)
    handoffs.update(state=State.ANSWERED, result=result)
    wake_listeners(build_call_channel(call_id))


def delete_handoff(call_id: str) -> None:
    """Delete the row of a finished call and wake callers that wait for it."""
    handoffs = CallHandoff.objects.filter(pk=call_id)
    handoffs.exclude(state__in=(State.TAKEN, State.ANSWERED)).delete()
    wake_listeners(build_call_channel(call_id))


def send_answers(organization_id: UUID, call_id: str, answers: str) -> bool:
    """Save answers for the holder; False if the call isn't held or another caller is first."""
    handoffs = CallHandoff.objects.filter(pk=call_id, organization_id=organization_id)
    updated_count = handoffs.filter(state__in=(State.HELD, State.ANSWERED)).update(
        state=State.ASKED, responses=answers, result=""
    )
    wake_listeners(HOLDERS_CHANNEL)
    return updated_count > 0


def find_handoff_status(call_id: str) -> HandoffStatus | None:
    """Return the state of a handoff, or None if it is over (one query)."""
    row = CallHandoff.objects.filter(pk=call_id).first()
    if row is None:
        return None
    return HandoffStatus(row.state == State.ANSWERED, row.result, row.heartbeat_at)


def abandon_call(call_id: str) -> bool:
    """Mark the call as abandoned, so that its holder ends it; False if it has a result."""
    handoffs = CallHandoff.objects.filter(pk=call_id, state__in=(State.ASKED, State.TAKEN))
    updated_count = handoffs.update(state=State.LEFT)
    wake_listeners(HOLDERS_CHANNEL)
    return updated_count > 0


def mark_result_received(call_id: str, *, is_over: bool) -> None:
    """Mark the result as received; deletes the row if the call is over."""
    handoffs = CallHandoff.objects.filter(pk=call_id, state=State.ANSWERED)
    if is_over:
        handoffs.delete()
    else:
        handoffs.update(state=State.HELD, result="")


def _claim_answers(call_id: UUID) -> bool:
    """Claim the answers for a held call; False if the caller left meanwhile."""
    handoffs = CallHandoff.objects.filter(pk=call_id, state=State.ASKED)
    return handoffs.update(state=State.TAKEN, responses="") > 0


class SuspendedCall:
    """A running call and its server's pending requests."""

    def __init__(self) -> None:
        self.id = str(uuid4())
        self._pending: dict[str, tuple[Mapping[str, Any], asyncio.Future[dict[str, Any]]]] = {}
        self._change_event = asyncio.Event()
        self._task: asyncio.Task[CallOutcome] | None = None
        self._request_count = 0

    async def run(self, call: Callable[[], Coroutine[Any, Any, CallOutcome]]) -> CallProgress:
        """Start the call; return its outcome or its server's first requests."""
        self._task = get_runtime().loop.create_task(call(), name=f"suspended call {self.id}")
        self._task.add_done_callback(lambda _: self._change_event.set())
        return await self._wait_for_progress()

    async def resume(self, responses: Mapping[str, Any]) -> CallProgress:
        """Pass on answers by the key of their request; return the outcome or pending requests."""
        for key, answer in responses.items():
            _, future = self._pending.pop(key, ({}, None))
            if future is not None and not future.done() and isinstance(answer, dict):
                future.set_result(answer)
        return self.requests if self._pending else await self._wait_for_progress()

    def cancel(self) -> None:
        """Cancel the call."""
        if self._task is not None:
            self._task.cancel()

    async def wait_until_done(self) -> None:
        """Wait until the call is done and recorded, whatever its outcome is."""
        if self._task is not None:
            await asyncio.wait({self._task})

    def add_done_callback(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the call is done."""
        assert self._task is not None  # noqa: S101 - `run` comes first
        self._task.add_done_callback(lambda _: callback())

    async def ask_client(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the client with its next result; raises `MCPError` if it doesn't answer in time."""
        self._request_count += 1
        key = f"ask-{self._request_count}"
        future: asyncio.Future[dict[str, Any]] = get_runtime().loop.create_future()
        self._pending[key] = ({"method": method, "params": dict(params)}, future)
        self._change_event.set()
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

    async def _wait_for_progress(self) -> CallProgress:
        """Wait until the call is done or its server asks; cancel the call if the client leaves."""
        assert self._task is not None  # noqa: S101 - `run` comes first
        try:
            while not self._task.done() and not self._pending:
                self._change_event.clear()
                await self._change_event.wait()
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        return await self._task if self._task.done() else self.requests


class SuspendedCallRegistry:
    """The suspended calls of this process, and access to those of other processes."""

    def __init__(self) -> None:
        self._calls: dict[str, SuspendedCall] = {}
        self._resume_tasks: dict[str, asyncio.Task[None]] = {}
        self._wake_event = asyncio.Event()
        self._watch_task: asyncio.Task[None] | None = None
        self._row_tasks: set[asyncio.Task[Any]] = set()
        self._heartbeat_at = 0.0

    async def stop(self) -> None:
        """Cancel this process's suspended calls; returns when they are recorded and removed."""
        calls = list(self._calls.values())
        tasks: set[asyncio.Task[Any]] = set(self._resume_tasks.values())
        if self._watch_task is not None:
            tasks.add(self._watch_task)
        for task in tasks:
            task.cancel()
        for call in calls:
            call.cancel()
        for call in calls:
            await call.wait_until_done()
        if tasks := tasks | self._row_tasks:
            await asyncio.wait(tasks)

    async def register_call(self, call: SuspendedCall, organization_id: UUID) -> None:
        """Register a call, so that any process can resume it by its id until it is done."""
        self._calls[call.id] = call
        await get_runtime().run_orm(create_handoff, organization_id, call.id)
        call.add_done_callback(lambda: self._remove_call(call.id))
        if self._watch_task is None:
            get_runtime().on_close(self.stop)
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = get_runtime().create_task(
                self._watch_handoffs(), name="call handoffs"
            )

    async def resume_call(
        self, organization_id: UUID, call_id: str, responses: Mapping[str, Any]
    ) -> CallProgress:
        """Pass on answers; return the outcome or the pending requests.

        Raises `MCPError` if the call is over, and what the call raises.
        """
        call = self._calls.get(call_id)
        if call is not None:
            return await call.resume(responses)
        encrypted_answers = _encrypt_payload(dict(responses))
        if not await get_runtime().run_orm(
            send_answers, organization_id, call_id, encrypted_answers
        ):
            raise _build_call_over_error()
        change_event = asyncio.Event()
        channel = build_call_channel(call_id)
        await get_bus().add_listener(channel, change_event.set)
        try:
            return await _wait_for_result(call_id, change_event)
        except asyncio.CancelledError:
            self._update_row(abandon_call, call_id)
            raise
        finally:
            get_bus().remove_listener(channel, change_event.set)

    def _remove_call(self, call_id: str) -> None:
        """Remove a finished call; close its handoff unless another process is resuming it."""
        self._calls.pop(call_id, None)
        if call_id not in self._resume_tasks:
            self._update_row(delete_handoff, call_id)

    def _update_row(self, update: Callable[[str], object], call_id: str) -> None:
        """Update a handoff without waiting; `stop` waits."""
        task = get_runtime().create_task(
            get_runtime().run_orm(update, call_id), name=f"{update.__name__} {call_id}"
        )
        self._row_tasks.add(task)
        task.add_done_callback(self._row_tasks.discard)

    async def _watch_handoffs(self) -> None:
        """Poll for answers received by other processes while calls are suspended."""
        wake = self._wake_event.set
        await get_bus().add_listener(HOLDERS_CHANNEL, wake)
        try:
            while call_ids := self._calls.keys() | self._resume_tasks.keys():
                self._wake_event.clear()
                with suppress(*UNAVAILABLE_ERRORS):  # the database is unavailable; try again later
                    await self._process_handoffs(call_ids)
                await _wait_for_wakeup(self._wake_event, HOLDER_FALLBACK_POLL_INTERVAL_S)
        finally:
            get_bus().remove_listener(HOLDERS_CHANNEL, wake)

    async def _process_handoffs(self, call_ids: set[str]) -> None:
        """Update the heartbeats if due; resume and cancel calls as other processes request."""
        now = get_runtime().loop.time()
        if now - self._heartbeat_at >= HEARTBEAT_INTERVAL_S:
            self._heartbeat_at = now
            await get_runtime().run_orm(update_heartbeats, call_ids)
        handoffs = await get_runtime().run_orm(claim_requests, call_ids)
        for call_id, encrypted_answers in handoffs.claimed:
            if (call := self._calls.get(call_id)) is not None:
                responses = _decrypt_payload(encrypted_answers)
                self._resume_tasks[call_id] = get_runtime().loop.create_task(
                    self._resume_for_other_process(call, responses), name=f"resume {call_id}"
                )
        for call_id in handoffs.abandoned:
            if (resume_task := self._resume_tasks.get(call_id)) is not None:
                resume_task.cancel()
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
            self._resume_tasks.pop(call.id, None)
        await get_runtime().run_orm(save_result, call.id, _encrypt_payload(result))


async def _wait_for_result(call_id: str, change_event: asyncio.Event) -> CallProgress:
    """Wait for the result of another process's call; raises `MCPError` if its holder is dead."""
    clock = get_runtime().loop.time
    heartbeat_at, seen_at = None, clock()
    while True:
        change_event.clear()
        status = await get_runtime().run_orm(find_handoff_status, call_id)
        if status is None:
            raise _build_call_over_error()
        if status.is_answered:
            result = _decrypt_payload(status.result)
            is_over = "asked" not in result
            await get_runtime().run_orm(mark_result_received, call_id, is_over=is_over)
            return _decode_result(result)
        if status.heartbeat_at != heartbeat_at:
            heartbeat_at, seen_at = status.heartbeat_at, clock()
        silence_s = (timezone.now() - status.heartbeat_at).total_seconds()
        if silence_s > HOLDER_TIMEOUT_S or clock() - seen_at > HOLDER_TIMEOUT_S:
            if await get_runtime().run_orm(abandon_call, call_id):
                raise _build_call_lost_error()
            continue  # the holder has just answered
        await _wait_for_wakeup(change_event, CALLER_FALLBACK_POLL_INTERVAL_S)


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
    if isinstance(progress, CallOutcome):
        return {"outcome": asdict(progress)}
    return {"asked": progress}


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


def _encrypt_payload(value: Mapping[str, Any]) -> str:
    return encrypt_str(json.dumps(value, cls=DjangoJSONEncoder)).decode("ascii")


def _decrypt_payload(text: str) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(decrypt_str(text))
    return payload


async def _wait_for_wakeup(event: asyncio.Event, fallback_interval_s: float) -> None:
    """Wait for the event, at most until it is time to poll."""
    interval_s = fallback_interval_s if get_bus().is_subscribed else POLL_INTERVAL_S
    with suppress(TimeoutError):
        async with asyncio.timeout(interval_s):
            await event.wait()
