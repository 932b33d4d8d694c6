"""Typed settings from environment variables.

`NAME_FILE` names a file that contains the value (container secrets). A blank value counts as unset,
because that is what `NAME=${NAME:-}` in a compose file produces. Nothing else in the project reads
the environment.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from django.core.exceptions import ImproperlyConfigured

TRUE = frozenset({"1", "true", "yes", "on"})
EXPECTED_ORIGIN = "origin like `https://bonobot.example.com`, without a path"
FALSE = frozenset({"0", "false", "no", "off"})

_declared_kinds: dict[str, str] = {}


def read_text(name: str, default: str = "", *, choices: Sequence[str] = ()) -> str:
    """Return a variable's text; raise ImproperlyConfigured if it isn't one of `choices`."""
    value = _read_variable(name, "text")
    if value is None:
        return default
    if choices and value not in choices:
        raise _build_value_error(
            name, "one of " + ", ".join(f"`{choice}`" for choice in choices), value
        )
    return value


def read_flag(name: str, default: bool) -> bool:
    """Return a variable as a boolean; raise ImproperlyConfigured for other values."""
    value = _read_variable(name, "flag")
    if value is None:
        return default
    lowered = value.lower()
    if lowered not in TRUE | FALSE:
        raise _build_value_error(name, "`true` or `false`", value)
    return lowered in TRUE


def read_number(
    name: str, default: int, *, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return a variable as an integer; raise ImproperlyConfigured outside the bounds."""
    value = _read_variable(name, "number")
    if value is None:
        return default
    try:
        number = int(value.replace("_", ""))
    except ValueError:
        raise _build_value_error(
            name, f"an integer{_format_bounds(minimum, maximum)}", value
        ) from None
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        raise _build_value_error(name, f"an integer{_format_bounds(minimum, maximum)}", value)
    return number


def read_names(name: str, default: Iterable[str] = ()) -> tuple[str, ...]:
    """Return a comma-separated variable as its parts, without blanks and duplicates."""
    value = _read_variable(name, "names")
    parts = default if value is None else (part.strip() for part in value.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def read_folders(name: str) -> tuple[str, ...]:
    """Return a comma-separated variable as paths; raise ImproperlyConfigured if one is relative."""
    folders = read_names(name)
    if relative := next((path for path in folders if not Path(path).is_absolute()), ""):
        raise _build_value_error(name, "a comma-separated list of absolute paths", relative)
    return folders


def read_origin(name: str, default: str) -> str:
    """Return a variable as a web origin; raise ImproperlyConfigured if it isn't one."""
    value = _read_variable(name, "origin")
    if value is None:
        return default
    if not _is_origin(value):
        raise _build_value_error(name, f"an {EXPECTED_ORIGIN}", value)
    return value.rstrip("/")


def read_address(name: str) -> tuple[str, int] | None:
    """Return a host and a port to listen on, or None if unset."""
    value = _read_variable(name, "address")
    if not value:
        return None
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 1 <= int(port) <= 65_535:
        raise _build_value_error(name, "`host:port`, such as 127.0.0.1:9464", value)
    return host.strip("[]"), int(port)


def read_origins(name: str) -> tuple[str, ...]:
    """Return a comma-separated variable as web origins; raise ImproperlyConfigured for others."""
    origins = read_names(name)
    for value in origins:
        if not _is_origin(value):
            raise _build_value_error(
                name, f"a comma-separated list, each an {EXPECTED_ORIGIN}", value
            )
    return tuple(value.rstrip("/") for value in origins)


def read_networks(name: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Return a comma-separated variable as networks; raise ImproperlyConfigured for others."""
    names = read_names(name)
    try:
        return tuple(ip_network(value) for value in names)
    except ValueError:
        expected = "a comma-separated list of networks, such as 10.0.0.0/8"
        raise _build_value_error(name, expected, ",".join(names)) from None


def read_document_url(name: str) -> str:
    """Return a variable as the https URL of a document; raise ImproperlyConfigured for others."""
    value = _read_variable(name, "document")
    if value is not None and not _is_document_url(value):
        raise _build_value_error(
            name, "the https URL of a document, like `https://example.com/id.json`", value
        )
    return value or ""


def read_secret(name: str, default: str | Callable[[], str] = "") -> str:
    """Return a variable; its value never appears in errors. A callable default runs if needed."""
    value = _read_variable(name, "secret")
    if value is not None:
        return value
    return default() if callable(default) else default


def find_value_file(name: str, default: Path) -> Path | None:
    """Return the file of a variable's value, else `default`; None if the variable itself is set."""
    if os.environ.get(name, "").strip():
        return None
    file = os.environ.get(f"{name}_FILE", "").strip()
    return Path(file).absolute() if file else default


def list_variables() -> dict[str, str]:
    """Return the variables that settings read, with their kinds."""
    return dict(sorted(_declared_kinds.items()))


def list_unknown_variables() -> tuple[str, ...]:
    """Return `BONOBOT_*` environment variables that no setting reads, likely misspelled."""
    known_names = {known_name for name in _declared_kinds for known_name in (name, f"{name}_FILE")}
    return tuple(sorted(n for n in os.environ if n.startswith("BONOBOT_") and n not in known_names))


def _read_variable(name: str, kind: str) -> str | None:
    _declared_kinds[name] = kind
    value = os.environ.get(name, "").strip()
    file = os.environ.get(f"{name}_FILE", "").strip()
    if value and file:
        raise ImproperlyConfigured(f"`{name}` and `{name}_FILE` are both set: keep one of them.")
    if not file:
        return value or None
    try:
        return Path(file).read_text(encoding="utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise ImproperlyConfigured(
            f"`{name}_FILE` must name a readable text file, but {file!r} can't be read: {error}."
        ) from error


def _is_origin(value: str) -> bool:
    try:
        parts = urlsplit(value)
        _ = parts.port  # parsed on access
    except ValueError:
        return False
    unwanted_parts = (parts.username, parts.path.rstrip("/"), parts.query, parts.fragment)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not any(unwanted_parts)


def _is_document_url(value: str) -> bool:
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    remainder = (parts.query, parts.fragment)
    is_valid = parts.scheme == "https" and len(parts.path) > 1 and not any(remainder)
    return is_valid and _is_origin(f"https://{parts.netloc}")


def _build_value_error(name: str, expected: str, value: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"`{name}` must be {expected}, not {value!r}.")


def _format_bounds(minimum: int | None, maximum: int | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return f" of at most {maximum}" if maximum is not None else ""
