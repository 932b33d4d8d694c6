"""What a server may ask back of whoever calls it: the model, a person, the working folders.

What may be asked is declared to the server, and what isn't declared is refused (FEATURES D1, D5).
"""

from dataclasses import dataclass
from typing import Any

from django.conf import settings

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.connections.asked import Asked
from mcp_servers.models import Server
from mcp_servers.recording import set_columns

SWITCHES = ("elicitation", "roots")
ASKED_BACK = ("sampling", "sampling_tokens", *SWITCHES)
MOST_TOKENS = 10**9


@dataclass(frozen=True, kw_only=True)
class AskedBack:
    """What a person says of it; None keeps what is stored, 0 tokens: as the setting says."""

    sampling: str | None = None
    sampling_tokens: int | None = None
    elicitation: bool | None = None
    roots: bool | None = None


def asked_back(spec: AskedBack) -> dict[str, Any]:
    """Return the columns of what a specification says of it (None: keep); raises `Invalid`."""
    return checked({name: getattr(spec, name) for name in ASKED_BACK})


def checked(said: dict[str, Any]) -> dict[str, Any]:
    """Return columns for what was said (None: not said); raises `Invalid`."""
    found = {name: value for name, value in said.items() if value is not None}
    if found.get("sampling", Server.Sampling.OFF) not in Server.Sampling.values:
        raise Invalid(
            say("`sampling` is {sampling!r}.", sampling=found["sampling"]),
            field="sampling",
            remedy=say("Use one of: {values}.", values=", ".join(Server.Sampling.values)),
        )
    for name in SWITCHES:
        if not isinstance(found.get(name, True), bool):
            raise Invalid(f"`{name}` is {found[name]!r}.", field=name, remedy="Use true or false.")
    if "sampling_tokens" in found:
        found["sampling_tokens"] = _tokens(found["sampling_tokens"])
    return found


def _tokens(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_TOKENS:
        raise Invalid(
            say("`sampling_tokens` is {value!r}.", value=value),
            field="sampling_tokens",
            remedy=say(
                "Use a whole number up to {most_tokens}; 0: as many as the setting says.",
                most_tokens=MOST_TOKENS,
            ),
        )
    return value or None


def chosen(server: Server) -> dict[str, Any]:
    """Return what somebody chose of it: what isn't the default."""
    fields = {one.name: one for one in Server._meta.fields if one.name in ASKED_BACK}
    found = {name: getattr(server, name) for name in ASKED_BACK}
    return {name: value for name, value in found.items() if value != fields[name].default}


def set_asked_back(principal: Principal, server: Server, **said: Any) -> None:
    """Change what a server may ask back (members of `ASKED_BACK`); holds on the very next call."""
    principal.require(Action.MANAGE_SERVERS)
    set_columns(principal, server, "server_asking_changed", checked(said))


def may_ask(server: Server) -> frozenset[Asked]:
    """Return what the server may ask for, where anybody can answer."""
    found: set[Asked] = {"sampling"} if server.sampling != Server.Sampling.OFF else set()
    if server.elicitation:
        found.add("elicitation")
    if server.roots:
        found.add("roots")
    return frozenset(found) if server.speaks_mcp else frozenset()


def sampling_tokens(server: Server) -> int:
    """Return how many tokens a day the server may use of our models."""
    own: int | None = server.sampling_tokens
    return settings.BONOBOT_SAMPLING_TOKENS if own is None else own
