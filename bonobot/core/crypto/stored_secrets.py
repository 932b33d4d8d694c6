"""Stored secrets stay with the addresses that they were entered for.

Whoever edits an object sees its secrets as a mask and may keep them. To keep one while an address
changes that it is sent to would hand it to whoever is there, so it has to be entered again. Each
kind of object says which addresses those are; this module alone compares them.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """Return the scheme, host and port of a URL, alike for all ways of writing them; "" for none.

    A URL without a readable port is an origin of its own.
    """
    parts = urlsplit(url)
    scheme, host = parts.scheme.lower(), (parts.hostname or "").rstrip(".")
    if not host:
        return ""
    try:
        port = parts.port or DEFAULT_PORTS.get(scheme, 0)
    except ValueError:
        return f"{scheme}://{parts.netloc}"
    return f"{scheme}://{host}:{port}"


def keep_with_addresses(
    kept: Iterable[str], before: Mapping[str, str], now: Mapping[str, str]
) -> None:
    """Refuse to keep secrets where an address changes that they are sent to.

    `kept` are the fields of the secrets that nobody entered again; `before` and `now` are the
    addresses by the fields that hold them, blank ones being none. Raises `Invalid`
    (`credential_needed`) at the first secret.
    """
    fields = {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}
    changed = sorted(name for name in fields if before.get(name) or now.get(name))
    field = next(iter(sorted(kept)), None)
    if field is None or not changed:
        return
    raise InvalidInput(
        format_message(
            "The stored value of `{name}` was entered for another address; `{changed}` changes.",
            name=field.rpartition(".")[2],
            changed=changed[0],
        ),
        code="credential_needed",
        field=field,
        remedy="Enter it again for the new address, or leave the address as it was.",
    )
