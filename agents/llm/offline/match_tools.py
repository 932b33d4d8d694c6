"""Find the tool that matches a message.

Words are weighted as in BM25 over name, description and parameters. The score is relative to the
message, so that a few shared words in a long message don't match.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from agents.llm.interface import ToolSpec
from agents.llm.offline.arguments import MessageContext, PartialCall, fill
from agents.llm.offline.text_analysis import (
    ASKING,
    CHANGING_STEMS,
    HARMFUL_STEMS,
    STRONG,
    WEAK_STEMS,
    ExtractedValue,
    extract_content_stems,
    extract_values,
    list_synonyms,
    split_words,
    to_stems,
)

SATURATION = 1.2  # BM25's k1: how soon a repeated word stops counting
NAME, DESCRIPTION, PARAMETER, PROSE = 3.0, 1.0, 0.8, 0.4  # weights of where a word stands
WEAK_WEIGHT = 0.25  # of "show", "get" and the like
SYNONYM_WEIGHT = 0.7
SHORTLIST = 12  # tools whose arguments are tried
MAX_BY_VALUES = 60  # the same, where no word points to any

ENOUGH_ALONE = 0.5  # share of the message's words, if none of its values was used
ENOUGH_WITH_VALUES = 0.2
ENOUGH_TO_CALL = 0.2  # a score
ENOUGH_TO_ASK = 0.3
MISSING_PENALTY = 0.75
UNSAID_PENALTY = 0.6
DEED_BONUS = 0.15  # for the tool's verb in the message
VALUES_BONUS = 0.35
PHRASE_BONUS = 0.2
MAX_UNKNOWN = 2  # words beside a URL: "summarise https://…"
APART = STRONG | {"quoted", "number"}
CLOSE = 0.85  # of the best score: too near to ask for more, or to go by values alone


@dataclass(frozen=True)
class ToolCandidate:
    """A matching tool with its arguments and score."""

    filling: PartialCall
    score: float
    convincing: bool
    by_words: bool  # not only by values

    @property
    def ready(self) -> bool:
        """Whether it can be called without asking."""
        return self.convincing and not self.filling.missing


class ToolTermIndex:
    """Index of the terms of all available tools."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.tools = tools
        self.documents = {tool.name: _build_document(_build_key(tool)) for tool in tools}
        self.frequency = Counter(term for document in self.documents.values() for term in document)

    def rarity(self, term: str) -> float:
        """Return BM25's inverse document frequency of a term or its synonyms."""
        frequency = max(self.frequency[other] for other in (term, *list_synonyms(term)))
        return math.log1p((len(self.tools) - frequency + 0.5) / (frequency + 0.5))

    def match(self, term: str, tool: ToolSpec) -> float:
        """Return how well a term matches a tool: 0 to nearly 1."""
        document = self.documents[tool.name]
        direct = document.get(term, 0.0)
        other = max((document.get(word, 0.0) for word in list_synonyms(term)), default=0.0)
        weight = max(direct, SYNONYM_WEIGHT * other)
        return weight / (weight + SATURATION)

    def points_to(self, term: str, tool: ToolSpec) -> bool:
        """Tell whether a term is significant in a tool's definition."""
        document = self.documents[tool.name]
        said = max(document.get(word, 0.0) for word in (term, *list_synonyms(term)))
        return term not in WEAK_STEMS and said >= PARAMETER

    def candidates(self, text: str, context: MessageContext) -> list[ToolCandidate]:
        """Return the matching tools, the best first."""
        query = _MessageQuery(text, self)
        shared = {tool.name: query.shared(tool, query.terms) for tool in self.tools}
        ranked = sorted(self.tools, key=lambda tool: (-shared[tool.name], tool.name))
        shortlist = [tool for tool in ranked[:SHORTLIST] if shared[tool.name] > 0]
        if not shortlist and query.values:
            shortlist = ranked[:MAX_BY_VALUES]
        tried = [query.candidate(fill(tool, text, context)) for tool in shortlist]
        return sorted(
            (candidate for candidate in tried if candidate.score > 0),
            key=lambda candidate: (-candidate.score, candidate.filling.tool.name),
        )

    def best(self, text: str, context: MessageContext) -> ToolCandidate | None:
        """Return the best match; None if there is none or several are equally likely."""
        found = [each for each in self.candidates(text, context) if each.convincing]
        if not found:
            return None
        first, unsure = found[0], bool(found[0].filling.missing) or not found[0].by_words
        tied = [each for each in found if each.score > CLOSE * first.score]
        if unsure and len(tied) > 1:
            recent = [each for each in tied if each.filling.tool.name in context.recent]
            return recent[0] if len(recent) == 1 else None
        return first


class _MessageQuery:
    """A message's terms, to compare with the tools'."""

    def __init__(self, text: str, index: ToolTermIndex) -> None:
        self.index = index
        self.text = text
        found = extract_values(text)
        self.values = sum(value.kind in STRONG for value in found)
        # Words inside URLs, paths or quotes don't describe the tool.
        self.apart = [f for f in found if f.kind in APART]
        self.terms = self._terms(self.apart)
        self.asking = not ASKING.isdisjoint(split_words(text)[:1])

    def _terms(self, apart: Iterable[ExtractedValue]) -> list[str]:
        plain = list(self.text)
        for found in apart:
            plain[found.start : found.end] = " " * (found.end - found.start)
        return extract_content_stems("".join(plain))

    def shared(self, tool: ToolSpec, terms: Sequence[str]) -> float:
        """Return the weighted share of terms that a tool's definition covers: 0 to 1."""
        weights = {term: self._weight(term) for term in terms}
        matched = sum(weight * self.index.match(term, tool) for term, weight in weights.items())
        return matched / sum(weights.values()) if weights else 0.0

    def candidate(self, filling: PartialCall) -> ToolCandidate:
        tool = filling.tool
        # Free text used as an argument doesn't describe the tool either.
        terms = self._terms([*self.apart, *(f for f in filling.taken if f.kind == "word")])
        score = self.shared(tool, terms)
        if not set(pairwise(terms)).isdisjoint(pairwise(to_stems(tool.name))):
            score += PHRASE_BONUS
        if self.values:
            score += VALUES_BONUS * (2 * filling.strong / self.values - 1)
        score *= MISSING_PENALTY ** len(filling.missing)
        matched = [term for term in terms if self.index.match(term, tool) > 0]
        by_words = any(self.index.points_to(term, tool) for term in matched)
        enough = ENOUGH_TO_ASK if filling.missing else ENOUGH_TO_CALL
        fits = _is_covered(filling, terms, matched) if by_words else self._taken_up(filling, terms)
        if _is_verb_missing(HARMFUL_STEMS, tool, terms):
            score = 0.0
        if _is_verb_missing(CHANGING_STEMS, tool, [] if self.asking else terms):
            score *= UNSAID_PENALTY
        elif set(to_stems(tool.name)[-1:]) <= set(terms):
            score += DEED_BONUS
        return ToolCandidate(filling, score, score >= enough and fits, by_words)

    def _taken_up(self, filling: PartialCall, terms: Sequence[str]) -> bool:
        """Tell whether the values alone identify a tool: all are used, with few other words."""
        unknown = sum(term not in WEAK_STEMS for term in terms)
        addressed = any(found.kind == "url" for found in filling.taken)
        all_taken = 0 < filling.strong == self.values and not filling.missing
        return all_taken and unknown <= (MAX_UNKNOWN if addressed else 0)

    def _weight(self, term: str) -> float:
        return self.index.rarity(term) * (WEAK_WEIGHT if term in WEAK_STEMS else 1.0)


def _is_covered(filling: PartialCall, terms: Sequence[str], matched: Sequence[str]) -> bool:
    """Tell whether enough of the message's terms match the tool."""
    of_all = sum(WEAK_WEIGHT if term in WEAK_STEMS else 1.0 for term in set(terms))
    of_these = sum(WEAK_WEIGHT if term in WEAK_STEMS else 1.0 for term in set(matched))
    told = any(found.kind != "word" for found in filling.taken)
    return of_these / of_all >= (ENOUGH_WITH_VALUES if told else ENOUGH_ALONE)


def _is_verb_missing(verbs: frozenset[str], tool: ToolSpec, terms: Sequence[str]) -> bool:
    """Tell whether the tool's name has one of the verbs and the message doesn't."""
    named = verbs.intersection(to_stems(tool.name))
    said = {*terms, *(other for term in terms for other in list_synonyms(term))}
    return bool(named) and named.isdisjoint(said)


def _build_key(tool: ToolSpec) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict):
        return tool.name, tool.description, ()
    prose = tuple((name, _extract_prose(schema)) for name, schema in properties.items())
    return tool.name, tool.description, prose


def _extract_prose(schema: object) -> str:
    if not isinstance(schema, dict):
        return ""
    enum = schema.get("enum")
    named = " ".join(map(str, enum)) if isinstance(enum, list) else ""
    return f"{schema.get('description') or ''} {named}"


@lru_cache(maxsize=2_000)
def _build_document(key: tuple[str, str, tuple[tuple[str, str], ...]]) -> dict[str, float]:
    """Return the terms of a tool, weighted by where they occur."""
    name, description, parameters = key
    weights: defaultdict[str, float] = defaultdict(float)
    places = [(name, NAME), (description, DESCRIPTION)]
    places += [(parameter, PARAMETER) for parameter, _ in parameters]
    places += [(prose, PROSE) for _, prose in parameters]
    for text, weight in places:
        for term in set(extract_content_stems(text)):
            weights[term] += weight
    return dict(weights)
