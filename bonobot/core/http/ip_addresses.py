"""Public, private and reserved IP address ranges.

The tables follow the IANA special-purpose registries (IPv4, IPv6) and not `ipaddress.is_global`,
which differs between Python releases. An address that isn't known to be public is not public.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from bonobot.core.i18n.messages import format_message

Address = IPv4Address | IPv6Address
Table = tuple[tuple[IPv4Network | IPv6Network, str], ...]
IPV6_UNICAST = ip_network("2000::/3")  # all allocated global unicast
IPV4_TRANSLATION_NETWORKS = (
    ip_network("::ffff:0:0/96"),
    ip_network("64:ff9b::/96"),
)  # mapped, NAT64
ISATAP_MARKERS = (0x00005EFE, 0x02005EFE)  # third 32 bits of an address that tunnels to the last 32
IPV6_PREFIX_BITS = 64  # bits: one IPv6 user usually owns a whole /64


class AddressScope(StrEnum):
    """Whether an address may be connected to."""

    PUBLIC = "public"
    PRIVATE = "private"  # only with an explicit permission
    FORBIDDEN = "forbidden"  # never


@dataclass(frozen=True)
class AddressClassification:
    """An address with its scope and a description of its range."""

    address: str
    scope: AddressScope
    description: str

    def is_allowed(self, *, allow_private: bool) -> bool:
        return self.scope is AddressScope.PUBLIC or (
            allow_private and self.scope is AddressScope.PRIVATE
        )


def _build_table(rows: Iterable[tuple[str, str]]) -> Table:
    return tuple((ip_network(network), description) for network, description in rows)


# Allowed only with a permission; FORBIDDEN_RANGES is checked first.
PRIVATE_RANGES = _build_table(
    [
        ("127.0.0.0/8", format_message("loopback address")),
        ("::1/128", format_message("loopback address")),
        ("10.0.0.0/8", format_message("private network")),
        ("172.16.0.0/12", format_message("private network")),
        ("192.168.0.0/16", format_message("private network")),
        ("100.64.0.0/10", format_message("carrier or overlay network")),
        ("198.18.0.0/15", format_message("benchmarking or fake-IP network")),
        ("fc00::/7", format_message("private network")),
    ]
)
FORBIDDEN_RANGES = _build_table(
    [
        ("169.254.0.0/16", format_message("link-local, used for cloud machine credentials")),
        ("fe80::/10", format_message("link-local")),
        ("100.100.100.200/32", format_message("cloud metadata service")),
        ("168.63.129.16/32", format_message("cloud metadata service")),
        (
            "192.0.0.0/24",
            format_message("protocol assignments, including a cloud metadata service"),
        ),
        ("fd00:ec2::/32", format_message("cloud metadata service")),
        ("fd20:ce::/32", format_message("cloud metadata service")),
        ("0.0.0.0/8", format_message("not a server address")),
        ("192.0.2.0/24", format_message("documentation")),
        ("192.88.99.0/24", format_message("6to4 relays")),
        ("198.51.100.0/24", format_message("documentation")),
        ("203.0.113.0/24", format_message("documentation")),
        ("224.0.0.0/4", format_message("multicast")),
        ("240.0.0.0/4", format_message("reserved for future use")),
        ("2001::/23", format_message("protocol assignments, including Teredo")),
        ("2001:db8::/32", format_message("documentation")),
        ("2002::/16", format_message("6to4, which can hide another address")),
        ("3fff::/20", format_message("documentation")),
    ]
)


def classify_address(text: str) -> AddressClassification:
    """Return the classification of an address; raises ValueError if `text` isn't one."""
    address = ip_address(text)
    scope, description = _classify_parsed(address)
    return AddressClassification(address=str(address), scope=scope, description=description)


def _classify_parsed(address: Address) -> tuple[AddressScope, str]:
    if isinstance(address, IPv6Address) and (inner := _extract_embedded_ipv4(address)):
        scope, description = _classify_parsed(inner)
        return scope, format_message("contains {address}: {what}", address=inner, what=description)
    if description := _find_range(address, FORBIDDEN_RANGES):
        return AddressScope.FORBIDDEN, description
    if description := _find_range(address, PRIVATE_RANGES):
        return AddressScope.PRIVATE, description
    if isinstance(address, IPv6Address) and address not in IPV6_UNICAST:
        return AddressScope.FORBIDDEN, format_message("not allocated to servers")
    return AddressScope.PUBLIC, "public"


def _extract_embedded_ipv4(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that an address is translated or tunneled to, if it matters."""
    embedded_address = IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in IPV4_TRANSLATION_NETWORKS):
        return embedded_address
    if (int(address) >> 32) & 0xFFFFFFFF in ISATAP_MARKERS and _classify_parsed(embedded_address)[
        0
    ] is not AddressScope.PUBLIC:
        return embedded_address
    return None


def _find_range(address: Address, table: Table) -> str:
    return next((description for network, description in table if address in network), "")


def extract_address_prefix(address: str) -> str:
    """Return the rate-limit key of an address (the /64 of IPv6); blank if it isn't an address."""
    try:
        parsed_address = ip_address(address)
    except ValueError:
        return ""
    if isinstance(parsed_address, IPv6Address) and parsed_address.ipv4_mapped is None:
        return str(int(parsed_address) >> IPV6_PREFIX_BITS)
    return address
