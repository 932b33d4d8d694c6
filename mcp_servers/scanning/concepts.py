"""Find what a text is about: concepts of attacks and their order, by stems among its letters.

Letters alone are read, so that no space or word boundary decides. Concepts that stand close
together in an order ("before", "other tool", "read", "path") are features of the classifier: they
hold for sentences that it has never seen.
"""

import tomllib
import zlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from bonobot.core.text.linear_regex import LARGE_MEMORY, LinearPattern
from mcp_servers.scanning.letters_only import NAME_MARK, reduce_to_letters

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
