"""Networks: which addresses are the internet's, which are somebody's own, and which are nobody's.

The tables follow the IANA special-purpose registries (IPv4, IPv6) and not `ipaddress.is_global`,
whose answers differ between Python releases. Whatever isn't known to be public is not public.
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

from bonobot.lib.sayings import say

Address = IPv4Address | IPv6Address
Table = tuple[tuple[IPv4Network | IPv6Network, str], ...]


class Reach(StrEnum):
    """How far an address may be reached."""

    PUBLIC = "public"
    PRIVATE = "private"  # somebody's own network: only with an explicit permission
    FORBIDDEN = "forbidden"  # never, whatever was permitted


@dataclass(frozen=True)
class Verdict:
    """What an address is and whether it may be connected to."""

    address: str
    reach: Reach
    what: str

    def allowed(self, *, allow_private: bool) -> bool:
        """Say whether a connection may be made."""
        return self.reach is Reach.PUBLIC or (allow_private and self.reach is Reach.PRIVATE)


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    return tuple((ip_network(network), what) for network, what in rows)


# Reachable only where somebody said so; more specific rows of FORBIDDEN win.
PRIVATE = _table(
    [
        ("127.0.0.0/8", say("this machine")),
        ("::1/128", say("this machine")),
        ("10.0.0.0/8", say("a private network")),
        ("172.16.0.0/12", say("a private network")),
        ("192.168.0.0/16", say("a private network")),
        ("100.64.0.0/10", say("a carrier's or overlay network")),
        ("198.18.0.0/15", say("a benchmarking or fake-address network")),
        ("fc00::/7", say("a private network")),
    ]
)
FORBIDDEN = _table(
    [
        ("169.254.0.0/16", say("link-local, where clouds keep machine credentials")),
        ("fe80::/10", say("link-local")),
        ("100.100.100.200/32", say("a cloud's metadata service")),
        ("168.63.129.16/32", say("a cloud's metadata service")),
        ("192.0.0.0/24", say("protocol assignments, a cloud's metadata service among them")),
        ("fd00:ec2::/32", say("a cloud's metadata service")),
        ("fd20:ce::/32", say("a cloud's metadata service")),
        ("0.0.0.0/8", say("no address of a server")),
        ("192.0.2.0/24", say("documentation")),
        ("192.88.99.0/24", say("6to4 relays")),
        ("198.51.100.0/24", say("documentation")),
        ("203.0.113.0/24", say("documentation")),
        ("224.0.0.0/4", say("multicast")),
        ("240.0.0.0/4", say("reserved")),
        ("2001::/23", say("protocol assignments, Teredo among them")),
        ("2001:db8::/32", say("documentation")),
        ("2002::/16", say("6to4, which can hide another address")),
        ("3fff::/20", say("documentation")),
    ]
)
UNICAST = ip_network("2000::/3")  # all of IPv6 that was ever given out
TRANSLATED = (ip_network("::ffff:0:0/96"), ip_network("64:ff9b::/96"))  # mapped, NAT64
ISATAP = (0x00005EFE, 0x02005EFE)  # third quarter of an address that tunnels to the fourth


def judge(text: str) -> Verdict:
    """Return what the address `text` is; raises ValueError when it isn't one."""
    address = ip_address(text)
    reach, what = _judge(address)
    return Verdict(address=str(address), reach=reach, what=what)


def _judge(address: Address) -> tuple[Reach, str]:
    if isinstance(address, IPv6Address) and (inner := _embedded(address)):
        reach, what = _judge(inner)
        return reach, f"{what} ({inner} inside)"
    if what := _listed(address, FORBIDDEN):
        return Reach.FORBIDDEN, what
    if what := _listed(address, PRIVATE):
        return Reach.PRIVATE, what
    if isinstance(address, IPv6Address) and address not in UNICAST:
        return Reach.FORBIDDEN, "outside of what IPv6 gives to servers"
    return Reach.PUBLIC, "public"


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address that the network would end at, where that decides."""
    last = IPv4Address(int(address) & 0xFFFFFFFF)
    if any(address in network for network in TRANSLATED):
        return last
    if (int(address) >> 32) & 0xFFFFFFFF in ISATAP and _judge(last)[0] is not Reach.PUBLIC:
        return last
    return None


def _listed(address: Address, table: Table) -> str:
    return next((what for network, what in table if address in network), "")
