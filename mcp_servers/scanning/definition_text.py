"""Join the text of a definition in reading order.

Instructions may be split over several fields. Words of JSON Schema itself are left out.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bonobot.core.text.untrusted_text import format_path_step
from mcp_servers.scanning.deobfuscation import split_identifier

MOST: Final = 72_000
_FIRST: Final = ("name", "title", "description")
# Fields whose keys are names chosen by the author.
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
# Fields whose values are defined by a standard or are no prose.
_PLAIN: Final = frozenset({"type", "format", "$schema", "$ref", "mimeType", "pattern", "sizes"})


@dataclass(frozen=True, slots=True)
class Prose:
    """The text of a definition, and where the string of each JSON path starts in it."""

    text: str
    starts: list[int]
    paths: list[str]

    @property
    def head(self) -> int:
        """Return where the text after name, title and description starts."""
        heads = {f"$.{name}" for name in _FIRST}
        pairs = zip(self.starts, self.paths, strict=True)
        return next((start for start, path in pairs if path not in heads), len(self.text))

    def place(self, at: int) -> tuple[str, int]:
        """Return the JSON path of the string at a position, and the position in that string."""
        index = max(bisect_right(self.starts, at) - 1, 0)
        return self.paths[index], max(at - self.starts[index], 0)


def read_prose(payload: Any) -> Prose:
    """Return the text of a definition, up to 72,000 characters."""
    pieces: list[str] = []
    starts: list[int] = []
    paths: list[str] = []
    length = 0
    for path, text in _pieces(payload):
        if length + len(text) > MOST:
            text = text[: MOST - length]
        starts.append(length)
        paths.append(path)
        pieces.append(text + "\n")
        length += len(text) + 1
        if length >= MOST:
            break
    return Prose("".join(pieces), starts or [0], paths or ["$"])


def _pieces(payload: Any) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, text) in reading order; not recursive, payloads may nest deeply."""
    waiting: list[tuple[str, Any, bool]] = [("$", payload, False)]
    while waiting:
        path, value, names = waiting.pop()
        if isinstance(value, str):
            if value.strip():
                yield path, value
        elif isinstance(value, dict):
            ordered = sorted(value, key=_rank)
            for key in reversed(ordered):
                if not names and key in _PLAIN and not _says(value[key]):
                    continue
                inner = f"{path}{format_path_step(str(key))}"
                waiting.append((inner, value[key], not names and key in _NAMED))
                if names:
                    waiting.append((f"{inner} (key)", split_identifier(str(key)), False))
        elif isinstance(value, list | tuple):
            waiting.extend((f"{path}[{i}]", value[i], False) for i in range(len(value) - 1, -1, -1))


def _rank(key: object) -> int:
    return _FIRST.index(str(key)) if key in _FIRST else len(_FIRST)


def _says(value: object) -> bool:
    """Tell whether a field that should have a standard value has a sentence instead."""
    return not isinstance(value, str) or " " in value or len(value) > 40
