"""What a server says when it refuses a request: the Bearer challenge of RFC 6750 and RFC 9728."""

import re
from dataclasses import dataclass

_SCHEME = re.compile(r"(?i)(?:^|,)\s*bearer(?:\s+|$)")
# The next scheme of the same header: a word that is not the name of a parameter.
_NEXT_SCHEME = re.compile(r",\s*[A-Za-z][A-Za-z0-9-]*\s+[A-Za-z]")
_PARAMETER = re.compile(r'([A-Za-z_*]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')
LONGEST = 8192


@dataclass(frozen=True)
class Challenge:
    """A Bearer challenge: where to read about the resource, the scope it wants, and why."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def wants_more(self) -> bool:
        """Tell whether the token is good, but not for this."""
        return self.error == "insufficient_scope"


def read(header: str) -> Challenge | None:
    """Return the Bearer challenge of a `WWW-Authenticate` header, None if there is none."""
    header = header[:LONGEST]
    found = _SCHEME.search(header)
    if found is None:
        return None
    text = header[found.end() :]
    if following := _NEXT_SCHEME.search(text):
        text = text[: following.start()]
    members: dict[str, str] = {}
    for name, quoted, plain in _PARAMETER.findall(text):
        members.setdefault(name.lower(), re.sub(r"\\(.)", r"\1", quoted) or plain)
    return Challenge(
        resource_metadata=members.get("resource_metadata", ""),
        scopes=tuple(members.get("scope", "").split()),
        error=members.get("error", ""),
    )
