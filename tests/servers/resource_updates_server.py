"""An MCP server on the SDK whose resources change, with notifications for subscribers.

`resource_updates_server.py stdio [handshake]`, or `resource_updates_server.py http [handshake]
[people]` on a free loopback port: in both eras, or only the handshake era. The tool `print` sends a
notification that a resource changed; `readers` returns how many sessions subscribed to it, and how
many streams are open.

With `people` each request needs a bearer token, and each person has their own news: `print`
notifies only the sessions of its caller, and `readers` counts only those; without a resource,
everybody's.

The query of its URL is an edition: subscribers of different editions are separate, so that tests
can share the process.
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


class CountingListenHandler(ListenHandler):
    """The SDK's handler, which also counts the streams that are open."""

    open = 0

    async def __call__(self, ctx: Any, params: Any) -> Any:
        """Answer `subscriptions/listen`."""
        self.open += 1
        try:
            return await super().__call__(ctx, params)
        finally:
            self.open -= 1


class ReaderGroup:
    """The subscribers that are notified together: those of one person, or all."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.handler = CountingListenHandler(self.bus)
        self.sessions: dict[str, list[Any]] = {}


editions: defaultdict[str, defaultdict[str, ReaderGroup]] = defaultdict(
    lambda: defaultdict(ReaderGroup)
)


def get_groups(ctx: Any) -> defaultdict[str, ReaderGroup]:
    """Return the groups of the requested edition."""
    return editions[ctx.request.url.query if ctx.request is not None else ""]


def get_group(ctx: Any) -> ReaderGroup:
    """Return the caller's group; without `people` there is one for everybody."""
    request = ctx.request if "people" in sys.argv else None
    return get_groups(ctx)[request.headers["authorization"] if request is not None else ""]


class GroupListenHandler(ListenHandler):
    """Opens each stream in the caller's group."""

    async def __call__(self, ctx: Any, params: Any) -> Any:
        """Answer `subscriptions/listen`."""
        return await get_group(ctx).handler(ctx, params)


def text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=value)])


async def tools(ctx: Any, params: Any) -> types.ListToolsResult:
    names = ("print", "readers")
    return types.ListToolsResult(tools=[types.Tool(name=n, input_schema=OBJECT) for n in names])


async def call(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    uri, group = str((params.arguments or {}).get("uri")), get_group(ctx)
    if params.name == "readers":
        groups = [group] if uri else list(get_groups(ctx).values())
        subscribed = [
            len(sessions)
            for each in groups
            for known_uri, sessions in each.sessions.items()
            if uri in known_uri
        ]
        streams = sum(each.handler.open for each in groups)
        return text(f"{sum(subscribed)} sessions, {streams} streams")
    await group.bus.publish(ResourceUpdated(uri=uri))
    for known_uri, readers in group.sessions.items():
        if uri == known_uri or uri.startswith(f"{known_uri}/"):
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
    get_group(ctx).sessions.setdefault(str(params.uri), []).append(ctx.session)
    return types.EmptyResult()


async def unsubscribe(ctx: Any, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    get_group(ctx).sessions.get(str(params.uri), [ctx.session]).pop()
    return types.EmptyResult()


def build_server(*, both: bool) -> Server[Any]:
    """Return the server with its handlers."""
    return Server(
        "news-test-server",
        on_list_tools=tools,
        on_call_tool=call,
        on_list_resources=resources,
        on_read_resource=read,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        **(
            {"on_subscriptions_listen": GroupListenHandler(InMemorySubscriptionBus())}
            if both
            else {}
        ),
    )


def without_modern_era(app: Any) -> Any:
    """Return an application without the modern era."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        if headers.get(b"mcp-protocol-version") != MODERN:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b"Bad Request: no session"})

    return answer


def require_token(app: Any) -> Any:
    """Return an application that requires a bearer token."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        if scope["type"] != "http" or headers.get(b"authorization", b"").startswith(b"Bearer "):
            await app(scope, receive, send)
            return
        challenge = (b"www-authenticate", b"Bearer")
        await send({"type": "http.response.start", "status": 401, "headers": [challenge]})
        await send({"type": "http.response.body", "body": b""})

    return answer


async def serve_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


if __name__ == "__main__":
    both = "handshake" not in sys.argv
    if sys.argv[1] == "stdio":
        asyncio.run(serve_stdio(build_server(both=both)))
    else:
        from sdk_server import serve_http  # the script next to this one

        app = build_server(both=both).streamable_http_app()
        app = require_token(app) if "people" in sys.argv else app
        asyncio.run(serve_http(app if both else without_modern_era(app), 0))
