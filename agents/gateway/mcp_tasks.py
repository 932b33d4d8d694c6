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
from agents.calls.incomplete_results import (
    InvalidInputRequest,
    get_earlier_call_ids,
    parse_input_requests,
)
from agents.calls.mcp_tasks import RemoteTask, TaskMethod, send_task_request
from agents.calls.pipeline import ApprovalRequired, CallOutcome
from agents.calls.result_text import estimate_size
from agents.calls.snapshots import CallSnapshot
from agents.calls.types import CallRequest, RelayOptions
from agents.gateway import approvals
from agents.gateway.approvals import DEFERRED_CALL_KEY, build_deferred_task
from agents.gateway.catalog import get_catalog, rename_resources
from agents.gateway.client_request import VIA, GatewayRequest, list_supported_requests
from agents.gateway.errors import build_mcp_error, build_refusal_result, build_unknown_name_error
from agents.gateway.forwarded_requests import (
    UpstreamRequest,
    build_call_result,
    can_server_ask,
    get_snapshot,
    is_tool_listed,
)
from agents.gateway.mcp_host import GatewayHost, build_host, supports_tasks
from agents.gateway.request_state import (
    TASK,
    build_protocol_error,
    build_task_status,
    decrypt_state,
)
from agents.models import DeferredCall
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.jsonrpc import TASKS_EXTENSION
from mcp_servers.scanning.services import strip_result

State = DeferredCall.State
HEARTBEAT_INTERVAL_S = 5.0
TASK_VIA = "gateway"
NAME_HEADER = "mcp-name"
COMPLETE_RESULT = {"resultType": "complete"}
LARGE_RESULT_SIZE = 16_384


class DeferredCallRunner:
    """Makes deferred calls in this process."""

    def __init__(self) -> None:
        self._running: dict[UUID, asyncio.Task[Any]] = {}

    async def poll_call(
        self, inbound: GatewayRequest, deferred_call_id: UUID
    ) -> DeferredCall | None:
        """Return a deferred call; start it if it is ready."""
        organization_id = inbound.caller.principal.organization_id
        row = await get_runtime().run_orm(
            deferred_calls.find_deferred_call, organization_id, deferred_call_id
        )
        if row is not None and row.state == State.READY:
            await self._start_call(inbound, row)
        return row

    async def handle_responses(self, inbound: GatewayRequest, row: DeferredCall) -> None:
        """Handle the client's responses to the approval elicitation or to the server's requests."""
        responses = inbound.get_object("inputResponses")
        if row.state == State.WAITING and approvals.APPROVAL_REQUEST_KEY in responses:
            if approvals.is_declined(responses):
                await self.cancel_call(inbound, row)
            else:
                await get_runtime().run_orm(deferred_calls.mark_visited, row)
        elif row.state == State.ASKING:
            await get_runtime().run_orm(deferred_calls.save_responses, row, responses)
            await self.poll_call(inbound, row.pk)

    async def cancel_call(self, inbound: GatewayRequest, row: DeferredCall) -> None:
        """Cancel the call, also if it is running here."""
        await get_runtime().run_orm(
            deferred_calls.cancel_deferred_call, inbound.caller.principal, row
        )
        running = self._running.get(row.pk)
        if running is not None:
            running.cancel()

    async def _start_call(self, inbound: GatewayRequest, row: DeferredCall) -> None:
        if not await get_runtime().run_orm(deferred_calls.claim_deferred_call, row):
            return
        # Spawned on the runtime, which waits for it when the process closes.
        get_runtime().spawn(self._run_call(inbound, row), name=f"promised call {row.pk}")

    async def _run_call(self, inbound: GatewayRequest, row: DeferredCall) -> None:
        call_task = asyncio.current_task()
        assert call_task is not None  # noqa: S101 - it runs
        self._running[row.pk] = call_task
        heartbeat = get_runtime().loop.create_task(_send_heartbeats(row, call_task))
        try:
            await self._make_call(inbound, row)
        finally:
            self._running.pop(row.pk, None)
            heartbeat.cancel()

    async def _make_call(self, inbound: GatewayRequest, row: DeferredCall) -> None:
        """Make the call and save its outcome."""
        stored_request = row.request.open()
        name = str(stored_request["tool"])
        try:
            outcome = await pipeline.make_call(
                await self._build_request(inbound, row, stored_request)
            )
        except ApprovalRequired as problem:
            await get_runtime().run_orm(deferred_calls.return_to_waiting, row, problem.approval_id)
            return
        except Problem as problem:
            answer = await _build_refusal(inbound, name, problem)
            await get_runtime().run_orm(
                deferred_calls.finish_deferred_call, row, State.DONE, answer
            )
            return
        upstream_request = UpstreamRequest(
            "tools/call",
            name=name,
            exposed_name=name,
            arguments=stored_request["arguments"],
            server_id=_parse_server_id(stored_request),
        )
        state, answer = await _resolve_outcome(inbound, upstream_request, outcome)
        await get_runtime().run_orm(deferred_calls.finish_deferred_call, row, state, answer)

    async def _build_request(
        self, inbound: GatewayRequest, row: DeferredCall, stored_request: Mapping[str, Any]
    ) -> CallRequest:
        target, server_id = inbound.caller.target, _parse_server_id(stored_request)
        host, holder = build_host(inbound), inbound.holder
        server = (await get_snapshot(inbound)).servers.get(server_id) if server_id else None
        if server is not None and can_server_ask(inbound, server, host):
            # No client is connected to answer, so offer the server no capabilities.
            host, holder = GatewayHost({}), f"gateway:{inbound.caller.key}:promised"
        assert row.call_id is not None  # noqa: S101 - it was claimed with one
        return CallRequest(
            principal=inbound.caller.principal,
            principal_generation=inbound.caller.verified_token.generation,
            renew_principal=inbound.caller.refresh_principal,
            tool=stored_request["tool"],
            arguments=stored_request["arguments"],
            via=VIA,
            holder=holder,
            agent_id=target.agent_id,
            server_id=None if target.kind == "agent" else server_id,
            call_id=row.call_id,
            client=stored_request["client"],
            may_send=partial(get_runtime().run_orm, deferred_calls.update_heartbeat, row),
            host=host,
            relay=RelayOptions(
                meta=stored_request["meta"],
                extra_params=stored_request.get("more", {}),
                earlier_call_ids=frozenset(map(UUID, get_earlier_call_ids(stored_request))),
                allowed_requests=list_supported_requests(inbound.capabilities),
            ),
        )


async def _send_heartbeats(row: DeferredCall, call_task: "asyncio.Task[Any]") -> None:
    """Send heartbeats while the call runs; cancel it if it was canceled elsewhere."""
    while not call_task.done():
        await asyncio.wait({call_task}, timeout=HEARTBEAT_INTERVAL_S)
        if not call_task.done() and not await get_runtime().run_orm(
            deferred_calls.update_heartbeat, row
        ):
            call_task.cancel()
            return


async def _resolve_outcome(
    inbound: GatewayRequest, upstream_request: UpstreamRequest, outcome: CallOutcome
) -> tuple[str, dict[str, Any]]:
    """Return the new state of a deferred call and the answer to store."""
    result = outcome.result
    if outcome.code == "task":
        return State.REMOTE, {"task": result["taskId"], "call": str(outcome.call_id)}
    if outcome.code == "input_required":
        pending = {
            "requests": result.get("inputRequests") or {},
            "state": result.get("requestState"),
        }
        return State.ASKING, pending
    try:
        return State.DONE, {"result": await build_call_result(inbound, upstream_request, outcome)}
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


def _parse_server_id(stored_request: Mapping[str, Any]) -> UUID | None:
    return UUID(stored_request["server"]) if stored_request["server"] else None


class TaskHandlers:
    """Handles clients' task requests."""

    def __init__(self) -> None:
        self._deferred_calls = DeferredCallRunner()

    async def get_task(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tasks/get`."""
        task = await self._find_task(inbound)
        if isinstance(task, DeferredCall):
            return {
                **COMPLETE_RESULT,
                "taskId": inbound.get_text("taskId"),
                **build_deferred_task(inbound, task),
            }
        remote_status = await self._ask_server(inbound, task, "tasks/get", {})
        task_result = {
            **COMPLETE_RESULT,
            "taskId": inbound.get_text("taskId"),
            **build_task_status(remote_status),
        }
        if remote_status.get("status") == "input_required":
            task_result["inputRequests"] = _select_input_requests(
                inbound, remote_status.get("inputRequests")
            )
        if isinstance(result := remote_status.get("result"), dict):
            stripped = await strip_result(result, estimate_size(result, LARGE_RESULT_SIZE + 1))
            catalog = get_catalog(inbound.caller.target, await _load_snapshot(inbound))
            task_result["result"] = rename_resources(
                stripped.value, catalog.build_uri_renamer(task.server_id)
            )
        if isinstance(error := remote_status.get("error"), dict):
            task_result["error"] = error
        return task_result

    async def update_task(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tasks/update`."""
        task = await self._find_task(inbound)
        if isinstance(task, DeferredCall):
            await self._deferred_calls.handle_responses(inbound, task)
            return COMPLETE_RESULT
        params = {"inputResponses": inbound.get_object("inputResponses")}
        await self._ask_server(inbound, task, "tasks/update", params)
        return COMPLETE_RESULT

    async def cancel_task(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tasks/cancel`."""
        task = await self._find_task(inbound)
        if isinstance(task, DeferredCall):
            await self._deferred_calls.cancel_call(inbound, task)
            return COMPLETE_RESULT
        await self._ask_server(inbound, task, "tasks/cancel", {})
        return COMPLETE_RESULT

    async def _find_task(self, inbound: GatewayRequest) -> RemoteTask | DeferredCall:
        """Return the task of a request; raises `MCPError` for an unknown one.

        A deferred call that its server runs as a task is returned as that task.
        """
        task_state = _decrypt_task_id(inbound)
        if DEFERRED_CALL_KEY not in task_state:
            return RemoteTask(
                UUID(task_state["server"]),
                task_state["task"],
                task_state["tool"],
                UUID(task_state["call"]),
            )
        row = await self._deferred_calls.poll_call(inbound, UUID(task_state[DEFERRED_CALL_KEY]))
        if row is None:
            raise _build_unknown_task_error()
        if row.state != DeferredCall.State.REMOTE:
            return row
        stored_request, answer = row.request.open(), row.answer.open()
        return RemoteTask(
            UUID(stored_request["server"]),
            answer["task"],
            stored_request["tool"],
            UUID(answer["call"]),
        )

    async def _ask_server(
        self,
        inbound: GatewayRequest,
        task: RemoteTask,
        method: TaskMethod,
        params: Mapping[str, Any],
    ) -> dict[str, Any]:
        request = CallRequest(
            principal=inbound.caller.principal,
            principal_generation=inbound.caller.verified_token.generation,
            renew_principal=inbound.caller.refresh_principal,
            tool=task.tool,
            arguments={},
            via=TASK_VIA,
            holder=inbound.holder,
            agent_id=inbound.caller.target.agent_id,
            server_id=task.server_id,
            host=build_host(inbound),
            relay=RelayOptions(meta=inbound.forwarded_meta),
        )
        try:
            return await send_task_request(
                request, await _load_snapshot(inbound), task, method, params
            )
        except NotFound as problem:
            raise _build_unknown_task_error() from problem
        except UpstreamError as problem:
            if problem.rpc_code is None:
                raise build_mcp_error(problem) from problem
            raise MCPError(problem.rpc_code, problem.rpc_message, problem.rpc_data) from problem
        except Problem as problem:
            raise build_mcp_error(problem) from problem


def _decrypt_task_id(inbound: GatewayRequest) -> dict[str, Any]:
    """Return the content of a task id; raises `MCPError` if it is invalid or unsupported."""
    if not supports_tasks(inbound.capabilities):
        raise MCPError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"Declare the extension `{TASKS_EXTENSION}`",
            {"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}},
        )
    task_id, request = inbound.get_text("taskId"), inbound.context.request
    if request is not None and request.headers.get(NAME_HEADER) != task_id:
        raise MCPError(HEADER_MISMATCH, "The header `Mcp-Name` must be the task's id")
    try:
        return decrypt_state(inbound.caller, TASK, task_id)
    except MCPError:
        raise _build_unknown_task_error() from None


async def _load_snapshot(inbound: GatewayRequest) -> CallSnapshot:
    """Load the current snapshot: a task needs its tool's current permissions."""
    return await get_runtime().run_orm(inbound.caller.target.load_snapshot)


def _build_unknown_task_error() -> MCPError:
    return MCPError(INVALID_PARAMS, "Unknown task")


def _select_input_requests(inbound: GatewayRequest, requests: Any) -> dict[str, Any]:
    """Return the input requests of a task; raises `MCPError` if the client doesn't support them."""
    try:
        return parse_input_requests(requests or {}, list_supported_requests(inbound.capabilities))
    except InvalidInputRequest as error:
        raise build_protocol_error(error) from None
