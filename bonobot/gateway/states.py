"""States: what a client keeps for us between two requests of one call, sealed.

A state is worth something only to the principal whom it was given to, at the same place, with the
same request, and until it expires (MCP 2026-07-28, multi round-trip requests: a state comes back
from an attacker). Nothing of it lives in a process, so any can take the call up.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from cryptography.fernet import InvalidToken
from django.utils import timezone
from mcp.shared.exceptions import MCPError

from bonobot.gateway.inbound import bad_params
from bonobot.gateway.visitors import Visitor
from bonobot.lib import ring
from bonobot.lib.canonical import canonical, digest

LONGEST = 256 * 1024
LIFETIME = timedelta(hours=24)


def seal(
    visitor: Visitor, subject: Any, held: Mapping[str, Any], *, lifetime: timedelta = LIFETIME
) -> str:
    """Return `held` as a text that only `visitor` can give back, about the same `subject`."""
    until = timezone.now() + lifetime
    whole = {"of": _of(visitor, subject), "until": until.timestamp(), "held": dict(held)}
    return ring.seal(json.dumps(whole))


def unseal(visitor: Visitor, subject: Any, text: Any) -> dict[str, Any]:
    """Return what a sealed text holds; raises `MCPError` (-32602) for any other text."""
    try:
        if not isinstance(text, str) or len(text) > LONGEST or not _is_canonical(text):
            raise ValueError
        whole = json.loads(ring.unseal(text))
    except (ValueError, InvalidToken):
        raise _of_another() from None
    if not isinstance(whole, dict) or whole.get("of") != _of(visitor, subject):
        raise _of_another()
    if whole["until"] < timezone.now().timestamp():
        raise bad_params("`requestState` is too old: send the request anew, without it")
    held: dict[str, Any] = whole["held"]
    return held


def _of_another() -> MCPError:
    """Return the error of a state of somebody else, which answers like one that is no state."""
    return bad_params("`requestState` wasn't given out for this request: send it anew, without")


def _is_canonical(text: str) -> bool:
    """Tell whether a text is the one way to write its bytes: decoders ignore bits and characters,
    so that a changed text could otherwise be taken for ours."""
    return urlsafe_b64encode(urlsafe_b64decode(text)) == text.encode()


def _of(visitor: Visitor, subject: Any) -> str:
    return digest(canonical({"visitor": visitor.key, "subject": subject}))
