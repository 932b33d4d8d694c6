"""The door: every governed call goes through `call`, whoever makes it (DESIGN section 2).

Resolve, check, decide, admit, forward, inspect, settle. What was decided is compared with the
policy generation when the call is admitted, so a change made anywhere holds on the very next call.
No audit row, no call; an admitted call is always settled.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.utils import timezone

from agents.builtin_tools import BUILTIN_TOOLS, Context
from agents.governance.limits import charge, reserves
from agents.governance.policies import Decision
from agents.governance.results import Readable, readable, weight
from agents.governance.snapshots import Snapshot, Tool, snapshots
from agents.models import StoredResult
from agents.people import personal
from bonobot.ledger.entries import Admission, Charge, Opening, Settlement
from bonobot.ledger.entries import Outcome as LedgerOutcome
from bonobot.ledger.heads import generation
from bonobot.ledger.refusals import Refusal, StaleSnapshot
from bonobot.ledger.writer import writer
from bonobot.lib.canonical import canonical, digest
from bonobot.lib.logs import bound
from bonobot.lib.masking import mask
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.pool import connections
from mcp_servers.schema_worker import check
from mcp_servers.status import record_trouble

ARGUMENTS_KEPT = 16_384
READ_INLINE = 16_384
# A snapshot can go stale between reading and admission again and again only in a storm of changes.
TRIES = 5


class Refused(Problem):
    """The door refused the call; `rule` says which rule, `remedy` what to do next."""

    code = "denied_by_policy"
    status = 403
    title = "The call was refused"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call as it is asked for: of an agent's tool, or (no agent) of a server's own tool.

    `holder` names who owns the connection (`session:…`, `server:…`). `unapproved` lets somebody who
    may approve definitions try one that waits for approval.
    """

    principal: Principal
    tool: str
    arguments: dict[str, Any]
    via: str
    holder: str
    agent_id: UUID | None = None
    server_id: UUID | None = None
    session_id: UUID | None = None
    parent_id: UUID | None = None
    call_id: UUID = field(default_factory=uuid4)
    timeout_s: float | None = None
    unapproved: bool = False
    on_progress: Callable[[float, float | None, str | None], Awaitable[None]] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of an admitted call.

    `outcome` is ok, error or unknown (sent, not answered in time); `text` is the result as models
    see it, cleaned and bounded; `result` is the upstream's own JSON.
    """

    call_id: UUID
    outcome: str
    text: str
    result: dict[str, Any]
    duration_ms: int
    code: str = ""
    remedy: str = ""
    server_name: str = ""
    own_name: str = ""

    @property
    def is_error(self) -> bool:
        """Tell whether the model is told that the call failed."""
        return self.outcome != "ok"

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as REST and the command line show it."""
        return {
            "call_id": str(self.call_id),
            "outcome": self.outcome,
            "is_error": self.is_error,
            "text": self.text,
            "result": self.result,
            "code": self.code,
            "remedy": self.remedy,
            "duration_ms": self.duration_ms,
            "server": self.server_name,
            "tool": self.own_name,
        }


async def call(request: Request) -> Outcome:
    """Make one governed call.

    Raises `Refused`, `InvalidArguments`, `NotFound` (unknown tool) or the ledger's `Refusal`, each
    after it was written to the audit; an upstream's failure is an outcome, not an exception.
    """
    with bound(call=str(request.call_id)):
        return await _settled(request, await _admitted(request))


async def release(holder: str) -> None:
    """Close what calls of `holder` opened: children and handshake sessions."""
    await connections().release(holder)


@dataclass(frozen=True, slots=True)
class _Passed:
    """An admitted call: what decided it, and what was reserved for it."""

    snapshot: Snapshot
    tool: Tool
    admission: Admission


# -- resolve, check, decide, admit ---------------------------------------------------------------


async def _admitted(request: Request) -> _Passed:
    snapshot = await _snapshot(request, fresh=False)
    for _ in range(TRIES):
        tool = snapshot.tools.get(request.tool)
        try:
            tool = _resolved(request, snapshot, tool)
            await check(tool.input_schema, request.arguments, tool.judgement)
            _decided(request, tool)
            admission = _admission(request, snapshot, tool)
            await writer().admit_async(admission)
        except StaleSnapshot:
            snapshot = await _snapshot(request, fresh=True)
        except Problem as problem:
            if not isinstance(problem, Refusal) and await _is_stale(snapshot):
                snapshot = await _snapshot(request, fresh=True)
                continue
            await _refuse(request, snapshot, tool, problem)
            raise
        else:
            return _Passed(snapshot, tool, admission)
    raise Refused(
        "The rules changed while this call was being decided.",
        code="rules_changing",
        remedy="Try again in a moment.",
        status=503,
    )


async def _is_stale(snapshot: Snapshot) -> bool:
    """Tell whether a refusal was decided on old rules: admission, which tells, wasn't reached."""
    now = await runtime().orm(generation, snapshot.organization_id)
    return now != snapshot.generation


async def _snapshot(request: Request, *, fresh: bool) -> Snapshot:
    kind, key = ("agent", request.agent_id) if request.agent_id else ("server", request.server_id)
    if key is None:
        raise NotFound("Name an agent or a server.", field="agent")
    snapshot = None if fresh else snapshots().cached(kind, key)
    if snapshot is None:
        snapshot = await runtime().orm(snapshots().read, kind, key)
    principal = request.principal
    foreign = snapshot.organization_id != principal.organization_id
    if foreign or (principal.agent_id and principal.agent_id != request.agent_id):
        raise NotFound(f"There is no {kind} {str(key)!r} here.", field=kind)
    return snapshot


def _resolved(request: Request, snapshot: Snapshot, tool: Tool | None) -> Tool:
    request.principal.require(Action.RUN_AGENTS if request.agent_id else Action.CALL_TOOLS)
    if tool is not None:
        return tool
    whose = f"The agent `{snapshot.agent_name}`" if snapshot.agent_id else "This server"
    raise NotFound(
        f"{whose} has no tool {request.tool!r}.",
        code="unknown_tool",
        field="tool",
        rule="resolve",
        remedy="List the tools that can be called, or refresh the server.",
    )


def _decided(request: Request, tool: Tool) -> None:
    """Raise `Refused` unless the decision allows the call, or may be set aside to try it."""
    decision = tool.decision
    if decision.allowed:
        return
    trying = request.unapproved and decision.code in ("not_approved", "definition_changed")
    if trying and request.agent_id is None and request.principal.may(Action.APPROVE_DEFINITIONS):
        return
    raise Refused(
        decision.reason,
        code=decision.code,
        rule=decision.rule,
        remedy=decision.remedy,
        field="tool",
    )


def _admission(request: Request, snapshot: Snapshot, tool: Tool) -> Admission:
    organization_id = snapshot.organization_id
    return Admission(
        opening=_opening(request, snapshot, tool, tool.decision),
        reserves=reserves(organization_id, snapshot.limits, {"calls": 1}, timezone.now()),
        charges=_charges(request, snapshot),
        generation=snapshot.generation,
    )


def _charges(request: Request, snapshot: Snapshot) -> tuple[Charge, ...]:
    organization_id = snapshot.organization_id
    charges = []
    if snapshot.agent_id:
        charges.append(
            charge(organization_id, "agent", snapshot.agent_id, snapshot.calls_per_minute)
        )
    if request.principal.token_id:
        rate = request.principal.calls_per_minute or settings.BONOBOT_CALLS_PER_MINUTE
        charges.append(charge(organization_id, "token", request.principal.token_id, rate))
    return tuple(charges)


async def _refuse(
    request: Request, snapshot: Snapshot, tool: Tool | None, problem: Problem
) -> None:
    """Write the refusal; without its row the caller gets the ledger's own error instead."""
    if isinstance(problem, Refusal) and problem.code == "audit_unavailable":
        return
    decision = Decision("deny", problem.rule or problem.code, problem.code)
    await writer().refuse_async(_opening(request, snapshot, tool, decision))


def _opening(
    request: Request, snapshot: Snapshot, tool: Tool | None, decision: Decision
) -> Opening:
    """Return the audit's first half, in the shape of FEATURES A9."""
    server = snapshot.servers.get(tool.facts.server_id) if tool and tool.facts.server_id else None
    secrets = server.endpoint.secrets if server else ()
    details: dict[str, Any] = {
        "tool_name": tool.facts.own_name if tool else request.tool,
        "arguments": _kept(mask(request.arguments, secrets=secrets)),
        "parent_execution": str(request.parent_id) if request.parent_id else None,
        "via": request.via,
    }
    if server:
        details |= {"mcp_server_id": str(server.id), "mcp_server_name": server.name}
    if tool and tool.digest:
        details["definition_digest"] = tool.digest
    return Opening(
        call_id=request.call_id,
        organization_id=snapshot.organization_id,
        action="agent_tool_call" if snapshot.agent_id else "tool_call",
        event_type="call",
        resource_type="builtin_tool" if tool and tool.facts.source == "builtin" else "mcp_tool",
        resource_id=request.tool,
        actor=request.principal.actor,
        decision=decision.verdict,
        rule=decision.rule,
        code=decision.code,
        details=details,
        agent_id=snapshot.agent_id,
        agent_name=snapshot.agent_name,
        server_id=server.id if server else None,
        server_name=server.name if server else "",
        tool_name=tool.facts.own_name if tool else request.tool,
        session_id=request.session_id,
        parent_id=request.parent_id,
    )


def _kept(arguments: Any) -> Any:
    """Return the arguments as the audit keeps them: 16 KiB, else their start and digest."""
    text = canonical(arguments)
    if len(text) <= ARGUMENTS_KEPT:
        return arguments
    return {"truncated": text[:ARGUMENTS_KEPT], "sha256": digest(text), "length": len(text)}


# -- forward, inspect, settle --------------------------------------------------------------------


async def _settled(request: Request, passed: _Passed) -> Outcome:
    """Forward the call and settle it, whatever happens: also when the caller goes away."""
    began = perf_counter()
    outcome: LedgerOutcome = "unknown"
    code, shown = "cancelled", Readable("")
    result: dict[str, Any] = {}
    remedy = ""
    try:
        result = await _forward(request, passed)
        shown = await _inspected(request, passed.snapshot, result)
        outcome, code = ("error", "tool_error") if result.get("isError") else ("ok", "")
    except Problem as problem:
        outcome = "unknown" if _unanswered(problem) else "error"
        code, shown, remedy = problem.code, Readable(str(problem)), problem.remedy
        if passed.tool.facts.server_id is not None:
            await runtime().orm(record_trouble, passed.tool.facts.server_id, problem)
    finally:
        duration_ms = round((perf_counter() - began) * 1000)
        settlement = Settlement(
            call_id=request.call_id,
            organization_id=passed.snapshot.organization_id,
            outcome=outcome,
            code=code,
            duration_ms=duration_ms,
            details={"execution_time_ms": duration_ms, "sanitized": shown.removed},
            actuals=tuple((one.key, one.amount, one.amount) for one in passed.admission.reserves),
        )
        await asyncio.shield(writer().settle_async(settlement))
    return Outcome(
        call_id=request.call_id,
        outcome=outcome,
        text=shown.text,
        result=result,
        duration_ms=duration_ms,
        code=code,
        remedy=remedy,
        server_name=passed.tool.facts.server_name,
        own_name=passed.tool.facts.own_name,
    )


def _unanswered(problem: Problem) -> bool:
    """Tell whether the call was sent and nobody knows whether it ran."""
    lost = ("call_timeout", "server_unreachable", "server_crashed")
    return isinstance(problem, UpstreamError) and problem.sent and problem.code in lost


async def _forward(request: Request, passed: _Passed) -> dict[str, Any]:
    snapshot, tool = passed.snapshot, passed.tool
    if tool.facts.source == "builtin":
        context = Context(
            organization_id=snapshot.organization_id,
            agent_id=snapshot.agent_id,
            session_id=request.session_id,
        )
        text = await BUILTIN_TOOLS[tool.name].run(context, request.arguments)
        return {"content": [{"type": "text", "text": text}]}
    server_id = tool.facts.server_id
    if server_id is None:
        raise NotFound(f"The tool `{tool.name}` has no server.", code="unknown_tool")
    endpoint = snapshot.servers[server_id].endpoint
    return await connections().request(
        await personal(endpoint, request.principal, request.session_id),
        "tools/call",
        {"name": tool.facts.own_name, "arguments": request.arguments},
        holder=request.holder,
        timeout_s=request.timeout_s,
        on_progress=request.on_progress,
        input_schema=tool.input_schema,
    )


async def _inspected(request: Request, snapshot: Snapshot, result: dict[str, Any]) -> Readable:
    read = partial(readable, result, limit=settings.BONOBOT_RESULT_LIMIT, result_id=request.call_id)
    # Long texts are read beside the loop, which other calls are waiting for.
    shown = read() if weight(result) <= READ_INLINE else await asyncio.to_thread(read)
    if shown.whole:
        await runtime().orm(
            StoredResult.objects.create,
            pk=request.call_id,
            organization_id=snapshot.organization_id,
            agent_id=snapshot.agent_id,
            session_id=request.session_id,
            text=shown.whole,
        )
    return shown
