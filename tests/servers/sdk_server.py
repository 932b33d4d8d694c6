"""An MCP server on the SDK, both eras: `sdk_server.py stdio`, `http [PORT]` or `sse [PORT]`.

Over HTTP it serves `/mcp`, over HTTP+SSE `/sse`, on the loopback, and prints `PORT <number>` once
it listens.
"""

import asyncio
import socket
import sys
from typing import Annotated, Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve, Sample
from mcp_types import CreateMessageResult, SamplingMessage, TextContent
from pydantic import BaseModel, Field

INSTRUCTIONS = "Add with `add`, wait with `slow`."
server = MCPServer("modern-test-server", instructions=INSTRUCTIONS)


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def echo(text: str) -> str:
    """Return the text as it is."""
    return text


@server.tool()
async def slow(ctx: Context[Any], steps: int = 3, pause_s: float = 0.01) -> str:
    """Report progress `steps` times, then answer."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
        await anyio.sleep(pause_s)
    return "done"


@server.tool()
async def wait(key: str) -> str:
    """Answer never; `outcomes` tells what became of it."""
    _outcomes[key] = "running"
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        _outcomes[key] = "cancelled"
        raise
    return "never"


@server.tool()
def outcomes(key: str) -> str:
    """Tell what became of a `wait`."""
    return _outcomes.get(key, "unknown")


@server.tool()
def routed(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
    count: Annotated[int, Field(json_schema_extra={"x-mcp-header": "Count"})] = 1,
) -> str:
    """Return the region, which travels as a header too."""
    return f"{region} x {count}"


@server.tool()
def fail(message: str) -> str:
    """Fail with the message."""
    raise ValueError(message)


class Person(BaseModel):
    """What a person is asked for."""

    name: str
    age: int = 0


def ask_person() -> Elicit[Person]:
    """Ask the person."""
    return Elicit("Who are you?", Person)


def ask_model() -> Sample:
    """Ask the client's model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="Name a colour."))
    return Sample([message], max_tokens=50)


@server.tool()
async def introduce(person: Annotated[Person, Resolve(ask_person)]) -> str:
    """Greet who says who they are."""
    return f"Hello {person.name} ({person.age})"


@server.tool()
async def paint(answer: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Paint in the colour that the model names."""
    return f"painted {getattr(answer.content, 'text', '?')}"


@server.resource("test://text/static")
def text() -> str:
    """Return a text."""
    return "a text"


@server.resource("test://text/{name}")
def named(name: str) -> str:
    """Return a text about `name`."""
    return f"about {name}"


@server.prompt()
def review(code: str) -> str:
    """Ask for a review."""
    return f"Please review: {code}"


@server.prompt(name="Grüße 👋")
def greet(name: str) -> str:
    """Greet somebody; the prompt's name is not ASCII."""
    return f"Grüße, {name}!"


_outcomes: dict[str, str] = {}


async def serve_http(app: Any, port: int) -> None:
    """Serve until the process is ended."""
    # Named as TCP, so that asyncio sends what it has at once (TCP_NODELAY).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    print(f"PORT {listener.getsockname()[1]}", flush=True)  # noqa: T201 - what callers wait for
    config = uvicorn.Config(app, log_level="warning")
    await uvicorn.Server(config).serve([listener])


if __name__ == "__main__":
    apps = {"http": server.streamable_http_app, "sse": server.sse_app}
    if make := apps.get("".join(sys.argv[1:2])):
        asyncio.run(serve_http(make(), int([*sys.argv, "0"][2])))
    else:
        server.run("stdio")
