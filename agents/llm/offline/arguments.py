"""Fill a tool's arguments from a message.

No values are invented: a required argument that is in neither the message, the conversation nor
the schema is reported as missing.

A slot's kind comes from the JSON Schema (type, format, enum), else the parameter's name, else its
description. Schemas are untrusted: anything unexpected makes the slot a plain word.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agents.llm.interface import ToolSpec
from agents.llm.offline.parameter_slots import UNSET, ParameterSlot, Span, parse_slots
from agents.llm.offline.text_analysis import (
    EXTENSIONS,
    MAX_TEXT,
    STOP_WORDS,
    STRONG_KINDS,
    ExtractedValue,
    extract_values,
    list_synonyms,
    split_word_list,
    split_words,
    to_stem,
)

CONNECTIVES = split_word_list(
    "a about an back exactly following for me message of out phrase saying says string text that "
    "the this to top up with word words"
)
FILLER_WORDS = STOP_WORDS | CONNECTIVES
GENERIC_WORDS = STOP_WORDS | split_word_list("name id value key type")
PLACE_PREPOSITION = re.compile(r"\b(?:in|at|for|near|of|around)\s+(?=\w)")
TARGET_PHRASE = re.compile(
    r"\b(?:to|against|with|into)\s+(?:the\s+)?[\"'`]?([\w@][\w@./~^-]{0,200})", re.I
)
PROPER_NAME = re.compile(r"[A-Z][\w’'-]*(?:,? [A-Z][\w’'-]*)*")
WORD = re.compile(r"[^\W_]+(?:'\w+)?")
POLITE_ENDING = re.compile(r"[,;]?\s+(?:please|thanks|thank you|for me)\s*[.!]*$", re.I)
TRAILING_PREPOSITION = re.compile(r"(?:^|\s)(?:in|at|from|of|on|to|for|with|and)$")


def iterate_named_spans(text: str, slot: ParameterSlot) -> Iterator[Span]:
    """Yield the spans of words after "branch" or "branch named"; for a target, also after "to"."""
    for noun in reversed([word for word in slot.words if word not in GENERIC_WORDS]):
        pattern = (
            rf"\b{re.escape(noun)}s?\s+(?:(?:named|called|is|number|id)\s+)?[\"'`]?"
            r"([\w@#][\w@#./~^-]{0,200})"
        )
        yield from _iterate_word_spans(re.finditer(pattern, text, re.I))
    if slot.role == "target":
        yield from _iterate_word_spans(TARGET_PHRASE.finditer(text))


def find_remaining_text(
    text: str, slot: ParameterSlot, tool_name: str, taken_spans: Iterable[Span]
) -> Span | None:
    """Return the span of the text after the command words: of `echo hello`, that of `hello`.

    Of several spans between used values, return the longest.
    """
    own_stems = {to_stem(word) for word in split_words(tool_name)} | {
        to_stem(word) for word in slot.words
    }
    spans = [
        _trim_span(text, start, end, slot, own_stems)
        for start, end in _iterate_gaps(text, taken_spans)
    ]
    candidates = [(start, end) for start, end in spans if split_words(text[start:end])]
    if slot.kind == "word":
        # A single word is only accepted after the tool's verb, "checkout dev".
        verb_stems = {to_stem(word) for word in split_words(tool_name)[-1:]}
        candidates = [
            (span_start, span_end)
            for span_start, span_end in candidates
            if span_end - span_start == len(text[span_start:span_end].split()[0])
        ]
        candidates = [
            (span_start, span_end)
            for span_start, span_end in candidates
            if verb_stems <= {to_stem(word) for word in split_words(text[:span_start])}
        ]
    return max(candidates, key=lambda span: span[1] - span[0], default=None)


def _iterate_gaps(text: str, taken_spans: Iterable[Span]) -> Iterator[Span]:
    position = 0
    for start, end in sorted(taken_spans):
        yield position, max(position, start)
        position = max(position, end)
    yield position, len(text)


def _trim_span(text: str, start: int, end: int, slot: ParameterSlot, own_stems: set[str]) -> Span:
    """Return a span without the command before it and polite words after it."""
    place_match = PLACE_PREPOSITION.search(text, start, end) if slot.kind == "place" else None
    start = place_match.end() if place_match else _skip_command(text, start, end, own_stems)
    if slot.kind == "place" and (proper_name := PROPER_NAME.match(text, start, end)):
        return proper_name.span()
    remaining_text = text[start:end].strip(" \t\n:,;")
    remaining_text = TRAILING_PREPOSITION.sub("", POLITE_ENDING.sub("", remaining_text))
    if slot.kind in ("place", "word"):
        remaining_text = remaining_text.rstrip(".!?")
    position = text.find(remaining_text, start)
    return position, position + len(remaining_text)


def _skip_command(text: str, start: int, end: int, own_stems: set[str]) -> int:
    skipped_words = FILLER_WORDS
    for match in WORD.finditer(text, start, end):
        word = match.group().lower().partition("'")[0]
        if to_stem(word) in own_stems or not own_stems.isdisjoint(list_synonyms(to_stem(word))):
            skipped_words = CONNECTIVES  # this was the command: its object follows
        elif word not in skipped_words:
            break
        start = match.end()
    return start


def _iterate_word_spans(matches: Iterator[re.Match[str]]) -> Iterator[Span]:
    for match in matches:
        word = match.group(1).rstrip(".")
        if word and word.lower() not in STOP_WORDS:
            yield match.start(1), match.start(1) + len(word)


BOOLEAN_WORDS = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


def convert_value(slot: ParameterSlot, value: Any) -> Any:
    """Convert a value for the slot; UNSET if it doesn't fit."""
    text = str(value).strip()
    if slot.choices and not slot.choices_from_description:
        matching_choices = (
            choice for choice in slot.choices if str(choice).lower() == text.lower()
        )
        return next(matching_choices, UNSET)
    match slot.kind:
        case "number":
            return parse_number(text, slot.is_integer)
        case "boolean":
            return BOOLEAN_WORDS.get(text.lower(), UNSET)
        case "array":
            return _convert_list(slot, value)
        case "object":
            return value if isinstance(value, dict) else UNSET
        case _:
            return text or UNSET


def parse_number(text: str, is_integer: bool) -> Any:
    """Parse a number; UNSET if it isn't one, or not an integer with `is_integer`."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return UNSET
    if not math.isfinite(value):
        return UNSET
    if value.is_integer() and (is_integer or "." not in text):
        return int(value)
    return UNSET if is_integer else value


def is_compatible_kind(kind: str, wanted_kind: str) -> bool:
    """Tell whether a value of one kind can be used for another."""
    return kind == wanted_kind or (wanted_kind == "datetime" and kind == "date")


def _convert_list(slot: ParameterSlot, value: Any) -> Any:
    if isinstance(value, list):
        return value
    parts = [part.strip() for part in str(value).split(",")]
    converted = [convert_value(slot.item, part) if slot.item else part for part in parts]
    return [part for part in converted if part is not UNSET] or UNSET


CONTEXT_LENGTH = 40  # characters before a value that may say what it is
COUNT_WORDS = split_word_list(
    "max maximum limit count num number top last first size length n k total results"
)
COUNT_PHRASE = re.compile(
    r"\b(?:last|first|top|latest|recent|newest|limit(?: of| to)?|max(?:imum)?(?: of)?|up to|only"
    r"|at most)\s+$",
    re.I,
)
SOURCE_PHRASE = re.compile(r"\b(?:from|of)\s+(?:the\s+)?$", re.I)
TARGET_PREPOSITION = re.compile(r"\b(?:to|into|in|against|with|for)\s+(?:the\s+)?$", re.I)
SAME_PLACE = re.compile(r"\s{1,3}(?:(?:in|at)\s{1,3})?", re.I)
NEGATION = re.compile(
    r"\b(?:no|not|without|don't|never|skip(?:ping)?|exclud(?:e|ing))\s+(?:\w+\s+)?$", re.I
)
# Lines that may name the path of a repository, folder or file.
LOCATION_HINT = re.compile(
    r"\b(?:repo(?:sitory)?|work(?:ing directory|ing folder|space)|directory|folder|root|project"
    r"|path)\b",
    re.I,
)
FOLDER_WORDS = split_word_list("repo repository dir directory folder workspace cwd root")
FILE_NAME = re.compile(rf"\w\.(?:{EXTENSIONS})$")
PLAIN_VALUE = re.compile(r"[^\s,;\"'`]+")


@dataclass(frozen=True)
class MessageContext:
    """The conversation around a message, for values that the message omits."""

    instructions: str = ""
    earlier_messages: tuple[str, ...] = ()  # earlier user messages, newest first
    earlier_arguments: dict[str, Any] = field(
        default_factory=dict
    )  # arguments of earlier calls, by name
    recent_tools: frozenset[str] = frozenset()  # the tools called last, for "and in Berlin?"


@dataclass(frozen=True)
class PartialCall:
    """A tool with the arguments found so far and the missing ones."""

    tool: ToolSpec
    arguments: dict[str, Any]
    missing: tuple[str, ...]
    used_values: tuple[ExtractedValue, ...]  # values of the message used in the arguments
    alternatives: tuple[
        ExtractedValue, ...
    ]  # other values for the same argument: Tokyo *and* Berlin
    slots: tuple[ParameterSlot, ...]

    @property
    def strong_count(self) -> int:
        """The number of values of strong kinds that were used."""
        return sum(extracted.kind in STRONG_KINDS for extracted in self.used_values) + len(
            self.alternatives
        )

    @property
    def lone_slot(self) -> ParameterSlot | None:
        """The required slot that each alternative value can fill, if any."""
        return find_lone_slot(self.slots)


def find_lone_slot(slots: Iterable[ParameterSlot]) -> ParameterSlot | None:
    """Return the only slot of a strong kind, if it is required."""
    strong = [slot for slot in slots if slot.kind in STRONG_KINDS]
    return strong[0] if len(strong) == 1 and strong[0].required else None


def fill_arguments(tool: ToolSpec, text: str, context: MessageContext) -> PartialCall:
    return _ArgumentFiller(tool, text[:MAX_TEXT], context).fill_slots()


class _ArgumentFiller:
    """Fills one tool's arguments: the values of the message, and which are already used."""

    def __init__(self, tool: ToolSpec, text: str, context: MessageContext) -> None:
        self.tool = tool
        self.text = text
        self.context = context
        self.values = extract_values(text)
        self.slots = parse_slots(tool.parameters)
        self.used_values: list[ExtractedValue] = []
        self.arguments: dict[str, Any] = {}

    def fill_slots(self) -> PartialCall:
        required = [slot for slot in self.slots if slot.required]
        optional = [slot for slot in self.slots if not slot.required]
        strategies = (
            (self.slots, self._find_named_value),
            (sorted(required, key=_rank_slot), self._find_by_kind),
            (optional, self._find_optional_value),
            (required, self._find_free_text),
            (_select_lone_text(required, optional), self._find_free_text),
            (required, self._find_known_value),
        )
        for slots, find_value in strategies:
            for slot in slots:
                value = UNSET if slot.name in self.arguments else find_value(slot)
                if value is not UNSET:
                    self.arguments[slot.name] = value
        ordered_names = [slot.name for slot in self.slots if slot.name in self.arguments]
        return PartialCall(
            tool=self.tool,
            arguments={name: self.arguments[name] for name in ordered_names},
            missing=tuple(slot.name for slot in required if slot.name not in self.arguments),
            used_values=tuple(self.used_values),
            alternatives=self._list_alternatives(),
            slots=self.slots,
        )

    def _list_alternatives(self) -> tuple[ExtractedValue, ...]:
        slot = find_lone_slot(self.slots)
        if slot is None or slot.name not in self.arguments:
            return ()
        seen_values = {str(self.arguments[slot.name])}
        candidates = [
            candidate
            for candidate in self._list_unused_values()
            if is_compatible_kind(candidate.kind, slot.kind)
        ]
        return tuple(
            candidate
            for index, candidate in enumerate(candidates)
            if str(candidate.value)
            not in seen_values | {str(earlier.value) for earlier in candidates[:index]}
        )

    # Named arguments: "max_count: 5", "timezone=Asia/Tokyo", "limit of 5".

    def _find_named_value(self, slot: ParameterSlot) -> Any:
        name = r"[ _-]?".join(map(re.escape, slot.words)) or re.escape(slot.name)
        assignment = r"\s{0,9}(?:=|:(?!//))\s{0,9}"
        if slot.kind == "number":
            assignment = rf"(?:{assignment}|\s+(?:is\s+|of\s+|to\s+)?(?=-?\d))"
        match = re.search(rf"(?<![\w/.-])(?:--)?{name}{assignment}", self.text, re.I)
        return self._read_value_at(slot, match.end()) if match else UNSET

    def _read_value_at(self, slot: ParameterSlot, position: int) -> Any:
        """Return the value at a position: JSON, a quote, a typed value or a word."""
        if self.text[position : position + 1] in ("[", "{"):
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, position)
            except (ValueError, RecursionError):
                return UNSET
            return self._use_value(ExtractedValue("literal", value, position, end))
        values_here = [
            candidate for candidate in self._list_unused_values() if candidate.start == position
        ]
        if not values_here and (word := PLAIN_VALUE.match(self.text, position)):
            values_here = [ExtractedValue("word", word.group().rstrip(".!?)"), *word.span())]
        for candidate in sorted(values_here, key=lambda value: value.kind != slot.kind):
            value = convert_value(slot, candidate.value)
            if value is not UNSET:
                return self._use_value(candidate, value)
        return UNSET

    # Values of the right form.

    def _find_by_kind(self, slot: ParameterSlot) -> Any:
        if slot.choices or slot.kind == "choice":
            return self._find_choice(slot)
        match slot.kind:
            case "array":
                return self._find_list(slot)
            case "boolean":
                return self._find_boolean(slot)
            case "number":
                return self._find_number(slot)
            case _:
                return self._find_single_value(slot) if slot.kind in STRONG_KINDS else UNSET

    def _find_single_value(self, slot: ParameterSlot) -> Any:
        candidates = [
            candidate
            for candidate in self._list_unused_values()
            if is_compatible_kind(candidate.kind, slot.kind)
        ]
        if FOLDER_WORDS & set(slot.words):
            candidates = [
                candidate for candidate in candidates if not FILE_NAME.search(str(candidate.value))
            ]
        if slot.role:
            directed_values = [
                candidate for candidate in candidates if self._find_role(candidate) == slot.role
            ]
            rivals = [
                other_slot
                for other_slot in self.slots
                if other_slot.kind == slot.kind and other_slot.name != slot.name
            ]
            if not directed_values and any(rival.name not in self.arguments for rival in rivals):
                # Two slots and no preposition: use the order of the message.
                directed_values = [
                    candidate for candidate in candidates if not self._find_role(candidate)
                ]
            candidates = directed_values or (
                [] if len(candidates) < 2 and rivals and slot.role == "source" else candidates
            )
        return self._use_value(candidates[0]) if candidates else UNSET

    def _find_role(self, extracted: ExtractedValue) -> str:
        """Return "source" after `from` or a time (`14:30 in X`), "target" after `to`, else ""."""
        for other_value in self.values:
            between = self.text[other_value.end : extracted.start]
            if other_value.kind in ("time", "datetime") and SAME_PLACE.fullmatch(between):
                return "source"
        if SOURCE_PHRASE.search(self._get_preceding_text(extracted.start)):
            return "source"
        return (
            "target" if TARGET_PREPOSITION.search(self._get_preceding_text(extracted.start)) else ""
        )

    def _find_choice(self, slot: ParameterSlot) -> Any:
        message_words = " ".join(split_words(self.text))
        for choice in sorted(slot.choices, key=lambda choice: -len(str(choice))):
            name = " ".join(split_words(str(choice)))
            if name and re.search(rf"\b{re.escape(name)}s?\b", message_words):
                return choice
        return slot.choices[0] if len(slot.choices) == 1 else UNSET

    def _find_list(self, slot: ParameterSlot) -> Any:
        item = slot.item
        if item is not None and item.choices:
            message_words = set(split_words(self.text))
            return [
                choice for choice in item.choices if set(split_words(str(choice))) <= message_words
            ] or UNSET
        kinds = {"quoted", "path"}
        if item is not None and (item.kind in STRONG_KINDS or item.kind == "number"):
            kinds = {item.kind}
        return [
            self._use_value(extracted)
            for extracted in self._list_unused_values()
            if extracted.kind in kinds
        ] or UNSET

    def _find_boolean(self, slot: ParameterSlot) -> Any:
        key_words = [word for word in slot.words if word not in STOP_WORDS and word != "include"]
        match = key_words and re.search(
            rf"\b{re.escape(key_words[-1])}\w{{0,3}}\b", self.text, re.I
        )
        return not NEGATION.search(self._get_preceding_text(match.start())) if match else UNSET

    def _find_number(self, slot: ParameterSlot) -> Any:
        required_count = sum(
            other_slot.kind == "number" and other_slot.required for other_slot in self.slots
        )
        kinds = {"number"}
        if sum(extracted.kind == "number" for extracted in self.values) < required_count:
            kinds.add("number word")
        return self._take_first(
            slot, (extracted for extracted in self._list_unused_values() if extracted.kind in kinds)
        )

    # Optional arguments, only if the message mentions them.

    def _find_optional_value(self, slot: ParameterSlot) -> Any:
        if slot.choices:
            value = self._find_choice(slot) if len(slot.choices) > 1 else UNSET
            is_ambiguous = set(split_words(str(value))) <= set(split_words(self.tool.name))
            return UNSET if is_ambiguous else value
        if slot.kind == "number":
            numbers = (
                candidate
                for candidate in self._list_unused_values()
                if candidate.kind in ("number", "number word")
            )
            counts = (
                candidate
                for candidate in numbers
                if COUNT_PHRASE.search(self._get_preceding_text(candidate.start))
            )
            return self._take_first(slot, counts) if COUNT_WORDS & set(slot.words) else UNSET
        if slot.kind == "boolean":
            return self._find_boolean(slot)
        return self._find_single_value(slot) if slot.kind in STRONG_KINDS else UNSET

    # Free text.

    def _find_free_text(self, slot: ParameterSlot) -> Any:
        if slot.kind not in ("text", "word", "place", "array", "path", "revision"):
            return UNSET
        value = UNSET
        if slot.kind in ("word", "revision", "array"):
            value = self._take_first_word(iterate_named_spans(self.text, slot))
        if value is UNSET:
            quotes = (
                candidate for candidate in self._list_unused_values() if candidate.kind == "quoted"
            )
            value = self._take_first(slot if slot.kind != "array" else None, quotes)
        if value is UNSET and slot.kind in ("text", "place", "word"):
            taken_spans = [(candidate.start, candidate.end) for candidate in self.used_values]
            remaining = find_remaining_text(self.text, slot, self.tool.name, taken_spans)
            value = self._take_first_word([remaining] if remaining else [])
            if remaining and slot.kind == "place":
                # A city is also extracted as a time zone, so mark that as used.
                self.used_values += [
                    extracted
                    for extracted in self.values
                    if extracted.kind == "timezone" and extracted.overlaps(*remaining)
                ]
        return [value] if slot.kind == "array" and value is not UNSET else value

    def _take_first_word(self, spans: Iterable[tuple[int, int]]) -> Any:
        for start, end in spans:
            if not self._is_used(start, end):
                return self._use_value(ExtractedValue("word", self.text[start:end], start, end))
        return UNSET

    # Values from the conversation and the schema.

    def _find_known_value(self, slot: ParameterSlot) -> Any:
        earlier_value = self.context.earlier_arguments.get(slot.name, UNSET)
        if (
            earlier_value is not UNSET
            and slot.kind in ("path", "word")
            and convert_value(slot, earlier_value) is not UNSET
        ):
            return earlier_value
        if slot.default is not UNSET:
            return slot.default
        if slot.choices_from_description and slot.choices:
            return slot.choices[0]
        return next(self._iterate_known_paths(), UNSET) if slot.kind == "path" else UNSET

    def _iterate_known_paths(self) -> Iterator[str]:
        for text in self.context.earlier_messages:
            yield from (
                extracted.value for extracted in extract_values(text) if extracted.kind == "path"
            )
        for line in f"{self.context.instructions}\n{self.tool.description}".splitlines():
            if LOCATION_HINT.search(line):
                paths = (
                    extracted.value
                    for extracted in extract_values(line)
                    if extracted.kind == "path"
                )
                yield from (path for path in paths if path[0] in "/~." or ":\\" in path)

    # Bookkeeping.

    def _get_preceding_text(self, start: int) -> str:
        return self.text[max(0, start - CONTEXT_LENGTH) : start]

    def _list_unused_values(self) -> list[ExtractedValue]:
        return [
            candidate
            for candidate in self.values
            if not self._is_used(candidate.start, candidate.end)
        ]

    def _is_used(self, start: int, end: int) -> bool:
        return any(used_value.overlaps(start, end) for used_value in self.used_values)

    def _take_first(self, slot: ParameterSlot | None, candidates: Iterable[ExtractedValue]) -> Any:
        for candidate in candidates:
            value = candidate.value if slot is None else convert_value(slot, candidate.value)
            if value is not UNSET:
                return self._use_value(candidate, value)
        return UNSET

    def _use_value(self, extracted: ExtractedValue, value: Any = UNSET) -> Any:
        self.used_values.append(extracted)
        return extracted.value if value is UNSET else value


def _rank_slot(slot: ParameterSlot) -> int:
    """Rank slots so that ambiguous kinds come last."""
    return {"number": 1, "array": 2, "boolean": 3}.get(slot.kind, 0)


def _select_lone_text(
    required: list[ParameterSlot], optional: list[ParameterSlot]
) -> list[ParameterSlot]:
    """Return the only text slot of a tool without required slots, as of many search tools."""
    texts = [slot for slot in optional if slot.kind == "text"]
    return texts if not required and len(texts) == 1 else []
