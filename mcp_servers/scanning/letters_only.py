"""Reduce a text to its letters, so that rules don't depend on boundaries an attacker chooses.

Case, accents, look-alikes, spaces, punctuation, digits and invisible characters are removed:
`r e a d _ me` and `readMe` have the same letters. Names of other tools can be replaced by a mark.
"""

import re
from bisect import bisect_left
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from bonobot.core.text.linear_regex import LARGE_MEMORY, LinearPattern
from mcp_servers.scanning.deobfuscation import TABLES, fold_text

# Replaces the name of a tool; no letter folds to it.
NAME_MARK: Final = "\x01"
MIN_NAME_LETTERS: Final = 7
_LOOKALIKES: Final = str.maketrans(TABLES["lookalikes"]["letters"], TABLES["lookalikes"]["read_as"])
# `search` is a word; `create_issue` is a name.
_MULTI_WORD_NAME: Final = re.compile(r"[A-Za-z0-9][_.\-/ ][A-Za-z0-9]|[a-z][A-Z]", re.A)


@dataclass(frozen=True, slots=True)
class LetterSequence:
    """The letters of a folded text in UTF-8, and each byte's position in the folded text."""

    raw: bytes
    positions: list[int]

    @property
    def has_marked_names(self) -> bool:
        """Tell whether it contains the name of another tool."""
        return NAME_MARK.encode() in self.raw


def extract_letters(folded: str) -> LetterSequence:
    """Return the letters of a folded text. Takes about 0.1 ms per KiB."""
    text = folded.translate(_LOOKALIKES)
    positions = [index for index, character in enumerate(text) if character.isalpha()]
    return _encode_letters("".join([text[index] for index in positions]), positions)


def mark_names(letters: LetterSequence, pattern: Any) -> LetterSequence:
    """Return `letters` with a mark for each name that `pattern` finds."""
    parts: list[bytes] = []
    positions: list[int] = []
    last = 0
    for match in pattern.finditer(letters.raw):
        start, end = match.span()
        parts += (letters.raw[last:start], NAME_MARK.encode())
        positions += letters.positions[last:start]
        positions.append(letters.positions[start])
        last = end
    if not parts:
        return letters
    return LetterSequence(
        b"".join((*parts, letters.raw[last:])), positions + letters.positions[last:]
    )


@lru_cache(maxsize=16)
def build_name_pattern(names: frozenset[str]) -> LinearPattern | None:
    """Return a pattern for the letters of multi-word names; None if there are none."""
    reduced_names = {reduce_to_letters(name) for name in names if _MULTI_WORD_NAME.search(name)}
    long_names = sorted(
        (reduced_name for reduced_name in reduced_names if len(reduced_name) >= MIN_NAME_LETTERS),
        key=len,
        reverse=True,
    )
    return LinearPattern("|".join(map(re.escape, long_names)), LARGE_MEMORY) if long_names else None


def reduce_to_letters(name: str) -> str:
    """Return the letters of a short text as a string."""
    return "".join(filter(str.isalpha, fold_text(name).translate(_LOOKALIKES)))


def build_other_names_pattern(
    name: object, own_names: Collection[str], peer_names: Collection[str] = ()
) -> LinearPattern | None:
    """Return a pattern of the other tools' names, except those with the letters of `name`."""
    own_letters = reduce_to_letters(str(name))
    return build_name_pattern(
        frozenset(
            other_name
            for other_name in (*own_names, *peer_names)
            if other_name != name and reduce_to_letters(other_name) != own_letters
        )
    )


def find_byte_position(letters: LetterSequence, folded_position: int) -> int:
    """Return the first byte whose letter is at or after a position of the folded text."""
    return bisect_left(letters.positions, folded_position)


def _encode_letters(text: str, positions: list[int]) -> LetterSequence:
    raw = text.encode(errors="replace")
    if len(raw) == len(text):
        return LetterSequence(raw, positions)
    byte_positions: list[int] = []
    for index, character in zip(positions, text, strict=True):
        byte_positions += [index] * len(character.encode(errors="replace"))
    return LetterSequence(raw, byte_positions)
