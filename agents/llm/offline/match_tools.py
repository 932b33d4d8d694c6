"""Choose a tool for a message by its words, and fill the tool's arguments from its values.

This is enough for a demo: a message asks for one thing, and its values are URLs, paths, times, time
zones, numbers, quoted texts, or the words that follow the request. No values are invented: a
required argument that isn't found is reported as missing. Schemas are untrusted: what isn't
understood is a text.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zoneinfo import available_timezones

from agents.llm.interface import ToolSpec
from bonobot.core.process_cache import compute_once

Call = tuple[str, dict[str, Any]]

MAX_TEXT = 4_096  # characters that are analyzed; longer messages contain pasted text
MAX_CALLS = 8  # from one message in words
MAX_SUGGESTIONS = 8
NAME_WEIGHT = 3.0  # of a word in a tool's name; 1 elsewhere in its definition
MIN_SCORE = 0.3  # to call a tool
MIN_SCORE_WITH_VALUES = 0.1  # the same, if all values of the message are used
VALUES_BONUS = 0.2
MISSING_PENALTY = 0.75
CLOSE_SCORE_RATIO = 0.85  # of the best score: too near to ask for more


def _split_list(words: str) -> frozenset[str]:
    return frozenset(words.split())


WORD = re.compile(r"[A-Za-z]+|\d+")
CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
STOP_WORDS = _split_list(
    "a about all an and any are as at be by can could do does for from give get have hello hey hi "
    "how i in into is it its just let me mcp my now of on or our please s show so tell thank "
    "thanks that the their then there this to use was we what when where which will with would you "
    "your"
)
# Words between a request and its text: "search for cats".
CONNECTIVES = _split_list("a about an for of that the to")
# A tool with such a verb in its name is only chosen if the message has it, too.
CHANGING_WORDS = _split_list(
    "add apply cancel commit create delete disable drop edit insert kill merge move post publish "
    "purge push put remove rename reset revoke send set stop submit update upload write"
)
# A message that begins so is a question: "show commits" is not "commit".
QUESTION_WORDS = _split_list("show give get list view see read what which who when how is")
KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("timezone", frozenset(("timezone", "tz"))),
    ("url", frozenset(("url", "uri", "link"))),
    ("path", frozenset(("path", "file", "filename", "directory", "folder"))),
    ("time", frozenset(("time",))),
)
SOURCE_WORDS, TARGET_WORDS = frozenset(("source", "from")), frozenset(("target", "to"))
TARGET_PREPOSITION = re.compile(r"\b(?:to|into)\s+$")
DESCRIBED_DEFAULT = re.compile(r"\b(?:default(?: is| to|:)?|use)\s+['\"`]([^'\"`\n]{1,200})", re.I)
POLITE_ENDING = re.compile(r"[,;]?\s+(?:please|thanks)$", re.I)
VALUE = re.compile(
    r'"(?P<quoted>[^"\n]*)"'
    r"|(?<!\w)'(?P<single>[^'\n]*)'(?!\w)"
    r"|(?P<url>\bhttps?://[^\s<>\"'`]+[\w/])"
    r"|(?P<timezone>\b[A-Z][A-Za-z]+(?:/[A-Za-z0-9_+-]+)+|\b[A-Z]\w+(?: [A-Z]\w+){0,2})"
    r"|(?P<path>(?<![\w:/.])(?:~|\.{1,2})?/[^\s\"'`,;]*[^\s\"'`,;.:?!)]|\b[\w-]+\.[a-z]{2,4}\b)"
    r"|(?P<time>(?<![\w:])\d{1,2}:\d\d(?:\s*[ap]m\b)?(?![\w:]))"
    r"|(?P<number>(?<![\w.:/-])-?\d{1,15}(?:\.\d{1,15})?(?![\w:/]))"
)


@dataclass(frozen=True)
class ExtractedValue:
    """A value in a message, in the form of an argument."""

    kind: str
    value: Any
    start: int
    end: int


@dataclass(frozen=True)
class ToolMatch:
    """A tool with the arguments that a message gives, the missing ones, and its score."""

    tool: ToolSpec
    arguments: dict[str, Any]
    missing: tuple[str, ...]
    used_values: tuple[ExtractedValue, ...] = ()
    alternatives: "tuple[ToolMatch, ...]" = ()  # the call with another value: Tokyo *and* Berlin
    score: float = 0.0

    @property
    def calls(self) -> list[Call]:
        matches = (self, *self.alternatives)[:MAX_CALLS]
        return [(match.tool.name, match.arguments) for match in matches]


@dataclass(frozen=True)
class EarlierCalls:
    """Earlier calls of the conversation: their arguments by name, and the tools called last."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    recent_tools: frozenset[str] = frozenset()


def split_words(text: str) -> list[str]:
    """Return the words of a text or identifier in lower case: `getCurrent_time` is three."""
    return [word.lower() for word in WORD.findall(CAMEL_CASE_BOUNDARY.sub(" ", text))]


def to_stem(word: str) -> str:
    """Return a word without its inflectional ending."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            return word.removesuffix(ending)
    return word


def extract_terms(text: str) -> list[str]:
    """Return the stems of the words that aren't stop words."""
    return [to_stem(word) for word in split_words(text) if word not in STOP_WORDS]


def extract_values(text: str) -> tuple[ExtractedValue, ...]:
    """Return the values in a text, in order."""
    return tuple(_iterate_values(text[:MAX_TEXT]))


def _iterate_values(text: str) -> Iterator[ExtractedValue]:
    for match in VALUE.finditer(text):
        kind, found = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "timezone":
            zone = _find_time_zone(found)
            if zone is not None:
                yield ExtractedValue(kind, zone, *match.span())
        elif kind == "number":
            yield ExtractedValue(kind, float(found) if "." in found else int(found), *match.span())
        else:
            value = _to_24_hours(found) if kind == "time" else found
            kind = "quoted" if kind == "single" else kind
            yield ExtractedValue(kind, value, *match.span())


def _to_24_hours(text: str) -> str:
    hour, minute = int(text.partition(":")[0]), text.partition(":")[2][:2]
    if text.endswith("m") and hour <= 12:
        hour = hour % 12 + (12 if text.endswith("pm") else 0)
    return f"{hour:02d}:{minute}"


@compute_once
def _build_places() -> dict[str, str]:
    """Return the time zones by name and by city."""
    zones = sorted(available_timezones(), key=lambda name: (name.count("/"), name))
    cities = {zone.rpartition("/")[2].replace("_", " "): zone for zone in zones if "/" in zone}
    return cities | {zone: zone for zone in zones if "/" in zone or zone == "UTC"}


def _find_time_zone(phrase: str) -> str | None:
    """Return the time zone of a name or city in a phrase; the longest one."""
    words = phrase.split()
    for size in range(len(words), 0, -1):
        for first in range(len(words) - size + 1):
            if zone := _build_places().get(" ".join(words[first : first + size])):
                return zone
    return None


def match_tools(text: str, tools: Sequence[ToolSpec], earlier: EarlierCalls) -> list[ToolMatch]:
    """Return the tools that match a message, the best first."""
    text = text[:MAX_TEXT]
    values = extract_values(text)
    terms = _extract_terms_outside(text, values)
    documents = {tool.name: _weigh_terms(tool) for tool in tools}
    frequency = Counter(term for document in documents.values() for term in document)
    rarity = {term: math.log1p(len(tools) / (frequency[term] or 0.5)) for term in terms}
    is_question = not QUESTION_WORDS.isdisjoint(split_words(text)[:1])
    matches = []
    for tool in tools:
        document = documents[tool.name]
        if set(terms).isdisjoint(document) or _is_verb_missing(tool, terms, is_question):
            continue
        match = fill_arguments(tool, text, earlier)
        own_terms = _extract_terms_outside(text, (*values, *match.used_values))
        covered = sum(rarity[term] * document.get(term, 0.0) for term in own_terms)
        score = covered / (NAME_WEIGHT * sum(rarity[term] for term in own_terms))
        used_count = len(match.used_values) + len(match.alternatives)
        uses_all_values = 0 < len(values) <= used_count
        if score >= (MIN_SCORE_WITH_VALUES if uses_all_values else MIN_SCORE):
            score += VALUES_BONUS * (len(match.used_values) - 0.5 * (not uses_all_values))
            score *= MISSING_PENALTY ** len(match.missing)
            matches.append(replace(match, score=score))
    return sorted(matches, key=lambda match: (-match.score, match.tool.name))


def _extract_terms_outside(text: str, values: Iterable[ExtractedValue]) -> list[str]:
    """Return the terms outside URLs, paths and quotes, whose words don't name a tool."""
    characters = list(text)
    for value in values:
        characters[value.start : value.end] = " " * (value.end - value.start)
    return extract_terms("".join(characters))


def find_best_match(
    text: str, tools: Sequence[ToolSpec], earlier: EarlierCalls
) -> tuple[ToolMatch | None, list[ToolSpec]]:
    """Return the best match, or None and the tools that could be meant."""
    matches = match_tools(text, tools, earlier)
    if not matches:
        recent_tools = [tool for tool in tools if tool.name in earlier.recent_tools]
        matches = [fill_arguments(tool, text, EarlierCalls()) for tool in recent_tools]
        matches = [match for match in matches if match.used_values and not match.missing]
        return (matches[0], []) if len(matches) == 1 else (None, [])
    best = matches[0]
    close = [match for match in matches if match.score > CLOSE_SCORE_RATIO * best.score]
    if best.missing and len(close) > 1:
        return None, [match.tool for match in close[:MAX_SUGGESTIONS]]
    return best, []


def _weigh_terms(tool: ToolSpec) -> dict[str, float]:
    names = " ".join(map(str, get_properties(tool)))
    weights = dict.fromkeys(extract_terms(f"{tool.description} {names}"), 1.0)
    return weights | dict.fromkeys(extract_terms(tool.name), NAME_WEIGHT)


def _is_verb_missing(tool: ToolSpec, terms: Sequence[str], is_question: bool) -> bool:
    """Return whether the tool changes something that the message doesn't ask for."""
    verbs = {to_stem(word) for word in CHANGING_WORDS.intersection(split_words(tool.name))}
    return bool(verbs) and (is_question or verbs.isdisjoint(terms))


def get_properties(tool: ToolSpec) -> dict[str, Any]:
    """Return the schemas of a tool's parameters by name, without unusable ones."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: schema for name, schema in properties.items() if isinstance(schema, dict)}


def list_required(tool: ToolSpec) -> list[str]:
    """Return the names of the required parameters, in the schema's order."""
    required = tool.parameters.get("required")
    names = required if isinstance(required, list) else ()
    return [name for name in get_properties(tool) if name in names]


def infer_kind(name: str, schema: Mapping[str, Any]) -> str:
    """Return the kind of values of a parameter, by its type, its format or its name."""
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return "choice"
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return "number"
    if kind in ("boolean", "array", "object"):
        return str(kind)
    if schema.get("format") in ("uri", "url"):
        return "url"
    words = set(split_words(name))
    return next((kind for kind, names in KINDS if words & names), "text")


def fill_arguments(tool: ToolSpec, text: str, earlier: EarlierCalls) -> ToolMatch:
    """Return a tool with the arguments that a text gives; see the module."""
    return _ArgumentFiller(tool, text[:MAX_TEXT]).fill(earlier)


class _ArgumentFiller:
    """Fills one tool's arguments, and knows which values of the text are used."""

    def __init__(self, tool: ToolSpec, text: str) -> None:
        self._tool = tool
        self._text = text
        self._unused = list(extract_values(text))
        self._used: list[ExtractedValue] = []

    def fill(self, earlier: EarlierCalls) -> ToolMatch:
        properties, required = get_properties(self._tool), list_required(self._tool)
        arguments: dict[str, Any] = {}
        for name, schema in properties.items():
            value = self._find_named(name, schema)
            if value is None and (name in required or schema.get("format") == "uri"):
                value = self._take_by_kind(name, infer_kind(name, schema))
            if value is not None:
                arguments[name] = value
        for name in required:
            if name not in arguments:
                value = self._find_rest(name, properties[name], earlier)
                if value is not None:
                    arguments[name] = value
        missing = tuple(name for name in required if name not in arguments)
        match = ToolMatch(self._tool, arguments, missing, tuple(self._used))
        return replace(match, alternatives=tuple(self._list_alternatives(match)))

    def _find_named(self, name: str, schema: Mapping[str, Any]) -> Any:
        """Return the value of `name: value` or `name=value`, or a choice in the text."""
        kind = infer_kind(name, schema)
        pattern = rf"(?<![\w-]){re.escape(name)}\s{{0,9}}[=:]\s{{0,9}}(\"[^\"\n]*\"|[^\s,;]+)"
        if match := re.search(pattern, self._text):
            self._mark_used(match.start(), match.end())
            try:
                value = json.loads(match[1])
            except (ValueError, RecursionError):
                value = match[1]
            return value if kind != "number" or isinstance(value, int | float) else None
        if kind == "choice":
            words = split_words(self._text)
            return next((one for one in schema["enum"] if str(one).lower() in words), None)
        return None

    def _mark_used(self, start: int, end: int) -> None:
        inside = [value for value in self._unused if start <= value.start < end]
        self._used += inside
        self._unused = [value for value in self._unused if value not in inside]

    def _take_by_kind(self, name: str, kind: str) -> Any:
        """Return the first unused value of a kind; a target is what follows "to"."""
        words = set(split_words(name))
        candidates = [
            value
            for value in self._unused
            if value.kind == (kind if kind != "text" else "quoted")
            and not (words & SOURCE_WORDS and self._is_target(value))
        ]
        if words & TARGET_WORDS:
            candidates.sort(key=lambda value: not self._is_target(value))
        if not candidates:
            return None
        self._unused.remove(candidates[0])
        self._used.append(candidates[0])
        return candidates[0].value

    def _is_target(self, value: ExtractedValue) -> bool:
        return TARGET_PREPOSITION.search(self._text[: value.start][-20:]) is not None

    def _find_rest(self, name: str, schema: Mapping[str, Any], earlier: EarlierCalls) -> Any:
        """Return an earlier argument, a default, or the words that follow the request."""
        if infer_kind(name, schema) == "text" and not self._used:
            rest = self._cut_request()
            if rest is not None:
                self._used.append(rest)
                return rest.value
        if name in earlier.arguments:
            return earlier.arguments[name]
        described = DESCRIBED_DEFAULT.search(str(schema.get("description", "")))
        return schema.get("default", described[1] if described else None)

    def _cut_request(self) -> ExtractedValue | None:
        """Return the text after the words that name the tool: of `echo hi`, that is `hi`."""
        own_terms, skipped_words, start = _weigh_terms(self._tool), STOP_WORDS, 0
        unnamed = {to_stem(word) for word in split_words(self._tool.name)[-1:]}
        for match in re.finditer(r"[^\W_]+", self._text):
            word = match[0].lower()
            unnamed.discard(to_stem(word))
            if to_stem(word) in own_terms:
                skipped_words = CONNECTIVES
            elif word not in skipped_words:
                break
            start = match.end()
        rest = POLITE_ENDING.sub("", self._text[start:].strip(" \t\n:,;.!?"))
        if unnamed or not rest:
            return None
        start = self._text.index(rest, start)
        return ExtractedValue("text", rest, start, start + len(rest))

    def _list_alternatives(self, match: ToolMatch) -> Iterator[ToolMatch]:
        """Yield the call for each further value of its only used kind, unless it changes things."""
        if len(self._used) != 1 or _is_verb_missing(self._tool, (), is_question=False):
            return
        (used,) = self._used
        names = [name for name, value in match.arguments.items() if value == used.value]
        for value in self._unused:
            if value.kind == used.kind and names:
                yield replace(match, arguments=match.arguments | {names[0]: value.value})
