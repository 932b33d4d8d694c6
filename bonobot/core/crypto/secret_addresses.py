"""Binds stored secrets to the addresses that they were entered for.

An editor sees the secrets of an object masked and may keep them. Keeping a secret while changing
the address that receives it would leak it, so it has to be entered again. Each kind of object
defines its addresses; this module compares them.
"""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

DEFAULT_PORTS = {"http": 80, "https": 443}


def normalize_origin(url: str) -> str:
    """Return the normalized scheme, host and port of a URL; "" if it has no host.

    An invalid port is kept as written.
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


def check_kept_secrets(
    kept_fields: Iterable[str], old_addresses: Mapping[str, str], new_addresses: Mapping[str, str]
) -> None:
    """Check that no secret is kept while an address that receives it changes.

    `kept_fields` are the fields of secrets that weren't entered again; the addresses are given by
    field, blank for none. Raises `InvalidInput` (`credential_required`) for the first secret.
    """
    changed_fields = {
        name
        for name in old_addresses.keys() | new_addresses.keys()
        if old_addresses.get(name) != new_addresses.get(name)
    }
    changed_names = sorted(
        name for name in changed_fields if old_addresses.get(name) or new_addresses.get(name)
    )
    field = next(iter(sorted(kept_fields)), None)
    if field is None or not changed_names:
        return
    raise InvalidInput(
        format_message(
            "The stored value of `{name}` belongs to the previous URL and can't "
            "be kept when `{changed}` changes.",
            name=field.rpartition(".")[2],
            changed=changed_names[0],
        ),
        code="credential_required",
        field=field,
        remedy="Enter the value again, or keep the previous URL.",
    )
