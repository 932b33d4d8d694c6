"""Fulfilling: promised calls are made once a person has allowed them, whoever asks for them.

The call takes the way of every call, with the rights that its client has at that moment. It runs
beside the request that found it ready; a client that goes away doesn't end it. What comes of it is
in its row, so any process tells of it.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from mcp.shared.exceptions import MCPError

from agents import calls, promises
from agents.calls import ApprovalRequired, Outcome
from agents.models import Promise
from agents.requests import Relay, Request
from bonobot.gateway import approving
from bonobot.gateway.failures import error_of, refused, unknown
from bonobot.gateway.hosting import GatewayHost, askable, host_of
from bonobot.gateway.inbound import Inbound
from bonobot.gateway.relaying import VIA, Wanted, finished, listed, may_be_asked
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime

State = Promise.State
BEAT_S = 5.0


class Fulfilling:
    """The promised calls that this process makes."""

    def __init__(self) -> None:
        self._running: dict[UUID, asyncio.Task[Any]] = {}

    async def look(self, inbound: Inbound, promise_id: UUID) -> Promise | None:
        """Return how a promised call stands; one that may be made by now is begun."""
        organization_id = inbound.visitor.principal.organization_id
        row = await runtime().orm(promises.look, organization_id, promise_id)
        if row is not None and row.state == State.READY:
            await self._begin(inbound, row)
        return row

    async def update(self, inbound: Inbound, row: Promise) -> None:
        """Take what the client says: that the person went there or didn't, or what was asked."""
        responses = inbound.members("inputResponses")
        if row.state == State.WAITING and approving.KEY in responses:
            if approving.answered_no(responses):
                await self.cancel(inbound, row)
            else:
                await runtime().orm(promises.visited, row)
        elif row.state == State.ASKING:
            await runtime().orm(promises.hand_over, row, responses)
            await self.look(inbound, row.pk)

    async def cancel(self, inbound: Inbound, row: Promise) -> None:
        """Take the call back, and end it where it is being made here."""
        await runtime().orm(promises.cancel, inbound.visitor.principal, row)
        running = self._running.get(row.pk)
        if running is not None:
            running.cancel()

    async def _begin(self, inbound: Inbound, row: Promise) -> None:
        if not await runtime().orm(promises.claim, row):
            return
        # Of the runtime's own tasks, so that its end is waited for when the process closes.
        runtime().spawn(self._run(inbound, row), name=f"promised call {row.pk}")

    async def _run(self, inbound: Inbound, row: Promise) -> None:
        making = asyncio.current_task()
        assert making is not None  # noqa: S101 - it runs
        self._running[row.pk] = making
        beating = runtime().loop.create_task(_beat(row, making))
        try:
            await self._make(inbound, row)
        finally:
            self._running.pop(row.pk, None)
            beating.cancel()

    async def _make(self, inbound: Inbound, row: Promise) -> None:
        """Make the call and write what came of it."""
        said = row.request.open()
        name = str(said["tool"])
        try:
            outcome = await calls.call(await self._request(inbound, row, said))
        except ApprovalRequired as problem:
            await runtime().orm(promises.wait_again, row, problem.approval_id)
            return
        except Problem as problem:
            answer = await _refusal(inbound, name, problem)
            await runtime().orm(promises.finish, row, State.DONE, answer)
            return
        wanted = Wanted("tools/call", name, name, said["arguments"], _server(said))
        state, answer = await _come_to(inbound, wanted, outcome)
        await runtime().orm(promises.finish, row, state, answer)

    async def _request(self, inbound: Inbound, row: Promise, said: Mapping[str, Any]) -> Request:
        place, server_id = inbound.visitor.place, _server(said)
        wanted = Wanted("tools/call", said["tool"], said["tool"], said["arguments"], server_id)
        host, holder = host_of(inbound), inbound.holder
        if await may_be_asked(inbound, wanted, host):
            # Nobody is there to be asked over a live connection, and the server is told so.
            host, holder = GatewayHost({}), f"gateway:{inbound.visitor.key}:promised"
        assert row.call_id is not None  # noqa: S101 - it was claimed with one
        return Request(
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
            may_send=partial(runtime().orm, promises.beat, row),
            host=host,
            relay=Relay(
                meta=said["meta"],
                more=said.get("more", {}),
                legs=frozenset(map(UUID, said.get("legs", []))),
                may_ask=askable(inbound.capabilities),
            ),
        )


async def _beat(row: Promise, making: "asyncio.Task[Any]") -> None:
    """Say that the call is being made; end it where it was taken back elsewhere."""
    while not making.done():
        await asyncio.wait({making}, timeout=BEAT_S)
        if not making.done() and not await runtime().orm(promises.beat, row):
            making.cancel()
            return


async def _come_to(
    inbound: Inbound, wanted: Wanted, outcome: Outcome
) -> tuple[str, dict[str, Any]]:
    """Return the state that a call's outcome leads to, and what is kept of it."""
    result = outcome.result
    if outcome.code == "task":
        return State.REMOTE, {"task": result["taskId"], "call": str(outcome.call_id)}
    if outcome.code == "input_required":
        asks = {"requests": result.get("inputRequests") or {}, "state": result.get("requestState")}
        return State.ASKING, asks
    try:
        return State.DONE, {"result": await finished(inbound, wanted, outcome)}
    except MCPError as failure:
        return State.DONE, {"error": failure.error.model_dump(exclude_none=True)}


async def _refusal(inbound: Inbound, name: str, problem: Problem) -> dict[str, Any]:
    """Return what is told of a call that the door refused, as it would be told at once."""
    if await listed(inbound, name):
        return {"result": refused(problem)}
    failure = unknown("tool", name) if problem.status < 500 else error_of(problem)
    return {"error": failure.error.model_dump(exclude_none=True)}


def _server(said: Mapping[str, Any]) -> UUID | None:
    return UUID(said["server"]) if said["server"] else None
