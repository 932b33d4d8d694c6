"""Differences between two declarations of a definition, by field and by word."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bonobot.core.text.syntax_highlighting import diff_json

MAX_TEXT_LENGTH = 8_000  # characters of each version of a text
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")

# A piece of a line, and whether it is part of the change.
Piece = tuple[str, bool]


@dataclass(frozen=True)
class DiffLine:
    """A line of a diff: `kind` is added, removed or same."""

    kind: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class FieldDiff:
    """The lines of a field that differs, such as `description` or `inputSchema`."""

    name: str
    lines: tuple[DiffLine, ...]


def diff_definitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[FieldDiff]:
    """Return the fields of two declarations that differ, texts first."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    names.sort(key=lambda name: (not isinstance(after.get(name), str), name))
    return [FieldDiff(name, _diff_values(before.get(name), after.get(name))) for name in names]


def _diff_values(before: Any, after: Any) -> tuple[DiffLine, ...]:
    if isinstance(before, str) and isinstance(after, str):
        return _diff_texts(before[:MAX_TEXT_LENGTH], after[:MAX_TEXT_LENGTH])
    if before is None:
        lines = [("added", text) for _kind, text in diff_json("", after) if text != '""']
    elif after is None:
        lines = [("removed", text) for _kind, text in diff_json(before, "") if text != '""']
    else:
        lines = diff_json(before, after)
    return tuple(DiffLine(kind, ((text, False),)) for kind, text in lines)


def _diff_texts(before: str, after: str) -> tuple[DiffLine, ...]:
    old_words, new_words = _WORDS.findall(before), _WORDS.findall(after)
    removed: list[Piece] = []
    added: list[Piece] = []
    matcher = difflib.SequenceMatcher(None, old_words, new_words, autojunk=False)
    for operation, start, end, new_start, new_end in matcher.get_opcodes():
        is_change = operation != "equal"
        if end > start:
            removed.append(("".join(old_words[start:end]), is_change))
        if new_end > new_start:
            added.append(("".join(new_words[new_start:new_end]), is_change))
    return DiffLine("removed", tuple(removed)), DiffLine("added", tuple(added))
