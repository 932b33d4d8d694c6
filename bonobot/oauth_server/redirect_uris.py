"""Redirect URIs of clients.

A redirect URI is https, loopback, or a custom scheme. The toolkit checks that it is one of the
client's; the port of a loopback URI is arbitrary.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Literal
from urllib.parse import urlsplit

DestinationKind = Literal["site", "computer", "app"]

MAX_URI_LENGTH = 512
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
_LOOPBACK_PORT = re.compile(
    r"(http://(?:127\.0\.0\.1|\[::1\]|localhost))(?::[0-9]{1,5})?(?=[/?]|$)"
)
_PLAIN_AUTHORITY = re.compile(
    r"(?P<host>[a-z0-9_.-]+|\[(?P<address>[0-9a-f:.]+)\])(?::[0-9]{1,5})?",
    re.ASCII | re.IGNORECASE,
)
_PLAIN_LABEL = re.compile(r"(?!-).{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RedirectDestination:
    """The destination of a redirect: a site's host, this computer, or a custom scheme."""

    kind: DestinationKind
    name: str

    @property
    def form_action_sources(self) -> str:
        """The `form-action` sources of a page that redirects there (Content-Security-Policy).

        Browsers check each redirect, and a site may redirect further.
        """
        sources = {"site": "https:", "computer": "http: https:", "app": f"{self.name}:"}
        return f"'self' {sources[self.kind]}"


def parse_redirect_uri(uri: str, schemes: Collection[str]) -> RedirectDestination | None:
    """Return the destination of a redirect URI, or None if it isn't allowed.

    `schemes` are the allowed custom schemes; reverse domain names (RFC 8252) are always allowed.
    """
    if not 0 < len(uri) <= MAX_URI_LENGTH or not uri.isascii() or not uri.isprintable():
        return None
    if any(character in uri for character in ' #\\"<>'):
        return None
    try:
        parts = urlsplit(uri)
        host, _port = parts.hostname or "", parts.port  # `port` raises if it isn't a port
    except ValueError:
        return None
    if "@" in parts.netloc:
        return None
    if parts.scheme in ("http", "https") and not is_plain_authority(parts.netloc):
        return None
    if parts.scheme == "https":
        return RedirectDestination("site", parts.netloc.lower())
    if parts.scheme == "http":
        return RedirectDestination("computer", host) if host in LOOPBACK_HOSTS else None
    is_app_scheme = parts.scheme in schemes or "." in parts.scheme
    return RedirectDestination("app", parts.scheme) if is_app_scheme else None


def is_registered_uri(uri: str, registered_uris: Collection[str]) -> bool:
    """Return whether a redirect URI equals a registered one, ignoring a loopback's port."""
    return uri in registered_uris or _LOOPBACK_PORT.sub(r"\1", uri) in {
        _LOOPBACK_PORT.sub(r"\1", registered_uri)
        for registered_uri in registered_uris
        if _LOOPBACK_PORT.match(registered_uri)
    }


def is_plain_authority(authority: str) -> bool:
    """Return whether browsers use the host of a URL as it is written.

    They decode `%2E`, map other dots, and read `0x7f.1` as an address, so that people would see
    another host than the one that is opened.
    """
    match = _PLAIN_AUTHORITY.fullmatch(authority)
    if match is None:
        return False
    labels = match["host"].split(".")
    try:
        if match["address"]:
            IPv6Address(match["address"])
        elif _NUMBER.fullmatch(labels[-1]):  # browsers take such a host for an IPv4 address
            IPv4Address(match["host"])
        else:
            return all(_PLAIN_LABEL.fullmatch(label) for label in labels)
    except ValueError:
        return False
    return True
