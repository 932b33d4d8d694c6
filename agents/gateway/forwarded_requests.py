"""Handlers of MCP methods that are forwarded to an agent's servers, or to one server.

Unknown fields, structured content, error codes and data are kept; hidden characters and our secrets
are removed. Servers' requests are forwarded to the client, also between eras.

The organization's own tools are in `organization_server`.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol
from uuid import UUID, uuid4

from django.utils import timezone

from agents.calls import pipeline
from agents.calls.connections import find_user_id, resolve_user_endpoint
from agents.calls.definitions import ServerFacts
from agents.calls.incomplete_results import MAX_ROUNDS, get_earlier_call_ids
from agents.calls.pipeline import ApprovalRequired, CallOutcome, CallRefused
from agents.calls.result_text import estimate_size
from agents.calls.snapshots import CallSnapshot
from agents.calls.types import CallRequest, Method, RelayOptions
from agents.flow_labels.text_labels import (
    label_list_reader,
    label_skill_reader,
    list_endpoint_text_ids,
)
from agents.gateway import approvals, request_state
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import (
    Declaration,
    get_catalog,
    may_have_uris,
    read_own_skill,
    rename_resources,
)
from agents.gateway.client_request import (
    VIA,
    GatewayRequest,
    build_invalid_params_error,
    list_supported_requests,
)
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
    supports_tasks,
)
from agents.gateway.protocol_versions import translate_input_request
from agents.gateway.request_state import decrypt_state, encrypt_state
from agents.gateway.resource_subscriptions import get_connection_subscriptions
from agents.gateway.suspended_calls import CallProgress, SuspendedCall, SuspendedCallRegistry
from agents.skills import find_skill_name
from bonobot.core.problems import NotFound, Problem
from bonobot.core.records import record
from bonobot.core.runtime import get_runtime
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.mcp_extensions import is_for_models
from mcp_servers.scanning.services import strip_result
from mcp_servers.scanning.tool_results import strip_json_value

INPUT_REQUIRED = "input_required"
# Codes of outcomes that aren't the call's result.
INCOMPLETE_CODES = (INPUT_REQUIRED, request_state.TASK)
# Larger results are processed outside the event loop.
LARGE_RESULT_SIZE = 16_384
Kind = Literal["tools", "resources", "templates", "skills", "prompts"]


@record()
class UpstreamRequest:
    """A request by its server's own name, and by the client's (`exposed_name`)."""

    method: Method
    name: str
    exposed_name: str
    arguments: dict[str, Any]
    server_id: UUID | None = None
    noun: str = "tool"
    is_catalog_tool: bool = False  # a built-in tool of the search view
    is_by_model: bool = False  # named in the search view's `call_tool`

    @property
    def as_dict(self) -> dict[str, Any]:
        """The call as stored until it is made."""
        server = str(self.server_id) if self.server_id else ""
        return {"tool": self.name, "arguments": self.arguments, "server": server}

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that identify the request."""
        return {"method": self.method, "name": self.exposed_name, "arguments": self.arguments}


class UpstreamCallHandlers:
    """Makes the calls of this process's clients."""

    def __init__(self) -> None:
        self._connections = ExclusiveConnections()
        self._suspended_calls = SuspendedCallRegistry()

    async def stop(self) -> None:
        """Cancel the calls that wait for answers of a client."""
        await self._suspended_calls.stop()

    async def call_tool(
        self, inbound: GatewayRequest, *, is_by_model: bool = False
    ) -> dict[str, Any]:
        """Answer `tools/call`; a refusal is a failed tool result with its code."""
        name, snapshot = inbound.get_text("name"), await get_snapshot(inbound)
        tool = snapshot.find_tool(name)
        server_id = tool.facts.server_id if tool else inbound.caller.target.server_id
        upstream_request = UpstreamRequest(
            "tools/call",
            name=name,
            exposed_name=name,
            arguments=inbound.get_object("arguments"),
            server_id=server_id,
            is_by_model=is_by_model,
        )
        try:
            return await self._call_with_approval(inbound, upstream_request)
        except Problem as problem:
            if await is_tool_listed(inbound, name, is_by_model=is_by_model):
                return build_refusal_result(problem)
            raise build_unknown_name_error("tool", name) from problem

    async def read_resource(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `resources/read`."""
        uri, catalog = (
            inbound.get_text("uri"),
            get_catalog(inbound.caller.target, await get_snapshot(inbound)),
        )
        if find_skill_name(uri):  # perhaps an own one, whose reads aren't admitted
            caller = await inbound.caller.refresh_if_changed()
            snapshot = await get_runtime().run_orm(caller.target.load_snapshot)
            if own_skill := read_own_skill(snapshot, uri):
                agent_id, principal = snapshot.agent_id, caller.principal
                await get_runtime().run_orm(label_skill_reader, principal, agent_id)
                return own_skill
        resource = catalog.find_resource(uri)
        if resource is None:
            raise build_unknown_name_error("resource", uri)
        server_id, own_uri = resource
        upstream_request = UpstreamRequest(
            "resources/read",
            name=own_uri,
            exposed_name=uri,
            arguments={},
            server_id=server_id,
            noun="resource",
        )
        return await self._call_or_raise_error(inbound, upstream_request)

    async def get_prompt(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `prompts/get`."""
        name, catalog = (
            inbound.get_text("name"),
            get_catalog(inbound.caller.target, await get_snapshot(inbound)),
        )
        prompt = catalog.find_prompt(name)
        if prompt is None:
            raise build_unknown_name_error("prompt", name)
        arguments = inbound.get_object("arguments")
        server_id = prompt.facts.server_id
        upstream_request = UpstreamRequest(
            "prompts/get",
            name=prompt.name,
            exposed_name=name,
            arguments=arguments,
            server_id=server_id,
            noun="prompt",
        )
        return await self._call_or_raise_error(inbound, upstream_request)

    async def complete(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `completion/complete`."""
        catalog = get_catalog(inbound.caller.target, await get_snapshot(inbound))
        ref = inbound.get_object("ref")
        forwarded = {
            name: value for name, value in inbound.params.items() if name in ("argument", "context")
        }
        if ref.get("type") == "ref/prompt":
            prompt = catalog.find_prompt(str(ref.get("name")))
            server_and_name = (prompt.facts.server_id, prompt.name) if prompt else None
            ref, noun, exposed_name = (
                {**ref, "name": server_and_name and server_and_name[1]},
                "prompt",
                str(ref.get("name")),
            )
        else:
            server_and_name = catalog.find_resource(str(ref.get("uri")))
            ref, noun, exposed_name = (
                {**ref, "uri": server_and_name and server_and_name[1]},
                "resource",
                str(ref.get("uri")),
            )
        if server_and_name is None:
            raise build_unknown_name_error(noun, exposed_name)
        server_id, own_name = server_and_name
        arguments = {**forwarded, "ref": ref}
        return await self._call_or_raise_error(
            inbound,
            UpstreamRequest(
                "completion/complete",
                name=own_name,
                exposed_name=exposed_name,
                arguments=arguments,
                server_id=server_id,
                noun=noun,
            ),
        )

    async def _call_or_raise_error(
        self, inbound: GatewayRequest, upstream_request: UpstreamRequest
    ) -> dict[str, Any]:
        try:
            return await self._call_with_approval(inbound, upstream_request)
        except (NotFound, CallRefused) as problem:
            if isinstance(problem, ApprovalRequired):
                raise build_mcp_error(problem) from problem
            raise build_unknown_name_error(
                upstream_request.noun, upstream_request.exposed_name
            ) from problem
        except Problem as problem:
            raise build_mcp_error(problem) from problem

    async def _call_with_approval(
        self, inbound: GatewayRequest, upstream_request: UpstreamRequest
    ) -> dict[str, Any]:
        """Return the result; if the call needs approval, use a task or a URL elicitation."""
        state: dict[str, Any] = {}
        if (
            inbound.is_modern
            and (encrypted_state := inbound.params.get("requestState")) is not None
        ):
            state = decrypt_state(inbound.caller, upstream_request.identity, encrypted_state)
        approval_id = state.get("approval")
        is_declined = approval_id and approvals.is_declined(inbound.get_object("inputResponses"))
        if is_declined:
            await approvals.end_declined_approval(inbound, UUID(approval_id))
        elif approval_id:
            await approvals.wait_for_decision(UUID(approval_id), approvals.MAX_WAIT_S)
        try:
            return await self._call_or_resume(inbound, upstream_request, state)
        except ApprovalRequired as problem:
            if _can_defer(inbound, upstream_request):
                return await approvals.start_deferred_call(
                    inbound, problem, upstream_request.as_dict
                )
            if not approvals.can_show_url(inbound.capabilities):
                raise
            if inbound.is_modern:
                return _build_approval_request(inbound, upstream_request, problem)
            await approvals.ask_for_approval(inbound, problem)
        return await self._call_or_resume(inbound, upstream_request, state)

    async def _call_or_resume(
        self, inbound: GatewayRequest, upstream_request: UpstreamRequest, state: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the result for the client; raises `Problem` for a refusal."""
        organization_id = inbound.caller.principal.organization_id
        if call_id := state.get("held"):
            await inbound.caller.refresh_if_changed()  # the call was admitted, but not this request
            responses = inbound.get_object("inputResponses")
            outcome = await self._suspended_calls.resume_call(organization_id, call_id, responses)
            return await self._build_call_response(
                inbound, upstream_request, state, outcome, call_id
            )
        host, snapshot = build_host(inbound), await get_snapshot(inbound)
        server_id = upstream_request.server_id
        server = snapshot.servers.get(server_id) if server_id else None
        holder = await _prepare_connection(inbound, server)
        request = _build_call_request(inbound, upstream_request, host, state, holder)
        if server is None or not can_server_ask(inbound, server, host):
            outcome = await pipeline.make_call(request)
            if outcome.pending_call_id is None and outcome.code not in INCOMPLETE_CODES:
                return await build_call_result(inbound, upstream_request, outcome)
            return await self._build_call_response(inbound, upstream_request, state, outcome)
        if inbound.is_modern:
            call = SuspendedCall()
            outcome = await call.run(
                partial(self._call_exclusively, upstream_request, host, call, request)
            )
            if not isinstance(outcome, CallOutcome):
                await self._suspended_calls.register_call(call, organization_id)
            return await self._build_call_response(
                inbound, upstream_request, state, outcome, call.id
            )
        async with AsyncExitStack() as stack:
            if holder != inbound.holder:  # other sessions use it, too
                holder = await stack.enter_async_context(
                    self._connections.acquire_connection(holder, upstream_request.server_id)
                )
            stack.enter_context(host.answer_with(inbound.send_request))
            request = replace(request, holder=holder)
            return await self._call_in_rounds(inbound, upstream_request, request)

    async def _call_exclusively(
        self,
        upstream_request: UpstreamRequest,
        host: GatewayHost,
        call: SuspendedCall,
        request: CallRequest,
    ) -> CallOutcome:
        """Make a call on a connection of its own, so that the server's requests belong to it."""
        async with self._connections.acquire_connection(
            request.holder, upstream_request.server_id
        ) as holder:
            with host.answer_with(call.ask_client):
                return await pipeline.make_call(replace(request, holder=holder))

    async def _call_in_rounds(
        self, inbound: GatewayRequest, upstream_request: UpstreamRequest, request: CallRequest
    ) -> dict[str, Any]:
        """Call for a handshake era client; forward a modern server's requests between rounds."""
        assert request.relay is not None  # noqa: S101 - all requests here have one
        relay = request.relay
        for _ in range(MAX_ROUNDS):
            outcome = await pipeline.make_call(replace(request, relay=relay))
            if outcome.code != INPUT_REQUIRED:
                return await build_call_result(inbound, upstream_request, outcome)
            requests = outcome.result.get("inputRequests") or {}
            answers = {
                key: await inbound.send_request(
                    item["method"],
                    translate_input_request(item["method"], item.get("params") or {}),
                )
                for key, item in requests.items()
            }
            extra_params: dict[str, Any] = {"inputResponses": answers} if answers else {}
            if "requestState" in outcome.result:
                extra_params["requestState"] = outcome.result["requestState"]
            earlier_call_ids = relay.earlier_call_ids | {request.call_id}
            request = replace(request, call_id=uuid4())
            relay = replace(relay, extra_params=extra_params, earlier_call_ids=earlier_call_ids)
        raise build_invalid_params_error(f"the server requested input more than {MAX_ROUNDS} times")

    async def _build_call_response(
        self,
        inbound: GatewayRequest,
        upstream_request: UpstreamRequest,
        previous_state: Mapping[str, Any],
        outcome: CallProgress,
        call_id: str = "",
    ) -> dict[str, Any]:
        """Return the call's result, or the input requests with the state for the next request.

        `call_id` is a suspended call's id.
        """
        caller = inbound.caller
        if not isinstance(outcome, CallOutcome):
            encrypted_state = encrypt_state(caller, upstream_request.identity, {"held": call_id})
            return {
                "resultType": INPUT_REQUIRED,
                "inputRequests": outcome,
                "requestState": encrypted_state,
            }
        if outcome.code == request_state.TASK and upstream_request.server_id is not None:
            return request_state.build_task_result(
                inbound, upstream_request.server_id, upstream_request.name, outcome
            )
        if outcome.code != INPUT_REQUIRED:
            return await build_call_result(inbound, upstream_request, outcome)
        new_state: dict[str, Any] = {
            "call_ids": [*get_earlier_call_ids(previous_state), str(outcome.call_id)]
        }
        if "requestState" in outcome.result:
            new_state["state"] = outcome.result["requestState"]
        return {
            **outcome.result,
            "requestState": encrypt_state(caller, upstream_request.identity, new_state),
        }


async def is_tool_listed(inbound: GatewayRequest, name: str, *, is_by_model: bool = False) -> bool:
    """Tell whether a tool is currently listed for this client, or for its model."""
    snapshot = await get_runtime().run_orm(inbound.caller.target.load_snapshot)
    tool = snapshot.find_tool(name)
    if tool is None or not tool.decision.is_callable or tool.facts.source != "mcp":
        return False
    return not is_by_model or is_for_models(tool.declaration)


def _build_approval_request(
    inbound: GatewayRequest, upstream_request: UpstreamRequest, problem: ApprovalRequired
) -> dict[str, Any]:
    """Return a URL elicitation for an approval, with the state for the next request."""
    state = encrypt_state(
        inbound.caller,
        upstream_request.identity,
        {"approval": str(problem.approval_id)},
        lifetime=problem.expires_at - timezone.now(),
    )
    elicitation = {
        "method": approvals.ELICITATION_METHOD,
        "params": approvals.build_url_elicitation(problem, modern=True),
    }
    return {
        "resultType": INPUT_REQUIRED,
        "inputRequests": {approvals.APPROVAL_REQUEST_KEY: elicitation},
        "requestState": state,
    }


def _can_defer(inbound: GatewayRequest, upstream_request: UpstreamRequest) -> bool:
    """Tell whether the client supports a task for a call that has to wait."""
    accepts_tasks = inbound.is_modern and supports_tasks(inbound.capabilities)
    is_tool_call = upstream_request.method == "tools/call" and not upstream_request.is_catalog_tool
    return accepts_tasks and is_tool_call


async def get_snapshot(inbound: GatewayRequest) -> CallSnapshot:
    """Return the cached snapshot, which admission refreshes if it is stale."""
    target = inbound.caller.target
    cached = target.find_cached_snapshot()
    return cached if cached is not None else await get_runtime().run_orm(target.load_snapshot)


async def _prepare_connection(inbound: GatewayRequest, server: ServerFacts | None) -> str:
    """Return the holder of the call's connection, subscribed to what its clients watch there."""
    if server is None or not server.enabled:
        return inbound.holder
    holder = inbound.choose_holder(server.endpoint)
    if get_connection_subscriptions().has_resources(server.id, holder):
        with suppress(UpstreamError):  # the call fails for the same reason
            endpoint = await resolve_user_endpoint(server.endpoint, inbound.caller.principal, None)
            await get_connection_subscriptions().subscribe_connection(endpoint, holder)
    return holder


def can_server_ask(inbound: GatewayRequest, server: ServerFacts, host: GatewayHost) -> bool:
    """Tell whether the server may send requests to this client during a call.

    A modern server asks in its result, so a modern client's call isn't suspended for it.
    """
    if inbound.is_modern and server.endpoint.era == "modern":
        return False
    return host.can_be_asked(server.endpoint)


def _build_call_request(
    inbound: GatewayRequest,
    upstream_request: UpstreamRequest,
    host: GatewayHost,
    state: Mapping[str, Any],
    holder: str,
) -> CallRequest:
    target = inbound.caller.target
    # An agent's tools are found by the agent's names for them.
    by_name = upstream_request.method == "tools/call" and target.kind == "agent"
    caller = inbound.caller
    return CallRequest(
        principal=caller.principal,
        principal_generation=caller.verified_token.generation,
        renew_principal=caller.refresh_principal,
        method=upstream_request.method,
        tool=upstream_request.name,
        arguments=upstream_request.arguments,
        via=VIA,
        holder=holder,
        agent_id=target.agent_id,
        server_id=None if by_name else upstream_request.server_id,
        is_catalog_tool=upstream_request.is_catalog_tool,
        is_by_model=upstream_request.is_by_model,
        client=inbound.client_name,
        host=host,
        relay=_build_relay_options(inbound, state),
        on_progress=inbound.report_progress if inbound.wants_progress else None,
    )


async def _strip_result(outcome: CallOutcome) -> dict[str, Any]:
    """Return the result without hidden characters."""
    size = outcome.result_size or estimate_size(outcome.result, LARGE_RESULT_SIZE + 1)
    stripped = (
        strip_json_value(outcome.result)
        if size <= LARGE_RESULT_SIZE
        else await strip_result(outcome.result, size)
    )
    result: dict[str, Any] = stripped.value
    return result


def _build_relay_options(inbound: GatewayRequest, state: Mapping[str, Any]) -> RelayOptions:
    has_responses = inbound.is_modern and "inputResponses" in inbound.params
    if inbound.profile is not None and not (state or has_responses or inbound.log_level):
        return inbound.profile.relay
    extra_params: dict[str, Any] = {}
    if has_responses and "approval" not in state:
        extra_params["inputResponses"] = inbound.get_object("inputResponses")
    if "state" in state:
        extra_params["requestState"] = state["state"]
    return RelayOptions(
        meta=inbound.forwarded_meta,
        extra_params=extra_params,
        earlier_call_ids=frozenset(map(UUID, get_earlier_call_ids(state))),
        allowed_requests=list_supported_requests(inbound.capabilities),
        on_log=inbound.forward_log if inbound.log_level else None,
        log_subscriber=inbound.subscriber,
    )


async def build_call_result(
    inbound: GatewayRequest, upstream_request: UpstreamRequest, outcome: CallOutcome
) -> dict[str, Any]:
    """Return a call's result; raises `MCPError` for a server's error."""
    if outcome.error is not None:
        raise build_upstream_error(outcome, modern=inbound.is_modern)
    if not outcome.result:
        if upstream_request.method == "tools/call":
            return build_failure_result(outcome)
        raise build_mcp_error(
            Problem(outcome.text, code=outcome.code, remedy=outcome.remedy, status=502)
        )
    result = outcome.result if outcome.is_visible else await _strip_result(outcome)
    if upstream_request.server_id is not None and may_have_uris(result):
        catalog = get_catalog(inbound.caller.target, await get_snapshot(inbound))
        result = rename_resources(result, catalog.build_uri_renamer(upstream_request.server_id))
    return result


@dataclass(frozen=True)
class EndpointInfo:
    """The capabilities and instructions for a client."""

    capabilities: Mapping[str, Any]
    instructions: str


class EndpointHandlers(Protocol):
    """The handlers of a target; methods raise `MCPError` for unknown names."""

    async def get_info(self, inbound: GatewayRequest) -> EndpointInfo:
        """Return the capabilities and instructions."""
        ...

    async def list_declarations(
        self, caller: AuthenticatedClient, kind: Kind
    ) -> tuple[Declaration, ...]:
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


def read_endpoint(caller: AuthenticatedClient) -> CallSnapshot:
    """Return the snapshot of the caller's target, whose names and texts the caller reads.

    Two queries if the cached snapshot is current: for the labels, then for the generation.
    """
    target = caller.target
    known = target.find_cached_snapshot() or target.load_snapshot()
    _label_endpoint_reader(caller, known)
    snapshot = target.load_snapshot()
    if snapshot is not known:
        _label_endpoint_reader(caller, snapshot)
    return snapshot


def _label_endpoint_reader(caller: AuthenticatedClient, snapshot: CallSnapshot) -> None:
    """Add the labels of what a snapshot's client reads to the client's token."""
    if caller.principal.kind != "token":
        return
    # Read after the snapshot: if they changed meanwhile, the snapshot is outdated.
    text_ids = snapshot.memo.get("text ids")
    if text_ids is None:
        target = caller.target
        text_ids = snapshot.memo["text ids"] = list_endpoint_text_ids(
            agent_id=target.agent_id, server_id=target.server_id
        )
    label_list_reader(caller.principal, "endpoint", text_ids)


class UpstreamHandlers(UpstreamCallHandlers):
    """Handlers of agent and server targets.

    Info and lists take one query, for a token one more for the labels of names.
    """

    async def get_info(self, inbound: GatewayRequest) -> EndpointInfo:
        """Return the forwarded capabilities and the instructions of the servers."""
        snapshot = await get_runtime().run_orm(read_endpoint, inbound.caller)
        catalog = get_catalog(inbound.caller.target, snapshot)
        is_person = find_user_id(inbound.caller.principal, None) is not None
        return EndpointInfo(
            catalog.person_capabilities if is_person else catalog.capabilities, catalog.instructions
        )

    async def list_declarations(
        self, caller: AuthenticatedClient, kind: Kind
    ) -> tuple[Declaration, ...]:
        """Return the declarations of one kind."""
        snapshot = await get_runtime().run_orm(read_endpoint, caller)
        return _select_declarations(caller, snapshot, kind)

    async def list_current_declarations(
        self, caller: AuthenticatedClient, kind: Kind
    ) -> tuple[Declaration, ...]:
        """Return the declarations of one kind to a client whose token may be outdated.

        The snapshot's generation also tells whether it is. Raises as `AuthenticatedClient.refresh`.
        """
        try:
            snapshot = await get_runtime().run_orm(read_endpoint, caller)
        except NotFound:  # deleted meanwhile; `refresh` says so in the client's terms
            snapshot = None
        if snapshot is None or snapshot.generation != caller.verified_token.generation:
            caller = await caller.refresh()
            snapshot = await get_runtime().run_orm(read_endpoint, caller)
        return _select_declarations(caller, snapshot, kind)


def _select_declarations(
    caller: AuthenticatedClient, snapshot: CallSnapshot, kind: Kind
) -> tuple[Declaration, ...]:
    declarations: tuple[Declaration, ...] = getattr(get_catalog(caller.target, snapshot), kind)
    return declarations
