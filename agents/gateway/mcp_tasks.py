"""The MCP tasks extension: servers' tasks and deferred calls.

A deferred call goes through the normal pipeline with its client's current permissions. It runs in
the background after the request that found it ready, even if the client disconnects. Its result is
in its row, so any process can return it.

A task id is encrypted: it contains the server's task, its owner, the target and an expiry. So any
process can handle it, also after a restart, and ids of others can't be guessed.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from mcp.shared.exceptions import MCPError
from mcp.types import HEADER_MISMATCH, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY

from agents.calls import deferred_calls, pipeline
from agents.calls.pending_calls import RemoteTask, TaskMethod, ask
from agents.calls.pipeline import ApprovalRequired, CallOutcome
from agents.calls.results import InvalidInputRequest, estimate_size, parse_input_requests
from agents.calls.snapshots import CallSnapshot
from agents.calls.types import CallRequest, RelayOptions
from agents.gateway import approvals
from agents.gateway.approvals import HELD, build_deferred_task
from agents.gateway.catalog import get_catalog, rename_resources
from agents.gateway.client_request import GatewayRequest
from agents.gateway.errors import build_mcp_error, build_refusal_result, build_unknown_name_error
from agents.gateway.handlers import (
    VIA,
    UpstreamRequest,
    build_call_result,
    is_tool_listed,
    may_be_asked,
)
from agents.gateway.mcp_host import GatewayHost, build_host, list_supported_requests, supports_tasks
from agents.gateway.request_state import TASK, build_protocol_error, build_task_status, unseal
from agents.models import Promise
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.jsonrpc import TASKS_EXTENSION
from mcp_servers.scanning.services import strip_result

State = Promise.State
BEAT_S = 5.0


class DeferredCallRunner:
    """Makes deferred calls in this process."""

    def __init__(self) -> None:
        self._running: dict[UUID, asyncio.Task[Any]] = {}

    async def look(self, inbound: GatewayRequest, promise_id: UUID) -> Promise | None:
        """Return a deferred call; start it if it is ready."""
        organization_id = inbound.visitor.principal.organization_id
        row = await get_runtime().orm(
            deferred_calls.find_deferred_call, organization_id, promise_id
        )
        if row is not None and row.state == State.READY:
            await self._begin(inbound, row)
        return row

    async def update(self, inbound: GatewayRequest, row: Promise) -> None:
        """Handle the client's responses to the approval elicitation or to the server's requests."""
        responses = inbound.members("inputResponses")
        if row.state == State.WAITING and approvals.KEY in responses:
            if approvals.is_declined(responses):
                await self.cancel(inbound, row)
            else:
                await get_runtime().orm(deferred_calls.mark_visited, row)
        elif row.state == State.ASKING:
            await get_runtime().orm(deferred_calls.save_responses, row, responses)
            await self.look(inbound, row.pk)

    async def cancel(self, inbound: GatewayRequest, row: Promise) -> None:
        """Cancel the call, also if it is running here."""
        await get_runtime().orm(deferred_calls.cancel, inbound.visitor.principal, row)
        running = self._running.get(row.pk)
        if running is not None:
            running.cancel()

    async def _begin(self, inbound: GatewayRequest, row: Promise) -> None:
        if not await get_runtime().orm(deferred_calls.claim, row):
            return
        # Spawned on the runtime, which waits for it when the process closes.
        get_runtime().spawn(self._run(inbound, row), name=f"promised call {row.pk}")

    async def _run(self, inbound: GatewayRequest, row: Promise) -> None:
        making = asyncio.current_task()
        assert making is not None  # noqa: S101 - it runs
        self._running[row.pk] = making
        beating = get_runtime().loop.create_task(_send_heartbeats(row, making))
        try:
            await self._make(inbound, row)
        finally:
            self._running.pop(row.pk, None)
            beating.cancel()

    async def _make(self, inbound: GatewayRequest, row: Promise) -> None:
        """Make the call and save its outcome."""
        said = row.request.open()
        name = str(said["tool"])
        try:
            outcome = await pipeline.call(await self._request(inbound, row, said))
        except ApprovalRequired as problem:
            await get_runtime().orm(deferred_calls.wait_again, row, problem.approval_id)
            return
        except Problem as problem:
            answer = await _build_refusal(inbound, name, problem)
            await get_runtime().orm(deferred_calls.finish, row, State.DONE, answer)
            return
        wanted = UpstreamRequest(
            "tools/call", name, name, said["arguments"], _parse_server_id(said)
        )
        state, answer = await _resolve_outcome(inbound, wanted, outcome)
        await get_runtime().orm(deferred_calls.finish, row, state, answer)

    async def _request(
        self, inbound: GatewayRequest, row: Promise, said: Mapping[str, Any]
    ) -> CallRequest:
        place, server_id = inbound.visitor.place, _parse_server_id(said)
        wanted = UpstreamRequest(
            "tools/call", said["tool"], said["tool"], said["arguments"], server_id
        )
        host, holder = build_host(inbound), inbound.holder
        if await may_be_asked(inbound, wanted, host):
            # No client is connected to answer, so offer the server no capabilities.
            host, holder = GatewayHost({}), f"gateway:{inbound.visitor.key}:promised"
        assert row.call_id is not None  # noqa: S101 - it was claimed with one
        return CallRequest(
            principal=inbound.visitor.principal,
            principal_generation=inbound.visitor.known.generation,
            renewed=inbound.visitor.principal_again,
            tool=said["tool"],
            arguments=said["arguments"],
            via=VIA,
            holder=holder,
            agent_id=place.agent_id,
            server_id=None if place.kind == "agent" else server_id,
            call_id=row.call_id,
            client=said["client"],
            may_send=partial(get_runtime().orm, deferred_calls.update_heartbeat, row),
            host=host,
            relay=RelayOptions(
                meta=said["meta"],
                more=said.get("more", {}),
                legs=frozenset(map(UUID, said.get("legs", []))),
                may_ask=list_supported_requests(inbound.capabilities),
            ),
        )


async def _send_heartbeats(row: Promise, making: "asyncio.Task[Any]") -> None:
    """Send heartbeats while the call runs; cancel it if it was canceled elsewhere."""
    while not making.done():
        await asyncio.wait({making}, timeout=BEAT_S)
        if not making.done() and not await get_runtime().orm(deferred_calls.update_heartbeat, row):
            making.cancel()
            return


async def _resolve_outcome(
    inbound: GatewayRequest, wanted: UpstreamRequest, outcome: CallOutcome
) -> tuple[str, dict[str, Any]]:
    """Return the new state of a deferred call and the answer to store."""
    result = outcome.result
    if outcome.code == "task":
        return State.REMOTE, {"task": result["taskId"], "call": str(outcome.call_id)}
    if outcome.code == "input_required":
        asks = {"requests": result.get("inputRequests") or {}, "state": result.get("requestState")}
        return State.ASKING, asks
    try:
        return State.DONE, {"result": await build_call_result(inbound, wanted, outcome)}
    except MCPError as failure:
        return State.DONE, {"error": failure.error.model_dump(exclude_none=True)}


async def _build_refusal(inbound: GatewayRequest, name: str, problem: Problem) -> dict[str, Any]:
    """Return the answer for a refused call, as for an immediate call."""
    if await is_tool_listed(inbound, name):
        return {"result": build_refusal_result(problem)}
    failure = (
        build_unknown_name_error("tool", name) if problem.status < 500 else build_mcp_error(problem)
    )
    return {"error": failure.error.model_dump(exclude_none=True)}


def _parse_server_id(said: Mapping[str, Any]) -> UUID | None:
    return UUID(said["server"]) if said["server"] else None


TASK_VIA = "gateway"
NAME = "mcp-name"
COMPLETE = {"resultType": "complete"}
LARGE = 16_384


class TaskHandlers:
    """Handles clients' task requests."""

    def __init__(self) -> None:
        self._promised = DeferredCallRunner()

    async def get(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tasks/get`."""
        task = await self._meant(inbound)
        if isinstance(task, Promise):
            return {
                **COMPLETE,
                "taskId": inbound.text("taskId"),
                **build_deferred_task(inbound, task),
            }
        found = await self._ask(inbound, task, "tasks/get", {})
        told = {**COMPLETE, "taskId": inbound.text("taskId"), **build_task_status(found)}
        if found.get("status") == "input_required":
            told["inputRequests"] = _select_input_requests(inbound, found.get("inputRequests"))
        if isinstance(result := found.get("result"), dict):
            clean = await strip_result(result, estimate_size(result, LARGE + 1))
            there = get_catalog(inbound.visitor.place, await _snapshot(inbound))
            told["result"] = rename_resources(clean.value, there.rename(task.server_id))
        if isinstance(error := found.get("error"), dict):
            told["error"] = error
        return told

    async def update(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tasks/update`."""
        task = await self._meant(inbound)
        if isinstance(task, Promise):
            await self._promised.update(inbound, task)
            return COMPLETE
        said = {"inputResponses": inbound.members("inputResponses")}
        await self._ask(inbound, task, "tasks/update", said)
        return COMPLETE

    async def cancel(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tasks/cancel`."""
        task = await self._meant(inbound)
        if isinstance(task, Promise):
            await self._promised.cancel(inbound, task)
            return COMPLETE
        await self._ask(inbound, task, "tasks/cancel", {})
        return COMPLETE

    async def _meant(self, inbound: GatewayRequest) -> RemoteTask | Promise:
        """Return the task of a request; raises `MCPError` for an unknown one.

        A deferred call that its server runs as a task is returned as that task.
        """
        held = _unseal_task_id(inbound)
        if HELD not in held:
            return RemoteTask(UUID(held["server"]), held["task"], held["tool"], UUID(held["call"]))
        row = await self._promised.look(inbound, UUID(held[HELD]))
        if row is None:
            raise _build_unknown_task_error()
        if row.state != Promise.State.REMOTE:
            return row
        said, found = row.request.open(), row.answer.open()
        return RemoteTask(UUID(said["server"]), found["task"], said["tool"], UUID(found["call"]))

    async def _ask(
        self, inbound: GatewayRequest, task: RemoteTask, method: TaskMethod, said: Mapping[str, Any]
    ) -> dict[str, Any]:
        request = CallRequest(
            principal=inbound.visitor.principal,
            principal_generation=inbound.visitor.known.generation,
            renewed=inbound.visitor.principal_again,
            tool=task.tool,
            arguments={},
            via=TASK_VIA,
            holder=inbound.holder,
            agent_id=inbound.visitor.place.agent_id,
            server_id=task.server_id,
            host=build_host(inbound),
            relay=RelayOptions(meta=inbound.own_meta),
        )
        try:
            return await ask(request, await _snapshot(inbound), task, method, said)
        except NotFound as problem:
            raise _build_unknown_task_error() from problem
        except UpstreamError as problem:
            if problem.rpc_code is None:
                raise build_mcp_error(problem) from problem
            raise MCPError(problem.rpc_code, problem.rpc_message, problem.rpc_data) from problem
        except Problem as problem:
            raise build_mcp_error(problem) from problem


def _unseal_task_id(inbound: GatewayRequest) -> dict[str, Any]:
    """Return the content of a task id; raises `MCPError` if it is invalid or unsupported."""
    if not supports_tasks(inbound.capabilities):
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Declare the extension `{TASKS_EXTENSION}`",
            {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
        )
    number, request = inbound.text("taskId"), inbound.context.request
    if request is not None and request.headers.get(NAME) != number:
        raise MCPError(HEADER_MISMATCH, "The header `Mcp-Name` must be the task's id")
    try:
        return unseal(inbound.visitor, TASK, number)
    except MCPError:
        raise _build_unknown_task_error() from None


async def _snapshot(inbound: GatewayRequest) -> CallSnapshot:
    """Load the current snapshot: a task needs its tool's current permissions."""
    return await get_runtime().orm(inbound.visitor.place.snapshot)


def _build_unknown_task_error() -> MCPError:
    return MCPError(INVALID_PARAMS, "Unknown task")


def _select_input_requests(inbound: GatewayRequest, requests: Any) -> dict[str, Any]:
    """Return the input requests of a task; raises `MCPError` if the client doesn't support them."""
    try:
        return parse_input_requests(requests or {}, list_supported_requests(inbound.capabilities))
    except InvalidInputRequest as fault:
        raise build_protocol_error(fault) from None
