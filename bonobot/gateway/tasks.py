"""Tasks: a server works on a call for longer, and the client asks for it (the tasks extension).

What a client knows a task by is sealed: it names the server's own task, whose it is, at which place
and until when. So any process can be asked, also after all were started anew, and nobody else's
task can be guessed at.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from mcp.shared.exceptions import MCPError
from mcp.types import HEADER_MISMATCH, INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY

from agents.governance.results import weight
from agents.governance.snapshots import Snapshot
from agents.governance.unfinished import BadRequest, asked
from agents.models import Promise
from agents.remote_tasks import RemoteTask, TaskMethod, ask
from agents.requests import Relay, Request
from bonobot.gateway.failures import error_of
from bonobot.gateway.fulfilling import Fulfilling
from bonobot.gateway.hosting import askable, host_of, takes_tasks
from bonobot.gateway.inbound import Inbound
from bonobot.gateway.promising import HELD, standing
from bonobot.gateway.shelves import shelf
from bonobot.gateway.states import unseal
from bonobot.gateway.tickets import TASK, shown, wrong
from bonobot.gateway.uris import renamed
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.wire import TASKS_EXTENSION
from mcp_servers.scans import stripped

VIA = "gateway"
NAME = "mcp-name"
COMPLETE = {"resultType": "complete"}
LARGE = 16_384


class Tasks:
    """The requests of this process's clients about tasks."""

    def __init__(self) -> None:
        self._promised = Fulfilling()

    async def get(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `tasks/get`: how the task is, and what it has come to or waits for."""
        task = await self._meant(inbound)
        if isinstance(task, Promise):
            return {**COMPLETE, "taskId": inbound.text("taskId"), **standing(inbound, task)}
        found = await self._ask(inbound, task, "tasks/get", {})
        told = {**COMPLETE, "taskId": inbound.text("taskId"), **shown(found)}
        if found.get("status") == "input_required":
            told["inputRequests"] = _wanted(inbound, found.get("inputRequests"))
        if isinstance(result := found.get("result"), dict):
            clean = await stripped(result, weight(result, LARGE + 1))
            there = shelf(inbound.visitor.place, await _snapshot(inbound))
            told["result"] = renamed(clean.value, there.rename(task.server_id))
        if isinstance(error := found.get("error"), dict):
            told["error"] = error
        return told

    async def update(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `tasks/update`: hand over what the task waits for."""
        task = await self._meant(inbound)
        if isinstance(task, Promise):
            await self._promised.update(inbound, task)
            return COMPLETE
        said = {"inputResponses": inbound.members("inputResponses")}
        await self._ask(inbound, task, "tasks/update", said)
        return COMPLETE

    async def cancel(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `tasks/cancel`: tell the server that nobody waits any more."""
        task = await self._meant(inbound)
        if isinstance(task, Promise):
            await self._promised.cancel(inbound, task)
            return COMPLETE
        await self._ask(inbound, task, "tasks/cancel", {})
        return COMPLETE

    async def _meant(self, inbound: Inbound) -> RemoteTask | Promise:
        """Return the task that a request is about; raises `MCPError` for one that isn't known.

        A promised call whose server has made a task of it is that task.
        """
        held = _held(inbound)
        if HELD not in held:
            return RemoteTask(UUID(held["server"]), held["task"], held["tool"], UUID(held["call"]))
        row = await self._promised.look(inbound, UUID(held[HELD]))
        if row is None:
            raise _unknown()
        if row.state != Promise.State.REMOTE:
            return row
        said, found = row.request.open(), row.answer.open()
        return RemoteTask(UUID(said["server"]), found["task"], said["tool"], UUID(found["call"]))

    async def _ask(
        self, inbound: Inbound, task: RemoteTask, method: TaskMethod, said: Mapping[str, Any]
    ) -> dict[str, Any]:
        request = Request(
            principal=inbound.visitor.principal,
            principal_generation=inbound.visitor.known.generation,
            renewed=inbound.visitor.principal_again,
            tool=task.tool,
            arguments={},
            via=VIA,
            holder=inbound.holder,
            agent_id=inbound.visitor.place.agent_id,
            server_id=task.server_id,
            host=host_of(inbound),
            relay=Relay(meta=inbound.own_meta),
        )
        try:
            return await ask(request, await _snapshot(inbound), task, method, said)
        except NotFound as problem:
            raise _unknown() from problem
        except UpstreamError as problem:
            if problem.rpc_code is None:
                raise error_of(problem) from problem
            raise MCPError(problem.rpc_code, problem.rpc_message, problem.rpc_data) from problem
        except Problem as problem:
            raise error_of(problem) from problem


def _held(inbound: Inbound) -> dict[str, Any]:
    """Return what a task's id holds; raises `MCPError` where it may not be asked for."""
    if not takes_tasks(inbound.capabilities):
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
        raise _unknown() from None


async def _snapshot(inbound: Inbound) -> Snapshot:
    """Return how things are at this moment: a task is no more than its tool still is."""
    return await runtime().orm(inbound.visitor.place.snapshot)


def _unknown() -> MCPError:
    return MCPError(INVALID_PARAMS, "Unknown task")


def _wanted(inbound: Inbound, requests: Any) -> dict[str, Any]:
    """Return what a task waits for; raises `MCPError` where the client can't be asked for that."""
    try:
        return asked(requests or {}, askable(inbound.capabilities))
    except BadRequest as fault:
        raise wrong(fault) from None
