"""The digest of a definition: what a person approves, and what must still be true at each call."""

from typing import Any

from bonobot.lib.canonical import canonical
from bonobot.lib.canonical import digest as digest_of_text
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say


def digest(payload: Any) -> str:
    """Return SHA-256 over every field of a payload; only the order of keys makes no difference.

    Raises `Invalid` (`definition_unreadable`) for what is no JSON value, such as NaN.
    """
    try:
        return digest_of_text(canonical(payload))
    except ValueError as error:
        raise Invalid(
            say("The definition can't be written as JSON: {error}", error=error),
            code="definition_unreadable",
            remedy="The server has to declare it in plain JSON, without NaN or Infinity.",
        ) from error
