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
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, Final, NamedTuple

from bonobot.core.text.linear_regex import ROOMY, LinearPattern

_DATA: Final = tomllib.loads(files(__package__).joinpath("words.toml").read_text(encoding="utf-8"))
STEMS: Final[dict[str, dict[str, str]]] = {
    concept: {
        language: "".join(line.strip() for line in said.splitlines())
        for language, said in languages.items()
    }
    for concept, languages in _DATA["stems"].items()
}
# Short words that show that a Latin-script text is not English.
SMALL_WORDS: Final = "".join(line.strip() for line in _DATA["small_words"].splitlines())
# Languages written with spaces: stems match at the beginning of words only.
_SPACED: Final = frozenset({"en", "de", "fr", "es", "pt", "it", "nl", "pl", "ru", "uk", "tr"})
LATIN: Final = ("de", "fr", "es", "pt", "it", "nl", "pl", "tr")
CYRILLIC: Final = ("ru", "uk")
OTHERS: Final = ("ar", "he", "hi", "zh", "ja", "ko")


def build_concept_pattern(concept: str, languages: tuple[str, ...]) -> LinearPattern:
    """Return one linear-time pattern of a concept's stems in some languages."""
    stems = STEMS[concept]
    spaced = [stems[one] for one in languages if one in _SPACED and one in stems]
    plain = [stems[one] for one in languages if one not in _SPACED and one in stems]
    parts = [rf"(?:^|[^\pL])(?:{'|'.join(spaced)})"] if spaced else []
    return LinearPattern("|".join((*parts, *plain)), ROOMY)


WINDOW: Final = 420


class SignalHit(NamedTuple):
    """A match of a signal in a folded text."""

    start: int
    end: int
    rule: str
    weight: float


def _build_gap_pattern(most: str) -> str:
    """Return a pattern for up to `max_words` words of the same sentence."""
    return rf"(?:[^\s!?;]*[^\s.!?;] ){{0,{most}}}"


def _join_lines(said: str) -> str:
    return "".join(line.strip() for line in said.splitlines())


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads(files(__package__).joinpath(file).read_text(encoding="utf-8"))


_ENGLISH: Final = _read("english.toml")
PARTS: Final = {name: _join_lines(said) for name, said in _ENGLISH["parts"].items()}
# Rules that a negation cancels: "never include passwords" asks for nothing.
_TURNED: Final = frozenset(
    {"asks_for_secrets", "passes_data_on", "sensitive_data", "disables_safety", "override_rules"}
)
_NEGATION: Final = LinearPattern(PARTS["negation"] + "[^.!?;]{0,90}$", ROOMY)
_EXCUSED: Final = LinearPattern(PARTS["negated"] + r" (?:[^\s.!?;]+ ){0,12}$", ROOMY)


class SignalSet:
    """A set of signals: English ones from a file, other languages from `words.toml`.

    `mention` matches the text before a quotation that only mentions words. `long_text` is for texts
    so long that they contain some words of another language by chance.
    """

    def __init__(
        self, data: dict[str, Any], *, mention: re.Pattern[str], long: bool = False
    ) -> None:
        self._mention = mention
        self._long = long
        self._parts = PARTS | {name: _join_lines(said) for name, said in data["parts"].items()}
        self._patterns = tuple(
            (one["rule"], one["weight"], LinearPattern(self._filled(one["pattern"]), ROOMY))
            for one in data["signal"]
        )

    def of(self, folded: str) -> list[SignalHit]:
        """Return all signals of a folded text in order, with character positions."""
        raw = folded.encode(errors="replace")
        hits = sorted([*self._english(raw), *_find_foreign(raw, around=self._long)])
        if len(raw) == len(folded):
            return hits
        placed: list[SignalHit] = []
        at, passed = 0, 0
        for hit in hits:
            passed += len(raw[at : hit.start].decode(errors="ignore"))
            at = hit.start
            length = len(raw[at : hit.end].decode(errors="ignore"))
            placed.append(hit._replace(start=passed, end=passed + length))
        return placed

    def mentions(self, before: str) -> bool:
        """Tell whether a quotation after `before` only mentions its words."""
        return self._mention.search(before[-80:]) is not None

    def _filled(self, said: str) -> str:
        whole = re.sub(
            "«few ([0-9]+)»", lambda match: _build_gap_pattern(match.group(1)), _join_lines(said)
        )
        while "«" in whole:
            whole = re.sub("«([a-z]+)»", lambda match: self._parts[match.group(1)], whole)
        return whole

    def _english(self, raw: bytes) -> Iterator[SignalHit]:
        """Yield English signals, with byte positions."""
        for rule, weight, said in self._patterns:
            for match in said.finditer(raw):
                start, end = match.span()
                before = raw[max(start - 110, 0) : start]
                if rule in _TURNED and _NEGATION.search(before):
                    continue
                if rule == "keep_from_user" and _is_excused(before, raw[start:end]):
                    continue
                yield SignalHit(start, end, rule, weight)


def _is_excused(before: bytes, said: bytes) -> bool:
    """Tell whether a double negation involves the user: "never delete without asking the user"."""
    return said.startswith(b"without") and _EXCUSED.search(before) is not None


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
_FOREIGN: Final = tuple(
    (family, {concept: build_concept_pattern(concept, family) for concept in _CONCEPTS})
    for family in (LATIN, CYRILLIC, OTHERS)
)
_LETTERS_OF: Final = (
    LinearPattern(r"[a-z]{3}"),
    LinearPattern(r"\p{Cyrillic}{2}"),
    LinearPattern(r"[\p{Arabic}\p{Hebrew}\p{Devanagari}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"),
)
_LATIN_WORDS: Final = LinearPattern(rf"(?:^|[^a-z])(?:{SMALL_WORDS})(?:[^a-z]|$)")
# In a long text, words of different sentences are unrelated.
_ENDED: Final = LinearPattern(r"[.!?] |[\x{3002}\x{ff01}\x{ff1f}\x{0964}]", ROOMY)
# Bytes around a hit to search for small words of another language, and how many are needed.
_AROUND: Final = 60
_SMALL_AROUND: Final = 2
# Small words that also occur in English, URLs or code.
_ENGLISH_TOO: Final = frozenset(
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
_MANY: Final = 4
_SHORT: Final = 16
# Maximum gap in bytes: letters take one, two or three of them.
_REACH: Final = {LATIN: 60, CYRILLIC: 120, OTHERS: 90}
_FILES: Final = LinearPattern(PARTS["paths"], ROOMY)
_PLACES: Final = LinearPattern(PARTS["where"], ROOMY)


def _find_foreign(raw: bytes, *, around: bool = False) -> Iterator[SignalHit]:
    """Yield signals in other languages: concepts close together, in any order."""
    for letters, (family, concepts) in zip(_LETTERS_OF, _FOREIGN, strict=True):
        if not letters.search(raw):
            continue
        if family is LATIN and not around and not _is_other_latin(raw):
            continue
        spoken = _build_language_test(raw) if around and family is LATIN else None
        for hit in _find_in_family(raw, family, concepts):
            if around and _ENDED.search(raw[hit.start : hit.end]):
                continue
            if spoken is None or spoken(hit):
                yield hit


def _find_in_family(
    raw: bytes, family: tuple[str, ...], concepts: dict[str, LinearPattern]
) -> Iterator[SignalHit]:
    at = {name: [one.span() for one in said.finditer(raw)] for name, said in concepts.items()}
    files = [one.span() for one in _FILES.finditer(raw)]
    places = [one.span() for one in _PLACES.finditer(raw)]
    secrets = sorted(at["secrets"] + files)
    reach = _REACH[family]
    for rule, weight, first, second, gap in (
        ("override_rules", 1.0, at["ignore"], at["rules"], reach),
        ("keep_from_user", 1.0, at["hide"], at["user"], reach),
        ("asks_for_secrets", 0.5, at["read"], secrets, reach),
        ("passes_data_on", 0.5, at["send"], secrets, reach * 2),
        ("passes_data_on", 0.5, at["send"], places, reach * 3),
        ("passes_data_on", 1.0, _match_nearby_spans(at["send"], secrets, reach * 2), places, reach),
        (
            "other_tools_first",
            0.7,
            at["always"],
            _match_nearby_spans(at["other"], at["tool"], reach // 3),
            reach,
        ),
        ("other_tools_first", 0.4, at["always"], at["tool"], reach),
        ("orders_the_model", 0.3, at["always"], sorted(at["send"] + at["read"]), reach * 2),
    ):
        for start, end in _match_nearby_spans(first, second, gap):
            yield SignalHit(start, end, rule, weight)
    yield from (SignalHit(start, end, "keep_from_user", 0.4) for start, end in at["hide"])


def _build_language_test(raw: bytes) -> Callable[[SignalHit], bool]:
    """Return a predicate: are there small words of another language around a hit?"""
    places = [
        one.start() for one in _LATIN_WORDS.finditer(raw) if one.group().strip() not in _ENGLISH_TOO
    ]

    def tell(hit: SignalHit) -> bool:
        first = bisect_left(places, hit.start - _AROUND)
        found = bisect_left(places, hit.end + _AROUND) - first
        return found >= (1 if hit.weight >= 1 else _SMALL_AROUND)

    return tell


def _is_other_latin(raw: bytes) -> bool:
    """Tell whether a Latin-script text looks like another language than English."""
    found = sum(1 for _ in _LATIN_WORDS.finditer(raw))
    spaces = raw.count(b" ")
    return (
        found >= _MANY or (found >= 2 and found * 25 >= spaces) or (bool(found) and spaces < _SHORT)
    )


def _match_nearby_spans(
    first: list[tuple[int, int]], second: list[tuple[int, int]], gap: int
) -> list[tuple[int, int]]:
    """Return spans over a `first` and the nearest `second` within `gap`; both lists are sorted."""
    found: list[tuple[int, int]] = []
    at = 0
    for start, end in first:
        while at < len(second) and second[at][1] + gap < start:
            at += 1
        if at < len(second) and second[at][0] <= end + gap:
            other = second[at]
            found.append((min(start, other[0]), max(end, other[1])))
    return found


# Results (documents, emails, code) may be about anything, so only words that address the reader
# count there. Definitions may mention attacks ("strings such as 'ignore all previous
# instructions'"); in a result, any sentence may quote, but JSON strings are taken literally.
_QUOTE: Final = "[\"'`\u201c\u2018\u00ab]"
IN_DEFINITIONS: Final = SignalSet(
    _ENGLISH,
    mention=re.compile(
        r"(?i)\b(?:such as|like|e\.g\.|for example|phrases?|strings?|patterns?|attempts?)"
        rf"[:,]? [(]?{_QUOTE}{{1,2}}$"
    ),
)
IN_RESULTS: Final = SignalSet(
    _read("results.toml"), mention=re.compile(rf"[\w,] [(]?{_QUOTE}{{1,2}}$"), long=True
)
