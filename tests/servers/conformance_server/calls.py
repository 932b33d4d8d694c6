"""What a tool of the server is given, what it may answer, and how it asks the caller back."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Json = dict[str, Any]
Context = ServerRequestContext[Any, Any]

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQIAAACAgA=="
TASKS = "io.modelcontextprotocol/tasks"
ANSWERS: Mapping[str, type[types.Result]] = {
    "elicitation/create": types.ElicitResult,
    "sampling/createMessage": types.CreateMessageResult,
    "roots/list": types.ListRootsResult,
}
REQUESTS: Mapping[str, Any] = {
    "elicitation/create": types.ElicitRequest,
    "sampling/createMessage": types.CreateMessageRequest,
    "roots/list": types.ListRootsRequest,
}


class Wanted(Exception):
    """Ends a round: the caller is to send its answers with the next one."""

    def __init__(self, requests: Mapping[str, Json], state: str) -> None:
        super().__init__(", ".join(requests))
        self.requests = requests
        self.state = state

    def result(self) -> Json:
        """Return the result of the round."""
        found: Json = {"resultType": "input_required", "inputRequests": dict(self.requests)}
        return found | ({"requestState": self.state} if self.state else {})


@dataclass(frozen=True)
class Call:
    """One call of a tool, or one reading of a prompt."""

    context: Context
    arguments: Mapping[str, Any]
    responses: Mapping[str, Any] = field(default_factory=dict)
    state: str = ""

    @classmethod
    def of(cls, context: Context, params: types.InputResponseRequestParams) -> "Call":
        """Return what a request holds."""
        sent = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        return cls(
            context,
            sent.get("arguments", {}),
            sent.get("inputResponses", {}),
            sent.get("requestState", ""),
        )

    @property
    def modern(self) -> bool:
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> Json:
        """What the caller declared, of this request in the modern era."""
        declared = self.context.session.client_capabilities
        return declared.model_dump(by_alias=True, exclude_none=True) if declared else {}

    @property
    def takes_tasks(self) -> bool:
        return self.modern and TASKS in self.capabilities.get("extensions", {})

    def require(self, *path: str) -> None:
        """Refuse a caller that hasn't declared a capability."""
        found: Any = self.capabilities
        for name in path:
            if name not in found:
                raise MCPError(
                    types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                    f"`{'.'.join(path)}` is needed",
                    {"requiredCapabilities": _nested(path)},
                )
            found = found[name]

    async def ask(self, state: str = "", /, **requests: Json) -> Mapping[str, Any]:
        """Return the caller's answers; the state comes back with them in the modern era."""
        if self.modern:
            if all(name in self.responses for name in requests):
                return self.responses
            raise Wanted(requests, state)
        return {name: await self._send(request) for name, request in requests.items()}

    async def _send(self, request: Json) -> Json:
        method = request["method"]
        answer = await self.context.session.send_request(
            REQUESTS[method].model_validate(request),
            ANSWERS[method],
            metadata=ServerMessageMetadata(related_request_id=self.context.request_id),
        )
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def log(self, message: str) -> None:
        """Log at the level of information, to who wants that."""
        await self.context.session.send_log_message(
            "info", message, related_request_id=self.context.request_id
        )


def _nested(path: tuple[str, ...]) -> Json:
    found: Json = {}
    for name in reversed(path):
        found = {name: found}
    return found


def text(value: str) -> Json:
    """Return a result that is a text."""
    return {"content": [{"type": "text", "text": value}]}


def failed(value: str) -> Json:
    """Return a failure of a tool."""
    return {**text(value), "isError": True}


def form(message: str, **fields: Json) -> Json:
    """Return a question to a person whose fields are all required."""
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling(prompt: str, tokens: int = 100) -> Json:
    """Return a question to the caller's model."""
    said = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {
        "method": "sampling/createMessage",
        "params": {"messages": [said], "maxTokens": tokens},
    }


STRING: Json = {"type": "string"}
BOOLEAN: Json = {"type": "boolean"}
ROOTS: Json = {"method": "roots/list", "params": {}}
NAME = form("What is your name?", name=STRING)

Run = Callable[[Call], Awaitable[Json]]


@dataclass(frozen=True)
class Tool:
    """A tool and what is said of it."""

    name: str
    description: str
    schema: Json
    run: Run
    more: Json

    def listed(self) -> types.Tool:
        """Return the tool as lists show it."""
        return types.Tool.model_validate(
            {
                "name": self.name,
                "description": self.description,
                "inputSchema": self.schema,
                **self.more,
            }
        )


TOOLS: dict[str, Tool] = {}


def tool(schema: Json | None = None, **more: Any) -> Callable[[Run], Run]:
    """Offer a function under its own name; its docstring describes it."""

    def offer(run: Run) -> Run:
        name = run.__name__
        TOOLS[name] = Tool(name, run.__doc__ or "", schema or takes(), run, more)
        return run

    return offer


def takes(*optional: str, **required: Json) -> Json:
    """Return the schema of arguments; the optional ones are texts."""
    properties = {**required, **dict.fromkeys(optional, STRING)}
    schema: Json = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})
