"""Dispatch each request to the handler of its MCP method, in either era.

The SDK handles the wire protocol of both eras. Results are built here as raw JSON, because the
SDK's types drop unknown fields; results of its middleware are sent unchanged.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from agents.flow_labels.error_labels import label_response_reader
from agents.gateway.authentication import AuthenticatedClient, get_current_client
from agents.gateway.catalog import Declaration, build_page
from agents.gateway.change_notifications import ChangeStreams, compute_list_digest
from agents.gateway.client_request import (
    Context,
    GatewayRequest,
    build_invalid_params_error,
)
from agents.gateway.client_sessions import GatewaySessionStore, build_modern_request
from agents.gateway.errors import build_mcp_error, build_unknown_name_error, has_problem
from agents.gateway.forwarded_requests import EndpointHandlers, Kind, UpstreamHandlers
from agents.gateway.mcp_tasks import TaskHandlers
from agents.gateway.organization_server.handlers import OrganizationHandlers
from agents.gateway.protocol_versions import (
    negotiate_version,
    translate_declaration,
    translate_result,
)
from agents.gateway.resource_subscriptions import is_readable, watch_resources
from agents.gateway.search_view import SearchViewHandlers, find_view_schema, has_search_view
from bonobot import __version__
from bonobot.core.api.exception_handler import to_problem
from bonobot.core.runtime import get_runtime
from bonobot.core.telemetry import mcp_operations, tracing
from mcp_servers.client.protocol_versions import MODERN_VERSION, SERVER_INFO, omit_tasks_extension

SERVER_NAME = "bonobot"
# How long a client may cache a list; listening clients are notified of changes at once.
TTL_MS = 60_000
INITIALIZED = "notifications/initialized"
CACHE_HINTS = {"ttlMs": TTL_MS, "cacheScope": "private"}
# These methods are admitted, which detects an outdated caller.
ADMITTED_METHODS = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
NO_CACHE_HINTS = {"ttlMs": 0, "cacheScope": "private"}
# The kind of each list, and the field of its result.
LISTS: dict[str, tuple[Kind, str]] = {
    "tools/list": ("tools", "tools"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("templates", "resourceTemplates"),
    "skills/list": ("skills", "skills"),
    "prompts/list": ("prompts", "prompts"),
}

Authenticator = Callable[[], Awaitable[AuthenticatedClient]]
Handler = Callable[[GatewayRequest], Awaitable[dict[str, Any]]]


class GatewayDispatcher:
    """The SDK's server and the method handlers.

    `authenticate` is awaited for each request (default: the client that HTTP authenticated).
    """

    def __init__(self, authenticate: Authenticator | None = None) -> None:
        self._authenticate = authenticate
        self.sessions = GatewaySessionStore()
        self.change_streams = ChangeStreams(self.list_declarations)
        self._upstream_handlers = UpstreamHandlers()
        self._organization_handlers = OrganizationHandlers()
        self._search_view_handlers = SearchViewHandlers()
        shared_handlers: dict[str, Handler] = {
            **dict.fromkeys(LISTS, self._list_page),
            "tools/call": lambda inbound: self._select_handlers(inbound.caller).call_tool(inbound),
            "resources/read": self._read_resource,
            "skills/get": self._get_skill,
            "prompts/get": lambda inbound: self._select_handlers(inbound.caller).get_prompt(
                inbound
            ),
            "completion/complete": lambda inbound: self._select_handlers(inbound.caller).complete(
                inbound
            ),
        }
        tasks = TaskHandlers()
        self._modern_handlers: dict[str, Handler] = {
            **shared_handlers,
            "tasks/get": tasks.get_task,
            "tasks/update": tasks.update_task,
            "tasks/cancel": tasks.cancel_task,
            "server/discover": self._discover,
            "subscriptions/listen": self.change_streams.listen,
        }
        self._handshake_handlers: dict[str, Handler] = {
            **shared_handlers,
            "initialize": self._initialize,
            "logging/setLevel": self._set_log_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
        }
        self.server: Server[Any] = Server(SERVER_NAME, version=__version__)
        self.server.middleware[:] = [self._handle_request]
        self.server.get_tool_input_schema = _find_input_schema
        self._server_info = self.server.server_info_stamp  # the SDK copies it for each access

    async def stop(self) -> None:
        """End the streams, the suspended calls and the sessions."""
        self.change_streams.stop()
        await self._upstream_handlers.stop()
        self.sessions.delete_all_sessions()

    def get_handlers(self, *, is_modern: bool) -> Mapping[str, Handler]:
        """Return the handlers of an era, by method."""
        return self._modern_handlers if is_modern else self._handshake_handlers

    async def _handle_request(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Handle our methods; leave pings, unknown methods and notifications to the SDK."""
        is_modern = ctx.protocol_version == MODERN_VERSION
        handler = self.get_handlers(is_modern=is_modern).get(ctx.method)
        if ctx.method == INITIALIZED and not is_modern:
            self.sessions.register_session(ctx, await self._get_caller())
        if ctx.request_id is None or handler is None:
            return await call_next(ctx)
        build_request = (
            partial(build_modern_request, method=ctx.method, params=ctx.params or {}, context=ctx)
            if is_modern
            else partial(self.sessions.build_request, ctx)
        )
        return await self._answer(await self._get_caller(), ctx.method, handler, build_request)

    async def answer_directly(
        self,
        caller: AuthenticatedClient,
        method: str,
        params: Mapping[str, Any],
        request_id: int | str | None = None,
    ) -> dict[str, Any]:
        """Return the result of a modern request that the SDK doesn't handle; raises `MCPError`."""
        build_request = partial(
            build_modern_request, method=method, params=params, request_id=request_id
        )
        return await self._answer(caller, method, self._modern_handlers[method], build_request)

    async def _answer(
        self,
        caller: AuthenticatedClient,
        method: str,
        handler: Handler,
        build_request: Callable[[AuthenticatedClient], GatewayRequest],
    ) -> dict[str, Any]:
        """Return the result of a request; raises `MCPError`."""
        try:
            if not _is_checked_later(caller, method):
                caller = await caller.refresh_if_changed()
            inbound = build_request(caller)
            if tracing.TracingState.is_observing_mcp or not inbound.is_modern:
                result = await self._answer_observed(inbound, handler)
            else:
                result = self._complete_result(inbound, await handler(inbound))
        except MCPError as error:
            await _label_reader(caller, [error.error.message, error.error.data])
            raise
        except Exception as error:
            # The SDK would send an unexpected exception's text to the client.
            mcp_error = build_mcp_error(to_problem(error))
            await _label_reader(caller, [mcp_error.error.message, mcp_error.error.data])
            raise mcp_error from error
        if has_problem(result):
            await _label_reader(caller, result)
        return result

    async def _answer_observed(self, inbound: GatewayRequest, handler: Handler) -> dict[str, Any]:
        """Return the result of a request that OpenTelemetry or a session tracks."""
        with _observe_request(inbound) as operation, self.sessions.track_request(inbound):
            result = self._complete_result(inbound, await handler(inbound))
            if operation is not None:
                operation.finish(result, inbound.params.get("name"))
            return result

    async def _get_caller(self) -> AuthenticatedClient:
        """Return the authenticated caller."""
        return await self._authenticate() if self._authenticate else get_current_client()

    def _complete_result(self, inbound: GatewayRequest, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result with this hop's fields for the client's era."""
        meta = result.get("_meta")
        own_meta = dict(meta) if isinstance(meta, dict) else {}
        own_meta.pop(SERVER_INFO, None)
        if not inbound.is_modern:
            fields = translate_result(result)
            fields.pop("_meta", None)
            return fields | ({"_meta": own_meta} if own_meta else {})
        own_meta[SERVER_INFO] = self._server_info
        return {"resultType": "complete", **result, "_meta": own_meta}

    def _select_handlers(self, caller: AuthenticatedClient) -> EndpointHandlers:
        """Return the handlers of the caller's target."""
        if caller.target.view == "search":
            return self._search_view_handlers
        return (
            self._organization_handlers
            if caller.target.kind == "organization"
            else self._upstream_handlers
        )

    async def list_declarations(
        self, caller: AuthenticatedClient, kind: Kind
    ) -> tuple[Declaration, ...]:
        """Return the current declarations of one kind at the caller's target."""
        return await self._select_handlers(caller).list_declarations(caller, kind)

    async def _discover(self, inbound: GatewayRequest) -> dict[str, Any]:
        info = await self._select_handlers(inbound.caller).get_info(inbound)
        extra = {"instructions": info.instructions} if info.instructions else {}
        return {
            "supportedVersions": [MODERN_VERSION],
            "capabilities": dict(info.capabilities),
            **extra,
            **CACHE_HINTS,
        }

    async def _initialize(self, inbound: GatewayRequest) -> dict[str, Any]:
        requested_version = inbound.get_text("protocolVersion")
        info = await self._select_handlers(inbound.caller).get_info(inbound)
        extra = {"instructions": info.instructions} if info.instructions else {}
        return {
            "protocolVersion": negotiate_version(requested_version),
            "capabilities": omit_tasks_extension(info.capabilities),
            "serverInfo": self.server.server_info_stamp,
            **extra,
        }

    async def _list_page(self, inbound: GatewayRequest) -> dict[str, Any]:
        kind, field_name = LISTS[inbound.method]
        caller = inbound.caller
        declarations = (
            await self._upstream_handlers.list_current_declarations(caller, kind)
            if _is_checked_later(caller, inbound.method)
            else await self.list_declarations(caller, kind)
        )
        if not inbound.is_modern:
            if self.sessions.record_list(inbound, kind, compute_list_digest(declarations)):
                await self.sessions.save_session(inbound)
            declarations = tuple(map(translate_declaration, declarations))
        return build_page(declarations, field_name, inbound.params.get("cursor")) | CACHE_HINTS

    async def _get_skill(self, inbound: GatewayRequest) -> dict[str, Any]:
        uri = inbound.get_text("uri")
        for skill in await self.list_declarations(inbound.caller, "skills"):
            if skill["uri"] == uri:
                return {"skill": skill, **CACHE_HINTS}
        raise build_unknown_name_error("skill", uri)

    async def _read_resource(self, inbound: GatewayRequest) -> dict[str, Any]:
        result = await self._select_handlers(inbound.caller).read_resource(inbound)
        if result.get("resultType", "complete") != "complete":
            return result
        # The gateway decides who may share the cache, not the server.
        return {**NO_CACHE_HINTS, **result, "cacheScope": "private"}

    async def _set_log_level(self, inbound: GatewayRequest) -> dict[str, Any]:
        level = inbound.get_text("level")
        self.sessions.set_log_level(inbound, level)
        await self.sessions.save_session(inbound, log_level=level)
        return {}

    async def _subscribe(self, inbound: GatewayRequest) -> dict[str, Any]:
        uri = inbound.get_text("uri")
        if not self.sessions.can_add_watch(inbound, uri):
            return {}
        if not await is_readable(inbound.caller, uri):
            raise build_unknown_name_error("resource", uri)
        watched_resources = await watch_resources(inbound.caller, [uri], inbound.choose_holder)
        if not watched_resources:
            raise build_invalid_params_error(
                "the server doesn't send change notifications for this resource", {"uri": uri}
            )
        self.sessions.add_watches(inbound, watched_resources)
        await self.sessions.save_session(inbound)
        return {}

    async def _unsubscribe(self, inbound: GatewayRequest) -> dict[str, Any]:
        self.sessions.remove_watch(inbound, inbound.get_text("uri"))
        await self.sessions.save_session(inbound)
        return {}


def _is_checked_later(caller: AuthenticatedClient, method: str) -> bool:
    """Tell whether answering a request detects an outdated caller, without an extra query."""
    if caller.target.kind == "organization":
        return False
    return method in ADMITTED_METHODS or (method in LISTS and not caller.target.view)


async def _label_reader(caller: AuthenticatedClient, response: Any) -> None:
    """Add the labels of the texts that an error quotes to the token of the caller."""
    if caller.principal.kind == "token":
        await get_runtime().run_orm(label_response_reader, caller.principal, response)


_UNOBSERVED: AbstractContextManager[None] = nullcontext()


def _observe_request(
    inbound: GatewayRequest,
) -> AbstractContextManager[mcp_operations.McpOperation | None]:
    """Return the span and the measurement of a request; a no-op unless they are configured."""
    if not tracing.TracingState.is_observing_mcp:
        return _UNOBSERVED
    context = inbound.sdk_context
    is_http = context is None or context.request is not None
    attributes = {
        "mcp.protocol.version": MODERN_VERSION if context is None else context.protocol_version,
        "network.transport": "tcp" if is_http else "pipe",
        "network.protocol.name": "http" if is_http else "",
    }
    request_id = context.request_id if context is not None else inbound.request_id
    return mcp_operations.observe_operation(
        "server",
        inbound.method,
        attributes,
        span_attributes={"jsonrpc__request__id": "" if request_id is None else str(request_id)},
        carrier=inbound.forwarded_meta,
    )


def _find_input_schema(name: str) -> Any:
    """Return the input schema of a listed tool; the SDK uses it to check headers."""
    return find_input_schema(get_current_client(), name)


def find_input_schema(caller: AuthenticatedClient, name: str) -> dict[str, Any] | None:
    """Return the input schema of a tool that is listed for a caller; None for another name."""
    snapshot = caller.target.find_cached_snapshot()
    if snapshot is not None and has_search_view(caller, snapshot):
        return find_view_schema(snapshot, name)
    tool = snapshot.find_tool(name) if snapshot else None
    return tool.input_schema if tool and tool.decision.is_callable else None
