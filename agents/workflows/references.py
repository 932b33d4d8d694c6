"""References of workflows: `${/pointer}` to inputs and the results of earlier steps. Pure.

A string that is a single reference is replaced by the value itself; within other text, a value that
isn't a string is written as JSON. `${/inputs/tone:-dry}` has a default.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.core.text.canonical_json import to_canonical_json

_REFERENCE = re.compile(r"\$\{(/[^}]*?)(?::-([^}]*))?\}")
_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
FormatValue = Callable[[str, str], str]


class UnresolvedReference(InvalidInput):
    """A reference has no value in this run."""

    code = "unresolved_reference"


def iterate_pointers(text: str) -> Iterator[str]:
    """Yield the pointers in a text; the content of an invalid `${…}` as it is."""
    for match in _PLACEHOLDER.finditer(text):
        reference = _REFERENCE.fullmatch(match.group())
        yield reference[1] if reference else match[1]


def resolve_pointer(values: Mapping[str, Any], pointer: str) -> tuple[bool, Any]:
    """Return whether a JSON pointer has a value, and the value."""
    value: Any = values
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return False, None
    return True, value


def fill_references(
    template: Any, values: Mapping[str, Any], format_value: FormatValue = lambda pointer, text: text
) -> Any:
    """Return a value with its references replaced; references in replaced values stay.

    `format_value` formats a string value by its pointer. Raises `UnresolvedReference`.
    """
    if isinstance(template, str):
        return _fill_text(template, values, format_value)
    if isinstance(template, dict):
        return {
            key: fill_references(value, values, format_value) for key, value in template.items()
        }
    if isinstance(template, list):
        return [fill_references(value, values, format_value) for value in template]
    return template


def _fill_text(template: str, values: Mapping[str, Any], format_value: FormatValue) -> Any:
    match = _REFERENCE.fullmatch(template)
    if match is not None:
        value = _get_reference_value(match, values)
        return format_value(match[1], value) if isinstance(value, str) else value

    def replace_reference(reference: re.Match[str]) -> str:
        value = _get_reference_value(reference, values)
        return format_value(
            reference[1], value if isinstance(value, str) else to_canonical_json(value)
        )

    return _REFERENCE.sub(replace_reference, template)


def _get_reference_value(reference: re.Match[str], values: Mapping[str, Any]) -> Any:
    exists, value = resolve_pointer(values, reference[1])
    if exists and value is not None:
        return value
    if reference[2] is not None:
        return reference[2]
    raise UnresolvedReference(
        format_message("`{name}` has no value in this run.", name=reference[1][:200]),
        field=reference[1][:200],
        remedy="Correct the reference, set a default (`${/…:-nothing}`), or add a condition with "
        "`when`.",
    )


def iterate_references(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the pointers in a value, each with the path of its text."""
    if isinstance(node, str):
        yield from ((path, pointer) for pointer in iterate_pointers(node))
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from iterate_references(value, f"{path}.{key}")
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from iterate_references(value, f"{path}[{index}]")
