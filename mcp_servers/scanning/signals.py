"""Weighted signals of instructions to a model in English and other languages (docs/scanning.md).

No signal is a phrase of a known attack. One alone is often legitimate; two or three close together
need a person's review. Weights add up over a window of the folded text.

Other languages are covered by word stems by concept and language: google-re2 patterns over folded
text (lower case, without accents, single spaces). In scripts with spaces, stems match at word
boundaries only.
"""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any, Final, NamedTuple

from bonobot.core.text.linear_regex import LARGE_MEMORY, LinearPattern

_DATA: Final = tomllib.loads(
    files(__package__).joinpath("other_language_signals.toml").read_text(encoding="utf-8")
)
STEMS: Final[dict[str, dict[str, str]]] = {
    concept: {
        language: "".join(line.strip() for line in source.splitlines())
        for language, source in languages.items()
    }
    for concept, languages in _DATA["stems"].items()
}
# Short words that show that a Latin-script text is not English.
SMALL_WORDS: Final = "".join(line.strip() for line in _DATA["small_words"].splitlines())
# Languages written with spaces: stems match at the beginning of words only.
_SPACED_LANGUAGES: Final = frozenset(
    {"en", "de", "fr", "es", "pt", "it", "nl", "pl", "ru", "uk", "tr"}
)
LATIN: Final = ("de", "fr", "es", "pt", "it", "nl", "pl", "tr")
CYRILLIC: Final = ("ru", "uk")
OTHER_SCRIPTS: Final = ("ar", "he", "hi", "zh", "ja", "ko")


def build_concept_pattern(concept: str, languages: tuple[str, ...]) -> LinearPattern:
    """Return one linear-time pattern of a concept's stems in some languages."""
    stems = STEMS[concept]
    spaced = [
        stems[language]
        for language in languages
        if language in _SPACED_LANGUAGES and language in stems
    ]
    unspaced = [
        stems[language]
        for language in languages
        if language not in _SPACED_LANGUAGES and language in stems
    ]
    parts = [rf"(?:^|[^\pL])(?:{'|'.join(spaced)})"] if spaced else []
    return LinearPattern("|".join((*parts, *unspaced)), LARGE_MEMORY)


WINDOW_CHARACTERS: Final = 420


class SignalHit(NamedTuple):
    """A match of a signal in a folded text."""

    start: int
    end: int
    rule: str
    weight: float


def _build_gap_pattern(max_words: str) -> str:
    """Return a pattern for up to `max_words` words of the same sentence."""
    return rf"(?:[^\s!?;]*[^\s.!?;] ){{0,{max_words}}}"


def _join_lines(text: str) -> str:
    return "".join(line.strip() for line in text.splitlines())


def _load_toml(file_name: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(file_name).read_text(encoding="utf-8"))


_ENGLISH: Final = _load_toml("english_signals.toml")
PATTERN_PARTS: Final = {name: _join_lines(source) for name, source in _ENGLISH["parts"].items()}
# Rules that a negation cancels: "never include passwords" asks for nothing.
_NEGATABLE_RULES: Final = frozenset(
    {"asks_for_secrets", "passes_data_on", "sensitive_data", "disables_safety", "override_rules"}
)
_NEGATION: Final = LinearPattern(PATTERN_PARTS["negation"] + "[^.!?;]{0,90}$", LARGE_MEMORY)
_CONDITION: Final = LinearPattern(" until (?:the|a|your) ", LARGE_MEMORY)
# `--secret <secret>` is an option of a command with a placeholder.
_PLACEHOLDER_BEFORE: Final = LinearPattern(r"--[a-z][a-z-]* ?=? ?$", LARGE_MEMORY)
_NEGATED_BEFORE: Final = LinearPattern(
    PATTERN_PARTS["negated"] + r" (?:[^\s.!?;]+ ){0,12}$", LARGE_MEMORY
)


class SignalSet:
    """A set of signals: English ones from a file, others from `other_language_signals.toml`.

    `mention` matches the text before a quotation that only mentions words. `long_text` is for texts
    so long that they contain some words of another language by chance.
    """

    def __init__(
        self, data: dict[str, Any], *, mention: re.Pattern[str], long_text: bool = False
    ) -> None:
        self._mention = mention
        self._is_long_text = long_text
        self._parts = PATTERN_PARTS | {
            name: _join_lines(text) for name, text in data["parts"].items()
        }
        self._patterns = tuple(
            (
                signal["rule"],
                signal["weight"],
                LinearPattern(self._expand_parts(signal["pattern"]), LARGE_MEMORY),
            )
            for signal in data["signal"]
        )

    def find_signals(self, folded: str) -> list[SignalHit]:
        """Return all signals of a folded text in order, with character positions."""
        raw = folded.encode(errors="replace")
        hits = sorted(
            [*self._find_english(raw), *_find_foreign(raw, check_context=self._is_long_text)]
        )
        if len(raw) == len(folded):
            return hits
        hits_by_character: list[SignalHit] = []
        byte_position, character_position = 0, 0
        for hit in hits:
            character_position += len(raw[byte_position : hit.start].decode(errors="ignore"))
            byte_position = hit.start
            length = len(raw[byte_position : hit.end].decode(errors="ignore"))
            hits_by_character.append(
                hit._replace(start=character_position, end=character_position + length)
            )
        return hits_by_character

    def is_mention(self, before: str) -> bool:
        """Tell whether a quotation after `before` only mentions its words."""
        return self._mention.search(before[-80:]) is not None

    def _expand_parts(self, template: str) -> str:
        pattern = re.sub(
            "«few ([0-9]+)»",
            lambda match: _build_gap_pattern(match.group(1)),
            _join_lines(template),
        )
        while "«" in pattern:
            pattern = re.sub("«([a-z]+)»", lambda match: self._parts[match.group(1)], pattern)
        return pattern

    def _find_english(self, raw: bytes) -> Iterator[SignalHit]:
        """Yield English signals, with byte positions."""
        for rule, weight, pattern in self._patterns:
            for match in pattern.finditer(raw):
                start, end = match.span()
                before = raw[max(start - 110, 0) : start]
                if rule in _NEGATABLE_RULES and _NEGATION.search(before):
                    continue
                if rule == "keep_from_user" and _is_excused(before, raw[start:end]):
                    continue
                if rule == "claims_authority" and _PLACEHOLDER_BEFORE.search(before):
                    continue
                yield SignalHit(start, end, rule, weight)


# Signals that say little beside a signal of another rule whose words they share, and what they then
# weigh: "remove password protection" names a protection and no data, and "call this before a query"
# is one wish.
_SHARED_WORDS: Final = {
    ("sensitive_data", "disables_safety"): 0.0,
    ("takes_over", "other_tools_first"): 0.25,
}


def discount_shared_words(hits: Sequence[SignalHit]) -> list[SignalHit]:
    """Return the signals, lighter where the same words were counted for another rule."""
    spans = {other: _merge_spans(hits, other) for _, other in _SHARED_WORDS}
    remaining_hits: list[SignalHit] = []
    for hit in hits:
        weight = hit.weight
        for (rule, other), reduced in _SHARED_WORDS.items():
            if hit.rule == rule and _overlaps(spans[other], hit):
                weight = min(weight, reduced)
        if weight:
            remaining_hits.append(hit._replace(weight=weight))
    return remaining_hits


def _merge_spans(hits: Sequence[SignalHit], rule: str) -> list[tuple[int, int]]:
    """Return the ranges of a rule's signals in order, joined where they overlap."""
    spans: list[tuple[int, int]] = []
    for hit in hits:
        if hit.rule == rule and spans and hit.start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], hit.end))
        elif hit.rule == rule:
            spans.append((hit.start, hit.end))
    return spans


def _overlaps(spans: Sequence[tuple[int, int]], hit: SignalHit) -> bool:
    """Tell whether a signal shares words with one of some ranges, which are in order."""
    index = bisect_left(spans, (hit.end, 0))
    return index > 0 and spans[index - 1][1] > hit.start


def _is_excused(before: bytes, matched: bytes) -> bool:
    """Tell whether the sentence involves the user.

    Either by a double negation ("never delete without asking the user") or by a condition ("do not
    confirm until the user has agreed").
    """
    if _CONDITION.search(matched):
        return True
    return matched.startswith(b"without") and _NEGATED_BEFORE.search(before) is not None


_CONCEPTS: Final = (
    "ignore",
    "rules",
    "user",
    "hide",
    "always",
    "send",
    "read",
    "secrets",
    "tool",
    "other",
)
_FOREIGN_PATTERNS: Final = tuple(
    (family, {concept: build_concept_pattern(concept, family) for concept in _CONCEPTS})
    for family in (LATIN, CYRILLIC, OTHER_SCRIPTS)
)
_FAMILY_LETTERS: Final = (
    LinearPattern(r"[a-z]{3}"),
    LinearPattern(r"\p{Cyrillic}{2}"),
    LinearPattern(r"[\p{Arabic}\p{Hebrew}\p{Devanagari}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"),
)
_FOREIGN_LATIN_WORDS: Final = LinearPattern(rf"(?:^|[^a-z])(?:{SMALL_WORDS})(?:[^a-z]|$)")
# In a long text, words of different sentences are unrelated.
_SENTENCE_END: Final = LinearPattern(r"[.!?] |[\x{3002}\x{ff01}\x{ff1f}\x{0964}]", LARGE_MEMORY)
# Bytes around a hit to search for small words of another language, and how many are needed.
_CONTEXT_BYTES: Final = 60
_MIN_WORDS_IN_CONTEXT: Final = 2
# Small words that also occur in English, URLs or code.
_ALSO_ENGLISH: Final = frozenset(
    (
        b"do",
        b"over",
        b"die",
        b"den",
        b"en",
        b"es",
        b"se",
        b"est",
        b"des",
        b"per",
        b"su",
        b"le",
        b"al",
    )
)
_MIN_FOREIGN_WORDS: Final = 4
_MAX_SHORT_TEXT_SPACES: Final = 16
# Maximum gap in bytes: letters take one, two or three of them.
_MAX_GAP_BYTES: Final = {LATIN: 60, CYRILLIC: 120, OTHER_SCRIPTS: 90}
_FILE_PATHS: Final = LinearPattern(PATTERN_PARTS["paths"], LARGE_MEMORY)
_DESTINATIONS: Final = LinearPattern(PATTERN_PARTS["where"], LARGE_MEMORY)


def _find_foreign(raw: bytes, *, check_context: bool = False) -> Iterator[SignalHit]:
    """Yield signals in other languages: concepts close together, in any order."""
    for letters, (family, concepts) in zip(_FAMILY_LETTERS, _FOREIGN_PATTERNS, strict=True):
        if not letters.search(raw):
            continue
        if family is LATIN and not check_context and not _is_foreign_latin(raw):
            continue
        is_foreign = _build_language_test(raw) if check_context and family is LATIN else None
        for hit in _find_in_family(raw, family, concepts):
            if check_context and _SENTENCE_END.search(raw[hit.start : hit.end]):
                continue
            if is_foreign is None or is_foreign(hit):
                yield hit


def _find_in_family(
    raw: bytes, family: tuple[str, ...], concepts: dict[str, LinearPattern]
) -> Iterator[SignalHit]:
    spans_by_concept = {
        name: [match.span() for match in pattern.finditer(raw)]
        for name, pattern in concepts.items()
    }
    file_spans = [match.span() for match in _FILE_PATHS.finditer(raw)]
    destination_spans = [match.span() for match in _DESTINATIONS.finditer(raw)]
    secrets = sorted(spans_by_concept["secrets"] + file_spans)
    max_gap = _MAX_GAP_BYTES[family]
    for rule, weight, first, second, gap in (
        ("override_rules", 1.0, spans_by_concept["ignore"], spans_by_concept["rules"], max_gap),
        ("keep_from_user", 1.0, spans_by_concept["hide"], spans_by_concept["user"], max_gap),
        ("asks_for_secrets", 0.5, spans_by_concept["read"], secrets, max_gap),
        ("passes_data_on", 0.5, spans_by_concept["send"], secrets, max_gap * 2),
        ("passes_data_on", 0.5, spans_by_concept["send"], destination_spans, max_gap * 3),
        (
            "passes_data_on",
            1.0,
            _match_nearby_spans(spans_by_concept["send"], secrets, max_gap * 2),
            destination_spans,
            max_gap,
        ),
        (
            "other_tools_first",
            0.7,
            spans_by_concept["always"],
            _match_nearby_spans(spans_by_concept["other"], spans_by_concept["tool"], max_gap // 3),
            max_gap,
        ),
        ("other_tools_first", 0.4, spans_by_concept["always"], spans_by_concept["tool"], max_gap),
        (
            "orders_the_model",
            0.3,
            spans_by_concept["always"],
            sorted(spans_by_concept["send"] + spans_by_concept["read"]),
            max_gap * 2,
        ),
    ):
        for start, end in _match_nearby_spans(first, second, gap):
            yield SignalHit(start, end, rule, weight)
    yield from (
        SignalHit(start, end, "keep_from_user", 0.4) for start, end in spans_by_concept["hide"]
    )


def _build_language_test(raw: bytes) -> Callable[[SignalHit], bool]:
    """Return a predicate: are there small words of another language around a hit?"""
    word_positions = [
        match.start()
        for match in _FOREIGN_LATIN_WORDS.finditer(raw)
        if match.group().strip() not in _ALSO_ENGLISH
    ]

    def is_foreign(hit: SignalHit) -> bool:
        first = bisect_left(word_positions, hit.start - _CONTEXT_BYTES)
        word_count = bisect_left(word_positions, hit.end + _CONTEXT_BYTES) - first
        return word_count >= (1 if hit.weight >= 1 else _MIN_WORDS_IN_CONTEXT)

    return is_foreign


def _is_foreign_latin(raw: bytes) -> bool:
    """Tell whether a Latin-script text looks like another language than English."""
    word_count = sum(1 for _ in _FOREIGN_LATIN_WORDS.finditer(raw))
    spaces = raw.count(b" ")
    return (
        word_count >= _MIN_FOREIGN_WORDS
        or (word_count >= 2 and word_count * 25 >= spaces)
        or (bool(word_count) and spaces < _MAX_SHORT_TEXT_SPACES)
    )


def _match_nearby_spans(
    first: list[tuple[int, int]], second: list[tuple[int, int]], gap: int
) -> list[tuple[int, int]]:
    """Return spans over a `first` and the nearest `second` within `gap`; both lists are sorted."""
    spans: list[tuple[int, int]] = []
    index = 0
    for start, end in first:
        while index < len(second) and second[index][1] + gap < start:
            index += 1
        if index < len(second) and second[index][0] <= end + gap:
            other = second[index]
            spans.append((min(start, other[0]), max(end, other[1])))
    return spans


# Results (documents, emails, code) may be about anything, so only words that address the reader
# count there. Definitions may mention attacks ("strings such as 'ignore all previous
# instructions'"); in a result, any sentence may quote, but JSON strings are taken literally.
_QUOTE: Final = "[\"'`\u201c\u2018\u00ab]"
DEFINITION_SIGNALS: Final = SignalSet(
    _ENGLISH,
    mention=re.compile(
        r"(?i)\b(?:such as|like|e\.g\.|for example|phrases?|strings?|patterns?|attempts?)"
        rf"[:,]? [(]?{_QUOTE}{{1,2}}$"
    ),
)
RESULT_SIGNALS: Final = SignalSet(
    _load_toml("result_signals.toml"),
    mention=re.compile(rf"[\w,] [(]?{_QUOTE}{{1,2}}$"),
    long_text=True,
)
