"""Fields of REST requests and of the configuration file that were renamed after version 0.1.

The old names are still accepted if the body or object has a field with the new name. The next
release removes this module.
"""

from collections.abc import Collection, Mapping
from typing import Any

RENAMED_FIELDS = {
    "falls_over": "fallback_on",
    "may_ask": "callable_agents",
    "minimum": "minimum_severity",
    "sees_images": "image_input",
    "confinement": "sandbox",
    "word": "message",
}


def replace_renamed_fields(
    values: Mapping[str, Any], known_names: Collection[str]
) -> dict[str, Any]:
    """Return the values by the new names of their fields, if these are `known`."""
    replaced = {}
    for name, value in values.items():
        new_name = RENAMED_FIELDS.get(name, name)
        is_renamed = name not in known_names and new_name in known_names and new_name not in values
        replaced[new_name if is_renamed else name] = value
    return replaced
