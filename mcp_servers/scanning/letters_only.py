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

from bonobot.core.text.linear_regex import ROOMY, LinearPattern
from mcp_servers.scanning.deobfuscation import TABLES, fold

# Replaces the name of a tool; no letter folds to it.
MARK: Final = "\x01"
SHORTEST_NAME: Final = 7
_LOOKALIKES: Final = str.maketrans(TABLES["lookalikes"]["letters"], TABLES["lookalikes"]["read_as"])
# `search` is a word; `create_issue` is a name.
_DISTINCT: Final = re.compile(r"[A-Za-z0-9][_.\-/ ][A-Za-z0-9]|[a-z][A-Z]", re.A)


@dataclass(frozen=True, slots=True)
class Letters:
    """The letters of a folded text in UTF-8, and each byte's position in the folded text."""

    raw: bytes
    at: list[int]

    @property
    def marked(self) -> bool:
        """Tell whether it contains the name of another tool."""
        return MARK.encode() in self.raw


def read_letters(folded: str) -> Letters:
    """Return the letters of a folded text. Takes about 0.1 ms per KiB."""
    text = folded.translate(_LOOKALIKES)
    at = [index for index, character in enumerate(text) if character.isalpha()]
    return _encode_letters("".join([text[index] for index in at]), at)


def mark_names(letters: Letters, names: Any) -> Letters:
    """Return `letters` with a mark for each name that `pattern` finds."""
    kept: list[bytes] = []
    places: list[int] = []
    last = 0
    for match in names.finditer(letters.raw):
        start, end = match.span()
        kept += (letters.raw[last:start], MARK.encode())
        places += letters.at[last:start]
        places.append(letters.at[start])
        last = end
    if not kept:
        return letters
    return Letters(b"".join((*kept, letters.raw[last:])), places + letters.at[last:])


@lru_cache(maxsize=16)
def name_pattern(names: frozenset[str]) -> LinearPattern | None:
    """Return a pattern for the letters of multi-word names; None if there are none."""
    squeezed = {letters_of(name) for name in names if _DISTINCT.search(name)}
    long = sorted((one for one in squeezed if len(one) >= SHORTEST_NAME), key=len, reverse=True)
    return LinearPattern("|".join(map(re.escape, long)), ROOMY) if long else None


def letters_of(name: str) -> str:
    """Return the letters of a short text as a string."""
    return "".join(filter(str.isalpha, fold(name).translate(_LOOKALIKES)))


def names_beside(
    name: object, own: Collection[str], peers: Collection[str] = ()
) -> LinearPattern | None:
    """Return a pattern of the other tools' names, except those with the letters of `name`."""
    mine = letters_of(str(name))
    return name_pattern(
        frozenset(one for one in (*own, *peers) if one != name and letters_of(one) != mine)
    )


def position(letters: Letters, folded_at: int) -> int:
    """Return the first byte whose letter is at or after a position of the folded text."""
    return bisect_left(letters.at, folded_at)


def _encode_letters(text: str, at: list[int]) -> Letters:
    raw = text.encode(errors="replace")
    if len(raw) == len(text):
        return Letters(raw, at)
    places: list[int] = []
    for index, character in zip(at, text, strict=True):
        places += [index] * len(character.encode(errors="replace"))
    return Letters(raw, places)
