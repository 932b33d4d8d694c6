"""Terms: what is said of a token, checked; and from where it may be used. Pure.

No list is empty by mistake: what can't be read is refused, never left out, since an empty list has
no bounds.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from uuid import UUID

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from bonobot.tenancy.roles import Scope

Network = IPv4Network | IPv6Network

# What can be said when a token is made, and changed later.
TERMS = frozenset(
    {"name", "scopes", "agent_ids", "networks", "client", "calls_per_minute", "expires_at"}
)
LONGEST_NAME = 255
LONGEST_CLIENT = 64
MOST_AGENTS = 100
MOST_NETWORKS = 50
MOST_CALLS = 1_000_000


def checked(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return terms as a token's columns; raises `Invalid` naming the one that doesn't hold."""
    if strange := sorted(set(terms) - TERMS):
        raise Invalid(
            say("A token has no {strange!r} that could be set.", strange=strange[0]),
            field=strange[0],
            remedy=say("There are: {terms}.", terms=", ".join(sorted(TERMS))),
        )
    return {name: _CHECKS[name](value) for name, value in terms.items()}


def networks_of(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return stored networks as they are compared."""
    return tuple(ip_network(text) for text in texts)


def inside(address: str, networks: Collection[Network]) -> bool:
    """Tell whether an address is in one of the networks; no networks are no bounds.

    An address that isn't known is in none.
    """
    if not networks:
        return True
    try:
        found = ip_address(address)
    except ValueError:
        return False
    # A socket for both families shows IPv4 callers like this.
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return any((mapped or found) in network for network in networks)


def _name(value: Any) -> str:
    text = str(value).strip()
    if not text or len(text) > LONGEST_NAME:
        raise Invalid(
            say(
                "A token needs a name of at most {longest_name} characters.",
                longest_name=LONGEST_NAME,
            ),
            field="name",
            remedy="Say what it is for; the audit shows this name.",
        )
    return text


def _client(value: Any) -> str:
    text = str(value or "").strip()
    if len(text) > LONGEST_CLIENT:
        raise Invalid(
            say(
                "The program's name is longer than {longest_client} characters.",
                longest_client=LONGEST_CLIENT,
            ),
            field="client",
            remedy="Shorten it.",
        )
    return text


def _scopes(value: Any) -> list[str]:
    said = {str(one) for one in value or ()}
    if strange := sorted(said - set(Scope)):
        raise Invalid(
            say("There is no scope {strange!r}.", strange=strange[0]),
            field="scopes",
            remedy=say(
                "Choose among: {scope}; none at all is all that the role may.",
                scope=", ".join(Scope),
            ),
        )
    return [scope.value for scope in Scope if scope in said]


def _agent_ids(value: Any) -> list[str]:
    found = sorted({str(one if isinstance(one, UUID) else UUID(str(one))) for one in value or ()})
    if len(found) > MOST_AGENTS:
        raise Invalid(
            say("A token names at most {most_agents} agents.", most_agents=MOST_AGENTS),
            field="agents",
            remedy="Give it a role that has all agents, or make several tokens.",
        )
    return found


def _networks(value: Any) -> list[str]:
    found = []
    for text in value or ():
        try:
            found.append(str(ip_network(str(text).strip())))
        except ValueError as error:
            raise Invalid(
                say("{text!r} is no network: {error}.", text=str(text), error=error),
                field="networks",
                remedy="Write an address or a range, like `192.0.2.7` or `10.1.0.0/16`.",
            ) from None
    if len(found) > MOST_NETWORKS:
        raise Invalid(
            say("A token names at most {most_networks} networks.", most_networks=MOST_NETWORKS),
            field="networks",
            remedy="Join ranges that lie beside each other.",
        )
    return list(dict.fromkeys(found))


def _calls_per_minute(value: Any) -> int | None:
    if value is not None and not 1 <= value <= MOST_CALLS:
        raise Invalid(
            say(
                "`calls_per_minute` must be from 1 to {most_calls}, not {value!r}.",
                most_calls=MOST_CALLS,
                value=value,
            ),
            field="calls_per_minute",
            remedy="Leave it out for the usual limit.",
        )
    return None if value is None else int(value)


def _expires_at(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) else None


_CHECKS = {
    "name": _name,
    "client": _client,
    "scopes": _scopes,
    "agent_ids": _agent_ids,
    "networks": _networks,
    "calls_per_minute": _calls_per_minute,
    "expires_at": _expires_at,
}
