"""Handlers of MCP methods that are forwarded to an agent's servers, or to one server.

Unknown fields, structured content, error codes and data are kept; hidden characters and our secrets
are removed. Servers' requests are forwarded to the client, whichever era either is of.

The organization's own tools are in `organization_server`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol
from uuid import UUID, uuid4

from django.conf import settings

from agents.calls import pipeline
from agents.calls.pipeline import ApprovalRequired, CallOutcome, CallRefused
from agents.calls.results import ROUNDS, estimate_size
from agents.calls.snapshots import CallSnapshot
from agents.calls.types import CallRequest, Method, RelayOptions
from agents.calls.user_endpoints import find_person
from agents.gateway import approvals, request_state
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import Declaration, get_catalog, rename_resources
from agents.gateway.client_request import GatewayRequest, build_invalid_params_error
from agents.gateway.errors import (
    build_failure_result,
    build_mcp_error,
    build_refusal_result,
    build_unknown_name_error,
    build_upstream_error,
)
from agents.gateway.mcp_host import (
    ExclusiveConnections,
    GatewayHost,
    build_host,
    list_supported_requests,
    supports_tasks,
)
from agents.gateway.request_state import seal, unseal
from agents.gateway.suspended_calls import SuspendedCall, SuspendedCallRegistry
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.scanning.services import strip_result

VIA = "gateway"
INPUT_REQUIRED = "input_required"
# Larger results are processed outside the event loop.
LARGE = 16_384


@dataclass(frozen=True)
class UpstreamRequest:
    """A request by its server's own name, and by the client's (`exposed_name`)."""

    method: Method
    name: str
    shown: str
    arguments: dict[str, Any]
    server_id: UUID | None = None
    noun: str = "tool"

    @property
    def as_dict(self) -> dict[str, Any]:
        """The call as stored until it is made."""
        server = str(self.server_id) if self.server_id else ""
        return {"tool": self.name, "arguments": self.arguments, "server": server}

    @property
    def subject(self) -> dict[str, Any]:
        """The fields that identify the request."""
        return {"method": self.method, "name": self.shown, "arguments": self.arguments}


class UpstreamCallHandlers:
    """Makes the calls of this process's clients."""

    def __init__(self) -> None:
        self._lanes = ExclusiveConnections()
        self._held = SuspendedCallRegistry()

    async def call_tool(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tools/call`; a refusal is a failed tool result with its code."""
        name, snapshot = inbound.text("name"), await get_snapshot(inbound)
        tool = snapshot.tools.get(name)
        server_id = tool.facts.server_id if tool else inbound.visitor.place.server_id
        wanted = UpstreamRequest("tools/call", name, name, inbound.members("arguments"), server_id)
        try:
            return await self._allowed(inbound, wanted)
        except Problem as problem:
            if await is_tool_listed(inbound, name):
                return build_refusal_result(problem)
            raise build_unknown_name_error("tool", name) from problem

    async def read_resource(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `resources/read`."""
        uri, there = (
            inbound.text("uri"),
            get_catalog(inbound.visitor.place, await get_snapshot(inbound)),
        )
        meant = there.resource(uri)
        if meant is None:
            raise build_unknown_name_error("resource", uri)
        server_id, own = meant
        wanted = UpstreamRequest("resources/read", own, uri, {}, server_id, "resource")
        return await self._or_error(inbound, wanted)

    async def get_prompt(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `prompts/get`."""
        name, there = (
            inbound.text("name"),
            get_catalog(inbound.visitor.place, await get_snapshot(inbound)),
        )
        offer = there.prompt(name)
        if offer is None:
            raise build_unknown_name_error("prompt", name)
        arguments = inbound.members("arguments")
        server_id = offer.facts.server_id
        wanted = UpstreamRequest("prompts/get", offer.name, name, arguments, server_id, "prompt")
        return await self._or_error(inbound, wanted)

    async def complete(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `completion/complete`."""
        there = get_catalog(inbound.visitor.place, await get_snapshot(inbound))
        ref = inbound.members("ref")
        said = {name: it for name, it in inbound.params.items() if name in ("argument", "context")}
        if ref.get("type") == "ref/prompt":
            offer = there.prompt(str(ref.get("name")))
            meant = (offer.facts.server_id, offer.name) if offer else None
            ref, noun, shown = {**ref, "name": meant and meant[1]}, "prompt", str(ref.get("name"))
        else:
            meant = there.resource(str(ref.get("uri")))
            ref, noun, shown = {**ref, "uri": meant and meant[1]}, "resource", str(ref.get("uri"))
        if meant is None:
            raise build_unknown_name_error(noun, shown)
        server_id, own = meant
        asked = {**said, "ref": ref}
        return await self._or_error(
            inbound, UpstreamRequest("completion/complete", own, shown, asked, server_id, noun)
        )

    async def _or_error(self, inbound: GatewayRequest, wanted: UpstreamRequest) -> dict[str, Any]:
        try:
            return await self._allowed(inbound, wanted)
        except (NotFound, CallRefused) as problem:
            if isinstance(problem, ApprovalRequired):
                raise build_mcp_error(problem) from problem
            raise build_unknown_name_error(wanted.noun, wanted.shown) from problem
        except Problem as problem:
            raise build_mcp_error(problem) from problem

    async def _allowed(self, inbound: GatewayRequest, wanted: UpstreamRequest) -> dict[str, Any]:
        """Return the result; if the call needs approval, use a task or a URL elicitation."""
        held = _unseal_request_state(inbound, wanted)
        waits = held.get("approval")
        no = waits and approvals.is_declined(inbound.members("inputResponses"))
        if waits and not no:
            await approvals.wait_for_decision(UUID(waits), approvals.PATIENCE_S)
        try:
            return await self._answered(inbound, wanted, held)
        except ApprovalRequired as problem:
            if _as_task(inbound, wanted):
                return await approvals.start_deferred_call(inbound, problem, wanted.as_dict)
            if no or not approvals.can_show(inbound.capabilities):
                raise
            if inbound.modern:
                return _build_approval_request(inbound, wanted, problem)
            if not await approvals.ask_for_approval(inbound, problem, settings.BONOBOT_ANSWER_S):
                raise
        return await self._answered(inbound, wanted, held)

    async def _answered(
        self, inbound: GatewayRequest, wanted: UpstreamRequest, held: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the result for the client; raises `Problem` for a refusal."""
        organization_id = inbound.visitor.principal.organization_id
        if number := held.get("held"):
            await inbound.visitor.current()  # the call was admitted, but not this request
            responses = inbound.members("inputResponses")
            found = await self._held.go_on(organization_id, number, responses)
            return await self._told(inbound, wanted, held, found, number)
        host = build_host(inbound)
        request = _build_call_request(inbound, wanted, host, held)
        if not await may_be_asked(inbound, wanted, host):
            return await self._told(inbound, wanted, held, await pipeline.call(request))
        if inbound.modern:
            call = SuspendedCall()
            found = await call.run(partial(self._asking, wanted, host, call, request))
            if not isinstance(found, CallOutcome):
                await self._held.keep(call, organization_id)
            return await self._told(inbound, wanted, held, found, call.id)
        with host.asking(inbound.ask):
            return await self._with_rounds(inbound, wanted, request)

    async def _asking(
        self, wanted: UpstreamRequest, host: GatewayHost, call: SuspendedCall, request: CallRequest
    ) -> CallOutcome:
        """Make a call on a connection of its own, so that the server's requests belong to it."""
        async with self._lanes.lane(request.holder, wanted.server_id) as holder:
            with host.asking(call.ask):
                return await pipeline.call(replace(request, holder=holder))

    async def _with_rounds(
        self, inbound: GatewayRequest, wanted: UpstreamRequest, request: CallRequest
    ) -> dict[str, Any]:
        """Call for a handshake era client; forward a modern server's requests between rounds."""
        assert request.relay is not None  # noqa: S101 - all of ours have one
        relay = request.relay
        for _ in range(ROUNDS):
            outcome = await pipeline.call(replace(request, relay=relay))
            if outcome.code != INPUT_REQUIRED:
                return await build_call_result(inbound, wanted, outcome)
            asked = outcome.result.get("inputRequests") or {}
            answers = {
                key: await inbound.ask(one["method"], one.get("params") or {})
                for key, one in asked.items()
            }
            more: dict[str, Any] = {"inputResponses": answers} if answers else {}
            if "requestState" in outcome.result:
                more["requestState"] = outcome.result["requestState"]
            legs = relay.legs | {request.call_id}
            request = replace(request, call_id=uuid4())
            relay = replace(relay, more=more, legs=legs)
        raise build_invalid_params_error(f"the server asks for more than {ROUNDS} times")

    async def _told(
        self,
        inbound: GatewayRequest,
        wanted: UpstreamRequest,
        held: Mapping[str, Any],
        found: CallOutcome | dict[str, Any],
        number: str = "",
    ) -> dict[str, Any]:
        """Return the call's result, or the input requests with the state for the next request.

        `call_id` is a suspended call's id.
        """
        visitor = inbound.visitor
        if not isinstance(found, CallOutcome):
            state = seal(visitor, wanted.subject, {"held": number})
            return {"resultType": INPUT_REQUIRED, "inputRequests": found, "requestState": state}
        if found.code == request_state.TASK and wanted.server_id is not None:
            return request_state.build_task_result(inbound, wanted.server_id, wanted.name, found)
        if found.code != INPUT_REQUIRED:
            return await build_call_result(inbound, wanted, found)
        now: dict[str, Any] = {"legs": [*held.get("legs", []), str(found.call_id)]}
        if "requestState" in found.result:
            now["state"] = found.result["requestState"]
        return {**found.result, "requestState": seal(visitor, wanted.subject, now)}


async def is_tool_listed(inbound: GatewayRequest, name: str) -> bool:
    """Tell whether a tool is currently listed for this client."""
    snapshot = await get_runtime().orm(inbound.visitor.place.snapshot)
    tool = snapshot.tools.get(name)
    return tool is not None and tool.decision.offered and tool.facts.source == "mcp"


def _build_approval_request(
    inbound: GatewayRequest, wanted: UpstreamRequest, problem: ApprovalRequired
) -> dict[str, Any]:
    """Return a URL elicitation for an approval, with the state for the next request."""
    state = seal(inbound.visitor, wanted.subject, {"approval": str(problem.approval_id)})
    visit = {
        "method": approvals.ELICIT,
        "params": approvals.build_url_elicitation(problem, modern=True),
    }
    return {
        "resultType": INPUT_REQUIRED,
        "inputRequests": {approvals.KEY: visit},
        "requestState": state,
    }


def _as_task(inbound: GatewayRequest, wanted: UpstreamRequest) -> bool:
    """Tell whether the client supports a task for a call that has to wait."""
    takes = inbound.modern and supports_tasks(inbound.capabilities)
    return takes and wanted.method == "tools/call"


async def get_snapshot(inbound: GatewayRequest) -> CallSnapshot:
    """Return the cached snapshot, which admission refreshes if it is stale."""
    place = inbound.visitor.place
    found = place.at_hand()
    return found if found is not None else await get_runtime().orm(place.snapshot)


async def may_be_asked(inbound: GatewayRequest, wanted: UpstreamRequest, host: GatewayHost) -> bool:
    """Tell whether the server may send requests to this client during a call.

    A modern server asks in its result, so a modern client's call isn't suspended for it.
    """
    snapshot = await get_snapshot(inbound)
    server = snapshot.servers.get(wanted.server_id) if wanted.server_id else None
    if server is None or not host.can_be_asked(server.endpoint):
        return False
    return not (inbound.modern and server.endpoint.era == "modern")


def _unseal_request_state(inbound: GatewayRequest, wanted: UpstreamRequest) -> dict[str, Any]:
    """Return the decrypted `requestState`; raises `MCPError` for an invalid one."""
    state = inbound.params.get("requestState")
    if state is None or not inbound.modern:
        return {}
    return unseal(inbound.visitor, wanted.subject, state)


def _build_call_request(
    inbound: GatewayRequest, wanted: UpstreamRequest, host: GatewayHost, held: Mapping[str, Any]
) -> CallRequest:
    place = inbound.visitor.place
    more: dict[str, Any] = {}
    if inbound.modern and "inputResponses" in inbound.params and "approval" not in held:
        more["inputResponses"] = inbound.members("inputResponses")
    if "state" in held:
        more["requestState"] = held["state"]
    relay = RelayOptions(
        meta=inbound.own_meta,
        more=more,
        legs=frozenset(UUID(leg) for leg in held.get("legs", [])),
        may_ask=list_supported_requests(inbound.capabilities),
        on_log=inbound.log if inbound.level else None,
    )
    # An agent's tools are found by the agent's names for them.
    by_name = wanted.method == "tools/call" and place.kind == "agent"
    who = inbound.visitor
    return CallRequest(
        principal=who.principal,
        principal_generation=who.known.generation,
        renewed=who.principal_again,
        method=wanted.method,
        tool=wanted.name,
        arguments=wanted.arguments,
        via=VIA,
        holder=inbound.holder,
        agent_id=place.agent_id,
        server_id=None if by_name else wanted.server_id,
        client=inbound.client,
        host=host,
        relay=relay,
        on_progress=inbound.progress if inbound.wants_progress else None,
    )


async def build_call_result(
    inbound: GatewayRequest, wanted: UpstreamRequest, outcome: CallOutcome
) -> dict[str, Any]:
    """Return a call's result; raises `MCPError` for a server's error."""
    if outcome.error is not None:
        raise build_upstream_error(outcome, modern=inbound.modern)
    if not outcome.result:
        if wanted.method == "tools/call":
            return build_failure_result(outcome)
        raise build_mcp_error(
            Problem(outcome.text, code=outcome.code, remedy=outcome.remedy, status=502)
        )
    clean = await strip_result(outcome.result, estimate_size(outcome.result, LARGE + 1))
    result: dict[str, Any] = clean.value
    if wanted.server_id is not None:
        there = get_catalog(inbound.visitor.place, await get_snapshot(inbound))
        result = rename_resources(result, there.rename(wanted.server_id))
    return result


Kind = Literal["tools", "resources", "templates", "prompts"]


@dataclass(frozen=True)
class EndpointInfo:
    """The capabilities and instructions for a client."""

    capabilities: Mapping[str, Any]
    instructions: str


class EndpointHandlers(Protocol):
    """The handlers of a target; methods raise `MCPError` for unknown names."""

    async def greet(self, inbound: GatewayRequest) -> EndpointInfo:
        """Return the capabilities and instructions."""
        ...

    async def listed(self, visitor: AuthenticatedClient, kind: Kind) -> tuple[Declaration, ...]:
        """Return the declarations of one kind, in a stable order."""
        ...

    async def call_tool(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tools/call`."""
        ...

    async def read_resource(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `resources/read`."""
        ...

    async def get_prompt(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `prompts/get`."""
        ...

    async def complete(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `completion/complete`."""
        ...


class UpstreamHandlers(UpstreamCallHandlers):
    """Handlers of agent and server targets; info and lists take one query."""

    async def greet(self, inbound: GatewayRequest) -> EndpointInfo:
        """Return the forwarded capabilities and the instructions of the servers."""
        place = inbound.visitor.place
        there = get_catalog(place, await get_runtime().orm(place.snapshot))
        person = find_person(inbound.visitor.principal, None) is not None
        return EndpointInfo(there.to_people if person else there.capabilities, there.instructions)

    async def listed(self, visitor: AuthenticatedClient, kind: Kind) -> tuple[Declaration, ...]:
        """Return the declarations of one kind."""
        place = visitor.place
        there = get_catalog(place, await get_runtime().orm(place.snapshot))
        found: tuple[Declaration, ...] = getattr(there, kind)
        return found
