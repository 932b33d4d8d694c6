"""Relaying: calls of a place's servers go through the door, and what comes back goes on as it is.

Unknown members, structured content, error codes and data stay; hidden characters and our own
secrets don't. What a server asks for first is handed to the client, whichever era either is of.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings

from agents import calls
from agents.calls import ApprovalRequired, Outcome, Refused
from agents.governance.results import weight
from agents.governance.snapshots import Snapshot
from agents.governance.unfinished import ROUNDS
from agents.requests import Method, Relay, Request
from bonobot.gateway import approving, promising, tickets
from bonobot.gateway.failures import error_of, failed, refused, unknown, upstream_error
from bonobot.gateway.handing import HeldCalls
from bonobot.gateway.held import HeldCall
from bonobot.gateway.hosting import GatewayHost, Lanes, askable, host_of, takes_tasks
from bonobot.gateway.inbound import Inbound, bad_params
from bonobot.gateway.shelves import shelf
from bonobot.gateway.states import seal, unseal
from bonobot.gateway.uris import renamed
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.runtime import runtime
from mcp_servers.scans import stripped

VIA = "gateway"
INPUT_REQUIRED = "input_required"
# Enough to know whether a result is read beside the loop.
LARGE = 16_384


@dataclass(frozen=True)
class Wanted:
    """What is asked for: by its server's own name, and as the client calls it (`shown`)."""

    method: Method
    name: str
    shown: str
    arguments: dict[str, Any]
    server_id: UUID | None = None
    noun: str = "tool"

    @property
    def as_dict(self) -> dict[str, Any]:
        """The call, as it is kept until it is made."""
        server = str(self.server_id) if self.server_id else ""
        return {"tool": self.name, "arguments": self.arguments, "server": server}

    @property
    def subject(self) -> dict[str, Any]:
        """What makes two requests the same one."""
        return {"method": self.method, "name": self.shown, "arguments": self.arguments}


class Relaying:
    """The calls of this process's clients."""

    def __init__(self) -> None:
        self._lanes = Lanes()
        self._held = HeldCalls()

    async def call_tool(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `tools/call`: what is refused is a failed tool's result, with the code."""
        name, snapshot = inbound.text("name"), await at_hand(inbound)
        tool = snapshot.tools.get(name)
        server_id = tool.facts.server_id if tool else inbound.visitor.place.server_id
        wanted = Wanted("tools/call", name, name, inbound.members("arguments"), server_id)
        try:
            return await self._allowed(inbound, wanted)
        except Problem as problem:
            if await listed(inbound, name):
                return refused(problem)
            raise unknown("tool", name) from problem

    async def read_resource(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `resources/read`."""
        uri, there = inbound.text("uri"), shelf(inbound.visitor.place, await at_hand(inbound))
        meant = there.resource(uri)
        if meant is None:
            raise unknown("resource", uri)
        server_id, own = meant
        wanted = Wanted("resources/read", own, uri, {}, server_id, "resource")
        return await self._or_error(inbound, wanted)

    async def get_prompt(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `prompts/get`."""
        name, there = inbound.text("name"), shelf(inbound.visitor.place, await at_hand(inbound))
        offer = there.prompt(name)
        if offer is None:
            raise unknown("prompt", name)
        arguments = inbound.members("arguments")
        server_id = offer.facts.server_id
        wanted = Wanted("prompts/get", offer.name, name, arguments, server_id, "prompt")
        return await self._or_error(inbound, wanted)

    async def complete(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `completion/complete`."""
        there = shelf(inbound.visitor.place, await at_hand(inbound))
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
            raise unknown(noun, shown)
        server_id, own = meant
        asked = {**said, "ref": ref}
        return await self._or_error(
            inbound, Wanted("completion/complete", own, shown, asked, server_id, noun)
        )

    async def _or_error(self, inbound: Inbound, wanted: Wanted) -> dict[str, Any]:
        try:
            return await self._allowed(inbound, wanted)
        except (NotFound, Refused) as problem:
            if isinstance(problem, ApprovalRequired):
                raise error_of(problem) from problem
            raise unknown(wanted.noun, wanted.shown) from problem
        except Problem as problem:
            raise error_of(problem) from problem

    async def _allowed(self, inbound: Inbound, wanted: Wanted) -> dict[str, Any]:
        """Return the result; a client that can show a person where to allow it is asked to."""
        held = _given_back(inbound, wanted)
        waits = held.get("approval")
        no = waits and approving.answered_no(inbound.members("inputResponses"))
        if waits and not no:
            await approving.decided(UUID(waits), approving.PATIENCE_S)
        try:
            return await self._answered(inbound, wanted, held)
        except ApprovalRequired as problem:
            if _as_task(inbound, wanted):
                return await promising.begun(inbound, problem, wanted.as_dict)
            if no or not approving.can_show(inbound.capabilities):
                raise
            if inbound.modern:
                return _asked_where(inbound, wanted, problem)
            if not await approving.asked(inbound, problem, settings.BONOBOT_ANSWER_S):
                raise
        return await self._answered(inbound, wanted, held)

    async def _answered(
        self, inbound: Inbound, wanted: Wanted, held: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the result as the client gets it; raises `Problem` for what the door refuses."""
        organization_id = inbound.visitor.principal.organization_id
        if number := held.get("held"):
            await inbound.visitor.current()  # the call was admitted; who goes on with it was not
            responses = inbound.members("inputResponses")
            found = await self._held.go_on(organization_id, number, responses)
            return await self._told(inbound, wanted, held, found, number)
        host = host_of(inbound)
        request = _request(inbound, wanted, host, held)
        if not await may_be_asked(inbound, wanted, host):
            return await self._told(inbound, wanted, held, await calls.call(request))
        if inbound.modern:
            call = HeldCall()
            found = await call.run(partial(self._asking, wanted, host, call, request))
            if not isinstance(found, Outcome):
                await self._held.keep(call, organization_id)
            return await self._told(inbound, wanted, held, found, call.id)
        with host.asking(inbound.ask):
            return await self._with_rounds(inbound, wanted, request)

    async def _asking(
        self, wanted: Wanted, host: GatewayHost, call: HeldCall, request: Request
    ) -> Outcome:
        """Make a call whose server asks on a connection, where the call is alone on it."""
        async with self._lanes.lane(request.holder, wanted.server_id) as holder:
            with host.asking(call.ask):
                return await calls.call(replace(request, holder=holder))

    async def _with_rounds(
        self, inbound: Inbound, wanted: Wanted, request: Request
    ) -> dict[str, Any]:
        """Call for a client of the handshake era: what a modern server asks, it is asked."""
        assert request.relay is not None  # noqa: S101 - all of ours have one
        relay = request.relay
        for _ in range(ROUNDS):
            outcome = await calls.call(replace(request, relay=relay))
            if outcome.code != INPUT_REQUIRED:
                return await finished(inbound, wanted, outcome)
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
        raise bad_params(f"the server asks for more than {ROUNDS} times")

    async def _told(
        self,
        inbound: Inbound,
        wanted: Wanted,
        held: Mapping[str, Any],
        found: Outcome | dict[str, Any],
        number: str = "",
    ) -> dict[str, Any]:
        """Return the end of a call, or what is asked first, with the state that brings it back.

        `number` is a held call's, which alone asks by requests of its own.
        """
        visitor = inbound.visitor
        if not isinstance(found, Outcome):
            state = seal(visitor, wanted.subject, {"held": number})
            return {"resultType": INPUT_REQUIRED, "inputRequests": found, "requestState": state}
        if found.code == tickets.TASK and wanted.server_id is not None:
            return tickets.begun(inbound, wanted.server_id, wanted.name, found)
        if found.code != INPUT_REQUIRED:
            return await finished(inbound, wanted, found)
        now: dict[str, Any] = {"legs": [*held.get("legs", []), str(found.call_id)]}
        if "requestState" in found.result:
            now["state"] = found.result["requestState"]
        return {**found.result, "requestState": seal(visitor, wanted.subject, now)}


async def listed(inbound: Inbound, name: str) -> bool:
    """Tell whether a tool is one of those that this client finds here, as of now."""
    snapshot = await runtime().orm(inbound.visitor.place.snapshot)
    tool = snapshot.tools.get(name)
    return tool is not None and tool.decision.offered and tool.facts.source == "mcp"


def _asked_where(inbound: Inbound, wanted: Wanted, problem: ApprovalRequired) -> dict[str, Any]:
    """Return where a person allows the call, with the state that brings the call back."""
    state = seal(inbound.visitor, wanted.subject, {"approval": str(problem.approval_id)})
    visit = {"method": approving.ELICIT, "params": approving.visit(problem, modern=True)}
    return {
        "resultType": INPUT_REQUIRED,
        "inputRequests": {approving.KEY: visit},
        "requestState": state,
    }


def _as_task(inbound: Inbound, wanted: Wanted) -> bool:
    """Tell whether the client takes a task for a call that has to wait."""
    takes = inbound.modern and takes_tasks(inbound.capabilities)
    return takes and wanted.method == "tools/call"


async def at_hand(inbound: Inbound) -> Snapshot:
    """Return the snapshot that this process has, which the door renews where it is stale."""
    place = inbound.visitor.place
    found = place.at_hand()
    return found if found is not None else await runtime().orm(place.snapshot)


async def may_be_asked(inbound: Inbound, wanted: Wanted, host: GatewayHost) -> bool:
    """Tell whether the server of what is wanted may ask this client while it works on it.

    A modern server asks in its result, so nobody has to wait with it for a modern client.
    """
    snapshot = await at_hand(inbound)
    server = snapshot.servers.get(wanted.server_id) if wanted.server_id else None
    if server is None or not host.can_be_asked(server.endpoint):
        return False
    return not (inbound.modern and server.endpoint.era == "modern")


def _given_back(inbound: Inbound, wanted: Wanted) -> dict[str, Any]:
    """Return what the client keeps for us of this request; raises `MCPError` for a forged state."""
    state = inbound.params.get("requestState")
    if state is None or not inbound.modern:
        return {}
    return unseal(inbound.visitor, wanted.subject, state)


def _request(
    inbound: Inbound, wanted: Wanted, host: GatewayHost, held: Mapping[str, Any]
) -> Request:
    place = inbound.visitor.place
    more: dict[str, Any] = {}
    if inbound.modern and "inputResponses" in inbound.params and "approval" not in held:
        more["inputResponses"] = inbound.members("inputResponses")
    if "state" in held:
        more["requestState"] = held["state"]
    relay = Relay(
        meta=inbound.own_meta,
        more=more,
        legs=frozenset(UUID(leg) for leg in held.get("legs", [])),
        may_ask=askable(inbound.capabilities),
        on_log=inbound.log if inbound.level else None,
    )
    # An agent's tools are looked up by the names that they have for it.
    by_name = wanted.method == "tools/call" and place.kind == "agent"
    who = inbound.visitor
    return Request(
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


async def finished(inbound: Inbound, wanted: Wanted, outcome: Outcome) -> dict[str, Any]:
    """Return what a call ended with; raises `MCPError` for an error of the server's."""
    if outcome.error is not None:
        raise upstream_error(outcome, modern=inbound.modern)
    if not outcome.result:
        if wanted.method == "tools/call":
            return failed(outcome)
        raise error_of(Problem(outcome.text, code=outcome.code, remedy=outcome.remedy, status=502))
    clean = await stripped(outcome.result, weight(outcome.result, LARGE + 1))
    result: dict[str, Any] = clean.value
    if wanted.server_id is not None:
        there = shelf(inbound.visitor.place, await at_hand(inbound))
        result = renamed(result, there.rename(wanted.server_id))
    return result
