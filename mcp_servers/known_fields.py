"""Read the fields of a server's configuration objects."""

from collections.abc import Mapping
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

SecretKey = tuple[str, str]  # placement and name


def read_known_fields(config: Any, known_names: frozenset[str], location: str) -> dict[str, Any]:
    """Return the fields of the object at `location`; raises `InvalidInput` for unknown ones."""
    if not isinstance(config, Mapping):
        raise InvalidInput(
            format_message("`{field}` must be an object.", field=location),
            field=location,
            remedy=format_message(
                "Supported fields: {fields}.", fields=", ".join(sorted(known_names))
            ),
        )
    if unknown := sorted(set(config) - known_names):
        raise InvalidInput(
            format_message("`{where}` has no field {name!r}.", where=location, name=unknown[0]),
            code="unknown_field",
            field=f"{location}.{unknown[0]}",
            remedy=format_message(
                "Supported fields: {fields}.", fields=", ".join(sorted(known_names))
            ),
        )
    return dict(config)
