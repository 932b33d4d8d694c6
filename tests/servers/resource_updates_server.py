"""An MCP server on the SDK whose resources change, and that tells those who asked for it.

`resource_updates_server.py stdio [handshake]`, or `resource_updates_server.py http [handshake]
[people]` on a free port of the loopback: in both eras, or in that of the handshake alone. The tool
`print` tells that a resource changed; `readers` says how many sessions subscribed to it, and how
many streams there are.

With `people` it answers who comes with a bearer token alone, and each has news of their own: what
one has printed is told to nobody else, and `readers` counts their own; of no resource, everybody's.

Whatever follows `?` in its URL is an edition: those of one edition know nothing of the others, so
that tests can share the process.
"""

import asyncio
import sys
from collections import defaultdict
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

MODERN = b"2026-07-28"
URIS = ("news://paper", "news://weather", "news://secret")
OBJECT = {"type": "object", "properties": {"uri": {"type": "string"}}}
Json = dict[str, Any]


class Counted(ListenHandler):
    """The SDK's handler, which also counts the streams that are open."""

    open = 0

    async def __call__(self, ctx: Any, params: Any) -> Any:
        """Answer `subscriptions/listen`."""
        self.open += 1
        try:
            return await super().__call__(ctx, params)
        finally:
            self.open -= 1


class Room:
    """Who listens, of those whose news it is."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.listening = Counted(self.bus)
        self.sessions: dict[str, list[Any]] = {}


editions: defaultdict[str, defaultdict[str, Room]] = defaultdict(lambda: defaultdict(Room))


def rooms(ctx: Any) -> defaultdict[str, Room]:
    """Return the rooms of the edition that is asked."""
    return editions[ctx.request.url.query if ctx.request is not None else ""]


def room(ctx: Any) -> Room:
    """Return where somebody belongs: all are in one where nobody has to say who they are."""
    asked = ctx.request if "people" in sys.argv else None
    return rooms(ctx)[asked.headers["authorization"] if asked is not None else ""]


class Listening(ListenHandler):
    """Has each listen where they belong."""

    async def __call__(self, ctx: Any, params: Any) -> Any:
        """Answer `subscriptions/listen`."""
        return await room(ctx).listening(ctx, params)


def text(said: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)])


async def tools(ctx: Any, params: Any) -> types.ListToolsResult:
    names = ("print", "readers")
    return types.ListToolsResult(tools=[types.Tool(name=n, input_schema=OBJECT) for n in names])


async def call(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    uri, here = str((params.arguments or {}).get("uri")), room(ctx)
    if params.name == "readers":
        asked = [here] if uri else list(rooms(ctx).values())
        subscribed = [len(all_) for one in asked for at, all_ in one.sessions.items() if uri in at]
        streams = sum(one.listening.open for one in asked)
        return text(f"{sum(subscribed)} sessions, {streams} streams")
    await here.bus.publish(ResourceUpdated(uri=uri))
    for known, readers in here.sessions.items():
        if uri == known or uri.startswith(f"{known}/"):
            for session in readers:
                await session.send_resource_updated(uri)
    return text("printed")


async def resources(ctx: Any, params: Any) -> types.ListResourcesResult:
    return types.ListResourcesResult(resources=[types.Resource(uri=u, name=u) for u in URIS])


async def read(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    uri = str(params.uri)
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, text="news")])


async def subscribe(ctx: Any, params: types.SubscribeRequestParams) -> types.EmptyResult:
    if str(params.uri) == "news://weather":
        raise ValueError("nobody tells the weather")
    room(ctx).sessions.setdefault(str(params.uri), []).append(ctx.session)
    return types.EmptyResult()


async def unsubscribe(ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    room(ctx).sessions.get(str(params.uri), [ctx.session]).pop()
    return types.EmptyResult()


def made(*, both: bool) -> Server[Any]:
    """Return the server with its handlers."""
    return Server(
        "news-test-server",
        on_list_tools=tools,
        on_call_tool=call,
        on_list_resources=resources,
        on_read_resource=read,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        **({"on_subscriptions_listen": Listening(InMemorySubscriptionBus())} if both else {}),
    )


def old(app: Any) -> Any:
    """Return an application that knows nothing of the modern era."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        if headers.get(b"mcp-protocol-version") != MODERN:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"Bad Request: no session"})

    return answer


def guarded(app: Any) -> Any:
    """Return an application that answers nobody without a bearer token."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        if scope["type"] != "http" or headers.get(b"authorization", b"").startswith(b"Bearer "):
            await app(scope, receive, send)
            return
        challenge = (b"www-authenticate", b"Bearer")
        await send({"type": "http.response.start", "status": 401, "headers": [challenge]})
        await send({"type": "http.response.body", "body": b""})

    return answer


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


if __name__ == "__main__":
    both = "handshake" not in sys.argv
    if sys.argv[1] == "stdio":
        asyncio.run(over_stdio(made(both=both)))
    else:
        from sdk_server import serve_http  # the script beside this one

        app = made(both=both).streamable_http_app()
        app = guarded(app) if "people" in sys.argv else app
        asyncio.run(serve_http(app if both else old(app), 0))
