"""Neighbours: whose failures, or whose haste, an address's is counted as."""

from ipaddress import IPv6Address, ip_address

NETWORK = 64  # bits: whoever has one IPv6 address has all of its network


def neighbourhood(address: str) -> str:
    """Return what is counted together with an address; blank for what is none."""
    try:
        found = ip_address(address)
    except ValueError:
        return ""
    if isinstance(found, IPv6Address) and found.ipv4_mapped is None:
        return str(int(found) >> NETWORK)
    return address
