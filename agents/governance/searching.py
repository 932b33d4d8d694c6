"""A search over tools by words: BM25 over names, descriptions and parameters (FEATURES X11). Pure.

The same tools and the same query always give the same order. What a tool is called counts more than
what is said about it, and that more than its parameters; words that most tools have count little.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

# How fast a word that comes again counts less, and how much long texts are held against a tool
# (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009).
K1, B = 1.2, 0.75
NAME, ABOUT, PARAMETER, PARAMETER_ABOUT = 4.0, 1.0, 1.0, 0.25
# Of a description and of all parameters together, in characters: a server can't outshout others.
READ_AT_MOST = 4_096
_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDINGS = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", "e"), ("s", ""))
# The commonest words of English say nothing of a tool.
_STOP = frozenset(
    {
        *("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "how"),
        *("i", "in", "is", "it", "its", "me", "my", "of", "on", "or", "please", "that", "the"),
        *("this", "to", "was", "we", "what", "which", "with", "you", "your"),
    }
)


@dataclass(frozen=True, slots=True)
class Text:
    """A tool as it is searched: its name, what is said about it, its input schema."""

    name: str
    about: str
    parameters: Mapping[str, Any]


class Index:
    """Tools made ready to be searched."""

    def __init__(self, texts: Iterable[Text]) -> None:
        """Read the texts: some ten thousand words a tenth of a second."""
        self._weights = {text.name: _weights(text) for text in texts}
        self._lengths = {name: sum(words.values()) for name, words in self._weights.items()}
        self._average = sum(self._lengths.values()) / max(1, len(self._lengths))
        holders = Counter(word for words in self._weights.values() for word in words)
        count = len(self._weights)
        self._rarity = {
            word: log(1 + (count - having + 0.5) / (having + 0.5))
            for word, having in holders.items()
        }

    def search(self, query: str, most: int) -> list[str]:
        """Return the names of the tools that fit best, the best first; equal ones by name."""
        asked = [word for word in dict.fromkeys(words_of(query)) if word in self._rarity]
        scores = {name: self._score(name, asked) for name in self._weights}
        found = sorted(
            (name for name, score in scores.items() if score > 0),
            key=lambda name: (-scores[name], name),
        )
        return found[:most]

    def _score(self, name: str, asked: Sequence[str]) -> float:
        words = self._weights[name]
        damping = K1 * (1 - B + B * self._lengths[name] / (self._average or 1))
        return sum(
            self._rarity[word] * words[word] * (K1 + 1) / (words[word] + damping)
            for word in asked
            if word in words
        )


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are compared: small, split at humps, without endings."""
    found = (word.lower() for word in _WORD.findall(_HUMP.sub(" ", text)))
    return [_stem(word) for word in found if word not in _STOP]


def _stem(word: str) -> str:
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)] + instead
    return word


def _weights(text: Text) -> dict[str, float]:
    found: dict[str, float] = {}
    names, abouts = _parameters(text.parameters)
    for words, weight in (
        (text.name, NAME),
        (text.about[:READ_AT_MOST], ABOUT),
        (names[:READ_AT_MOST], PARAMETER),
        (abouts[:READ_AT_MOST], PARAMETER_ABOUT),
    ):
        for word in words_of(words):
            found[word] = found.get(word, 0.0) + weight
    return found


def _parameters(schema: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of a tool's parameters, and what is said about them."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "", ""
    said = [one.get("description") for one in properties.values() if isinstance(one, Mapping)]
    return " ".join(properties), " ".join(one for one in said if isinstance(one, str))
