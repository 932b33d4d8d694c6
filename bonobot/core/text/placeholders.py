"""Find and fill `${NAME}` placeholders.

Pasted configurations refer to the environment of their author's machine, so every placeholder is a
parameter to fill; Bonobot's own environment is never used, and the CLI passes its caller's values.
Forms: `${NAME}`, `${NAME:-default}`, `${env:NAME}`, and `${input:id}` of VS Code and Cursor.
Documentation of servers also has examples in place of a secret, such as `<your token>`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_REFERENCE = re.compile(
    r"\$\{(?:(?P<kind>env|input):)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)(?::-(?P<default>[^}]*))?\}"
)
_UNKNOWN = re.compile(r"\$\{[^}]*\}?")
# Bonobot's own settings contain keys and database passwords: no configuration may read them.
_FORBIDDEN_NAME = re.compile(
    r"(?i)BONOBOT_.*|DATABASE_URL|REDIS_URL|DJANGO_.*|FIELD_ENCRYPTION_KEY"
)
# Only the whole text: a real secret can contain each of them.
_EXAMPLE = re.compile(
    r"""(?ix)
    <[^<>]+> | \[[a-z][\w -]*\] | \{\{[^{}]+\}\}   # <your token>, [token], {{token}}
    | (?:my|your)[_-][\w-]+ | [\w-]+[_-]here             # YOUR_API_KEY, your-api-key, token_here
    | (?:[a-z]{2,10}[_-])*(?:x{3,}|\*{3,}|\.{3,}|…)      # xxx, sk-xxxx, ghp_...
    | (?:change|replace)[_-]?(?:me|this)
    """
)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `${…}` in a text: its name and its default, if any."""

    text: str
    name: str
    default: str | None
    is_forbidden: bool


def list_placeholders(text: str) -> Iterator[Placeholder]:
    """Yield the placeholders in a text, in order."""
    for match in _REFERENCE.finditer(text):
        name = match["name"]
        yield Placeholder(
            match.group(), name, match["default"], _FORBIDDEN_NAME.fullmatch(name) is not None
        )


def find_unreadable_placeholder(text: str) -> str:
    """Return the first `${…}` of an unknown form, such as `${command:x}`, or ""."""
    match = _UNKNOWN.search(_REFERENCE.sub("", text))
    return match.group() if match else ""


def is_example_value(text: str) -> bool:
    """Return whether a text stands for a secret, as in the documentation of a server."""
    return _EXAMPLE.fullmatch(text.strip()) is not None


def fill_placeholders(text: str, values: Mapping[str, str]) -> tuple[str, tuple[Placeholder, ...]]:
    """Return the text with placeholders filled, and the placeholders without a value.

    Values aren't expanded again. An empty value counts as missing.
    """
    missing: list[Placeholder] = []

    def replace_match(match: re.Match[str]) -> str:
        placeholder = next(list_placeholders(match.group()))
        value = "" if placeholder.is_forbidden else values.get(placeholder.name, "")
        if value or (placeholder.default is not None and not placeholder.is_forbidden):
            return value or str(placeholder.default)
        missing.append(placeholder)
        return match.group()

    return _REFERENCE.sub(replace_match, text), tuple(missing)
