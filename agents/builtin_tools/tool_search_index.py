"""Full-text search over tools (BM25), as agents' models and MCP clients use it.

The order is deterministic. A tool's name weighs more than its description and its server's name,
and those more than its parameters; words that most tools share weigh little. A synonym counts less
than the word itself. Tools that were called successfully before rank slightly higher.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from math import log, log1p
from typing import Any

# Term frequency saturation and length normalization
# (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009).
K1, B = 1.2, 0.75
NAME_WEIGHT, DESCRIPTION_WEIGHT, PARAMETER_WEIGHT, PARAMETER_DESCRIPTION_WEIGHT = (
    4.0,
    1.0,
    1.0,
    0.25,
)
SERVER_WEIGHT = 1.0
SYNONYM_WEIGHT = 0.4
# How much the most successful tool's score is increased: less than what one word matters.
SUCCESS_WEIGHT = 0.15
# Characters per description and per tool's parameters, so that no server can dominate results.
MAX_INDEXED_LENGTH = 4_096
# Different words of a query that are searched.
MAX_QUERY_WORDS = 24
_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ENDINGS = (("ies", "y"), ("sses", "ss"), ("ing", ""), ("ed", ""), ("es", "e"), ("s", ""))
# Common English words don't distinguish tools.
_STOP_WORDS = frozenset(
    {
        *("a", "an", "and", "are", "as", "at", "be", "by", "for", "from", "has", "have", "how"),
        *("i", "in", "is", "it", "its", "me", "my", "of", "on", "or", "please", "that", "the"),
        *("this", "to", "was", "we", "what", "which", "with", "you", "your"),
    }
)
# Words that tools and people use for the same thing.
_SYNONYMS = (
    ("list", "show", "display", "view", "browse", "enumerate"),
    ("get", "fetch", "read", "retrieve", "show", "describe", "view", "details"),
    ("find", "search", "query", "lookup", "locate"),
    ("create", "add", "new", "make", "provision", "insert"),
    ("delete", "remove", "drop", "erase", "destroy"),
    ("update", "edit", "change", "modify", "set", "adjust"),
    ("send", "post", "publish", "deliver"),
    ("start", "run", "launch", "execute", "trigger"),
    ("stop", "cancel", "abort", "terminate", "halt"),
    ("email", "mail"),
    ("repository", "repo"),
    ("issue", "ticket"),
    ("user", "member", "person", "people", "account"),
    ("invoice", "bill"),
    ("database", "db"),
    ("folder", "directory"),
    ("document", "doc", "file"),
    ("image", "picture", "photo"),
    ("meeting", "event", "appointment"),
    ("message", "chat"),
    ("customer", "client"),
    ("kubernetes", "k8s"),
    ("permission", "access", "role"),
    ("configuration", "config", "setting"),
    ("price", "cost"),
)


@dataclass(frozen=True, slots=True)
class SearchableTool:
    """A tool as it is indexed: its name, description and input schema, and its server's name."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    server: str = ""


class ToolSearchIndex:
    """A search index of tools: for each word, the tools that have it and what it adds."""

    def __init__(self, tools: Iterable[SearchableTool]) -> None:
        """Index the tools: about 10,000 words in 0.1 s."""
        weights = {tool.name: _compute_weights(tool) for tool in tools}
        lengths = {name: sum(words.values()) for name, words in weights.items()}
        average_length = sum(lengths.values()) / max(1, len(lengths)) or 1
        tool_counts = Counter(word for words in weights.values() for word in words)
        count = len(weights)
        self._scores: dict[str, dict[str, float]] = {word: {} for word in tool_counts}
        self._matches_with_synonyms: dict[str, dict[str, float]] = {}
        for name, words in weights.items():
            damping = K1 * (1 - B + B * lengths[name] / average_length)
            for word, weight in words.items():
                tool_count = tool_counts[word]
                rarity = log(1 + (count - tool_count + 0.5) / (tool_count + 0.5))
                self._scores[word][name] = rarity * weight * (K1 + 1) / (weight + damping)

    def search(
        self, query: str, limit: int, successes: Mapping[str, int] | None = None
    ) -> list[str]:
        """Return the names of the best matches, best first; ties are sorted by name.

        `successes` are the numbers of successful calls by tool name.
        """
        scores: dict[str, float] = {}
        for word in list(dict.fromkeys(split_words(query)))[:MAX_QUERY_WORDS]:
            for name, score in self._find_matches(word).items():
                scores[name] = scores.get(name, 0.0) + score
        if successes and (most := max(successes.values())) > 0:
            for name in scores.keys() & successes.keys():
                scores[name] *= 1 + SUCCESS_WEIGHT * log1p(successes[name]) / log1p(most)
        return nsmallest(limit, scores, key=lambda name: (-scores[name], name))

    def _find_matches(self, word: str) -> Mapping[str, float]:
        """Return what a word of the query adds to tools' scores, by name."""
        if word not in _OTHERS:
            return self._scores.get(word, {})
        if (matches := self._matches_with_synonyms.get(word)) is not None:
            return matches
        matches = {}
        for other in _OTHERS[word]:
            for name, score in self._scores.get(other, {}).items():
                matches[name] = max(score * SYNONYM_WEIGHT, matches.get(name, 0.0))
        for name, score in self._scores.get(word, {}).items():
            matches[name] = max(score, matches.get(name, 0.0))
        self._matches_with_synonyms[word] = matches
        return matches


def split_words(text: str) -> list[str]:
    """Return the stemmed, lower-case words of a text, split at camel case."""
    words = (word.lower() for word in _WORD.findall(_CAMEL_CASE_BOUNDARY.sub(" ", text)))
    return [_stem_word(word) for word in words if word not in _STOP_WORDS]


def _stem_word(word: str) -> str:
    for ending, replacement in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: len(word) - len(ending)] + replacement
    return word


def _list_other_words() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each word that has synonyms, and those, as they are indexed."""
    groups = [tuple(map(_stem_word, group)) for group in _SYNONYMS]
    for word in dict.fromkeys(word for group in groups for word in group):
        others = dict.fromkeys(other for group in groups if word in group for other in group)
        yield word, tuple(other for other in others if other != word)


_OTHERS = dict(_list_other_words())


def _compute_weights(tool: SearchableTool) -> dict[str, float]:
    weights: dict[str, float] = {}
    names, descriptions = _collect_parameter_texts(tool.parameters)
    for words, weight in (
        (tool.name, NAME_WEIGHT),
        (tool.server, SERVER_WEIGHT),
        (tool.description[:MAX_INDEXED_LENGTH], DESCRIPTION_WEIGHT),
        (names[:MAX_INDEXED_LENGTH], PARAMETER_WEIGHT),
        (descriptions[:MAX_INDEXED_LENGTH], PARAMETER_DESCRIPTION_WEIGHT),
    ):
        for word in split_words(words):
            weights[word] = weights.get(word, 0.0) + weight
    return weights


def _collect_parameter_texts(schema: Mapping[str, Any]) -> tuple[str, str]:
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return "", ""
    descriptions = [
        property_schema.get("description")
        for property_schema in properties.values()
        if isinstance(property_schema, Mapping)
    ]
    return " ".join(properties), " ".join(
        property_schema for property_schema in descriptions if isinstance(property_schema, str)
    )
