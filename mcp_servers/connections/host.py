"""The host: who answers when a server asks something back (sampling, elicitation, roots).

Sessions and the gateway implement `Host`; connections call it and never look above themselves.
What a host can do is declared to the server, so a well-behaved one asks for nothing else.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from bonobot.lib.problems import Problem
from mcp_servers.connections.crew import Crew
from mcp_servers.connections.endpoint import Endpoint

METHOD_NOT_FOUND = -32601
INTERNAL_ERROR = -32603
AT_A_TIME = 16

Send = Callable[[dict[str, Any]], Awaitable[None]]


class NotSupported(Problem):
    """The host does not do what the server asks for."""

    code = "not_supported"
    title = "Not supported"


class Host(Protocol):
    """Answers servers; each method returns the raw result or raises a `Problem`."""

    def capabilities(self) -> Mapping[str, Any]:
        """Return the client capabilities to declare, as the protocol writes them."""
        return {}

    async def sampling(self, endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `sampling/createMessage`."""
        raise NotSupported("Sampling is not supported here.")

    async def elicitation(self, endpoint: Endpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `elicitation/create`."""
        raise NotSupported("Elicitation is not supported here.")

    async def roots(self, endpoint: Endpoint) -> dict[str, Any]:
        """Answer `roots/list`."""
        raise NotSupported("Roots are not supported here.")


class NoHost(Host):
    """The host of calls behind which nobody waits: politely refuses everything."""


class Desk:
    """Answers what one server asks, beside whoever reads from it and a few at a time."""

    def __init__(self, endpoint: Endpoint, host: Host, crew: Crew, send: Send) -> None:
        self._endpoint = endpoint
        self._host = host
        self._crew = crew
        self._send = send
        self._open = 0

    def take(self, message: Mapping[str, Any]) -> None:
        """Answer a request in the background; a server that asks too much gets no answer."""
        if self._open < AT_A_TIME:
            self._open += 1
            self._crew.spawn(self._reply(message), name=f"answer {self._endpoint.name}")

    async def _reply(self, message: Mapping[str, Any]) -> None:
        try:
            await self._send(await answer(self._host, self._endpoint, message))
        finally:
            self._open -= 1


async def answer(host: Host, endpoint: Endpoint, message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON-RPC answer to a request that a server made."""
    params = message.get("params")
    asked: Mapping[str, Any] = params if isinstance(params, dict) else {}
    handlers: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "ping": _pong,
        "sampling/createMessage": lambda: host.sampling(endpoint, asked),
        "elicitation/create": lambda: host.elicitation(endpoint, asked),
        "roots/list": lambda: host.roots(endpoint),
    }
    handler = handlers.get(str(message["method"]))
    head = {"jsonrpc": "2.0", "id": message["id"]}
    if handler is None:
        return head | {"error": {"code": METHOD_NOT_FOUND, "message": "Method not found"}}
    try:
        return head | {"result": await handler()}
    except NotSupported as refusal:
        return head | {"error": {"code": METHOD_NOT_FOUND, "message": str(refusal)}}
    except Problem as problem:
        return head | {"error": {"code": INTERNAL_ERROR, "message": str(problem)}}


async def _pong() -> dict[str, Any]:
    return {}
