"""Which client capabilities (sampling, elicitation, roots) a server may use.

Allowed capabilities are declared to the server; requests for others are rejected.
"""

from dataclasses import dataclass
from typing import Any

from django.conf import settings

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from mcp_servers.audit import set_columns
from mcp_servers.client.server_requests import Asked
from mcp_servers.models import Server

SWITCHES = ("elicitation", "roots")
ASKED_BACK = ("sampling", "sampling_tokens", *SWITCHES)
MOST_TOKENS = 10**9


@dataclass(frozen=True, kw_only=True)
class ClientCapabilitySettings:
    """Settings of a server's capabilities; None keeps the stored value, 0 tokens: the default."""

    sampling: str | None = None
    sampling_tokens: int | None = None
    elicitation: bool | None = None
    roots: bool | None = None


def build_capability_columns(spec: ClientCapabilitySettings) -> dict[str, Any]:
    """Return the columns for a specification (None: keep); raises `InvalidInput`."""
    return clean_capabilities({name: getattr(spec, name) for name in ASKED_BACK})


def clean_capabilities(said: dict[str, Any]) -> dict[str, Any]:
    """Return columns for the values that are not None; raises `InvalidInput`."""
    found = {name: value for name, value in said.items() if value is not None}
    if found.get("sampling", Server.Sampling.OFF) not in Server.Sampling.values:
        raise InvalidInput(
            format_message("`sampling` is {sampling!r}.", sampling=found["sampling"]),
            field="sampling",
            remedy=format_message(
                "Use one of: {values}.", values=", ".join(Server.Sampling.values)
            ),
        )
    for name in SWITCHES:
        if not isinstance(found.get(name, True), bool):
            raise InvalidInput(
                f"`{name}` is {found[name]!r}.", field=name, remedy="Use true or false."
            )
    if "sampling_tokens" in found:
        found["sampling_tokens"] = _clean_sampling_tokens(found["sampling_tokens"])
    return found


def _clean_sampling_tokens(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise InvalidInput(
            format_message("`sampling_tokens` is {value!r}.", value=value),
            field="sampling_tokens",
            remedy=format_message(
                "Use a whole number up to {most_tokens}; 0: as many as the setting says.",
                most_tokens=MOST_TOKENS,
            ),
        )
    return value or None


def get_custom_settings(server: Server) -> dict[str, Any]:
    """Return the values that differ from the defaults."""
    fields = {one.name: one for one in Server._meta.fields if one.name in ASKED_BACK}
    found = {name: getattr(server, name) for name in ASKED_BACK}
    return {name: value for name, value in found.items() if value != fields[name].default}


def set_asked_back(principal: Principal, server: Server, **said: Any) -> None:
    """Change a server's capabilities (`CAPABILITY_FIELDS`), effective with the next call."""
    principal.require(Action.MANAGE_SERVERS)
    set_columns(principal, server, "server_asking_changed", clean_capabilities(said))


def may_ask(server: Server) -> frozenset[Asked]:
    """Return the kinds of requests that the server may send."""
    found: set[Asked] = {"sampling"} if server.sampling != Server.Sampling.OFF else set()
    if server.elicitation:
        found.add("elicitation")
    if server.roots:
        found.add("roots")
    return frozenset(found) if server.speaks_mcp else frozenset()


def get_sampling_tokens(server: Server) -> int:
    """Return how many model tokens per day the server may use by sampling."""
    own: int | None = server.sampling_tokens
    return settings.BONOBOT_SAMPLING_TOKENS if own is None else own
