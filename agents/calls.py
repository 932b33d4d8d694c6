"""The door: every governed call goes through `call`, whoever makes it (DESIGN section 2).

Resolve, check, decide and admit (`admitting`); then forward, inspect and settle. No audit row, no
call; an admitted call is always settled.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID

from django.conf import settings

from agents.admitting import Passed, admit, again
from agents.builtin_tools import Context, run_builtin
from agents.consents import ApprovalRequired
from agents.continuing import kept_open, taken_on
from agents.governance.costs import FREE, taken
from agents.governance.limits import actuals
from agents.governance.results import Readable, completed, readable, reading, weight
from agents.governance.snapshots import Tool, snapshots
from agents.models import StoredResult
from agents.openings import deadline_ms
from agents.people import personal
from agents.redaction import given
from agents.requests import (
    GoesOn,
    Method,
    Outcome,
    OutcomeUnrecorded,
    Refused,
    Request,
    Superseded,
)
from agents.targets import Target, argument_schema, params
from agents.tracing import told, traced
from bonobot.ledger.entries import Outcome as LedgerOutcome
from bonobot.ledger.entries import Settlement
from bonobot.ledger.fingerprints import fingerprint
from bonobot.ledger.refusals import AuditUnavailable
from bonobot.ledger.writer import writer
from bonobot.lib.canonical import sorted_text
from bonobot.lib.logs import bound
from bonobot.lib.patience import AWAY
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from mcp_servers.connections.eras import HEADER_MISMATCH
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.pool import connections
from mcp_servers.rereading import doubt, reread
from mcp_servers.status import record_trouble

__all__ = ["ApprovalRequired", "Outcome", "Refused", "Request", "call", "release"]

logger = logging.getLogger(__name__)

READ_INLINE = 16_384
NOTE = 512
PARTING_S = 5.0
LEAST_S = 0.1  # of a call that goes out again when its time is nearly over


async def call(request: Request) -> Outcome:
    """Make one governed call.

    Raises `Refused`, `InvalidArguments`, `NotFound` (unknown tool) or the ledger's `Refusal`, each
    after it was written to the audit; an upstream's failure is an outcome, not an exception.
    """
    with bound(call=str(request.call_id)), traced(request) as span:
        return told(span, await _settled(await admit(request)))


async def release(holder: str) -> None:
    """Close what calls of `holder` opened: children and handshake sessions."""
    await connections().release(holder)


async def disconnect(holder: str, server_id: UUID) -> None:
    """Close what calls of `holder` opened at one server."""
    await connections().release(holder, server_id)


@dataclass(slots=True)
class _Ending:
    """What came of a call so far; as long as nobody knows, it was cancelled."""

    outcome: LedgerOutcome = "unknown"
    code: str = "cancelled"
    shown: Readable = field(default_factory=lambda: Readable(""))
    result: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    remedy: str = ""
    sent: bool = True
    answered: bool = False
    duration_ms: int = 0
    exchange_id: UUID | None = None
    error: dict[str, Any] | None = None
    took: dict[str, int] = field(default_factory=dict)


async def _settled(passed: Passed) -> Outcome:
    """Forward the call and settle it, whatever happens: also when the caller goes away."""
    request, began, end = passed.request, perf_counter(), _Ending()
    try:
        await _answered(request, passed, end)
    except Problem as problem:
        await _failed(request, passed, problem, end)
    finally:
        end.duration_ms = round((perf_counter() - began) * 1000)
        end.took = _taken(
            request, passed, end.duration_ms, sent=end.sent, known=end.outcome != "unknown"
        )
        # Handed over before it waits: a caller that goes away meanwhile changes nothing of it.
        await _closed(request, _settlement(request, passed, end))
    return Outcome(
        call_id=request.call_id,
        outcome=end.outcome,
        text=end.shown.text,
        result=end.result,
        duration_ms=end.duration_ms,
        code=end.code,
        remedy=end.remedy,
        cost_microusd=end.took["microusd"],
        server_name=passed.target.facts.server_name,
        own_name=_named(request, passed.target),
        sanitized=end.shown.sanitized,
        flagged=end.shown.flagged,
        instructs=end.outcome == "ok" and _instructs(passed.target),
        exchange_id=end.exchange_id,
        error=end.error,
    )


def _instructs(target: Target) -> bool:
    """Tell whether what a call gives are our own people's words."""
    return isinstance(target, Tool) and bool(target.builtin and target.builtin.instructs)


async def _closed(request: Request, settlement: Settlement) -> None:
    """Settle a call before its answer goes out; a session waits for a database that is away.

    Raises `OutcomeUnrecorded` to the others: the call was made, and they must not repeat it.
    """
    try:
        await writer().settle_async(settlement, patient=request.session_id is not None)
    except AuditUnavailable as problem:
        raise OutcomeUnrecorded(problem) from problem


async def _answered(request: Request, passed: Passed, end: _Ending) -> None:
    try:
        end.result = await _sent(request, passed)
    except GoesOn as part:
        end.outcome, end.code = "ok", part.outcome.code
        end.exchange_id = part.outcome.exchange_id
        return
    end.answered = True
    end.exchange_id = await kept_open(request, passed, end.result)
    kind = str(end.result.get("resultType", "complete"))
    if end.exchange_id is not None or (request.relay and kind != "complete"):
        end.outcome, end.code = "ok", kind
        return
    if request.method == "completion/complete":
        end.result = completed(end.result)
    end.shown, end.result, end.told = await _inspected(request, passed, end.result)
    failed = bool(end.result.get("isError"))
    end.outcome, end.code = ("error", "tool_error") if failed else ("ok", "")


async def _failed(request: Request, passed: Passed, problem: Problem, end: _Ending) -> None:
    end.sent = end.answered or (isinstance(problem, UpstreamError) and problem.sent)
    end.outcome = "unknown" if _unanswered(problem) else "error"
    end.code, end.remedy, end.result = problem.code, problem.remedy, {}  # a refused answer's
    end.error = _answered_with(problem, passed.snapshot.organization_id)
    end.shown = reading(str(problem))
    await _note_trouble(request, passed.target.facts.server_id, problem)


def _settlement(request: Request, passed: Passed, end: _Ending) -> Settlement:
    shown = end.shown
    return Settlement(
        call_id=request.call_id,
        organization_id=passed.snapshot.organization_id,
        outcome=end.outcome,
        code=end.code,
        duration_ms=end.duration_ms,
        details={
            "execution_time_ms": end.duration_ms,
            "sanitized": shown.changes(),
            **({"flagged": dict(shown.flagged)} if shown.flagged else {}),
            **end.told,
        },
        actuals=actuals(passed.admission.reserves, end.took),
        cost_microusd=end.took["microusd"],
    )


def _taken(
    request: Request, passed: Passed, duration_ms: int, *, sent: bool, known: bool
) -> dict[str, int]:
    """Return what the call took of its budgets; a built-in tool is a call that costs nothing."""
    server_id = passed.target.facts.server_id
    server = passed.snapshot.servers.get(server_id) if server_id else None
    return taken(
        server.price if server else FREE,
        deadline_ms=deadline_ms(request, server),
        duration_ms=duration_ms,
        # A look at a task is no call: the one that began it was.
        sent=(sent and not (request.continues and request.continues.task_id)) or server is None,
        known=known,
    )


def _named(request: Request, target: Target) -> str:
    """Return what was asked for by its server's own name; of a template, the URI."""
    return target.facts.own_name if request.method == "tools/call" else request.tool


async def _note_trouble(request: Request, server_id: UUID | None, problem: Problem) -> None:
    """Write what a failure says of its server: that it is away, or that it has changed."""
    if server_id is not None:
        try:
            await runtime().orm(record_trouble, server_id, problem)
        except AWAY as fault:
            logger.warning("a server's trouble could not be noted: %s", fault)
        if request.method == "tools/call":
            doubt(server_id, problem, request.holder)


def _answered_with(problem: Problem, organization_id: UUID) -> dict[str, Any] | None:
    """Return the error that the server answered with, without our secrets; None if it didn't."""
    if not isinstance(problem, UpstreamError) or problem.rpc_code is None:
        return None
    error = {"code": problem.rpc_code, "message": problem.rpc_message}
    if problem.rpc_data is not None:
        error["data"] = problem.rpc_data
    return given(error, organization_id)


def _unanswered(problem: Problem) -> bool:
    """Tell whether the call was sent and nobody knows whether it ran."""
    lost = ("call_timeout", "server_unreachable", "server_crashed")
    return isinstance(problem, UpstreamError) and problem.sent and problem.code in lost


async def _sent(request: Request, passed: Passed) -> dict[str, Any]:
    """Return the raw result; a call that was mirrored by old annotations goes out once more.

    A server that refuses headers (-32020) has read nothing of the call. Its declarations are read
    again, and only what may be called as it is declared now is sent (MCP 2026-07-28, transports).
    """
    began = perf_counter()
    try:
        return await _forward(request, passed)
    except UpstreamError as problem:
        old, server_id = passed.target, passed.target.facts.server_id
        if problem.rpc_code != HEADER_MISMATCH or not isinstance(old, Tool) or server_id is None:
            raise
        await reread(server_id, problem, request.holder)
        renewed = await again(request, passed)
        if argument_schema(request, renewed.target) == old.input_schema:
            raise
    server = renewed.snapshot.servers.get(server_id)
    left_s = deadline_ms(request, server) / 1000 - (perf_counter() - began)
    return await _forward(replace(renewed.request, timeout_s=max(left_s, LEAST_S)), renewed)


async def _forward(request: Request, passed: Passed) -> dict[str, Any]:
    snapshot, target = passed.snapshot, passed.target
    if request.may_send is not None and not await request.may_send():
        raise Superseded("Another process took this session over before the call was sent.")
    if (builtin := target.builtin if isinstance(target, Tool) else None) is not None:
        return await run_builtin(builtin, _context(request, passed), request.arguments)
    server_id = target.facts.server_id
    if server_id is None:
        raise NotFound("This tool has no server.", code="unknown_tool")
    reached = snapshot.servers[server_id].endpoint
    endpoint = await personal(reached, request.principal, request.session_id)

    async def ask(method: str, said: Mapping[str, Any]) -> dict[str, Any]:
        return await connections().request(
            endpoint,
            method,
            said,
            holder=request.holder,
            timeout_s=request.timeout_s,
            on_progress=request.on_progress,
            on_log=request.relay.on_log if request.relay else None,
            input_schema=target.input_schema if isinstance(target, Tool) else None,
            declaration=target.declaration if isinstance(target, Tool) else None,
            host=request.host,
        )

    return await taken_on(request, endpoint, ask, params(request, target))


async def give_up(request: Request, task_id: str) -> None:
    """Tell a server that nobody waits for its task any more; what it does then is its own."""
    if request.agent_id is None or request.server_id is None:
        return
    snapshot = await runtime().orm(snapshots().read, "agent", request.agent_id)
    server = snapshot.servers.get(request.server_id)
    if server is None or not server.enabled:
        return
    endpoint = await personal(server.endpoint, request.principal, request.session_id)
    await connections().request(
        endpoint,
        "tasks/cancel",
        {"taskId": task_id},
        holder=request.holder,
        timeout_s=PARTING_S,
        host=request.host,
    )


def _context(request: Request, passed: Passed) -> Context:
    snapshot, toolbox = passed.snapshot, passed.snapshot.toolbox
    return Context(
        organization_id=snapshot.organization_id,
        agent_id=snapshot.agent_id,
        session_id=request.session_id,
        principal=request.principal,
        call_id=request.call_id,
        labels=passed.target.labels,
        holding_session=request.holding_session,
        snapshot=snapshot,
        toolbox=replace(toolbox, folder=request.folder) if request.folder else toolbox,
        call=partial(_child, request),
        timeout_s=request.timeout_s,
    )


async def _child(parent: Request, method: Method, server_id: UUID, name: str) -> Outcome:
    """Make a call on behalf of a built-in tool: decided, admitted and audited by itself.

    Raises `GoesOn` where its server asks for something first.
    """
    outcome = await call(
        Request(
            principal=parent.principal,
            principal_generation=parent.principal_generation,
            renewed=parent.renewed,
            method=method,
            tool=name,
            arguments={},
            via=parent.via,
            holder=parent.holder,
            agent_id=parent.agent_id,
            server_id=server_id,
            session_id=parent.session_id,
            root=parent.root,
            parent_id=parent.call_id,
            client=parent.client,
            timeout_s=parent.timeout_s,
            may_send=parent.may_send,
            leaving=parent.leaving,
            host=parent.host,
            continues=parent.continues,
        )
    )
    if outcome.exchange_id is not None:
        raise GoesOn(outcome)
    return outcome


async def _inspected(
    request: Request, passed: Passed, result: dict[str, Any]
) -> tuple[Readable, dict[str, Any], dict[str, Any]]:
    """Return the result as models read it, as programs do, and what the audit is told of it."""
    organization_id = passed.snapshot.organization_id
    limit = settings.BONOBOT_RESULT_LIMIT
    if passed.target.facts.source == "builtin":
        limit += NOTE  # of the call that it made, which was cut already and says so
    # Long texts are read beside the loop, which other calls are waiting for.
    read = partial(_read, result, organization_id, limit=limit, result_id=request.call_id)
    inline = weight(result, READ_INLINE) <= READ_INLINE
    shown, result, told = read() if inline else await asyncio.to_thread(read)
    if shown.whole:
        await runtime().orm(
            StoredResult.objects.create,
            pk=request.call_id,
            organization_id=organization_id,
            agent_id=passed.snapshot.agent_id,
            session_id=request.session_id,
            text=shown.whole,
        )
    return shown, result, told


def _read(
    result: dict[str, Any], organization_id: UUID, *, limit: int, result_id: UUID
) -> tuple[Readable, dict[str, Any], dict[str, Any]]:
    told: dict[str, Any] = {"output_sha256": fingerprint(organization_id, sorted_text(result))}
    if (clean := given(result, organization_id)) is not result and clean != result:
        told["secrets_masked"] = True
    return readable(clean, limit=limit, result_id=result_id), clean, told
