"""Restore the spaces of English text, for rules that match words.

A model can read `i g n o r e a l l`, `ignoreallrules` and `igno.re al.l`. Only stretches whose
pieces are no words are changed. `vocabulary.txt` has the words, most frequent first; it is written
by `benchmarks/train_scanning.py`.
"""

import math
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Final

from bonobot.core.process_cache import compute_once
from mcp_servers.scanning.deobfuscation import fold_text

MAX_WORD_LETTERS: Final = 16
# Shorter runs of unknown pieces can't hide anything that a rule matches.
MIN_RUN_LETTERS: Final = 8
MAX_RUN_LETTERS: Final = 2_000
# A piece with so few letters is joined to an adjacent unknown piece.
MAX_SHORT_PIECE: Final = 3
_UNKNOWN_LETTER_COST: Final = 14.0
_MAX_UNKNOWN_SHARE: Final = 0.2
_PIECE: Final = re.compile(r"[a-z]+")
# Words separated by something other than spaces.
_JOINED_WORDS: Final = re.compile(r"[a-z]+(?:[^a-z\s]{1,3}[a-z]+){3,}")
_SEPARATORS: Final = re.compile(r"[^a-z\s]+")
# A text with a larger share of unknown pieces is split as a whole.
RESPLIT_SHARE: Final = 0.2


@compute_once
def load_word_costs() -> dict[str, float]:
    """Return the cost of each word; frequent words cost less."""
    text = files(__package__).joinpath("vocabulary.txt").read_text(encoding="utf-8")
    return {word: math.log(rank + 20) for rank, word in enumerate(text.split())}


def insert_spaces(text: str) -> str | None:
    """Return a folded text with spaces restored; None if nothing changes."""
    folded = fold_text(text)
    parts: list[str] = []
    last = 0
    for start, end in _find_stretches(folded):
        letters = "".join(_PIECE.findall(folded, start, end))
        chunks = [
            letters[offset : offset + MAX_RUN_LETTERS]
            for offset in range(0, len(letters), MAX_RUN_LETTERS)
        ]
        split = [_split_words(chunk) for chunk in chunks]
        if any(words is None for words in split):
            continue
        parts += (
            folded[last:start],
            " ",
            " ".join(word for words in split for word in words or ()),
        )
        parts.append(" ")
        last = end
    spaced = "".join((*parts, folded[last:]))
    separated = _JOINED_WORDS.sub(lambda match: _SEPARATORS.sub(" ", match.group()), spaced)
    return separated if parts or separated != spaced else None


def _find_stretches(folded: str) -> list[tuple[int, int]]:
    """Return the ranges to split: the whole text if much of it is unknown, else unknown runs."""
    pieces = _PIECE.findall(folded)
    unknown_letters = sum(len(piece) for piece in pieces if _is_unknown_piece(piece))
    if unknown_letters >= RESPLIT_SHARE * sum(map(len, pieces)) > 0:
        return [(0, len(folded))]
    return list(_iterate_unknown_runs(folded))


def _is_unknown_piece(piece: str) -> bool:
    return piece not in load_word_costs() or (len(piece) == 1 and piece != "a")


def _iterate_unknown_runs(folded: str) -> Iterator[tuple[int, int]]:
    """Yield runs of unknown pieces, with the short pieces between them."""
    start = end = -1
    letters = unknown = 0
    for match in _PIECE.finditer(folded):
        size = match.end() - match.start()
        is_unknown = _is_unknown_piece(match.group())
        if is_unknown or size <= MAX_SHORT_PIECE:
            if start < 0:
                start = match.start()
            end = match.end()
            letters += size
            unknown += size if is_unknown else 0
            continue
        if letters >= MIN_RUN_LETTERS and unknown * 3 >= letters:
            yield start, end
        start, letters, unknown = -1, 0, 0
    if letters >= MIN_RUN_LETTERS and unknown * 3 >= letters:
        yield start, end


def _split_words(letters: str) -> list[str] | None:
    """Return the likeliest words of a run of letters; None if too much is unknown."""
    costs = load_word_costs()
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(letters) + 1):
        cheapest = (best[end - 1][0] + _UNKNOWN_LETTER_COST, end - 1)
        for start in range(max(end - MAX_WORD_LETTERS, 0), end):
            cost = costs.get(letters[start:end])
            if cost is not None and best[start][0] + cost < cheapest[0]:
                cheapest = (best[start][0] + cost, start)
        best.append(cheapest)
    words: list[str] = []
    end = len(letters)
    while end:
        words.append(letters[best[end][1] : end])
        end = best[end][1]
    unknown_letters = sum(len(word) for word in words if word not in costs)
    return words[::-1] if unknown_letters <= len(letters) * _MAX_UNKNOWN_SHARE else None
