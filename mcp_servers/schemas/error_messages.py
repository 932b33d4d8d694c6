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

_MAX_VALUE_CHARACTERS = 40
_MAX_LISTED_VALUES = 12
# Takes the subject, the keyword's value in the schema, and the invalid value.
Wording = Callable[[str, Any, Any], str]
_TYPE_NAMES = {
    "object": format_message("an object"),
    "array": format_message("an array"),
    "string": format_message("a string"),
    "integer": format_message("an integer"),
    "number": format_message("a number"),
    "boolean": format_message("a boolean"),
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class ArgumentViolation:
    """A validation error: JSON path, message and remedy."""

    path: str
    detail: str
    remedy: str


def build_violation(error: Any) -> ArgumentViolation:
    path = format_json_path(error.absolute_path)
    if error.validator == "required":
        return _describe_missing(error, path)
    if error.validator == "additionalProperties":
        return _describe_unknown(error, path)
    subject: str = f"`{path}`" if error.absolute_path else format_message("The arguments")
    wording = _WORDINGS.get(str(error.validator), _build_default_wording(error.validator))
    detail = wording(subject, error.validator_value, error.instance)
    return ArgumentViolation(path, detail, "Correct the arguments and retry the call.")


def describe_kind(value: Any, *, show_value: bool = False) -> str:
    """Describe a value by its type; with `show_value`, show short strings."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, str):
        if show_value and len(value) <= _MAX_VALUE_CHARACTERS:
            return f"`{make_visible(value)}`"
        return format_message("a string of {count} characters", count=len(value))
    if isinstance(value, dict):
        return format_message("an object with {count} properties", count=len(value))
    if isinstance(value, list):
        return format_message("an array of {count} items", count=len(value))
    return f"`{str(value)[:_MAX_VALUE_CHARACTERS]}`"


def _describe_missing(error: Any, path: str) -> ArgumentViolation:
    names = [name for name in error.validator_value if name not in error.instance]
    field_path = format_json_path((*error.absolute_path, names[0])) if names else path
    name_list = _format_values(names)
    is_single = len(names) == 1
    if error.absolute_path and is_single:
        detail = format_message("{listed} is missing in `{path}`.", listed=name_list, path=path)
    elif error.absolute_path:
        detail = format_message("{listed} are missing in `{path}`.", listed=name_list, path=path)
    elif is_single:
        detail = format_message("{listed} is missing.", listed=name_list)
    else:
        detail = format_message("{listed} are missing.", listed=name_list)
    return ArgumentViolation(field_path, detail, format_message("Add {listed}.", listed=name_list))


def _describe_unknown(error: Any, path: str) -> ArgumentViolation:
    names = list_additional_names(error.instance, error.schema)
    known_names = list(error.schema.get("properties", {}))
    field_path = format_json_path((*error.absolute_path, names[0])) if names else path
    close_matches = get_close_matches(names[0][:64], known_names[:200], n=1) if names else []
    remedy: str = "Leave it out; nothing may stand here."
    if close_matches:
        remedy = format_message("Did you mean `{close}`?", close=make_visible(close_matches[0], 64))
    elif known_names:
        remedy = format_message(
            "Omit it. Allowed here: {known}.", known=_format_values(known_names)
        )
    detail = format_message("{listed} aren't known properties.", listed=_format_values(names))
    if len(names) == 1:
        detail = format_message("{listed} isn't a known property.", listed=_format_values(names))
    return ArgumentViolation(field_path, detail, remedy)


def _describe_type(subject: str, expected: Any, value: Any) -> str:
    types = [expected] if isinstance(expected, str) else list(expected)
    type_names = [_TYPE_NAMES.get(json_type, str(json_type)) for json_type in types]
    joined_names = type_names[0] if len(type_names) == 1 else " or ".join(type_names)
    return format_message(
        "{subject} must be {kinds}, got {kind}.",
        subject=subject,
        kinds=joined_names,
        kind=describe_kind(value),
    )


def _describe_enum(subject: str, choices: Any, value: Any) -> str:
    name_list, described_value = _format_values(choices), describe_kind(value, show_value=True)
    if len(choices) == 1:
        return format_message(
            "{subject} must be {kinds}, got {kind}.",
            subject=subject,
            kinds=name_list,
            kind=described_value,
        )
    return format_message(
        "{subject} must be one of {listed}, got {kind}.",
        subject=subject,
        listed=name_list,
        kind=described_value,
    )


def _build_limit_wording(format_text: Callable[..., str]) -> Wording:
    return lambda subject, limit, value: format_text(
        subject=subject, limit=limit, kind=describe_kind(value)
    )


def _build_default_wording(rule: Any) -> Wording:
    format_text = partial(
        format_message, "{subject} must match the schema's `{rule}`.", rule=rule or "false"
    )
    return lambda subject, rule_value, value: format_text(subject=subject)


def _build_plain_wording(format_text: Callable[..., str]) -> Wording:
    return lambda subject, rule_value, value: format_text(subject=subject)


_WORDINGS: dict[str, Wording] = {
    "type": _describe_type,
    "enum": _describe_enum,
    "const": lambda subject, constant, value: _describe_enum(subject, [constant], value),
    "pattern": lambda subject, pattern, value: format_message(
        "{subject} must match the pattern `{pattern}`.",
        subject=subject,
        pattern=make_visible(str(pattern), 100),
    ),
    "minimum": _build_limit_wording(
        partial(format_message, "{subject} must be at least {limit}, got {kind}.")
    ),
    "maximum": _build_limit_wording(
        partial(format_message, "{subject} must be at most {limit}, got {kind}.")
    ),
    "exclusiveMinimum": _build_limit_wording(
        partial(format_message, "{subject} must be greater than {limit}, got {kind}.")
    ),
    "exclusiveMaximum": _build_limit_wording(
        partial(format_message, "{subject} must be less than {limit}, got {kind}.")
    ),
    "multipleOf": _build_limit_wording(
        partial(format_message, "{subject} must be a multiple of {limit}, got {kind}.")
    ),
    "minLength": _build_limit_wording(
        partial(format_message, "{subject} must have at least {limit} characters, got {kind}.")
    ),
    "maxLength": _build_limit_wording(
        partial(format_message, "{subject} must have at most {limit} characters, got {kind}.")
    ),
    "minItems": _build_limit_wording(
        partial(format_message, "{subject} must have at least {limit} items, got {kind}.")
    ),
    "maxItems": _build_limit_wording(
        partial(format_message, "{subject} must have at most {limit} items, got {kind}.")
    ),
    "uniqueItems": _build_plain_wording(
        partial(format_message, "{subject} must not contain duplicate items.")
    ),
    "minProperties": _build_limit_wording(
        partial(format_message, "{subject} must have at least {limit} properties, got {kind}.")
    ),
    "maxProperties": _build_limit_wording(
        partial(format_message, "{subject} must have at most {limit} properties, got {kind}.")
    ),
    "anyOf": lambda subject, forms, value: format_message(
        "{subject} must match one of {forms} schemas, but matches none.",
        subject=subject,
        forms=len(forms),
    ),
    "oneOf": lambda subject, forms, value: format_message(
        "{subject} must match exactly one of {forms} schemas.", subject=subject, forms=len(forms)
    ),
    "not": _build_plain_wording(
        partial(format_message, "{subject} must not match the schema's `not`.")
    ),
    "contains": _build_plain_wording(
        partial(
            format_message, "{subject} must contain an item that matches the schema's `contains`."
        )
    ),
}


def _format_values(values: Any) -> str:
    shown_values = [
        make_visible(item if isinstance(item, str) else json.dumps(item), 64) for item in values
    ]
    suffix = (
        f" and {len(shown_values) - _MAX_LISTED_VALUES} more"
        if len(shown_values) > _MAX_LISTED_VALUES
        else ""
    )
    return ", ".join(f"`{item}`" for item in shown_values[:_MAX_LISTED_VALUES]) + suffix
