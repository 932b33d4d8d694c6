"""Error messages for invalid arguments (pure).

Strings in arguments may be secrets, so they are shown, shortened, only where a fixed choice was
expected; otherwise only their type and length.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import format_json_path, make_visible
from mcp_servers.schemas.dialects import list_additional_names

_LONGEST_VALUE = 40
_MOST_CHOICES = 12
# Takes the subject, the keyword's value in the schema, and the invalid value.
Worded = Callable[[str, Any, Any], str]
_KINDS = {
    "object": format_message("an object"),
    "array": format_message("an array"),
    "string": format_message("text"),
    "integer": format_message("a whole number"),
    "number": format_message("a number"),
    "boolean": format_message("true or false"),
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class ArgumentViolation:
    """A validation error: JSON path, message and remedy."""

    path: str
    detail: str
    remedy: str


def build_violation(error: Any) -> ArgumentViolation:
    """Return the violation for a validation error."""
    path = format_json_path(error.absolute_path)
    if error.validator == "required":
        return _describe_missing(error, path)
    if error.validator == "additionalProperties":
        return _describe_unknown(error, path)
    subject: str = f"`{path}`" if error.absolute_path else format_message("The arguments")
    worded = _SAYINGS.get(str(error.validator), _build_default_wording(error.validator))
    detail = worded(subject, error.validator_value, error.instance)
    return ArgumentViolation(path, detail, "Correct it and call again.")


def describe_kind(value: Any, *, shown: bool = False) -> str:
    """Describe a value by its type; with `show_value`, show short strings."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, str):
        if shown and len(value) <= _LONGEST_VALUE:
            return f"`{make_visible(value)}`"
        return format_message("text of {count} characters", count=len(value))
    if isinstance(value, dict):
        return format_message("an object of {count}", count=len(value))
    if isinstance(value, list):
        return format_message("an array of {count}", count=len(value))
    return f"`{str(value)[:_LONGEST_VALUE]}`"


def _describe_missing(error: Any, path: str) -> ArgumentViolation:
    names = [name for name in error.validator_value if name not in error.instance]
    place = format_json_path((*error.absolute_path, names[0])) if names else path
    listed = _format_values(names)
    one = len(names) == 1
    if error.absolute_path and one:
        detail = format_message("{listed} is missing in `{path}`.", listed=listed, path=path)
    elif error.absolute_path:
        detail = format_message("{listed} are missing in `{path}`.", listed=listed, path=path)
    elif one:
        detail = format_message("{listed} is missing.", listed=listed)
    else:
        detail = format_message("{listed} are missing.", listed=listed)
    return ArgumentViolation(place, detail, format_message("Add {listed}.", listed=listed))


def _describe_unknown(error: Any, path: str) -> ArgumentViolation:
    names = list_additional_names(error.instance, error.schema)
    known = list(error.schema.get("properties", {}))
    place = format_json_path((*error.absolute_path, names[0])) if names else path
    close = get_close_matches(names[0][:64], known[:200], n=1) if names else []
    remedy: str = "Leave it out; nothing may stand here."
    if close:
        remedy = format_message("Did you mean `{close}`?", close=make_visible(close[0], 64))
    elif known:
        remedy = format_message("Leave it out; known here: {known}.", known=_format_values(known))
    detail = format_message("{listed} are not known to the tool.", listed=_format_values(names))
    if len(names) == 1:
        detail = format_message("{listed} is not known to the tool.", listed=_format_values(names))
    return ArgumentViolation(place, detail, remedy)


def _describe_type(subject: str, expected: Any, value: Any) -> str:
    kinds = [expected] if isinstance(expected, str) else list(expected)
    words = [_KINDS.get(kind, str(kind)) for kind in kinds]
    named = words[0] if len(words) == 1 else " or ".join(words)
    return format_message(
        "{subject} must be {kinds}, not {kind}.",
        subject=subject,
        kinds=named,
        kind=describe_kind(value),
    )


def _describe_enum(subject: str, choices: Any, value: Any) -> str:
    listed, shown = _format_values(choices), describe_kind(value, shown=True)
    if len(choices) == 1:
        return format_message(
            "{subject} must be {kinds}, not {kind}.", subject=subject, kinds=listed, kind=shown
        )
    return format_message(
        "{subject} must be one of {listed}, not {kind}.", subject=subject, listed=listed, kind=shown
    )


def _bound(words: Callable[..., str]) -> Worded:
    return lambda subject, limit, value: words(
        subject=subject, limit=limit, kind=describe_kind(value)
    )


def _build_default_wording(rule: Any) -> Worded:
    words = partial(
        format_message, "{subject} must fit the schema's `{rule}`.", rule=rule or "false"
    )
    return lambda subject, said, value: words(subject=subject)


def _build_plain_wording(words: Callable[..., str]) -> Worded:
    return lambda subject, said, value: words(subject=subject)


_SAYINGS: dict[str, Worded] = {
    "type": _describe_type,
    "enum": _describe_enum,
    "const": lambda subject, only, value: _describe_enum(subject, [only], value),
    "pattern": lambda subject, pattern, value: format_message(
        "{subject} must match the pattern `{pattern}`.",
        subject=subject,
        pattern=make_visible(str(pattern), 100),
    ),
    "minimum": _bound(partial(format_message, "{subject} must be at least {limit}, not {kind}.")),
    "maximum": _bound(partial(format_message, "{subject} must be at most {limit}, not {kind}.")),
    "exclusiveMinimum": _bound(
        partial(format_message, "{subject} must be more than {limit}, not {kind}.")
    ),
    "exclusiveMaximum": _bound(
        partial(format_message, "{subject} must be less than {limit}, not {kind}.")
    ),
    "multipleOf": _bound(
        partial(format_message, "{subject} must be a multiple of {limit}, not {kind}.")
    ),
    "minLength": _bound(
        partial(format_message, "{subject} must have at least {limit} characters, not {kind}.")
    ),
    "maxLength": _bound(
        partial(format_message, "{subject} must have at most {limit} characters, not {kind}.")
    ),
    "minItems": _bound(
        partial(format_message, "{subject} must have at least {limit} items, not {kind}.")
    ),
    "maxItems": _bound(
        partial(format_message, "{subject} must have at most {limit} items, not {kind}.")
    ),
    "uniqueItems": _build_plain_wording(
        partial(format_message, "{subject} must not hold the same item twice.")
    ),
    "minProperties": _bound(
        partial(format_message, "{subject} must have at least {limit} properties, not {kind}.")
    ),
    "maxProperties": _bound(
        partial(format_message, "{subject} must have at most {limit} properties, not {kind}.")
    ),
    "anyOf": lambda subject, forms, value: format_message(
        "{subject} must fit one of {forms} forms, and fits none.", subject=subject, forms=len(forms)
    ),
    "oneOf": lambda subject, forms, value: format_message(
        "{subject} must fit exactly one of {forms} forms.", subject=subject, forms=len(forms)
    ),
    "not": _build_plain_wording(
        partial(format_message, "{subject} must not fit a form that the schema excludes.")
    ),
    "contains": _build_plain_wording(
        partial(format_message, "{subject} must hold an item that the schema asks for.")
    ),
}


def _format_values(values: Any) -> str:
    shown = [
        make_visible(each if isinstance(each, str) else json.dumps(each), 64) for each in values
    ]
    more = f" and {len(shown) - _MOST_CHOICES} more" if len(shown) > _MOST_CHOICES else ""
    return ", ".join(f"`{each}`" for each in shown[:_MOST_CHOICES]) + more
