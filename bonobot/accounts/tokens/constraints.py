"""Clean and check the terms of a token; no database access.

Invalid list items are refused, never dropped, because an empty list means no limit.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from uuid import UUID

from bonobot.accounts.roles import TokenScope
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

Network = IPv4Network | IPv6Network

# Terms that can be set on creation and changed later.
TERM_NAMES = frozenset(
    {"name", "scopes", "agent_ids", "networks", "client", "calls_per_minute", "expires_at"}
)
MAX_NAME_LENGTH = 255
MAX_CLIENT_LENGTH = 64
MAX_AGENTS = 100
MAX_NETWORKS = 50
MAX_CALLS_PER_MINUTE = 1_000_000


def clean_constraints(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return terms as a token's columns; raises `InvalidInput` with the invalid field."""
    if unknown := sorted(set(terms) - TERM_NAMES):
        raise InvalidInput(
            format_message("A token has no writable field {name!r}.", name=unknown[0]),
            field=unknown[0],
            remedy=format_message(
                "Supported fields: {fields}.", fields=", ".join(sorted(TERM_NAMES))
            ),
        )
    return {name: _CLEANERS[name](value) for name, value in terms.items()}


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    return tuple(ip_network(text) for text in texts)


def is_in_networks(address: str, networks: Collection[Network]) -> bool:
    """Return whether an address is in one of the networks; no networks mean no limit.

    An invalid address is in none.
    """
    if not networks:
        return True
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    # Dual-stack sockets report IPv4 clients as mapped IPv6 addresses.
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return any((mapped or parsed) in network for network in networks)


def _clean_name(value: Any) -> str:
    text = str(value).strip()
    if not text or len(text) > MAX_NAME_LENGTH:
        raise InvalidInput(
            format_message(
                "A token needs a name of at most {longest_name} characters.",
                longest_name=MAX_NAME_LENGTH,
            ),
            field="name",
            remedy="Describe what it is for. The audit log shows this name.",
        )
    return text


def _clean_client(value: Any) -> str:
    text = str(value or "").strip()
    if len(text) > MAX_CLIENT_LENGTH:
        raise InvalidInput(
            format_message(
                "The client name is longer than {longest_client} characters.",
                longest_client=MAX_CLIENT_LENGTH,
            ),
            field="client",
            remedy="Use a shorter value.",
        )
    return text


def _clean_scopes(value: Any) -> list[str]:
    requested = {str(item) for item in value or ()}
    if unknown := sorted(requested - set(TokenScope)):
        raise InvalidInput(
            format_message("Unknown scope {name!r}.", name=unknown[0]),
            field="scopes",
            remedy=format_message(
                "Choose from: {scope}. Without scopes, the token has all permissions of its role.",
                scope=", ".join(TokenScope),
            ),
        )
    return [scope.value for scope in TokenScope if scope in requested]


def _clean_agent_ids(value: Any) -> list[str]:
    agent_ids = sorted(
        {
            str(agent_id if isinstance(agent_id, UUID) else UUID(str(agent_id)))
            for agent_id in value or ()
        }
    )
    if len(agent_ids) > MAX_AGENTS:
        raise InvalidInput(
            format_message(
                "A token can name at most {most_agents} agents.", most_agents=MAX_AGENTS
            ),
            field="agents",
            remedy="Use a role that can access all agents, or create several tokens.",
        )
    return agent_ids


def _clean_networks(value: Any) -> list[str]:
    networks = []
    for text in value or ():
        try:
            networks.append(str(ip_network(str(text).strip())))
        except ValueError as error:
            raise InvalidInput(
                format_message("{text!r} isn't a network: {error}.", text=str(text), error=error),
                field="networks",
                remedy="Use an address or a range, such as `192.0.2.7` or `10.1.0.0/16`.",
            ) from None
    if len(networks) > MAX_NETWORKS:
        raise InvalidInput(
            format_message(
                "A token can name at most {most_networks} networks.", most_networks=MAX_NETWORKS
            ),
            field="networks",
            remedy="Merge adjacent ranges.",
        )
    return list(dict.fromkeys(networks))


def _clean_calls_per_minute(value: Any) -> int | None:
    if value is not None and not 1 <= value <= MAX_CALLS_PER_MINUTE:
        raise InvalidInput(
            format_message(
                "`calls_per_minute` must be from 1 to {most_calls}, not {value!r}.",
                most_calls=MAX_CALLS_PER_MINUTE,
                value=value,
            ),
            field="calls_per_minute",
            remedy="Omit it to use the default limit.",
        )
    return None if value is None else int(value)


def _clean_expires_at(value: Any) -> datetime | None:
    return value if isinstance(value, datetime) else None


_CLEANERS = {
    "name": _clean_name,
    "client": _clean_client,
    "scopes": _clean_scopes,
    "agent_ids": _clean_agent_ids,
    "networks": _clean_networks,
    "calls_per_minute": _clean_calls_per_minute,
    "expires_at": _clean_expires_at,
}
