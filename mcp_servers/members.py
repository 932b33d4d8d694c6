"""Members: an object of a configuration has those that are known, and no others."""

from collections.abc import Mapping
from typing import Any

from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say


def members_of(config: Any, known: frozenset[str], where: str) -> dict[str, Any]:
    """Return the members of an object at `where`; raises `Invalid` for any that aren't known."""
    if not isinstance(config, Mapping):
        raise Invalid(
            say("`{where}` must be an object.", where=where),
            field=where,
            remedy=say("Members: {known}.", known=", ".join(sorted(known))),
        )
    if strange := sorted(set(config) - known):
        raise Invalid(
            say("`{where}` has no member {strange!r}.", where=where, strange=strange[0]),
            code="unknown_field",
            field=f"{where}.{strange[0]}",
            remedy=say("Members: {known}.", known=", ".join(sorted(known))),
        )
    return dict(config)
