"""Say what is wrong with arguments: where, what was expected, and what to send instead.

Texts of arguments may be secrets and go to logs and other people, so they are shown only where a
fixed choice was expected, and cut; otherwise their kind and length are named.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from bonobot.lib.sayings import say
from bonobot.lib.untrusted import visible
from mcp_servers.json_paths import json_path
from mcp_servers.schemas.dialects import additional_names

_LONGEST_VALUE = 40
_MOST_CHOICES = 12
# Given what is complained of, what the schema says and what was sent.
Worded = Callable[[str, Any, Any], str]
_KINDS = {
    "object": say("an object"),
    "array": say("an array"),
    "string": say("text"),
    "integer": say("a whole number"),
    "number": say("a number"),
    "boolean": say("true or false"),
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
    subject: str = f"`{path}`" if error.absolute_path else say("The arguments")
    worded = _SAYINGS.get(str(error.validator), _other(error.validator))
    detail = worded(subject, error.validator_value, error.instance)
    return Complaint(path, detail, "Correct it and call again.")


def kind_of(value: Any, *, shown: bool = False) -> str:
    """Name a value by its kind; with `shown`, a short text or number as it is."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, str):
        if shown and len(value) <= _LONGEST_VALUE:
            return f"`{visible(value)}`"
        return say("text of {count} characters", count=len(value))
    if isinstance(value, dict):
        return say("an object of {count}", count=len(value))
    if isinstance(value, list):
        return say("an array of {count}", count=len(value))
    return f"`{str(value)[:_LONGEST_VALUE]}`"


def _missing(error: Any, path: str) -> Complaint:
    names = [name for name in error.validator_value if name not in error.instance]
    place = json_path((*error.absolute_path, names[0])) if names else path
    listed = _listed(names)
    one = len(names) == 1
    if error.absolute_path and one:
        detail = say("{listed} is missing in `{path}`.", listed=listed, path=path)
    elif error.absolute_path:
        detail = say("{listed} are missing in `{path}`.", listed=listed, path=path)
    elif one:
        detail = say("{listed} is missing.", listed=listed)
    else:
        detail = say("{listed} are missing.", listed=listed)
    return Complaint(place, detail, say("Add {listed}.", listed=listed))


def _unknown(error: Any, path: str) -> Complaint:
    names = additional_names(error.instance, error.schema)
    known = list(error.schema.get("properties", {}))
    place = json_path((*error.absolute_path, names[0])) if names else path
    close = get_close_matches(names[0][:64], known[:200], n=1) if names else []
    remedy: str = "Leave it out; nothing may stand here."
    if close:
        remedy = say("Did you mean `{close}`?", close=visible(close[0], 64))
    elif known:
        remedy = say("Leave it out; known here: {known}.", known=_listed(known))
    detail = say("{listed} are not known to the tool.", listed=_listed(names))
    if len(names) == 1:
        detail = say("{listed} is not known to the tool.", listed=_listed(names))
    return Complaint(place, detail, remedy)


def _type(subject: str, expected: Any, value: Any) -> str:
    kinds = [expected] if isinstance(expected, str) else list(expected)
    words = [_KINDS.get(kind, str(kind)) for kind in kinds]
    named = words[0] if len(words) == 1 else " or ".join(words)
    return say(
        "{subject} must be {kinds}, not {kind}.", subject=subject, kinds=named, kind=kind_of(value)
    )


def _enum(subject: str, choices: Any, value: Any) -> str:
    listed, shown = _listed(choices), kind_of(value, shown=True)
    if len(choices) == 1:
        return say(
            "{subject} must be {kinds}, not {kind}.", subject=subject, kinds=listed, kind=shown
        )
    return say(
        "{subject} must be one of {listed}, not {kind}.", subject=subject, listed=listed, kind=shown
    )


def _bound(words: Callable[..., str]) -> Worded:
    return lambda subject, limit, value: words(subject=subject, limit=limit, kind=kind_of(value))


def _other(rule: Any) -> Worded:
    words = partial(say, "{subject} must fit the schema's `{rule}`.", rule=rule or "false")
    return lambda subject, said, value: words(subject=subject)


def _plain(words: Callable[..., str]) -> Worded:
    return lambda subject, said, value: words(subject=subject)


_SAYINGS: dict[str, Worded] = {
    "type": _type,
    "enum": _enum,
    "const": lambda subject, only, value: _enum(subject, [only], value),
    "pattern": lambda subject, pattern, value: say(
        "{subject} must match the pattern `{pattern}`.",
        subject=subject,
        pattern=visible(str(pattern), 100),
    ),
    "minimum": _bound(partial(say, "{subject} must be at least {limit}, not {kind}.")),
    "maximum": _bound(partial(say, "{subject} must be at most {limit}, not {kind}.")),
    "exclusiveMinimum": _bound(partial(say, "{subject} must be more than {limit}, not {kind}.")),
    "exclusiveMaximum": _bound(partial(say, "{subject} must be less than {limit}, not {kind}.")),
    "multipleOf": _bound(partial(say, "{subject} must be a multiple of {limit}, not {kind}.")),
    "minLength": _bound(
        partial(say, "{subject} must have at least {limit} characters, not {kind}.")
    ),
    "maxLength": _bound(
        partial(say, "{subject} must have at most {limit} characters, not {kind}.")
    ),
    "minItems": _bound(partial(say, "{subject} must have at least {limit} items, not {kind}.")),
    "maxItems": _bound(partial(say, "{subject} must have at most {limit} items, not {kind}.")),
    "uniqueItems": _plain(partial(say, "{subject} must not hold the same item twice.")),
    "minProperties": _bound(
        partial(say, "{subject} must have at least {limit} properties, not {kind}.")
    ),
    "maxProperties": _bound(
        partial(say, "{subject} must have at most {limit} properties, not {kind}.")
    ),
    "anyOf": lambda subject, forms, value: say(
        "{subject} must fit one of {forms} forms, and fits none.", subject=subject, forms=len(forms)
    ),
    "oneOf": lambda subject, forms, value: say(
        "{subject} must fit exactly one of {forms} forms.", subject=subject, forms=len(forms)
    ),
    "not": _plain(partial(say, "{subject} must not fit a form that the schema excludes.")),
    "contains": _plain(partial(say, "{subject} must hold an item that the schema asks for.")),
}


def _listed(values: Any) -> str:
    shown = [visible(each if isinstance(each, str) else json.dumps(each), 64) for each in values]
    more = f" and {len(shown) - _MOST_CHOICES} more" if len(shown) > _MOST_CHOICES else ""
    return ", ".join(f"`{each}`" for each in shown[:_MOST_CHOICES]) + more
