"""Calls of tools, their results, and requests to the client."""

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


class InputRequired(Exception):
    """Ends a round: the client sends its responses with the next one."""

    def __init__(self, requests: Mapping[str, Json], state: str) -> None:
        super().__init__(", ".join(requests))
        self.requests = requests
        self.state = state

    def result(self) -> Json:
        """Return the result of the round."""
        input_result: Json = {"resultType": "input_required", "inputRequests": dict(self.requests)}
        return input_result | ({"requestState": self.state} if self.state else {})


@dataclass(frozen=True)
class Call:
    """One tool call or prompt request."""

    context: Context
    arguments: Mapping[str, Any]
    responses: Mapping[str, Any] = field(default_factory=dict)
    state: str = ""

    @classmethod
    def of(cls, context: Context, params: types.InputResponseRequestParams) -> "Call":
        """Build a call from a request."""
        dumped = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        return cls(
            context,
            dumped.get("arguments", {}),
            dumped.get("inputResponses", {}),
            dumped.get("requestState", ""),
        )

    @property
    def modern(self) -> bool:
        return self.context.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def capabilities(self) -> Json:
        """Return the client's capabilities; in the modern era, those of this request."""
        declared = self.context.session.client_capabilities
        return declared.model_dump(by_alias=True, exclude_none=True) if declared else {}

    @property
    def takes_tasks(self) -> bool:
        return self.modern and TASKS in self.capabilities.get("extensions", {})

    def require(self, *path: str) -> None:
        """Refuse a caller that hasn't declared a capability."""
        declared: Any = self.capabilities
        for name in path:
            if name not in declared:
                raise MCPError(
                    types.MISSING_REQUIRED_CLIENT_CAPABILITY,
                    f"`{'.'.join(path)}` is needed",
                    {"requiredCapabilities": _nested(path)},
                )
            declared = declared[name]

    async def ask(self, state: str = "", /, **requests: Json) -> Mapping[str, Any]:
        """Return the client's responses; in the modern era the state comes back with them."""
        if self.modern:
            if all(name in self.responses for name in requests):
                return self.responses
            raise InputRequired(requests, state)
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
        """Log at level `info`."""
        await self.context.session.send_log_message(
            "info", message, related_request_id=self.context.request_id
        )


def _nested(path: tuple[str, ...]) -> Json:
    nested: Json = {}
    for name in reversed(path):
        nested = {name: nested}
    return nested


def text(value: str) -> Json:
    """Return a result with a text."""
    return {"content": [{"type": "text", "text": value}]}


def build_tool_error(value: str) -> Json:
    """Return a tool error."""
    return {**text(value), "isError": True}


def form(message: str, **fields: Json) -> Json:
    """Return an elicitation request whose fields are all required."""
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling(prompt: str, tokens: int = 100) -> Json:
    """Return a sampling request."""
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {
        "method": "sampling/createMessage",
        "params": {"messages": [message], "maxTokens": tokens},
    }


STRING: Json = {"type": "string"}
BOOLEAN: Json = {"type": "boolean"}
ROOTS: Json = {"method": "roots/list", "params": {}}
NAME = form("What is your name?", name=STRING)

Run = Callable[[Call], Awaitable[Json]]


@dataclass(frozen=True)
class Tool:
    """A tool and its declaration."""

    name: str
    description: str
    schema: Json
    run: Run
    more: Json

    def to_declaration(self) -> types.Tool:
        """Return the tool as it is listed."""
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
    """Register a function as a tool; its docstring is the description."""

    def register(run: Run) -> Run:
        name = run.__name__
        TOOLS[name] = Tool(name, run.__doc__ or "", schema or build_input_schema(), run, more)
        return run

    return register


def build_input_schema(*optional: str, **required: Json) -> Json:
    """Return an input schema; the optional arguments are strings."""
    properties = {**required, **dict.fromkeys(optional, STRING)}
    schema: Json = {"type": "object", "properties": properties}
    return schema | ({"required": list(required)} if required else {})
