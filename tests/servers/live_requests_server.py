"""An MCP server on the SDK, both eras: `live_requests_server.py stdio`, or `http` or `stateless`.

Its tools `ask` and `sample` send requests during a call, which the SDK does only in the handshake
era; `greet`, `greet_safely` (annotated as idempotent), the prompt `greeting` and the resources
`test://greeting/{language}` request input in their results, which exists only in the modern era;
`era` returns the protocol version of the call, and `list_greeted` how often `greet` was called in
this process. `stateless` serves HTTP without sessions, where requests can't be sent during a call.
"""

import asyncio
import sys
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
    ToolAnnotations,
)
from pydantic import BaseModel

from tests.servers.sdk_server import serve_http

server = MCPServer("live-requests-server")


class Person(BaseModel):
    """What a person is asked for."""

    name: str


@server.tool()
async def ask(ctx: Context[Any]) -> str:
    """Ask the person for a name."""
    answer = await ctx.elicit("Who are you?", Person)
    return f"Hello {answer.data.name}" if answer.action == "accept" else answer.action


@server.tool()
async def sample(ctx: Context[Any]) -> str:
    """Have the client's model name a color."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Name a color."))
    answer = await ctx.session.create_message([message], max_tokens=50)
    return f"painted {getattr(answer.content, 'text', '?')}"


@server.tool()
def era(ctx: Context[Any]) -> str:
    """Return the protocol version of this call."""
    return str(ctx.request_context.protocol_version)


_greeted: list[str] = []


def request_name(ctx: Context[Any]) -> str | InputRequiredResult:
    """Return a greeting; before, request the name in the result."""
    answer = (ctx.input_responses or {}).get("name")
    if answer is not None:
        return f"Hello {answer.content['name']}"
    params = ElicitRequestFormParams(
        message="Who are you?", requested_schema=Person.model_json_schema()
    )
    return InputRequiredResult(input_requests={"name": ElicitRequest(params=params)})


@server.tool()
def greet(ctx: Context[Any]) -> str | InputRequiredResult:
    """Greet the person."""
    _greeted.append("greet")
    return request_name(ctx)


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def greet_safely(ctx: Context[Any]) -> str | InputRequiredResult:
    """Greet the person; may be repeated."""
    return request_name(ctx)


@server.tool()
def list_greeted() -> str:
    """Return how often `greet` was called."""
    return str(len(_greeted))


@server.prompt()
def greeting(ctx: Context[Any]) -> str | InputRequiredResult:
    """Greet the person."""
    return request_name(ctx)


@server.resource("test://greeting/{language}")
def read_greeting(language: str, ctx: Context[Any]) -> str | InputRequiredResult:
    """Return a greeting."""
    return request_name(ctx)


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        app = server.streamable_http_app(stateless_http=sys.argv[1] == "stateless")
        asyncio.run(serve_http(app, 0))
