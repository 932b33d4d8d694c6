"""Host protocol: answers to server requests for sampling, elicitation and roots.

Sessions and the gateway implement `Host`; connections call it. A server's catalog may depend on
what its client declares, so every connection and every listing declares the same: what our hosts
can do together (`build_declared_capabilities`). Only a modern request that makes a call declares
what its own host can do; on a live connection (handshake era), the host refuses what it can't
answer. While a server request on a live connection is answered, the deadlines of our requests are
paused.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from bonobot.core.problems import InvalidInput, Problem
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.jsonrpc import TASKS_EXTENSION, McpRequest
from mcp_servers.client.mcp_extensions import build_client_extensions
from mcp_servers.client.server_request_kinds import ServerRequestKind
from mcp_servers.client.task_set import TaskSet

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
# Error code of the specification for a rejection by a person.
REJECTED_CODE = -1
MAX_CONCURRENT_REQUESTS = 16
CANCELLED = "notifications/cancelled"
ELICITATION_COMPLETE = "notifications/elicitation/complete"
MAX_ID_LENGTH = 255

Send = Callable[[dict[str, Any]], Awaitable[None]]
# What our hosts can do together: with sampling, some clients of the gateway run tools.
SUPPORTED_CAPABILITIES: Mapping[ServerRequestKind, Mapping[str, Any]] = {
    "sampling": {"context": {}, "tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {},
}


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
        """Return what this host can answer, as the protocol writes client capabilities.

        Modern calls declare it. Listings and connections declare `build_declared_capabilities`.
        """
        return {}

    def needs_handshake(self, endpoint: ServerEndpoint) -> bool:
        """Return whether this server's requests during a call must reach this host.

        A server that supports both eras can then send them on a live connection, as in the modern
        era it has none.
        """
        return False

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `sampling/createMessage`."""
        raise HostRequestUnsupported("Sampling isn't supported here.")

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Answer `elicitation/create`."""
        raise HostRequestUnsupported("Elicitation isn't supported here.")

    async def complete_elicitation(self, endpoint: ServerEndpoint, elicitation_id: str) -> None:
        """Record that a URL elicitation was completed in the browser."""
        return

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Answer `roots/list`."""
        raise HostRequestUnsupported("Roots aren't supported here.")


class NullHost(Host):
    """The host of calls without a person: refuses everything."""


class DiscoveryHost(Host):
    """The host of discoveries: answers no request except for roots, with an empty list."""

    listens = False

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        """Answer with an empty list."""
        return (
            {"roots": []} if "roots" in endpoint.allowed_requests else await super().roots(endpoint)
        )


def build_declared_capabilities(endpoint: ServerEndpoint) -> dict[str, Any]:
    """Return what our hosts can do together and this server may request, for any caller."""
    declared = {
        str(name): dict(value)
        for name, value in SUPPORTED_CAPABILITIES.items()
        if name in endpoint.allowed_requests
    }
    return declared | {"extensions": {TASKS_EXTENSION: {}, **build_client_extensions()}}


def declares_tasks(endpoint: ServerEndpoint) -> bool:
    """Return whether a server's stored discovery declares the tasks extension."""
    capabilities = (endpoint.discovery or {}).get("capabilities")
    extensions = capabilities.get("extensions") if isinstance(capabilities, Mapping) else None
    return isinstance(extensions, Mapping) and TASKS_EXTENSION in extensions


def select_request_capabilities(
    endpoint: ServerEndpoint, request: McpRequest, host: Host
) -> Mapping[str, Any]:
    """Return the capabilities that a modern request declares."""
    if request.idempotent:  # lists, for example
        return build_declared_capabilities(endpoint)
    return host.capabilities(endpoint)


def can_answer(capabilities: Mapping[str, Any], kind: str, params: Mapping[str, Any]) -> bool:
    """Return whether a client with these capabilities can answer a server request."""
    declared = capabilities.get(kind)
    if not isinstance(declared, Mapping):
        return False
    if kind == "elicitation":
        # Clients that declare no mode support forms.
        return (
            ("url" in declared)
            if params.get("mode") == "url"
            else ("form" in declared or "url" not in declared)
        )
    return kind != "sampling" or "tools" in declared or not params.get("tools")


class ServerRequestHandler:
    """Answers the requests of one server in background tasks, a few at a time.

    A server request on the stream of one of our requests is answered by that request's host. One on
    a shared stream names no request: the host of the longest waiting request answers.
    """

    def __init__(self, endpoint: ServerEndpoint, host: Host, tasks: TaskSet, send: Send) -> None:
        self._endpoint = endpoint
        self._host = host
        self._tasks = tasks
        self._send = send
        self._running: dict[Any, asyncio.Task[None]] = {}
        self._waiting_requests: list[McpRequest] = []

    def set_host(self, host: Host) -> None:
        """Set the host that answers requests that don't belong to a request to the server."""
        self._host = host

    @contextmanager
    def track_request(self, request: McpRequest) -> Iterator[None]:
        """Pause the request's deadline while the server waits for a response from us."""
        self._waiting_requests.append(request)
        try:
            yield
        finally:
            self._waiting_requests.remove(request)

    def list_waiting_requests(self) -> tuple[McpRequest, ...]:
        """Return the pending requests, the longest waiting first."""
        return tuple(self._waiting_requests)

    def handle_request(self, message: Mapping[str, Any], origin: McpRequest | None = None) -> None:
        """Answer a server request in the background; ignore it if too many are running.

        `origin` is the request to the server on whose stream it was received.
        """
        request_id = message["id"]
        if not isinstance(request_id, str | int) or request_id in self._running:
            return
        if len(self._running) < MAX_CONCURRENT_REQUESTS:
            reply = self._reply(message, origin)
            task = self._tasks.spawn(reply, name=f"answer {self._endpoint.name}")
            self._running[request_id] = task
            task.add_done_callback(lambda _: self._running.pop(request_id))

    def handle_notification(self, message: Mapping[str, Any]) -> bool:
        """Handle a notification about a server request; return whether it is one."""
        method, params = message.get("method"), message.get("params")
        fields = params if isinstance(params, dict) else {}
        if method == CANCELLED:
            request_id = fields.get("requestId")
            task = self._running.get(request_id) if isinstance(request_id, str | int) else None
            if task is not None:
                task.cancel()
            return True
        if method != ELICITATION_COMPLETE:
            return False
        elicitation_id = fields.get("elicitationId")
        if (
            isinstance(elicitation_id, str)
            and elicitation_id
            and len(elicitation_id) <= MAX_ID_LENGTH
        ):
            work = self._host.complete_elicitation(self._endpoint, elicitation_id)
            self._tasks.spawn(work, name=f"elicited {self._endpoint.name}")
        return True

    async def _reply(self, message: Mapping[str, Any], origin: McpRequest | None) -> None:
        matching = [request for request in self._waiting_requests if request is origin]
        requests = matching or list(self._waiting_requests)
        with ExitStack() as pauses:
            for request in requests:
                if request.deadline is not None:
                    pauses.enter_context(request.deadline.pause())
            await self._send(
                await answer_server_request(self._choose_host(requests), self._endpoint, message)
            )

    def _choose_host(self, requests: list[McpRequest]) -> Host:
        """Return the host that answers; idempotent requests, such as lists, never provide it."""
        hosts = (
            request.host
            for request in requests
            if request.host is not None and not request.idempotent
        )
        return next(hosts, self._host)


async def answer_server_request(
    host: Host, endpoint: ServerEndpoint, message: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the JSON-RPC response to a server request."""
    params = message.get("params")
    request_params: Mapping[str, Any] = params if isinstance(params, dict) else {}
    handlers: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "ping": _answer_ping,
        "sampling/createMessage": lambda: host.sampling(endpoint, request_params),
        "elicitation/create": lambda: host.elicitation(endpoint, request_params),
        "roots/list": lambda: host.roots(endpoint),
    }
    handler = handlers.get(str(message["method"]))
    response = {"jsonrpc": "2.0", "id": message["id"]}
    if handler is None:
        return response | {"error": {"code": METHOD_NOT_FOUND, "message": "Method not found"}}
    try:
        return response | {"result": await handler()}
    except Problem as problem:
        error = {
            "code": _get_error_code(problem),
            "message": str(problem),
            "data": {"code": problem.code},
        }
        return response | {"error": error}


def _get_error_code(problem: Problem) -> int:
    """Return the JSON-RPC code of a problem."""
    if isinstance(problem, HostRequestUnsupported):
        return METHOD_NOT_FOUND
    if isinstance(problem, InvalidInput):
        return INVALID_PARAMS
    return REJECTED_CODE if isinstance(problem, HostRequestRejected) else INTERNAL_ERROR


async def _answer_ping() -> dict[str, Any]:
    return {}
