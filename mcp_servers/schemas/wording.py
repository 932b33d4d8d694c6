"""Say what is wrong with arguments: where, what was expected, and what to send instead.

Texts of arguments may be secrets and go to logs and other people, so they are shown only where a
fixed choice was expected, and cut; otherwise their kind and length are named.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from bonobot.lib.untrusted import visible
from mcp_servers.json_paths import json_path
from mcp_servers.schemas.dialects import additional_names

_LONGEST_VALUE = 40
_MOST_CHOICES = 12
_KINDS = {
    "object": "an object",
    "array": "an array",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that doesn't fit: the JSON path, a sentence, and what to do."""

    path: str
    detail: str
    remedy: str


def complaint_of(error: Any) -> Complaint:
    """Put a validation error into words."""
    path = json_path(error.absolute_path)
    if error.validator == "required":
        return _missing(error, path)
    if error.validator == "additionalProperties":
        return _unknown(error, path)
    say = _SAYINGS.get(str(error.validator))
    if say is None:
        expected = f"must fit the schema's `{error.validator or 'false'}`"
    else:
        expected = say(error.validator_value, error.instance)
    named = f"`{path}`" if error.absolute_path else "The arguments"
    return Complaint(path, f"{named} {expected}.", "Correct it and call again.")


def kind_of(value: Any, *, shown: bool = False) -> str:
    """Name a value by its kind; with `shown`, a short text or number as it is."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, str):
        if shown and len(value) <= _LONGEST_VALUE:
            return f"`{visible(value)}`"
        return f"text of {len(value)} characters"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    return f"`{str(value)[:_LONGEST_VALUE]}`"


def _missing(error: Any, path: str) -> Complaint:
    names = [name for name in error.validator_value if name not in error.instance]
    place = json_path((*error.absolute_path, names[0])) if names else path
    listed = _listed(names)
    verb = "is" if len(names) == 1 else "are"
    where = f" in `{path}`" if error.absolute_path else ""
    return Complaint(place, f"{listed} {verb} missing{where}.", f"Add {listed}.")


def _unknown(error: Any, path: str) -> Complaint:
    names = additional_names(error.instance, error.schema)
    known = list(error.schema.get("properties", {}))
    place = json_path((*error.absolute_path, names[0])) if names else path
    close = get_close_matches(names[0][:64], known[:200], n=1) if names else []
    if close:
        remedy = f"Did you mean `{visible(close[0], 64)}`?"
    elif known:
        remedy = f"Leave it out; known here: {_listed(known)}."
    else:
        remedy = "Leave it out; nothing may stand here."
    verb = "is" if len(names) == 1 else "are"
    return Complaint(place, f"{_listed(names)} {verb} not known to the tool.", remedy)


def _type(expected: Any, value: Any) -> str:
    kinds = [expected] if isinstance(expected, str) else list(expected)
    named = " or ".join(_KINDS.get(kind, str(kind)) for kind in kinds)
    return f"must be {named}, not {kind_of(value)}"


def _enum(choices: Any, value: Any) -> str:
    return f"must be one of {_listed(choices)}, not {kind_of(value, shown=True)}"


def _bound(words: str) -> Callable[[Any, Any], str]:
    return lambda limit, value: f"{words.format(limit)}, not {kind_of(value)}"


_SAYINGS: dict[str, Callable[[Any, Any], str]] = {
    "type": _type,
    "enum": _enum,
    "const": lambda only, value: f"must be {_listed([only])}, not {kind_of(value, shown=True)}",
    "pattern": lambda pattern, value: f"must match the pattern `{visible(str(pattern), 100)}`",
    "minimum": _bound("must be at least {}"),
    "maximum": _bound("must be at most {}"),
    "exclusiveMinimum": _bound("must be more than {}"),
    "exclusiveMaximum": _bound("must be less than {}"),
    "multipleOf": _bound("must be a multiple of {}"),
    "minLength": _bound("must have at least {} characters"),
    "maxLength": _bound("must have at most {} characters"),
    "minItems": _bound("must have at least {} items"),
    "maxItems": _bound("must have at most {} items"),
    "uniqueItems": lambda _, value: "must not hold the same item twice",
    "minProperties": _bound("must have at least {} properties"),
    "maxProperties": _bound("must have at most {} properties"),
    "anyOf": lambda options, value: f"must fit one of {len(options)} forms, and fits none",
    "oneOf": lambda options, value: f"must fit exactly one of {len(options)} forms",
    "not": lambda _, value: "must not fit a form that the schema excludes",
    "contains": lambda _, value: "must hold an item that the schema asks for",
}


def _listed(values: Any) -> str:
    shown = [visible(each if isinstance(each, str) else json.dumps(each), 64) for each in values]
    more = f" and {len(shown) - _MOST_CHOICES} more" if len(shown) > _MOST_CHOICES else ""
    return ", ".join(f"`{each}`" for each in shown[:_MOST_CHOICES]) + more
