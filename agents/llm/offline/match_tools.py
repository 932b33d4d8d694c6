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
from agents.llm.offline.arguments import MessageContext, PartialCall, fill_arguments
from agents.llm.offline.text_analysis import (
    CHANGING_STEMS,
    HARMFUL_STEMS,
    QUESTION_WORDS,
    STRONG_KINDS,
    WEAK_STEMS,
    ExtractedValue,
    extract_content_stems,
    extract_values,
    list_synonyms,
    split_words,
    to_stems,
)

SATURATION = 1.2  # BM25's k1: how soon a repeated word stops counting
NAME_WEIGHT, DESCRIPTION_WEIGHT, PARAMETER_WEIGHT, PROSE_WEIGHT = (
    3.0,
    1.0,
    0.8,
    0.4,
)  # weights of where a word stands
WEAK_WEIGHT = 0.25  # of "show", "get" and the like
SYNONYM_WEIGHT = 0.7
MAX_SHORTLIST = 12  # tools whose arguments are tried
MAX_BY_VALUES = 60  # the same, where no word points to any

MIN_COVERAGE_ALONE = 0.5  # share of the message's words, if none of its values was used
MIN_COVERAGE_WITH_VALUES = 0.2
MIN_SCORE_TO_CALL = 0.2  # a score
MIN_SCORE_TO_ASK = 0.3
MISSING_PENALTY = 0.75
MISSING_VERB_PENALTY = 0.6
VERB_BONUS = 0.15  # for the tool's verb in the message
VALUES_BONUS = 0.35
PHRASE_BONUS = 0.2
MAX_UNKNOWN_TERMS = 2  # words beside a URL: "summarise https://…"
EXCLUDED_KINDS = STRONG_KINDS | {"quoted", "number"}
CLOSE_SCORE_RATIO = 0.85  # of the best score: too near to ask for more, or to go by values alone


@dataclass(frozen=True)
class ToolCandidate:
    """A matching tool with its arguments and score."""

    partial_call: PartialCall
    score: float
    is_convincing: bool
    matches_words: bool  # not only by values

    @property
    def is_ready(self) -> bool:
        """Whether it can be called without asking."""
        return self.is_convincing and not self.partial_call.missing


class ToolTermIndex:
    """Index of the terms of all available tools."""

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self.tools = tools
        self.documents = {tool.name: _build_document(_build_key(tool)) for tool in tools}
        self.frequency = Counter(term for document in self.documents.values() for term in document)

    def calculate_rarity(self, term: str) -> float:
        """Return BM25's inverse document frequency of a term or its synonyms."""
        frequency = max(
            self.frequency[related_term] for related_term in (term, *list_synonyms(term))
        )
        return math.log1p((len(self.tools) - frequency + 0.5) / (frequency + 0.5))

    def calculate_match(self, term: str, tool: ToolSpec) -> float:
        """Return how well a term matches a tool: 0 to nearly 1."""
        document = self.documents[tool.name]
        direct_weight = document.get(term, 0.0)
        synonym_weight = max(
            (document.get(synonym, 0.0) for synonym in list_synonyms(term)), default=0.0
        )
        weight = max(direct_weight, SYNONYM_WEIGHT * synonym_weight)
        return weight / (weight + SATURATION)

    def is_significant_term(self, term: str, tool: ToolSpec) -> bool:
        """Tell whether a term is significant in a tool's definition."""
        document = self.documents[tool.name]
        term_weight = max(
            document.get(related_term, 0.0) for related_term in (term, *list_synonyms(term))
        )
        return term not in WEAK_STEMS and term_weight >= PARAMETER_WEIGHT

    def rank_candidates(self, text: str, context: MessageContext) -> list[ToolCandidate]:
        """Return the matching tools, the best first."""
        query = _MessageQuery(text, self)
        overlaps = {tool.name: query.calculate_overlap(tool, query.terms) for tool in self.tools}
        ranked = sorted(self.tools, key=lambda tool: (-overlaps[tool.name], tool.name))
        shortlist = [tool for tool in ranked[:MAX_SHORTLIST] if overlaps[tool.name] > 0]
        if not shortlist and query.strong_count:
            shortlist = ranked[:MAX_BY_VALUES]
        all_candidates = [
            query.build_candidate(fill_arguments(tool, text, context)) for tool in shortlist
        ]
        return sorted(
            (candidate for candidate in all_candidates if candidate.score > 0),
            key=lambda candidate: (-candidate.score, candidate.partial_call.tool.name),
        )

    def find_best(self, text: str, context: MessageContext) -> ToolCandidate | None:
        """Return the best match; None if there is none or several are equally likely."""
        convincing = [
            candidate
            for candidate in self.rank_candidates(text, context)
            if candidate.is_convincing
        ]
        if not convincing:
            return None
        best_candidate, is_unsure = (
            convincing[0],
            bool(convincing[0].partial_call.missing) or not convincing[0].matches_words,
        )
        close_candidates = [
            candidate
            for candidate in convincing
            if candidate.score > CLOSE_SCORE_RATIO * best_candidate.score
        ]
        if is_unsure and len(close_candidates) > 1:
            recent_candidates = [
                candidate
                for candidate in close_candidates
                if candidate.partial_call.tool.name in context.recent_tools
            ]
            return recent_candidates[0] if len(recent_candidates) == 1 else None
        return best_candidate


class _MessageQuery:
    """A message's terms, to compare with the tools'."""

    def __init__(self, text: str, index: ToolTermIndex) -> None:
        self.index = index
        self.text = text
        values = extract_values(text)
        self.strong_count = sum(strong_value.kind in STRONG_KINDS for strong_value in values)
        # Words inside URLs, paths or quotes don't describe the tool.
        self.excluded_values = [
            extracted for extracted in values if extracted.kind in EXCLUDED_KINDS
        ]
        self.terms = self._extract_terms(self.excluded_values)
        self.is_question = not QUESTION_WORDS.isdisjoint(split_words(text)[:1])

    def _extract_terms(self, excluded_values: Iterable[ExtractedValue]) -> list[str]:
        characters = list(self.text)
        for excluded in excluded_values:
            characters[excluded.start : excluded.end] = " " * (excluded.end - excluded.start)
        return extract_content_stems("".join(characters))

    def calculate_overlap(self, tool: ToolSpec, terms: Sequence[str]) -> float:
        """Return the weighted share of terms that a tool's definition covers: 0 to 1."""
        weights = {term: self._calculate_weight(term) for term in terms}
        matched = sum(
            weight * self.index.calculate_match(term, tool) for term, weight in weights.items()
        )
        return matched / sum(weights.values()) if weights else 0.0

    def build_candidate(self, partial_call: PartialCall) -> ToolCandidate:
        tool = partial_call.tool
        # Free text used as an argument doesn't describe the tool either.
        terms = self._extract_terms(
            [
                *self.excluded_values,
                *(
                    used_value
                    for used_value in partial_call.used_values
                    if used_value.kind == "word"
                ),
            ]
        )
        score = self.calculate_overlap(tool, terms)
        if not set(pairwise(terms)).isdisjoint(pairwise(to_stems(tool.name))):
            score += PHRASE_BONUS
        if self.strong_count:
            score += VALUES_BONUS * (2 * partial_call.strong_count / self.strong_count - 1)
        score *= MISSING_PENALTY ** len(partial_call.missing)
        matched = [term for term in terms if self.index.calculate_match(term, tool) > 0]
        matches_words = any(self.index.is_significant_term(term, tool) for term in matched)
        min_score = MIN_SCORE_TO_ASK if partial_call.missing else MIN_SCORE_TO_CALL
        is_covered = (
            _is_covered(partial_call, terms, matched)
            if matches_words
            else self._is_covered_by_values(partial_call, terms)
        )
        if _is_verb_missing(HARMFUL_STEMS, tool, terms):
            score = 0.0
        if _is_verb_missing(CHANGING_STEMS, tool, [] if self.is_question else terms):
            score *= MISSING_VERB_PENALTY
        elif set(to_stems(tool.name)[-1:]) <= set(terms):
            score += VERB_BONUS
        return ToolCandidate(partial_call, score, score >= min_score and is_covered, matches_words)

    def _is_covered_by_values(self, partial_call: PartialCall, terms: Sequence[str]) -> bool:
        """Tell whether the values alone identify a tool: all are used, with few other words."""
        unknown_count = sum(term not in WEAK_STEMS for term in terms)
        has_url = any(extracted.kind == "url" for extracted in partial_call.used_values)
        uses_all_values = (
            0 < partial_call.strong_count == self.strong_count and not partial_call.missing
        )
        return uses_all_values and unknown_count <= (MAX_UNKNOWN_TERMS if has_url else 0)

    def _calculate_weight(self, term: str) -> float:
        return self.index.calculate_rarity(term) * (WEAK_WEIGHT if term in WEAK_STEMS else 1.0)


def _is_covered(partial_call: PartialCall, terms: Sequence[str], matched: Sequence[str]) -> bool:
    """Tell whether enough of the message's terms match the tool."""
    total_weight = sum(WEAK_WEIGHT if term in WEAK_STEMS else 1.0 for term in set(terms))
    matched_weight = sum(WEAK_WEIGHT if term in WEAK_STEMS else 1.0 for term in set(matched))
    has_values = any(extracted.kind != "word" for extracted in partial_call.used_values)
    return matched_weight / total_weight >= (
        MIN_COVERAGE_WITH_VALUES if has_values else MIN_COVERAGE_ALONE
    )


def _is_verb_missing(verbs: frozenset[str], tool: ToolSpec, terms: Sequence[str]) -> bool:
    """Tell whether the tool's name has one of the verbs and the message doesn't."""
    tool_verbs = verbs.intersection(to_stems(tool.name))
    message_terms = {*terms, *(synonym for term in terms for synonym in list_synonyms(term))}
    return bool(tool_verbs) and tool_verbs.isdisjoint(message_terms)


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
    enum_values = " ".join(map(str, enum)) if isinstance(enum, list) else ""
    return f"{schema.get('description') or ''} {enum_values}"


@lru_cache(maxsize=2_000)
def _build_document(key: tuple[str, str, tuple[tuple[str, str], ...]]) -> dict[str, float]:
    """Return the terms of a tool, weighted by where they occur."""
    name, description, parameters = key
    weights: defaultdict[str, float] = defaultdict(float)
    weighted_texts = [(name, NAME_WEIGHT), (description, DESCRIPTION_WEIGHT)]
    weighted_texts += [(parameter, PARAMETER_WEIGHT) for parameter, _ in parameters]
    weighted_texts += [(prose, PROSE_WEIGHT) for _, prose in parameters]
    for text, weight in weighted_texts:
        for term in set(extract_content_stems(text)):
            weights[term] += weight
    return dict(weights)
