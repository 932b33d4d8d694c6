"""The digest of a definition: what a person approves, and what must still be true at each call."""

from typing import Any

from bonobot.lib.canonical import canonical
from bonobot.lib.canonical import digest as digest_of_text
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say


def same_value(one: Any, other: Any) -> bool:
    """Tell whether two JSON values differ in nothing but how numbers are written: 100 and 100.0.

    JSON has one kind of numbers (RFC 8259, section 6); what is no JSON value is like nothing.
    """
    try:
        return canonical(_whole(one)) == canonical(_whole(other))
    except ValueError:
        return False


def _whole(value: Any) -> Any:
    """Return a value with whole numbers as integers; a boolean is none."""
    if isinstance(value, dict):
        return {key: _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


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
