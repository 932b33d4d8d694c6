"""Where a program may have people sent back to (RFC 8252, RFC 9700). Pure.

To a site over TLS, to this computer, or to a program that has a scheme of its own. Which of a
program's own addresses it is, and that it is that very one, is the toolkit's to look at; the port
of the loopback may be any.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

LONGEST = 512
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_PORT = re.compile(r"(http://(?:127\.0\.0\.1|\[::1\]|localhost))(?::[0-9]{1,5})?(?=[/?]|$)")

Kind = Literal["site", "computer", "app"]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a person would be sent: a site's host, this computer, or a scheme."""

    kind: Kind
    name: str

    @property
    def sources(self) -> str:
        """What a page that leads there allows its forms (Content-Security-Policy).

        Browsers look at each address on the way, and a site may send people on.
        """
        kinds = {"site": "https:", "computer": "http: https:", "app": f"{self.name}:"}
        return f"'self' {kinds[self.kind]}"


def is_named(uri: str, named: Collection[str]) -> bool:
    """Tell whether a redirect URI is one of these letter by letter, but for a loopback's port."""
    return uri in named or _PORT.sub(r"\1", uri) in {
        _PORT.sub(r"\1", one) for one in named if _PORT.match(one)
    }


def destination(uri: str, schemes: Collection[str]) -> Destination | None:
    """Return where a redirect URI leads; None for one that nobody is sent to.

    `schemes` are those of programs that are known; names of domains turned around, as RFC 8252
    asks for, need not be known.
    """
    if not 0 < len(uri) <= LONGEST or not uri.isascii() or not uri.isprintable():
        return None
    if any(one in uri for one in ' #\\"<>'):
        return None
    try:
        parts = urlsplit(uri)
        host, _port = parts.hostname or "", parts.port
    except ValueError:
        return None
    if "@" in parts.netloc:
        return None
    if parts.scheme == "https":
        return Destination("site", parts.netloc) if host else None
    if parts.scheme == "http":
        return Destination("computer", host) if host in LOOPBACK else None
    own = parts.scheme in schemes or "." in parts.scheme
    return Destination("app", parts.scheme) if own else None
