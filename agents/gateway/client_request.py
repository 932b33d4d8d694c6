"""A client's MCP request, in either era."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp.types import INVALID_PARAMS
from pydantic import BaseModel, ConfigDict, RootModel

from agents.calls.types import RelayOptions
from agents.gateway.authentication import AuthenticatedClient
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.jsonrpc import CAPABILITIES_KEY, CLIENT_KEY, LOG_MESSAGE, RESERVED_META_KEYS
from mcp_servers.client.server_request_kinds import KINDS_BY_METHOD

VIA = "gateway"
LOG_LEVEL_KEY = "io.modelcontextprotocol/logLevel"
LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
MAX_CLIENT_NAME_LENGTH = 120
MAX_KEPT_META_LENGTH = 4_096
Context = ServerRequestContext[Any, Any]


class _RawMessage(BaseModel):
    """A message as sent, including unknown fields."""

    model_config = ConfigDict(extra="forbid")

    method: str
    params: dict[str, Any]


class _RawResult(RootModel[dict[str, Any]]):
    """A result as received."""


@dataclass(slots=True)
class GatewayRequest:
    """A request with its authenticated caller and its client's capabilities.

    `holder` is the key that owns the request's server connections, `shared_holder` that of children
    that the principal's handshake sessions share, `subscriber` the key of the
    client that gets servers' log messages; `log_level` is their minimum level, blank for none.
    """

    caller: AuthenticatedClient
    method: str
    is_modern: bool
    holder: str
    shared_holder: str = ""
    subscriber: str = ""
    log_level: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    client_name: str = ""
    # None for a request that was answered without the SDK (`direct_requests`).
    sdk_context: Context | None = None
    # Its JSON-RPC id then.
    request_id: int | str | None = None
    # Of a modern request.
    profile: "ClientProfile | None" = None

    def choose_holder(self, endpoint: ServerEndpoint) -> str:
        """Return the key that owns the connection of a call to a server."""
        return choose_holder(endpoint, self.holder, self.shared_holder)

    @property
    def context(self) -> Context:
        """The SDK's context, over which the client is notified; raises `RuntimeError` without."""
        if self.sdk_context is None:
            raise RuntimeError(f"{self.method} is answered without the SDK")
        return self.sdk_context

    @property
    def meta(self) -> Mapping[str, Any]:
        """The request's `_meta`."""
        value = self.params.get("_meta")
        return value if isinstance(value, dict) else {}

    @property
    def forwarded_meta(self) -> dict[str, Any]:
        """The part of `_meta` to forward: without this hop's fields and the progress token.

        The client's token is masked.
        """
        if self.profile is not None:
            return self.profile.forwarded_meta
        return build_forwarded_meta(self.caller, self.meta, self.log_level)

    @property
    def wants_progress(self) -> bool:
        """Whether the client requested progress notifications."""
        return "progressToken" in self.meta

    def get_text(self, name: str) -> str:
        """Return a parameter that must be a string; raises `MCPError` (-32602)."""
        value = self.params.get(name)
        if not isinstance(value, str):
            raise build_invalid_params_error(f"`{name}` must be a string")
        return value

    def get_object(self, name: str) -> dict[str, Any]:
        """Return an optional parameter that must be an object; raises `MCPError`."""
        value = self.params.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise build_invalid_params_error(f"`{name}` must be an object")
        return value

    async def report_progress(
        self, progress: float, total: float | None, message: str | None
    ) -> None:
        """Send a progress notification, if the client requested them."""
        if self.wants_progress:
            await self.context.session.report_progress(progress, total, message)

    async def forward_log(self, params: Mapping[str, Any]) -> None:
        """Forward a server's log message if its level is high enough."""
        if is_loud_enough(params.get("level"), self.log_level):
            await self.send_notification(LOG_MESSAGE, params)

    async def send_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification related to this request."""
        message = build_notification(method, params)
        await self.context.session.send_notification(message, self.context.request_id)

    async def send_request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to the client and return its result (handshake era); raises `MCPError`."""
        message = _RawMessage(method=method, params=dict(params))
        metadata = ServerMessageMetadata(related_request_id=self.context.request_id)
        result = await self.context.session.send_request(message, _RawResult, metadata=metadata)  # type: ignore[arg-type]
        return result.root


@dataclass(frozen=True, slots=True)
class ClientProfile:
    """What follows from the `_meta` of a modern request; most requests of a client have the same.

    `text` identifies the `_meta`: Python's representation also tells `1` from `true`.
    """

    text: str
    holder: str
    capabilities: Mapping[str, Any]
    client_name: str
    log_level: str
    forwarded_meta: dict[str, Any]
    # Of a call that isn't continued, and without log messages.
    relay: RelayOptions


def get_client_profile(caller: AuthenticatedClient, meta: Mapping[str, Any]) -> ClientProfile:
    """Return the profile of a modern request; the latest one is kept with its client."""
    text = repr(meta)
    profile: ClientProfile | None = caller.memo.get("profile")
    if profile is None or profile.text != text:
        capabilities, log_level = read_capabilities(meta), read_log_level(meta)
        holder = build_holder(caller, capabilities)
        forwarded_meta = build_forwarded_meta(caller, meta, log_level)
        profile = ClientProfile(
            text,
            holder=holder,
            capabilities=capabilities,
            client_name=read_client_name(meta),
            log_level=log_level,
            forwarded_meta=forwarded_meta,
            relay=RelayOptions(
                meta=forwarded_meta,
                allowed_requests=list_supported_requests(capabilities),
                log_subscriber=holder,
            ),
        )
        if len(text) <= MAX_KEPT_META_LENGTH:
            caller.memo["profile"] = profile
    return profile


def build_forwarded_meta(
    caller: AuthenticatedClient, meta: Mapping[str, Any], log_level: str
) -> dict[str, Any]:
    """Return the part of `_meta` to forward, with the client's token masked."""
    dropped_keys = (*RESERVED_META_KEYS, LOG_LEVEL_KEY, "progressToken")
    forwarded = {key: value for key, value in meta.items() if key not in dropped_keys}
    forwarded = caller.mask_token(forwarded) if forwarded else forwarded
    if log_level:
        forwarded[LOG_LEVEL_KEY] = log_level
    return forwarded


def list_supported_requests(capabilities: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds of requests that a client with these capabilities supports."""
    return frozenset(name for name in KINDS_BY_METHOD.values() if name in capabilities)


def build_holder(caller: AuthenticatedClient, capabilities: Mapping[str, Any]) -> str:
    """Return the key that owns a modern client's connections: its caller and its capabilities.

    A server's request on a shared connection then concerns only calls that can answer the same.
    """
    return f"gateway:{caller.key}:{compute_digest(to_canonical_json(capabilities))[:16]}"


def choose_holder(endpoint: ServerEndpoint, holder: str, shared_holder: str) -> str:
    """Return `shared_holder`, unless it is blank or the server's children can't be shared."""
    is_shared = endpoint.transport == "stdio" and not endpoint.keeps_session_state
    return shared_holder if is_shared and shared_holder else holder


def is_loud_enough(level: Any, minimum: str) -> bool:
    """Tell whether a message's level is at least the minimum; blank for no messages."""
    is_known = bool(minimum) and level in LOG_LEVELS
    return is_known and LOG_LEVELS.index(level) >= LOG_LEVELS.index(minimum)


def build_notification(method: str, params: Mapping[str, Any]) -> Any:
    """Return a notification for the SDK, with arbitrary parameters."""
    return _RawMessage(method=method, params=dict(params))


def build_invalid_params_error(reason: str, data: Any = None) -> MCPError:
    """Return the error for invalid parameters."""
    return MCPError(code=INVALID_PARAMS, message=f"Invalid params: {reason}", data=data)


def read_capabilities(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capabilities that a modern request declares."""
    capabilities = meta.get(CAPABILITIES_KEY)
    return capabilities if isinstance(capabilities, dict) else {}


def read_client_name(meta: Mapping[str, Any]) -> str:
    """Return the name and version of the client of a modern request."""
    return format_client_name(meta.get(CLIENT_KEY))


def format_client_name(info: Any) -> str:
    """Return a client's name and version, for the audit log."""
    fields = info if isinstance(info, Mapping) else {}
    parts = (fields.get("name"), fields.get("version"))
    return " ".join(part for part in parts if isinstance(part, str))[:MAX_CLIENT_NAME_LENGTH]


def read_log_level(meta: Mapping[str, Any]) -> str:
    """Return the log level of a modern request, blank for none."""
    level = meta.get(LOG_LEVEL_KEY)
    return level if level in LOG_LEVELS else ""
