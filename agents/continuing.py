"""Continuing: what becomes of a call whose server asks for input first, or works on a task.

A state that comes without a question is sent back at once. Everything else is written down as an
`Exchange`, and the caller goes on with it as a further leg; that takes a session, since elsewhere
nobody would answer.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID

from django.utils import timezone

from agents import exchanges
from agents.admitting import Passed
from agents.governance.unfinished import (
    ROUNDS,
    URL_NEEDED,
    BadRequest,
    asked,
    poll_ms,
    unfinished,
    url_needed,
)
from agents.requests import Continuation, Relay, Request
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import UpstreamError, protocol_error, rpc_error

Ask = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

# Looks at a task that may fail one after the other before it is left for later.
FAILURES = 3
UNKNOWN_TASK = -32602


async def taken_on(
    request: Request, endpoint: Endpoint, ask: Ask, params: Mapping[str, Any]
) -> dict[str, Any]:
    """Send a leg of a call and return the raw result; one of a task looks at the task instead."""
    going_on = request.continues
    if going_on and going_on.task_id:
        return await _follow(request, endpoint, going_on, ask)
    if request.relay:
        return await ask(request.method, _relayed(params, request.relay))
    said = {**params, **(going_on.more if going_on else {})}
    try:
        result = await ask(request.method, said)
        for _ in range(ROUNDS):
            if result.get("resultType") != "input_required" or result.get("inputRequests"):
                return result
            state = unfinished(result, endpoint.may_ask)
            result = await ask(request.method, {**params, "requestState": state and state.state})
        raise BadRequest(f"it wants to be asked again more than {ROUNDS} times")
    except BadRequest as fault:
        raise protocol_error(endpoint, str(fault)) from None
    except UpstreamError as error:
        wanted = url_needed(error.rpc_data) if error.rpc_code == URL_NEEDED else {}
        if not wanted or request.session_id is None or "elicitation" not in endpoint.may_ask:
            raise
        return {"resultType": "url", "inputRequests": wanted}


async def kept_open(request: Request, passed: Passed, result: Mapping[str, Any]) -> UUID | None:
    """Write down how a call goes on whose result isn't its last, and return the exchange's id.

    Raises `UpstreamError` (`protocol_error`) where the server asks for what it may not.
    """
    server_id = passed.target.facts.server_id
    server = passed.snapshot.servers.get(server_id) if server_id else None
    if server is None or result.get("resultType", "complete") == "complete":
        return None
    try:
        found = unfinished(result, _askable(request, server.endpoint))
        if found is None or request.relay:
            return None
        if request.session_id is None or request.host is None:
            raise BadRequest("it asks for input where nobody was offered to give it")
        write = partial(exchanges.note, server_id=server.id, name=server.name)
        own = passed.target.facts.own_name
        return (await runtime().orm(partial(write, own=own), request, found)).pk
    except BadRequest as fault:
        raise protocol_error(server.endpoint, str(fault)) from None


def _relayed(params: Mapping[str, Any], relay: Relay) -> dict[str, Any]:
    """Return what is sent for another program, with the answers and the state that it sent."""
    meta = {"_meta": dict(relay.meta)} if relay.meta else {}
    return {**params, **relay.more, **meta}


def _askable(request: Request, endpoint: Endpoint) -> frozenset[str]:
    """Return what a server may ask for: what was chosen for it, and the caller can be asked."""
    chosen = frozenset(str(one) for one in endpoint.may_ask)
    return chosen & request.relay.may_ask if request.relay else chosen


async def _follow(
    request: Request, endpoint: Endpoint, going_on: Continuation, ask: Ask
) -> dict[str, Any]:
    """Look at a task until it is over, asks for something, or this leg has taken its time.

    A task that its server can't tell of just now is left for later. Raises `UpstreamError`: the
    task's own error, or `task_lost`, `task_cancelled`, `task_expired`.
    """
    named = {"taskId": going_on.task_id}
    if going_on.updates:
        await ask("tasks/update", {**named, "inputResponses": dict(going_on.updates)})
        await runtime().orm(exchanges.told, going_on.exchange_id, list(going_on.updates))
    until = monotonic() + (request.timeout_s or endpoint.read_s)
    failures = 0
    while True:
        if timezone.now() >= going_on.ends_at:
            await ask("tasks/cancel", named)
            raise _over(endpoint, "task_expired", "did not finish it in time")
        try:
            found, failures = await ask("tasks/get", named), 0
        except UpstreamError as problem:
            failures += 1
            if problem.rpc_code == UNKNOWN_TASK:
                raise _over(endpoint, "task_lost", "does not know it any more") from problem
            if not problem.retryable and problem.code != "call_timeout":
                raise
            found = {"status": "working"}
        if (result := _result(endpoint, going_on, found)) is not None:
            return result
        pause_s = max(going_on.poll_s, poll_ms(found.get("pollIntervalMs")) / 1000)
        leaving = request.leaving is not None and request.leaving()
        if leaving or failures >= FAILURES or monotonic() + pause_s > until:
            pace = round(pause_s * 1000)
            return {**named, "resultType": "task", "status": "working", "pollIntervalMs": pace}
        await asyncio.sleep(pause_s)


def _result(
    endpoint: Endpoint, going_on: Continuation, found: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return what a task has come to; None while it is worked on."""
    status = found.get("status")
    if status == "completed":
        result = found.get("result")
        if not isinstance(result, dict):
            raise protocol_error(endpoint, "a finished task without a result")
        return {name: value for name, value in result.items() if name != "resultType"}
    if status == "failed":
        raise rpc_error(endpoint, found.get("error"))
    if status == "cancelled":
        raise _over(endpoint, "task_cancelled", "gave it up")
    if status != "input_required":
        return None
    try:
        wanted = asked(found.get("inputRequests") or {}, endpoint.may_ask)
    except BadRequest as fault:
        raise protocol_error(endpoint, str(fault)) from None
    if not set(wanted) - going_on.answered:
        return None  # it has our answers, and didn't come to them yet
    return {**found, "resultType": "task", "taskId": going_on.task_id}


def _over(endpoint: Endpoint, code: str, what: str) -> UpstreamError:
    return UpstreamError(
        say(
            "`{endpoint}` made a task of this call, and {what}.", endpoint=endpoint.name, what=what
        ),
        code=code,
        server=endpoint.name,
        sent=True,
        remedy="Call it again if that does no harm.",
    )
