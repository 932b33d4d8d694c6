"""Serving: each request of a client to its method, in either era.

The SDK speaks both eras on the wire; what is answered is ours and stays raw, since its own types
know fewer members than servers send. Its middleware is the place where that is possible: a result
that comes from there is sent as it is.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from bonobot import __version__
from bonobot.gateway.bots.offering import Bots
from bonobot.gateway.clients import Clients
from bonobot.gateway.failures import error_of, unknown
from bonobot.gateway.inbound import Context, Inbound, bad_params
from bonobot.gateway.listening import Listening, as_known
from bonobot.gateway.offerings import Kind, Offering, Relayed
from bonobot.gateway.shelves import Declaration, page
from bonobot.gateway.tasks import Tasks
from bonobot.gateway.visitors import Visitor, visitor
from bonobot.gateway.watched import is_readable, watch
from bonobot.lib import tracing
from bonobot.tenancy.api.faults import problem_of
from mcp_servers.connections.eras import SERVER_INFO
from mcp_servers.connections.wire import HANDSHAKE, MODERN

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

WhoAsks = Callable[[], Awaitable[Visitor]]
Handler = Callable[[Inbound], Awaitable[dict[str, Any]]]


class Serving:
    """The SDK's server, and the methods that it answers by.

    `who_asks` is awaited for each request; by itself, it is whoever HTTP has let in.
    """

    def __init__(self, who_asks: WhoAsks | None = None) -> None:
        self._who_asks = who_asks
        self.clients = Clients()
        self.listening = Listening(self.listed)
        self._relayed = Relayed()
        self._bots = Bots()
        both: dict[str, Handler] = {
            **dict.fromkeys(LISTS, self._list),
            "tools/call": lambda inbound: self._at(inbound.visitor).call_tool(inbound),
            "resources/read": self._read,
            "prompts/get": lambda inbound: self._at(inbound.visitor).get_prompt(inbound),
            "completion/complete": lambda inbound: self._at(inbound.visitor).complete(inbound),
        }
        tasks = Tasks()
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
        self.server.get_tool_input_schema = _input_schema

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
            with tracing.span(
                ctx.method, kind="server", carrier=inbound.own_meta, mcp__method__name=ctx.method
            ):
                return self._stamped(inbound, await handler(inbound))
        except MCPError:
            raise
        except Exception as fault:
            # What is here may be gone since its address was looked up. Of what nobody foresaw, the
            # SDK would tell the client the fault's own words.
            raise error_of(problem_of(fault)) from fault

    async def _visitor(self) -> Visitor:
        """Return who asks."""
        return await self._who_asks() if self._who_asks else visitor()

    def _stamped(self, inbound: Inbound, result: dict[str, Any]) -> dict[str, Any]:
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

    def _at(self, who: Visitor) -> Offering:
        """Return what is offered at the place that somebody is at."""
        return self._bots if who.place.kind == "organization" else self._relayed

    async def listed(self, who: Visitor, kind: Kind) -> tuple[Declaration, ...]:
        """Return what somebody finds of one kind where they are, as of now."""
        return await self._at(who).listed(who, kind)

    async def _discover(self, inbound: Inbound) -> dict[str, Any]:
        there = await self._at(inbound.visitor).greet(inbound)
        told = {"instructions": there.instructions} if there.instructions else {}
        return {
            "supportedVersions": [MODERN],
            "capabilities": dict(there.capabilities),
            **told,
            **CACHED,
        }

    async def _initialize(self, inbound: Inbound) -> dict[str, Any]:
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

    async def _list(self, inbound: Inbound) -> dict[str, Any]:
        kind, member = LISTS[inbound.method]
        declarations = await self.listed(inbound.visitor, kind)
        if not inbound.modern:
            self.clients.note(inbound, kind, as_known(declarations))
        return page(declarations, member, inbound.params.get("cursor")) | CACHED

    async def _read(self, inbound: Inbound) -> dict[str, Any]:
        result = await self._at(inbound.visitor).read_resource(inbound)
        if result.get("resultType", "complete") != "complete":
            return result
        # Who else may read it is for us to say, not for the server.
        return {**NOT_CACHED, **result, "cacheScope": "private"}

    async def _set_level(self, inbound: Inbound) -> dict[str, Any]:
        self.clients.set_level(inbound, inbound.text("level"))
        return {}

    async def _subscribe(self, inbound: Inbound) -> dict[str, Any]:
        uri = inbound.text("uri")
        if not self.clients.may_watch(inbound, uri):
            return {}
        if not await is_readable(inbound.visitor, uri):
            raise unknown("resource", uri)
        found = await watch(inbound.visitor, [uri])
        if not found:
            raise bad_params("the server doesn't tell of changes of this resource", {"uri": uri})
        self.clients.subscribe(inbound, found)
        return {}

    async def _unsubscribe(self, inbound: Inbound) -> dict[str, Any]:
        self.clients.unsubscribe(inbound, inbound.text("uri"))
        return {}


def _input_schema(name: str) -> Any:
    """Return the input schema of a tool that is listed, by which the SDK checks headers."""
    snapshot = visitor().place.at_hand()
    tool = snapshot.tools.get(name) if snapshot else None
    return tool.input_schema if tool and tool.decision.offered else None
