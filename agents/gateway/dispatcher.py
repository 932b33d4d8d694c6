"""Each request to its MCP method, in either era.

The SDK speaks both eras on the wire; what is answered is ours and stays raw, since its own types
know fewer members than servers send. Its middleware is the place where that is possible: a result
that comes from there is sent as it is.
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
# How long a client may keep a list; that it changed is told at once to those that listen.
TTL_MS = 60_000
INITIALIZED = "notifications/initialized"
CACHED = {"ttlMs": TTL_MS, "cacheScope": "private"}
# Members of results that came with the modern era.
MODERN_MEMBERS = ("resultType", "ttlMs", "cacheScope")
# Behind these stands an admission, which tells whether the visitor is who they were.
ADMITTED = frozenset({"tools/call", "resources/read", "prompts/get", "completion/complete"})
NOT_CACHED = {"ttlMs": 0, "cacheScope": "private"}
# What each list is of, and the member that it stands in.
LISTS: dict[str, tuple[Kind, str]] = {
    "tools/list": ("tools", "tools"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("templates", "resourceTemplates"),
    "prompts/list": ("prompts", "prompts"),
}

WhoAsks = Callable[[], Awaitable[AuthenticatedClient]]
Handler = Callable[[GatewayRequest], Awaitable[dict[str, Any]]]


class GatewayDispatcher:
    """The SDK's server, and the methods that it answers by.

    `who_asks` is awaited for each request; by itself, it is whoever HTTP has let in.
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
        """Return what is answered in an era, by the methods' names."""
        return self._modern if modern else self._handshake

    async def _answer(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answer what is ours; the rest (pings, unknown methods, notifications) is the SDK's."""
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
            # What is here may be gone since its address was looked up. Of what nobody foresaw, the
            # SDK would tell the client the fault's own words.
            raise build_mcp_error(to_problem(fault)) from fault

    async def _visitor(self) -> AuthenticatedClient:
        """Return who asks."""
        return await self._who_asks() if self._who_asks else get_current_client()

    def _stamped(self, inbound: GatewayRequest, result: dict[str, Any]) -> dict[str, Any]:
        """Return a result with the members that this hop has in the client's era."""
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
        """Return what is offered at the place that somebody is at."""
        return self._bots if who.place.kind == "organization" else self._relayed

    async def listed(self, who: AuthenticatedClient, kind: Kind) -> tuple[Declaration, ...]:
        """Return what somebody finds of one kind where they are, as of now."""
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
            # Extensions are the modern era's.
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
        # Who else may read it is for us to say, not for the server.
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
    """Return the input schema of a tool that is listed, by which the SDK checks headers."""
    snapshot = get_current_client().place.at_hand()
    tool = snapshot.tools.get(name) if snapshot else None
    return tool.input_schema if tool and tool.decision.offered else None
