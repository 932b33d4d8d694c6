"""Dispatch each request to the handler of its MCP method, in either era.

The SDK handles the wire protocol of both eras. Results are built here as raw JSON, because the
SDK's types drop unknown fields; results of its middleware are sent unchanged.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from agents.gateway.authentication import AuthenticatedClient, get_current_client
from agents.gateway.catalog import Declaration, build_page
from agents.gateway.change_notifications import ChangeStreams, as_known
from agents.gateway.client_request import Context, GatewayRequest, build_invalid_params_error
from agents.gateway.client_sessions import GatewaySessionStore
from agents.gateway.errors import build_mcp_error, build_unknown_name_error
from agents.gateway.handlers import EndpointHandlers, Kind, UpstreamHandlers
from agents.gateway.mcp_tasks import TaskHandlers
from agents.gateway.organization_server.handlers import OrganizationHandlers
from agents.gateway.resource_subscriptions import is_readable, watch
from bonobot import __version__
from bonobot.core.api.exception_handler import to_problem
from bonobot.core.telemetry import tracing
from mcp_servers.client.jsonrpc import HANDSHAKE, MODERN
from mcp_servers.client.protocol_versions import SERVER_INFO

NAME = "bonobot"
# How long a client may cache a list; listening clients are notified of changes at once.
TTL_MS = 60_000
INITIALIZED = "notifications/initialized"
CACHED = {"ttlMs": TTL_MS, "cacheScope": "private"}
# Result fields of the modern era.
MODERN_MEMBERS = ("resultType", "ttlMs", "cacheScope")
# These methods are admitted, which detects an outdated caller.
ADMITTED = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
NOT_CACHED = {"ttlMs": 0, "cacheScope": "private"}
# The kind of each list, and the field of its result.
LISTS: dict[str, tuple[Kind, str]] = {
    "tools/list": ("tools", "tools"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("templates", "resourceTemplates"),
    "prompts/list": ("prompts", "prompts"),
}

WhoAsks = Callable[[], Awaitable[AuthenticatedClient]]
Handler = Callable[[GatewayRequest], Awaitable[dict[str, Any]]]


class GatewayDispatcher:
    """The SDK's server and the method handlers.

    `authenticate` is awaited for each request (default: the client that HTTP authenticated).
    """

    def __init__(self, who_asks: WhoAsks | None = None) -> None:
        self._who_asks = who_asks
        self.clients = GatewaySessionStore()
        self.listening = ChangeStreams(self.listed)
        self._relayed = UpstreamHandlers()
        self._bots = OrganizationHandlers()
        both: dict[str, Handler] = {
            **dict.fromkeys(LISTS, self._list),
            "tools/call": lambda inbound: self._at(inbound.visitor).call_tool(inbound),
            "resources/read": self._read,
            "prompts/get": lambda inbound: self._at(inbound.visitor).get_prompt(inbound),
            "completion/complete": lambda inbound: self._at(inbound.visitor).complete(inbound),
        }
        tasks = TaskHandlers()
        self._modern: dict[str, Handler] = {
            **both,
            "tasks/get": tasks.get,
            "tasks/update": tasks.update,
            "tasks/cancel": tasks.cancel,
            "server/discover": self._discover,
            "subscriptions/listen": self.listening.listen,
        }
        self._handshake: dict[str, Handler] = {
            **both,
            "initialize": self._initialize,
            "logging/setLevel": self._set_level,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
        }
        self.server: Server[Any] = Server(NAME, version=__version__)
        self.server.middleware[:] = [self._answer]
        self.server.get_tool_input_schema = _find_input_schema

    def methods(self, *, modern: bool) -> Mapping[str, Handler]:
        """Return the handlers of an era, by method."""
        return self._modern if modern else self._handshake

    async def _answer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Handle our methods; leave pings, unknown methods and notifications to the SDK."""
        modern = ctx.protocol_version == MODERN
        handler = self.methods(modern=modern).get(ctx.method)
        if ctx.method == INITIALIZED and not modern:
            self.clients.begun(ctx, await self._visitor())
        if ctx.request_id is None or handler is None:
            return await call_next(ctx)
        who = await self._visitor()
        try:
            if ctx.method not in ADMITTED or who.place.kind == "organization":
                who = await who.current()
            inbound = self.clients.inbound(ctx, who, modern=modern)
            with tracing.start_span(
                ctx.method, kind="server", carrier=inbound.own_meta, mcp__method__name=ctx.method
            ):
                return self._stamped(inbound, await handler(inbound))
        except MCPError:
            raise
        except Exception as fault:
            # The SDK would send an unexpected exception's text to the client.
            raise build_mcp_error(to_problem(fault)) from fault

    async def _visitor(self) -> AuthenticatedClient:
        """Return the authenticated caller."""
        return await self._who_asks() if self._who_asks else get_current_client()

    def _stamped(self, inbound: GatewayRequest, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result with this hop's fields for the client's era."""
        meta = result.get("_meta")
        theirs = meta if isinstance(meta, dict) else {}
        own = {key: value for key, value in theirs.items() if key != SERVER_INFO}
        if not inbound.modern:
            kept = {name: value for name, value in result.items() if name not in MODERN_MEMBERS}
            kept.pop("_meta", None)
            return kept | ({"_meta": own} if own else {})
        own[SERVER_INFO] = self.server.server_info_stamp
        return {"resultType": "complete", **result, "_meta": own}

    def _at(self, who: AuthenticatedClient) -> EndpointHandlers:
        """Return the handlers of the caller's target."""
        return self._bots if who.place.kind == "organization" else self._relayed

    async def listed(self, who: AuthenticatedClient, kind: Kind) -> tuple[Declaration, ...]:
        """Return the current declarations of one kind at the caller's target."""
        return await self._at(who).listed(who, kind)

    async def _discover(self, inbound: GatewayRequest) -> dict[str, Any]:
        there = await self._at(inbound.visitor).greet(inbound)
        told = {"instructions": there.instructions} if there.instructions else {}
        return {
            "supportedVersions": [MODERN],
            "capabilities": dict(there.capabilities),
            **told,
            **CACHED,
        }

    async def _initialize(self, inbound: GatewayRequest) -> dict[str, Any]:
        asked = inbound.text("protocolVersion")
        there = await self._at(inbound.visitor).greet(inbound)
        told = {"instructions": there.instructions} if there.instructions else {}
        return {
            "protocolVersion": asked if asked in HANDSHAKE else HANDSHAKE[-1],
            # Extensions exist only in the modern era.
            "capabilities": {k: v for k, v in there.capabilities.items() if k != "extensions"},
            "serverInfo": self.server.server_info_stamp,
            **told,
        }

    async def _list(self, inbound: GatewayRequest) -> dict[str, Any]:
        kind, member = LISTS[inbound.method]
        declarations = await self.listed(inbound.visitor, kind)
        if not inbound.modern:
            self.clients.note(inbound, kind, as_known(declarations))
        return build_page(declarations, member, inbound.params.get("cursor")) | CACHED

    async def _read(self, inbound: GatewayRequest) -> dict[str, Any]:
        result = await self._at(inbound.visitor).read_resource(inbound)
        if result.get("resultType", "complete") != "complete":
            return result
        # The gateway decides who may share the cache, not the server.
        return {**NOT_CACHED, **result, "cacheScope": "private"}

    async def _set_level(self, inbound: GatewayRequest) -> dict[str, Any]:
        self.clients.set_level(inbound, inbound.text("level"))
        return {}

    async def _subscribe(self, inbound: GatewayRequest) -> dict[str, Any]:
        uri = inbound.text("uri")
        if not self.clients.may_watch(inbound, uri):
            return {}
        if not await is_readable(inbound.visitor, uri):
            raise build_unknown_name_error("resource", uri)
        found = await watch(inbound.visitor, [uri])
        if not found:
            raise build_invalid_params_error(
                "the server doesn't tell of changes of this resource", {"uri": uri}
            )
        self.clients.subscribe(inbound, found)
        return {}

    async def _unsubscribe(self, inbound: GatewayRequest) -> dict[str, Any]:
        self.clients.unsubscribe(inbound, inbound.text("uri"))
        return {}


def _find_input_schema(name: str) -> Any:
    """Return the input schema of a listed tool; the SDK uses it to check headers."""
    snapshot = get_current_client().place.at_hand()
    tool = snapshot.tools.get(name) if snapshot else None
    return tool.input_schema if tool and tool.decision.offered else None
