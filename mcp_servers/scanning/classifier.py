"""Score how much a text resembles an attack with a linear model over its letters.

Features are hashed runs of letters and the signals of the rules; separators are no features, so an
attacker can't use them. The weights come from `benchmarks/train_scanning.py`, which needs
scikit-learn. A score is explained by the heaviest phrases.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from mcp_servers.scanning.letters_only import MARK, Letters
from mcp_servers.scanning.signals import SignalHit

BITS: Final = 17
BUCKETS: Final = 1 << BITS
# Lengths of runs, in bytes of UTF-8.
LENGTHS: Final = (3, 5, 7)
# The weight of a signal relative to a whole window of runs.
SIGNAL: Final = 0.4
# Windows with fewer runs score lower, so that one word is not enough.
FEWEST: Final = 60
# Signals may extend past a window by this many characters.
EDGE: Final = 30
# Schemas repeat the same parameters in every tool of a server: they score lower.
ASIDE: Final = 0.7
MOST_WINDOWS: Final = 4_000
MOST_PHRASES: Final = 3
MARK_BYTE: Final = MARK.encode()
_WORDS_OF_A_PHRASE: Final = 5
_HEADER: Final = Struct("<4sffI")
_MAGIC: Final = b"BBW1"


class Window(NamedTuple):
    """A byte range of the letters, and the weight of each rule's signals in it."""

    start: int
    end: int
    rules: tuple[tuple[str, float], ...]


class Scored(NamedTuple):
    """A window with its score in log-odds: 0 is a probability of 50 %."""

    score: float
    window: Window


class Model(NamedTuple):
    """Weights by bucket in units of `scale`, the bias, and the size of a window in bytes.

    Windows overlap by half.
    """

    weights: bytes
    scale: float
    bias: float
    size: int

    def weight(self, bucket: int) -> float:
        """Return the weight of a bucket."""
        value = self.weights[bucket]
        return (value - 256 if value > 127 else value) * self.scale


@lru_cache(maxsize=4)
def read_model(name: str) -> Model:
    """Return a model of this package; raises ValueError for an invalid file."""
    return unpack_model(files(__package__).joinpath(f"{name}.weights").read_bytes())


def unpack_model(raw: bytes) -> Model:
    """Return the model in a file's bytes; raises ValueError if they are invalid."""
    if len(raw) != _HEADER.size + BUCKETS or raw[:4] != _MAGIC:
        raise ValueError("these bytes are no model of the scanner")
    _, scale, bias, size = _HEADER.unpack_from(raw)
    return Model(raw[_HEADER.size :], scale, bias, size)


def pack_model(model: Model) -> bytes:
    """Return the bytes that `unpack_model` reads."""
    return _HEADER.pack(_MAGIC, model.scale, model.bias, model.size) + model.weights


def hash_runs(raw: bytes, length: int) -> list[int]:
    """Return the bucket of the run that starts at each byte."""
    crc32, mask = zlib.crc32, BUCKETS - 1
    return [crc32(raw[at : at + length]) & mask for at in range(len(raw) - length + 1)]


def rule_bucket(rule: str) -> int:
    """Return the bucket of a rule's signals."""
    return zlib.crc32(b"\xff" + rule.encode()) & (BUCKETS - 1)


def windows(letters: Letters, hits: Sequence[SignalHit], size: int) -> Iterator[Window]:
    """Yield the windows of a text, at most 4,000."""
    whole, stride = len(letters.raw), size // 2
    starts = range(0, max(whole - size, 0) + stride, stride)[:MOST_WINDOWS]
    for start in starts if whole > size else (0,) if whole else ():
        end = min(start + size, whole)
        first, last = letters.at[start] - EDGE, letters.at[end - 1] + 1 + EDGE
        rules: dict[str, float] = {}
        for hit in hits:
            if hit.start >= first and hit.end <= last:
                rules[hit.rule] = max(rules.get(hit.rule, 0), hit.weight)
        yield Window(start, end, tuple(rules.items()))


def features(
    letters: Letters, hits: Sequence[SignalHit], size: int
) -> Iterator[tuple[Window, set[int]]]:
    """Yield each window with the buckets of its runs."""
    runs = [(length, hash_runs(letters.raw, length)) for length in LENGTHS]
    for window in windows(letters, hits, size):
        buckets: set[int] = set()
        for length, hashed in runs:
            buckets.update(hashed[window.start : max(window.end - length + 1, window.start)])
        yield window, buckets


def share(runs: int) -> float:
    """Return the weight of each run in a window with this number of distinct runs."""
    return 1 / math.sqrt(max(runs, FEWEST))


def score(
    model: Model,
    letters: Letters,
    hits: Sequence[SignalHit],
    *,
    marked: bool = False,
    aside: int | None = None,
) -> Scored | None:
    """Return the window with the highest score; None for a text without letters. 2 ms per KiB.

    `require_mark` only considers windows that name another tool. From byte `schema_start` on,
    windows score lower (`SCHEMA_PENALTY`).
    """
    values = _decode_weights(model.weights)
    best: Scored | None = None
    for window, buckets in features(letters, hits, model.size):
        if marked and MARK_BYTE not in letters.raw[window.start : window.end]:
            continue
        summed = sum([values[one] for one in buckets]) * share(len(buckets))
        summed += sum(SIGNAL * weight * values[rule_bucket(rule)] for rule, weight in window.rules)
        weight = summed * model.scale + model.bias
        if aside is not None and window.start >= aside:
            weight -= ASIDE
        scored = Scored(weight, window)
        if best is None or scored.score > best.score:
            best = scored
    return best


def explain(model: Model, letters: Letters, window: Window, folded: str) -> list[tuple[int, int]]:
    """Return the heaviest phrases of a window as ranges of the folded text, heaviest first."""
    weighed = _weigh_places(model, letters, window)
    if not weighed:
        return []
    first, last = min(weighed), max(weighed) + 1
    words = _words(folded, first, last)
    sums = [sum(weighed.get(at, 0.0) for at in range(*word)) for word in words]
    return _heaviest(words, sums)


def _weigh_places(model: Model, letters: Letters, window: Window) -> dict[int, float]:
    weighed: dict[int, float] = {}
    for length in LENGTHS:
        hashed = hash_runs(letters.raw[window.start : window.end], length)
        for offset, bucket in enumerate(hashed):
            part = model.weight(bucket) / length
            for at in range(window.start + offset, window.start + offset + length):
                weighed[letters.at[at]] = weighed.get(letters.at[at], 0.0) + part
    return weighed


def _words(folded: str, first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges of the words from `first` to `last`."""
    spaces = [at for at in range(first, last) if folded[at] == " "]
    edges = [first - 1, *spaces, last]
    return [(start + 1, end) for start, end in pairwise(edges) if end > start + 1]


def _heaviest(words: Sequence[tuple[int, int]], sums: Sequence[float]) -> list[tuple[int, int]]:
    """Return the heaviest runs of neighboring words, without overlaps."""
    left = set(range(len(words)))
    phrases: list[tuple[int, int]] = []
    while len(phrases) < MOST_PHRASES:
        runs = [
            (sum(sums[start : start + count]), start, count)
            for start in left
            for count in range(1, _WORDS_OF_A_PHRASE + 1)
            if all(start + step in left for step in range(count))
        ]
        weight, start, count = max(runs, default=(0.0, 0, 0))
        if weight <= 0:
            break
        left -= set(range(start, start + count))
        phrases.append((words[start][0], words[start + count - 1][1]))
    return phrases


@lru_cache(maxsize=4)
def _decode_weights(weights: bytes) -> list[int]:
    return [one - 256 if one > 127 else one for one in weights]
