"""${NAME}: find, describe, fill.

What people paste refers to their own machine's environment, so here every reference is a parameter
to fill, and nothing is taken from Bonobot's environment: the CLI hands over its caller's values.
The forms: `${NAME}`, `${NAME:-default}`, `${env:NAME}` and `${input:id}` of VS Code and Cursor.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_REFERENCE = re.compile(
    r"\$\{(?:(?P<kind>env|input):)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?::-(?P<default>[^}]*))?\}"
)
_UNKNOWN = re.compile(r"\$\{[^}]*\}?")
# Bonobot's own settings hold its keys and databases: no configuration gets at them.
_NEVER = re.compile(r"(?i)BONOBOT_.*|DATABASE_URL|REDIS_URL|DJANGO_.*|FIELD_ENCRYPTION_KEY")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `${…}` in a text: what it names, and the default that it brings along, if any."""

    text: str
    name: str
    default: str | None
    forbidden: bool


def list_placeholders(text: str) -> Iterator[Placeholder]:
    """Yield the references in a text, in order."""
    for match in _REFERENCE.finditer(text):
        name = match["name"]
        yield Placeholder(match.group(), name, match["default"], _NEVER.fullmatch(name) is not None)


def find_unreadable_placeholder(text: str) -> str:
    """Return the first `${…}` that is no reference, such as `${command:x}`, or ""."""
    match = _UNKNOWN.search(_REFERENCE.sub("", text))
    return match.group() if match else ""


def fill(text: str, values: Mapping[str, str]) -> tuple[str, tuple[Placeholder, ...]]:
    """Return the text with every known reference filled once, and those that are still open.

    A value stands as it is: a `${…}` inside it is text. An empty value counts as none given.
    """
    missing: list[Placeholder] = []

    def put(match: re.Match[str]) -> str:
        found = next(list_placeholders(match.group()))
        value = "" if found.forbidden else values.get(found.name, "")
        if value or (found.default is not None and not found.forbidden):
            return value or str(found.default)
        missing.append(found)
        return match.group()

    return _REFERENCE.sub(put, text), tuple(missing)
