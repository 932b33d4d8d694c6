"""Join the text of a definition in reading order.

Instructions may be split over several fields. Words of JSON Schema itself are left out.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from bonobot.core.text.untrusted_text import format_path_step
from mcp_servers.scanning.deobfuscation import split_identifier

MAX_CHARACTERS: Final = 72_000
_LEADING_FIELDS: Final = ("name", "title", "description")
# Fields whose keys are names chosen by the author.
_NAME_KEYED_FIELDS: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
# Fields whose values are defined by a standard or are no prose.
_STANDARD_VALUE_FIELDS: Final = frozenset(
    {"type", "format", "$schema", "$ref", "mimeType", "pattern", "sizes"}
)


@dataclass(frozen=True, slots=True)
class DefinitionText:
    """The text of a definition, and where the string of each JSON path starts in it."""

    text: str
    starts: list[int]
    paths: list[str]

    @property
    def schema_start(self) -> int:
        """Return where the text after name, title and description starts."""
        leading_paths = {f"$.{name}" for name in _LEADING_FIELDS}
        pairs = zip(self.starts, self.paths, strict=True)
        return next((start for start, path in pairs if path not in leading_paths), len(self.text))

    def locate(self, position: int) -> tuple[str, int]:
        """Return the JSON path of the string at a position, and the position in that string."""
        index = max(bisect_right(self.starts, position) - 1, 0)
        return self.paths[index], max(position - self.starts[index], 0)


def read_definition_text(payload: Any) -> DefinitionText:
    """Return the text of a definition, up to 72,000 characters."""
    pieces: list[str] = []
    starts: list[int] = []
    paths: list[str] = []
    length = 0
    for path, text in _iterate_strings(payload):
        if length + len(text) > MAX_CHARACTERS:
            text = text[: MAX_CHARACTERS - length]
        starts.append(length)
        paths.append(path)
        pieces.append(text + "\n")
        length += len(text) + 1
        if length >= MAX_CHARACTERS:
            break
    return DefinitionText("".join(pieces), starts or [0], paths or ["$"])


def _iterate_strings(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, text) in reading order; not recursive, payloads may nest deeply."""
    pending: list[tuple[str, Any, bool]] = [("$", payload, False)]
    while pending:
        path, value, is_name_map = pending.pop()
        if isinstance(value, str):
            if value.strip():
                yield path, value
        elif isinstance(value, dict):
            ordered = sorted(value, key=_get_field_order)
            for key in reversed(ordered):
                if (
                    not is_name_map
                    and key in _STANDARD_VALUE_FIELDS
                    and not _is_sentence(value[key])
                ):
                    continue
                child_path = f"{path}{format_path_step(str(key))}"
                pending.append(
                    (child_path, value[key], not is_name_map and key in _NAME_KEYED_FIELDS)
                )
                if is_name_map:
                    pending.append((f"{child_path} (key)", split_identifier(str(key)), False))
        elif isinstance(value, list | tuple):
            pending.extend((f"{path}[{i}]", value[i], False) for i in range(len(value) - 1, -1, -1))


def _get_field_order(key: object) -> int:
    return _LEADING_FIELDS.index(str(key)) if key in _LEADING_FIELDS else len(_LEADING_FIELDS)


def _is_sentence(value: object) -> bool:
    """Tell whether a field that should have a standard value has a sentence instead."""
    return not isinstance(value, str) or " " in value or len(value) > 40


# Markup is removed from descriptions before a model reads them: a reviewer may not see what a
# comment or an unusual tag hides. Possessive quantifiers and excluded characters keep these linear.
_COMMENT = re.compile(r"<!--(?:(?!-->).)*+(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(r"</?[A-Za-z!?][^<>]*+>")
_IMAGE = re.compile(r"!\[[^\]\[]*+\]\([^()]*+\)")
# Removing a tag may join the parts of another one: `<<b>script>`.
_MAX_PASSES = 3


@lru_cache(maxsize=8_192)
def strip_markup(text: str) -> str:
    """Return a description without comments, tags and Markdown images."""
    for _ in range(_MAX_PASSES):
        stripped = _TAG.sub("", _IMAGE.sub("", _COMMENT.sub("", text)))
        if stripped == text:
            return text.strip()
        text = stripped
    return text.replace("<", "").strip()
