"""Which client capabilities (sampling, elicitation, roots) a server may use.

Allowed capabilities are declared to the server; requests for others are rejected.
"""

from dataclasses import dataclass
from typing import Any

from django.conf import settings

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.client.server_request_kinds import ServerRequestKind
from mcp_servers.models import Server

BOOLEAN_FIELDS = ("elicitation", "roots")
CAPABILITY_FIELDS = ("sampling", "sampling_tokens", *BOOLEAN_FIELDS, "session_state")
MAX_TOKENS = 10**9


@dataclass(frozen=True, kw_only=True)
class ClientCapabilitySettings:
    """Settings of a server's capabilities; None keeps the stored value, 0 tokens: the default."""

    sampling: str | None = None
    sampling_tokens: int | None = None
    elicitation: bool | None = None
    roots: bool | None = None
    session_state: str | None = None


def build_capability_columns(spec: ClientCapabilitySettings) -> dict[str, Any]:
    """Return the columns for a specification (None: keep); raises `InvalidInput`."""
    return clean_capabilities({name: getattr(spec, name) for name in CAPABILITY_FIELDS})


def clean_capabilities(values: dict[str, Any]) -> dict[str, Any]:
    """Return columns for the values that are not None; raises `InvalidInput`."""
    columns = {name: value for name, value in values.items() if value is not None}
    if columns.get("sampling", Server.Sampling.OFF) not in Server.Sampling.values:
        raise InvalidInput(
            format_message("Invalid `sampling`: {sampling!r}.", sampling=columns["sampling"]),
            field="sampling",
            remedy=format_message(
                "Use one of: {values}.", values=", ".join(Server.Sampling.values)
            ),
        )
    if columns.get("session_state", Server.SessionState.AUTO) not in Server.SessionState.values:
        raise InvalidInput(
            format_message("Invalid `session_state`: {value!r}.", value=columns["session_state"]),
            field="session_state",
            remedy=format_message(
                "Use one of: {values}.", values=", ".join(Server.SessionState.values)
            ),
        )
    for name in BOOLEAN_FIELDS:
        if not isinstance(columns.get(name, True), bool):
            raise InvalidInput(
                f"`{name}` is {columns[name]!r}.", field=name, remedy="Use true or false."
            )
    if "sampling_tokens" in columns:
        columns["sampling_tokens"] = _clean_sampling_tokens(columns["sampling_tokens"])
    return columns


def _clean_sampling_tokens(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
        raise InvalidInput(
            format_message("Invalid `sampling_tokens`: {value!r}.", value=value),
            field="sampling_tokens",
            remedy=format_message(
                "Use a whole number up to {most_tokens}, or 0 for the value from settings.",
                most_tokens=MAX_TOKENS,
            ),
        )
    return value or None


def get_custom_settings(server: Server) -> dict[str, Any]:
    """Return the values that differ from the defaults."""
    fields = {
        model_field.name: model_field
        for model_field in Server._meta.fields
        if model_field.name in CAPABILITY_FIELDS
    }
    values = {name: getattr(server, name) for name in CAPABILITY_FIELDS}
    return {name: value for name, value in values.items() if value != fields[name].default}


def get_allowed_requests(server: Server) -> frozenset[ServerRequestKind]:
    """Return the kinds of requests that the server may send."""
    kinds: set[ServerRequestKind] = (
        {"sampling"} if server.sampling != Server.Sampling.OFF else set()
    )
    if server.elicitation:
        kinds.add("elicitation")
    if server.roots:
        kinds.add("roots")
    return frozenset(kinds) if server.speaks_mcp else frozenset()


def get_sampling_tokens(server: Server) -> int:
    """Return how many model tokens per day the server may use by sampling."""
    server_limit: int | None = server.sampling_tokens
    return settings.BONOBOT_SAMPLING_TOKENS if server_limit is None else server_limit
