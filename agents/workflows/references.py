"""References: `${/steps/fetch/text}` in values, by JSON Pointer (RFC 6901). Pure.

A text that is one reference becomes the value itself; within other text a value is written as text,
anything but a text as JSON. `${/inputs/tone:-dry}` has what stands where there is nothing.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bonobot.lib.canonical import canonical
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say

_REFERENCE = re.compile(r"\$\{(/[^}]*?)(?::-([^}]*))?\}")
_MARKED = re.compile(r"\$\{([^}]*)\}")
Told = Callable[[str, str], str]


class Unresolved(Invalid):
    """A reference means nothing in this run."""

    code = "unresolved_reference"


def pointers(text: str) -> Iterator[str]:
    """Yield the pointers in a text; what stands in `${…}` and is none, as it is."""
    for found in _MARKED.finditer(text):
        known = _REFERENCE.fullmatch(found.group())
        yield known[1] if known else found[1]


def look(values: Mapping[str, Any], pointer: str) -> tuple[bool, Any]:
    """Return whether a pointer means something, and what."""
    found: Any = values
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return False, None
    return True, found


def filled(said: Any, values: Mapping[str, Any], told: Told = lambda pointer, text: text) -> Any:
    """Return a value with its references filled in, once: what they mean stays as it is.

    `told` says how a value is written within other text. Raises `Unresolved`.
    """
    if isinstance(said, str):
        return _text(said, values, told)
    if isinstance(said, dict):
        return {key: filled(value, values, told) for key, value in said.items()}
    if isinstance(said, list):
        return [filled(value, values, told) for value in said]
    return said


def _text(said: str, values: Mapping[str, Any], told: Told) -> Any:
    whole = _REFERENCE.fullmatch(said)
    if whole is not None:
        found = _value(whole, values)
        return told(whole[1], found) if isinstance(found, str) else found

    def put(one: re.Match[str]) -> str:
        found = _value(one, values)
        return told(one[1], found if isinstance(found, str) else canonical(found))

    return _REFERENCE.sub(put, said)


def _value(one: re.Match[str], values: Mapping[str, Any]) -> Any:
    there, found = look(values, one[1])
    if there and found is not None:
        return found
    if one[2] is not None:
        return one[2]
    raise Unresolved(
        say("`{one}` means nothing in this run.", one=one[1][:200]),
        field=one[1][:200],
        remedy="Correct it, say what stands instead (`${/…:-nothing}`), or ask with `when`.",
    )
