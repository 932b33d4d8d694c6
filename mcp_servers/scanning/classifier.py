"""Score how much a text resembles an attack with a linear model over its letters.

Features are hashed runs of letters, concepts in a row and the signals of the rules; separators are
no features, so an attacker can't use them. The weights come from `benchmarks/train_scanning.py`,
which needs scikit-learn. A score is explained by the heaviest phrases.

Concepts are found by stems among the letters, so that no space or word boundary decides. Concepts
that stand close together in an order ("before", "other tool", "read", "path") hold for sentences
that the model has never seen.
"""

import math
import tomllib
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise
from struct import Struct, unpack
from typing import Any, Final, NamedTuple

from bonobot.core.text.linear_regex import LARGE_MEMORY, LinearPattern
from mcp_servers.scanning.deobfuscation import NAME_MARK, LetterSequence, reduce_to_letters
from mcp_servers.scanning.signals import SignalHit

BUCKET_BITS: Final = 17
BUCKET_COUNT: Final = 1 << BUCKET_BITS
# Concepts weigh up to a thousand times as much as a run, so one byte is too coarse for both.
WEIGHT_BYTES: Final = 2
MAX_WEIGHT: Final = 32_767
# Lengths of runs, in bytes of UTF-8.
RUN_LENGTHS: Final = (3, 5, 7)
# The weight of a signal relative to a whole window of runs.
SIGNAL_FACTOR: Final = 0.4
# The weight of the concepts of a window relative to its runs.
CONCEPT_FACTOR: Final = 0.5
# Windows with fewer concept features score lower.
MIN_CONCEPTS: Final = 12
# Windows with fewer runs score lower, so that one word is not enough.
MIN_RUNS: Final = 60
# Signals may extend past a window by this many characters.
EDGE_CHARACTERS: Final = 30
# Schemas repeat the same parameters in every tool of a server: they score lower.
SCHEMA_PENALTY: Final = 0.7
# A long text has more windows that resemble an attack by chance: its score is lower by this for
# each factor of e, up to a number of windows, so that padding hides little.
LENGTH_PENALTY: Final = 0.5
MAX_PENALIZED_WINDOWS: Final = 8
# A name and a few words can't order much, but their few runs say little: a text with fewer letters
# than this scores lower, by up to the penalty.
MIN_LETTERS: Final = 80
SHORT_PENALTY: Final = 2.5
MAX_WINDOWS: Final = 4_000
MAX_PHRASES: Final = 3
MARK_BYTE: Final = NAME_MARK.encode()
_MAX_PHRASE_WORDS: Final = 5
# A window has several times as many runs as concept features, so one of these weighs more.
_PHRASE_FACTOR: Final = 2.0
_HEADER: Final = Struct("<4sffI")
_MAGIC: Final = b"BBW2"


class TextWindow(NamedTuple):
    """A byte range of the letters, and the weight of each rule's signals in it."""

    start: int
    end: int
    rules: tuple[tuple[str, float], ...]


class WindowFeatures(NamedTuple):
    """A window with the buckets of its runs and of its concepts."""

    window: TextWindow
    runs: set[int]
    concepts: set[int]

    def weigh(self) -> Iterator[tuple[int, float]]:
        """Yield each bucket with its weight; a bucket may come more than once."""
        run_weight, concept_weight = compute_run_weight(len(self.runs)), self.concept_weight
        for bucket in self.runs:
            yield bucket, run_weight
        for bucket in self.concepts:
            yield bucket, concept_weight
        for rule, weight in self.window.rules:
            yield compute_rule_bucket(rule), SIGNAL_FACTOR * weight

    @property
    def concept_weight(self) -> float:
        """Return the weight of each concept feature."""
        return CONCEPT_FACTOR / math.sqrt(max(len(self.concepts), MIN_CONCEPTS))


class ScoredWindow(NamedTuple):
    """A window with its score in log-odds: 0 is a probability of 50 %."""

    score: float
    window: TextWindow


class LinearModel(NamedTuple):
    """Weights by bucket (two bytes each) in units of `scale`, the bias, and a window's bytes.

    Windows overlap by half.
    """

    weights: bytes
    scale: float
    bias: float
    size: int

    def get_weight(self, bucket: int) -> float:
        """Return the weight of a bucket."""
        return _decode_weights(self.weights)[bucket] * self.scale


# How many concepts further on a concept is still paired with, and within how many bytes.
MAX_STEPS: Final = 3
MAX_GAP: Final = 60
MAX_TRIPLE_BYTES: Final = 90
# A marked name of another tool.
NAMED_TOOL: Final = "named_tool"


class Concept(NamedTuple):
    """A concept and its byte range in the letters."""

    start: int
    end: int
    name: str


class ConceptFeature(NamedTuple):
    """One to three concepts in a row: their byte range and the hash of their names."""

    start: int
    end: int
    digest: int


@lru_cache(maxsize=4)
def read_model(name: str) -> LinearModel:
    """Return a model of this package; raises ValueError for an invalid file."""
    return unpack_model(files(__package__).joinpath(f"{name}.weights").read_bytes())


def unpack_model(raw: bytes) -> LinearModel:
    """Return the model in a file's bytes; raises ValueError if they are invalid."""
    if len(raw) != _HEADER.size + BUCKET_COUNT * WEIGHT_BYTES or raw[:4] != _MAGIC:
        raise ValueError("these bytes are no model of the scanner")
    _, scale, bias, size = _HEADER.unpack_from(raw)
    return LinearModel(raw[_HEADER.size :], scale, bias, size)


def pack_model(model: LinearModel) -> bytes:
    """Return the bytes that `unpack_model` reads."""
    return _HEADER.pack(_MAGIC, model.scale, model.bias, model.size) + model.weights


def hash_runs(raw: bytes, length: int) -> list[int]:
    """Return the bucket of the run that starts at each byte."""
    crc32, mask = zlib.crc32, BUCKET_COUNT - 1
    return [crc32(raw[start : start + length]) & mask for start in range(len(raw) - length + 1)]


def compute_rule_bucket(rule: str) -> int:
    """Return the bucket of a rule's signals."""
    return zlib.crc32(b"\xff" + rule.encode()) & (BUCKET_COUNT - 1)


def iterate_windows(
    letters: LetterSequence, hits: Sequence[SignalHit], size: int
) -> Iterator[TextWindow]:
    """Yield the windows of a text, at most 4,000."""
    length, stride = len(letters.raw), size // 2
    starts = range(0, max(length - size, 0) + stride, stride)[:MAX_WINDOWS]
    for start in starts if length > size else (0,) if length else ():
        end = min(start + size, length)
        first, last = (
            letters.positions[start] - EDGE_CHARACTERS,
            letters.positions[end - 1] + 1 + EDGE_CHARACTERS,
        )
        rules: dict[str, float] = {}
        for hit in hits:
            if hit.start >= first and hit.end <= last:
                rules[hit.rule] = max(rules.get(hit.rule, 0), hit.weight)
        yield TextWindow(start, end, tuple(rules.items()))


def iterate_features(
    letters: LetterSequence, hits: Sequence[SignalHit], size: int
) -> Iterator[WindowFeatures]:
    """Yield the windows of a text with their features."""
    runs = [(length, hash_runs(letters.raw, length)) for length in RUN_LENGTHS]
    concepts = list_concept_features(letters.raw)
    starts = [feature.start for feature in concepts]
    for window in iterate_windows(letters, hits, size):
        buckets: set[int] = set()
        for length, run_buckets in runs:
            buckets.update(run_buckets[window.start : max(window.end - length + 1, window.start)])
        first, last = bisect_left(starts, window.start), bisect_left(starts, window.end)
        yield WindowFeatures(window, buckets, _collect_buckets(concepts[first:last], window.end))


def _collect_buckets(concepts: Sequence[ConceptFeature], end: int) -> set[int]:
    mask = BUCKET_COUNT - 1
    return {feature.digest & mask for feature in concepts if feature.end <= end}


def compute_run_weight(runs: int) -> float:
    """Return the weight of each run in a window with this number of distinct runs."""
    return 1 / math.sqrt(max(runs, MIN_RUNS))


def compute_length_penalty(length: int, size: int) -> float:
    """Return by how much the score of a text with this number of bytes is lower."""
    if length < MIN_LETTERS:
        return SHORT_PENALTY * (1 - length / MIN_LETTERS)
    windows = max(length - size, 0) / (size // 2) + 1
    return LENGTH_PENALTY * math.log(min(windows, MAX_PENALIZED_WINDOWS))


def find_heaviest_window(
    model: LinearModel,
    letters: LetterSequence,
    hits: Sequence[SignalHit],
    *,
    require_mark: bool = False,
    schema_start: int | None = None,
) -> ScoredWindow | None:
    """Return the window with the highest score; None for a text without letters. 2 ms per KiB.

    `require_mark` only considers windows that name another tool. From byte `schema_start` on,
    windows score lower (`SCHEMA_PENALTY`).
    """
    values = _decode_weights(model.weights)
    heaviest: ScoredWindow | None = None
    for features in iterate_features(letters, hits, model.size):
        window = features.window
        if require_mark and MARK_BYTE not in letters.raw[window.start : window.end]:
            continue
        total = sum([values[bucket] for bucket in features.runs]) * compute_run_weight(
            len(features.runs)
        )
        total += sum([values[bucket] for bucket in features.concepts]) * features.concept_weight
        total += sum(
            SIGNAL_FACTOR * weight * values[compute_rule_bucket(rule)]
            for rule, weight in window.rules
        )
        weight = total * model.scale + model.bias
        if schema_start is not None and window.start >= schema_start:
            weight -= SCHEMA_PENALTY
        scored = ScoredWindow(weight, window)
        if heaviest is None or scored.score > heaviest.score:
            heaviest = scored
    return heaviest


def find_heaviest_phrases(
    model: LinearModel, letters: LetterSequence, window: TextWindow, folded: str
) -> list[tuple[int, int]]:
    """Return the heaviest phrases of a window as ranges of the folded text, heaviest first."""
    weights = _weigh_positions(model, letters, window)
    if not weights:
        return []
    first, last = min(weights), max(weights) + 1
    word_spans = _find_words(folded, first, last)
    sums = [sum(weights.get(position, 0.0) for position in range(*word)) for word in word_spans]
    return _choose_heaviest_runs(word_spans, sums)


def _weigh_positions(
    model: LinearModel, letters: LetterSequence, window: TextWindow
) -> dict[int, float]:
    weights: dict[int, float] = {}
    for length in RUN_LENGTHS:
        run_buckets = hash_runs(letters.raw[window.start : window.end], length)
        for offset, bucket in enumerate(run_buckets):
            run_weight = model.get_weight(bucket) / length
            for index in range(window.start + offset, window.start + offset + length):
                weights[letters.positions[index]] = (
                    weights.get(letters.positions[index], 0.0) + run_weight
                )
    for feature in list_concept_features(letters.raw[window.start : window.end]):
        concept_weight = model.get_weight(feature.digest & (BUCKET_COUNT - 1))
        concept_weight *= _PHRASE_FACTOR / (feature.end - feature.start)
        for index in range(window.start + feature.start, window.start + feature.end):
            position = letters.positions[index]
            weights[position] = weights.get(position, 0.0) + concept_weight
    return weights


def _find_words(folded: str, first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges of the words from `first` to `last`."""
    spaces = [index for index in range(first, last) if folded[index] == " "]
    edges = [first - 1, *spaces, last]
    return [(start + 1, end) for start, end in pairwise(edges) if end > start + 1]


def _choose_heaviest_runs(
    word_spans: Sequence[tuple[int, int]], sums: Sequence[float]
) -> list[tuple[int, int]]:
    """Return the heaviest runs of neighboring words, without overlaps."""
    remaining = set(range(len(word_spans)))
    phrases: list[tuple[int, int]] = []
    while len(phrases) < MAX_PHRASES:
        runs = [
            (sum(sums[start : start + count]), start, count)
            for start in remaining
            for count in range(1, _MAX_PHRASE_WORDS + 1)
            if all(start + step in remaining for step in range(count))
        ]
        weight, start, count = max(runs, default=(0.0, 0, 0))
        if weight <= 0:
            break
        remaining -= set(range(start, start + count))
        phrases.append((word_spans[start][0], word_spans[start + count - 1][1]))
    return phrases


@lru_cache(maxsize=4)
def _decode_weights(weights: bytes) -> tuple[int, ...]:
    return unpack(f"<{BUCKET_COUNT}h", weights)


def find_concepts(raw: bytes) -> list[Concept]:
    """Return the concepts in the bytes of a text's letters, in order."""
    names, pattern = _read_stems()
    return [
        Concept(match.start(), match.end(), name)
        for match in pattern.finditer(raw)
        if (name := names[match.group()])
    ]


def list_concept_features(raw: bytes) -> list[ConceptFeature]:
    """Return the concepts in a text's letters, alone and in rows of two and three."""
    concepts = find_concepts(raw)
    features: list[ConceptFeature] = []
    for index, first in enumerate(concepts):
        features.append(_build_feature(first, first))
        for second in concepts[index + 1 : index + 1 + MAX_STEPS]:
            if second.start - first.end > MAX_GAP:
                break
            features.append(_build_feature(first, second, first.name, second.name))
        row = concepts[index : index + 3]
        if len(row) == 3 and row[2].end - row[0].start <= MAX_TRIPLE_BYTES:
            features.append(_build_feature(row[0], row[2], *(concept.name for concept in row)))
    return features


def _build_feature(first: Concept, last: Concept, *names: str) -> ConceptFeature:
    return ConceptFeature(first.start, last.end, _compute_digest(names or (first.name,)))


@lru_cache(maxsize=16_384)
def _compute_digest(names: tuple[str, ...]) -> int:
    return zlib.crc32(b"\xfe" + " ".join(names).encode())


@lru_cache(maxsize=1)
def _read_stems() -> tuple[dict[bytes, str], Any]:
    """Return the concept of each stem ("" for a word that only contains one), and their pattern."""
    data = tomllib.loads(
        files(__package__).joinpath("concept_stems.toml").read_text(encoding="utf-8")
    )
    names = dict.fromkeys(_split_stems(data["words"]), "")
    for concept, stems in data["stems"].items():
        names |= dict.fromkeys(_split_stems(stems), concept)
    names[NAME_MARK.encode()] = NAMED_TOOL
    longest_first = sorted(names, key=lambda stem: (-len(stem), stem))
    return names, LinearPattern(_join_alternatives(longest_first), LARGE_MEMORY)


def _split_stems(text: str) -> Iterator[bytes]:
    for stem in text.split(","):
        yield reduce_to_letters(stem).encode()


def _join_alternatives(stems: Iterable[bytes]) -> str:
    return "|".join(stem.decode() if stem != NAME_MARK.encode() else r"\x01" for stem in stems)
