"""Host protocol: answers to server requests for sampling, elicitation and roots.

Sessions and the gateway implement `Host`; connections call it. The host's capabilities are declared
to the server, so a well-behaved server requests nothing else. While a server request on a live
connection (handshake era) is answered, the deadlines of our requests are paused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from bonobot.core.problems import InvalidInput, Problem
from mcp_servers.client.background_tasks import TaskSet
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.jsonrpc import TASKS_EXTENSION, McpRequest
from mcp_servers.client.server_requests import Asked

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
# Error code of the specification for a rejection by a person.
REJECTED = -1
AT_A_TIME = 16
CANCELLED = "notifications/cancelled"
ELICITED = "notifications/elicitation/complete"
LONGEST_ID = 255

Send = Callable[[dict[str, Any]], Awaitable[None]]


class HostRequestUnsupported(Problem):
    """The host does not support what the server requests."""

    code = "not_supported"
    title = "Not supported"


class HostRequestRejected(Problem):
    """A person, a rule or a budget rejected a server request; the code says which."""

    code = "rejected"
    status = 403
    title = "Rejected"


class Host(Protocol):
    """Answers server requests; each method returns the raw result or raises a `Problem`.

    `listens`: keep a stream open, so that servers can send requests outside of our requests.
    """

    listens: bool = True

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        """Return the client capabilities to declare to this server, as the protocol writes them."""
        return {}

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `sampling/createMessage`."""
        raise HostRequestUnsupported("Sampling is not supported here.")

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Answer `elicitation/create`."""
        raise HostRequestUnsupported("Elicitation is not supported here.")

    async def elicited(self, endpoint: ServerEndpoint, elicitation_id: str) -> None:
        """Record that a URL elicitation was completed in the browser."""
        return

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Answer `roots/list`."""
        raise HostRequestUnsupported("Roots are not supported here.")


class NullHost(Host):
    """The host of calls without a person: refuses everything."""


class DiscoveryHost(Host):
    """The host of discoveries: declares what sessions declare, as servers adapt to it.

    It answers no request except for roots, with an empty list.
    """

    listens = False

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        """Return the capabilities that sessions declare to this server."""
        return build_declared_capabilities(endpoint)

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Answer with an empty list."""
        return {"roots": []} if "roots" in endpoint.may_ask else await super().roots(endpoint)


def build_declared_capabilities(endpoint: ServerEndpoint) -> dict[str, Any]:
    """Return the capabilities of a host that answers everything this server may request."""
    offered: dict[Asked, dict[str, Any]] = {
        "sampling": {},
        "elicitation": {"form": {}, "url": {}},
        "roots": {},
    }
    chosen = {str(name): how for name, how in offered.items() if name in endpoint.may_ask}
    return chosen | {"extensions": {TASKS_EXTENSION: {}}}


class ServerRequestHandler:
    """Answers the requests of one server in background tasks, a few at a time.

    A server request on the stream of one of our requests is answered by that request's host. One on
    a shared stream names no request: the host of the longest waiting request answers.
    """

    def __init__(self, endpoint: ServerEndpoint, host: Host, crew: TaskSet, send: Send) -> None:
        self._endpoint = endpoint
        self._host = host
        self._crew = crew
        self._send = send
        self._open: dict[Any, asyncio.Task[None]] = {}
        self._waiting: list[McpRequest] = []

    @contextmanager
    def waiting(self, request: McpRequest) -> Iterator[None]:
        """Pause the request's deadline while the server waits for a response from us."""
        self._waiting.append(request)
        try:
            yield
        finally:
            self._waiting.remove(request)

    def take(self, message: Mapping[str, Any], about: McpRequest | None = None) -> None:
        """Answer a server request in the background; ignore it if too many are running.

        `origin` is the request of ours on whose stream it came.
        """
        number = message["id"]
        if not isinstance(number, str | int) or number in self._open:
            return
        if len(self._open) < AT_A_TIME:
            replying = self._reply(message, about)
            work = self._crew.spawn(replying, name=f"answer {self._endpoint.name}")
            self._open[number] = work
            work.add_done_callback(lambda _: self._open.pop(number))

    def hears(self, message: Mapping[str, Any]) -> bool:
        """Handle a notification about a server request; return whether it is one."""
        method, params = message.get("method"), message.get("params")
        said = params if isinstance(params, dict) else {}
        if method == CANCELLED:
            number = said.get("requestId")
            asked = self._open.get(number) if isinstance(number, str | int) else None
            if asked is not None:
                asked.cancel()
            return True
        if method != ELICITED:
            return False
        done = said.get("elicitationId")
        if isinstance(done, str) and done and len(done) <= LONGEST_ID:
            work = self._host.elicited(self._endpoint, done)
            self._crew.spawn(work, name=f"elicited {self._endpoint.name}")
        return True

    async def _reply(self, message: Mapping[str, Any], about: McpRequest | None) -> None:
        own = [request for request in self._waiting if request is about]
        asking = own or list(self._waiting)
        with ExitStack() as held:
            for request in asking:
                if request.deadline is not None:
                    held.enter_context(request.deadline.held())
            await self._send(await answer(self._host_of(asking), self._endpoint, message))

    def _host_of(self, asking: list[McpRequest]) -> Host:
        """Return the host that answers; idempotent requests, such as lists, never provide it."""
        hosts = (one.host for one in asking if one.host is not None and not one.repeatable)
        return next(hosts, self._host)


async def answer(
    host: Host, endpoint: ServerEndpoint, message: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON-RPC response to a server request."""
    params = message.get("params")
    asked: Mapping[str, Any] = params if isinstance(params, dict) else {}
    handlers: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "ping": _answer_ping,
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
    except Problem as problem:
        said = {
            "code": _get_error_code(problem),
            "message": str(problem),
            "data": {"code": problem.code},
        }
        return head | {"error": said}


def _get_error_code(problem: Problem) -> int:
    """Return the JSON-RPC code of a problem."""
    if isinstance(problem, HostRequestUnsupported):
        return METHOD_NOT_FOUND
    if isinstance(problem, InvalidInput):
        return INVALID_PARAMS
    return REJECTED if isinstance(problem, HostRequestRejected) else INTERNAL_ERROR


async def _answer_ping() -> dict[str, Any]:
    return {}
