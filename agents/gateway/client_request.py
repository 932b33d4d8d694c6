"""A client's MCP request, in either era."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.types import INVALID_PARAMS
from pydantic import BaseModel, ConfigDict, RootModel

from agents.gateway.authentication import AuthenticatedClient
from mcp_servers.client.jsonrpc import CAPABILITIES_KEY, CLIENT_KEY, LOG_MESSAGE, RESERVED

LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
LONGEST_CLIENT = 120


class _RawMessage(BaseModel):
    """A message as sent, including unknown fields."""

    model_config = ConfigDict(extra="forbid")

    method: str
    params: dict[str, Any]


class _RawResult(RootModel[dict[str, Any]]):
    """A result as received."""


Context = ServerRequestContext[Any, Any]


@dataclass(slots=True)
class GatewayRequest:
    """A request with its authenticated caller and its client's capabilities.

    `holder` is the key that owns the request's server connections; `log_level` is the minimum level
    of servers' log messages to forward, blank for none.
    """

    visitor: AuthenticatedClient
    context: Context
    modern: bool
    holder: str
    level: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""

    @property
    def method(self) -> str:
        """The method's name."""
        return self.context.method

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`."""
        found = self.params.get("_meta")
        return found if isinstance(found, Mapping) else {}

    @property
    def own_meta(self) -> dict[str, Any]:
        """The part of `_meta` to forward: without this hop's fields and the progress token.

        The client's token is masked.
        """
        hop = (*RESERVED, LOG_LEVEL_KEY, "progressToken")
        found = {key: value for key, value in self.meta.items() if key not in hop}
        found = self.visitor.without_token(found) if found else found
        if self.level:
            found[LOG_LEVEL_KEY] = self.level
        return found

    @property
    def wants_progress(self) -> bool:
        """Whether the client requested progress notifications."""
        return "progressToken" in self.meta

    def text(self, name: str) -> str:
        """Return a parameter that must be a string; raises `MCPError` (-32602)."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise build_invalid_params_error(f"`{name}` must be a text")
        return value

    def members(self, name: str) -> dict[str, Any]:
        """Return an optional parameter that must be an object; raises `MCPError`."""
        value = self.params.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise build_invalid_params_error(f"`{name}` must be an object")
        return value

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Send a progress notification."""
        await self.context.session.report_progress(progress, total, message)

    async def log(self, params: Mapping[str, Any]) -> None:
        """Forward a server's log message if its level is high enough."""
        level = params.get("level")
        if self.level and level in LEVELS and LEVELS.index(level) >= LEVELS.index(self.level):
            await self.tell(LOG_MESSAGE, params)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification related to this request."""
        message = build_notification(method, params)
        await self.context.session.send_notification(message, self.context.request_id)

    async def ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to the client and return its result (handshake era); raises `MCPError`."""
        message = _RawMessage(method=method, params=dict(params))
        metadata = ServerMessageMetadata(related_request_id=self.context.request_id)
        found = await self.context.session.send_request(message, _RawResult, metadata=metadata)  # type: ignore[arg-type]
        return found.root


def build_notification(method: str, params: Mapping[str, Any]) -> Any:
    """Return a notification for the SDK, with arbitrary parameters."""
    return _RawMessage(method=method, params=dict(params))


def build_invalid_params_error(why: str, data: Any = None) -> MCPError:
    """Return the error for invalid parameters."""
    return MCPError(code=INVALID_PARAMS, message=f"Invalid params: {why}", data=data)


def read_capabilities(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capabilities that a modern request declares."""
    found = meta.get(CAPABILITIES_KEY)
    return found if isinstance(found, dict) else {}


def read_client_name(meta: Mapping[str, Any]) -> str:
    """Return the name and version of the client of a modern request."""
    return format_client_name(meta.get(CLIENT_KEY))


def format_client_name(info: Any) -> str:
    """Return a client's name and version, for the audit log."""
    told = info if isinstance(info, Mapping) else {}
    parts = (told.get("name"), told.get("version"))
    return " ".join(one for one in parts if isinstance(one, str))[:LONGEST_CLIENT]


def read_log_level(meta: Mapping[str, Any]) -> str:
    """Return the log level of a modern request, blank for none."""
    found = meta.get(LOG_LEVEL_KEY)
    return found if found in LEVELS else ""
