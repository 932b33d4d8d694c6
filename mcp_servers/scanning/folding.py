"""Fold text to what a model reads, and find where folded text stood.

Case, accents, width, mathematical alphabets, decorations and spacing go. Linear in the text.
"""

import re
import tomllib
import unicodedata
from importlib.resources import files
from typing import Final

TABLES: Final = tomllib.loads(
    files(__package__).joinpath("letters.toml").read_text(encoding="utf-8")
)
_DROPPED: Final = re.compile(
    "[*`\u0300-\u036f\u0591-\u05c7\u0640\u064b-\u065f\u0670\u200b-\u200f\u00ad\u2060\ufeff]"
)
_LETTERS: Final[dict[str, str]] = TABLES["plain"]
_SPACES: Final = re.compile(" {2,}")


class _Folds(dict[int, str]):
    """A translation table that decides on each character when it meets it."""

    def __missing__(self, code: int) -> str:
        folded = _folded(chr(code))
        if len(self) < 1 << 16:
            self[code] = folded
        return folded


def _folded(character: str) -> str:
    if character.isspace():
        return " "
    if character in _LETTERS:
        return _LETTERS[character]
    lowered = unicodedata.normalize("NFKC", character).lower()
    if any("\xc0" <= one <= "\u024f" or "\u1e00" <= one <= "\u1eff" for one in lowered):
        lowered = unicodedata.normalize("NFKD", lowered)
    plain = _DROPPED.sub("", "".join(_LETTERS.get(one, one) for one in lowered))
    return " " if plain and plain.isspace() else plain


_TABLE: Final = _Folds()


def fold(text: str) -> str:
    """Return `text` lower, plain and with single spaces."""
    return _SPACES.sub(" ", text.translate(_TABLE))


def origin(text: str, *positions: int) -> list[int]:
    """Return where in `text` the characters at `positions` (ascending) of `fold(text)` stand."""
    found: list[int] = []
    length, spaced = 0, False
    for index, character in enumerate(text):
        piece = _TABLE[ord(character)]
        if piece == " ":
            piece, spaced = ("" if spaced else " "), True
        elif piece:
            spaced = False
        length += len(piece)
        while len(found) < len(positions) and length > positions[len(found)]:
            found.append(index)
        if len(found) == len(positions):
            return found
    return found + [len(text)] * (len(positions) - len(found))
