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
from typing import Any, TypeGuard

from agents.llm.interface import ToolSpec
from agents.llm.offline.text_analysis import (
    EXTENSIONS,
    MAX_TEXT,
    STOP,
    STRONG,
    ExtractedValue,
    extract_values,
    list_synonyms,
    split_word_list,
    split_words,
    to_stem,
)

MAX_SLOTS = 60
MAX_HOPS = 8  # of $ref

UNSET: Any = object()

FORMATS = {
    "uri": "url", "url": "url", "uri-reference": "url", "email": "email", "uuid": "uuid",
    "date": "date", "date-time": "datetime", "time": "time",
}  # fmt: skip
PATHS = split_word_list(
    "path paths file files filename filepath dir directory folder workspace cwd"
)
TEXTS = split_word_list(
    "query q search text message msg prompt question content contents body input title subject "
    "comment note term terms keyword keywords phrase sentence words thought summary topic"
)
PLACES = split_word_list("city location place address country region town")
KINDS: tuple[tuple[str, frozenset[str]], ...] = (
    ("timezone", split_word_list("timezone tz timezones zone")),
    ("url", split_word_list("url urls uri uris link href website webpage")),
    ("email", split_word_list("email emails mail")),
    ("revision", split_word_list("revision rev sha commit")),
    ("uuid", split_word_list("uuid guid")),
    ("datetime", split_word_list("datetime timestamp")),
    ("date", split_word_list("date day")),
    ("time", split_word_list("time")),
    ("path", PATHS),
    ("text", TEXTS),
    ("place", PLACES),
)
HINTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("timezone", re.compile(r"\bIANA\b|\btime ?zone", re.I)),
    ("url", re.compile(r"\bURLs?\b")),
    ("email", re.compile(r"\be-?mail address", re.I)),
    ("date", re.compile(r"\bYYYY-MM-DD\b(?!T)", re.I)),
    ("time", re.compile(r"\bHH:MM\b", re.I)),
    ("path", re.compile(r"\b(?:absolute|relative|file|directory) path\b|\bpath (?:to|of)\b", re.I)),
)
SOURCES = split_word_list("source src from origin base start old input left")
TARGETS = split_word_list("target to dest destination end new output right")
SPOKEN_DEFAULT = re.compile(
    r"(?:\bdefaults?(?: is| to|:)?|\buse)\s+['\"`]([^'\"`\n]{1,200})['\"`]", re.I
)
CHOICE = re.compile(r"['\"`]([\w.-]{1,40})['\"`]")
OFFERED = re.compile(r"\b(?:whether|one of|either|options?|allowed|must be|can be|valid)\b", re.I)
EXAMPLE = re.compile(r"\be\.g\b|\bexamples?\b|\bsuch as\b|\blike\b", re.I)


@dataclass(frozen=True)
class ParameterSlot:
    """A parameter: its name, the kind of its value, and whether it is required."""

    name: str
    kind: str
    required: bool
    words: tuple[str, ...]
    role: str = ""  # "source" or "target", for two slots of the same kind
    choices: tuple[Any, ...] = ()
    default: Any = UNSET
    item: "ParameterSlot | None" = None  # the items of an array
    whole: bool = False  # an integer
    described: bool = False  # choices come only from the description

    @property
    def typed(self) -> bool:
        """Whether its values are recognized by their form."""
        return self.kind not in ("text", "word", "place", "object", "boolean")


def parse_slots(parameters: dict[str, Any]) -> tuple[ParameterSlot, ...]:
    """Return the slots of a tool's parameters, in the schema's order."""
    properties = parameters.get("properties")
    required = parameters.get("required")
    if not isinstance(properties, dict):
        return ()
    names = {name for name in required if isinstance(name, str)} if _is_list(required) else set()
    kept = sorted(properties, key=lambda name: name not in names)[:MAX_SLOTS]
    return tuple(
        _parse_slot(name, _resolve_schema(schema, parameters), name in names, parameters)
        for name, schema in properties.items()
        if name in kept
    )


def _parse_slot(
    name: str, schema: dict[str, Any], required: bool, root: dict[str, Any], depth: int = 0
) -> ParameterSlot:
    said = str(schema.get("description") or "")
    named = tuple(split_words(name))
    choices, described = _choices(schema, said)
    kind = _infer_kind(schema, named, said) if not choices or described else "choice"
    item = None
    if kind == "array" and depth < MAX_HOPS:
        inner = _resolve_schema(schema.get("items") or {}, root)
        item = _parse_slot(name, inner, required, root, depth + 1)
    return ParameterSlot(
        name=name,
        kind="choice" if described and kind == "word" else kind,
        required=required,
        words=named,
        role="source" if SOURCES & set(named) else "target" if TARGETS & set(named) else "",
        choices=choices,
        default=_default(schema, said),
        item=item,
        whole=schema.get("type") == "integer",
        described=described,
    )


def _infer_kind(schema: dict[str, Any], named: tuple[str, ...], said: str) -> str:
    match schema.get("type"):
        case "boolean" | "array" | "object" as kind:
            return str(kind)
        case "integer" | "number":
            return "number"
    if (form := str(schema.get("format"))) in FORMATS:
        return FORMATS[form]
    last = set(named[-1:])
    for kind, names in KINDS:
        if last & names:
            return kind
    if PATHS & set(named):
        return "path"
    return next((kind for kind, hint in HINTS if hint.search(said)), "word")


def _choices(schema: dict[str, Any], said: str) -> tuple[tuple[Any, ...], bool]:
    """Return the allowed values, and whether they come only from the description."""
    if "const" in schema:
        return (schema["const"],), False
    if _is_list(schema.get("enum")):
        return tuple(value for value in schema["enum"] if value is not None), False
    if (
        schema.get("type", "string") == "string"
        and OFFERED.search(said)
        and not EXAMPLE.search(said)
    ):
        found = tuple(dict.fromkeys(CHOICE.findall(said)))
        if len(found) > 1:
            return found, True
    return (), False


def _default(schema: dict[str, Any], said: str) -> Any:
    if schema.get("default") is not None:
        return schema["default"]
    spoken = SPOKEN_DEFAULT.search(said) if schema.get("type", "string") == "string" else None
    return spoken.group(1) if spoken else UNSET


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _resolve_schema(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references; of alternatives, take the first that isn't null."""
    for _ in range(MAX_HOPS):
        if not isinstance(schema, dict):
            return {}
        if "$ref" in schema:
            schema = _find_referenced_schema(str(schema["$ref"]), root)
            continue
        options = schema.get("anyOf") or schema.get("oneOf")
        if not isinstance(options, list):
            break
        others = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        first = next((o for o in options if isinstance(o, dict) and o.get("type") != "null"), {})
        schema = {**_resolve_reference(first, root), **others}
    if isinstance(schema.get("type"), list):
        kinds = [kind for kind in schema["type"] if kind != "null"]
        schema = {**schema, "type": kinds[0] if kinds else "string"}
    return schema


def _resolve_reference(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    return _find_referenced_schema(str(schema["$ref"]), root) if "$ref" in schema else schema


def _find_referenced_schema(reference: str, root: dict[str, Any]) -> dict[str, Any]:
    found: Any = root
    for step in reference.removeprefix("#/").split("/"):
        found = found.get(step) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


Span = tuple[int, int]

CONNECTIVES = split_word_list(
    "a about an back exactly following for me message of out phrase saying says string text that "
    "the this to top up with word words"
)
FILLER = STOP | CONNECTIVES
NOT_A_NOUN = STOP | split_word_list("name id value key type")
PLACE = re.compile(r"\b(?:in|at|for|near|of|around)\s+(?=\w)")
POINTED_AT = re.compile(
    r"\b(?:to|against|with|into)\s+(?:the\s+)?[\"'`]?([\w@][\w@./~^-]{0,200})", re.I
)
PROPER = re.compile(r"[A-Z][\w’'-]*(?:,? [A-Z][\w’'-]*)*")
WORD = re.compile(r"[^\W_]+(?:'\w+)?")
PLEASE = re.compile(r"[,;]?\s+(?:please|thanks|thank you|for me)\s*[.!]*$", re.I)
DANGLING = re.compile(r"(?:^|\s)(?:in|at|from|of|on|to|for|with|and)$")


def list_named_spans(text: str, slot: ParameterSlot) -> Iterator[Span]:
    """Yield the spans of words after "branch" or "branch named"; for a target, also after "to"."""
    for noun in reversed([word for word in slot.words if word not in NOT_A_NOUN]):
        pattern = (
            rf"\b{re.escape(noun)}s?\s+(?:(?:named|called|is|number|id)\s+)?[\"'`]?"
            r"([\w@#][\w@#./~^-]{0,200})"
        )
        yield from _list_word_spans(re.finditer(pattern, text, re.I))
    if slot.role == "target":
        yield from _list_word_spans(POINTED_AT.finditer(text))


def find_remaining_text(
    text: str, slot: ParameterSlot, tool_name: str, taken: Iterable[Span]
) -> Span | None:
    """Return the span of the text after the command words: of `echo hello`, that of `hello`.

    Of several spans between used values, return the longest.
    """
    own = {to_stem(word) for word in split_words(tool_name)} | {
        to_stem(word) for word in slot.words
    }
    rests = [_trim_span(text, start, end, slot, own) for start, end in _list_gaps(text, taken)]
    fit = [(start, end) for start, end in rests if split_words(text[start:end])]
    if slot.kind == "word":
        # A single word is only accepted after the tool's verb, "checkout dev".
        deed = {to_stem(word) for word in split_words(tool_name)[-1:]}
        fit = [(a, b) for a, b in fit if b - a == len(text[a:b].split()[0])]
        fit = [(a, b) for a, b in fit if deed <= {to_stem(word) for word in split_words(text[:a])}]
    return max(fit, key=lambda span: span[1] - span[0], default=None)


def _list_gaps(text: str, taken: Iterable[Span]) -> Iterator[Span]:
    at = 0
    for start, end in sorted(taken):
        yield at, max(at, start)
        at = max(at, end)
    yield at, len(text)


def _trim_span(text: str, start: int, end: int, slot: ParameterSlot, own: set[str]) -> Span:
    """Return a span without the command before it and polite words after it."""
    place = PLACE.search(text, start, end) if slot.kind == "place" else None
    start = place.end() if place else _skip_command(text, start, end, own)
    if slot.kind == "place" and (named := PROPER.match(text, start, end)):
        return named.span()
    rest = text[start:end].strip(" \t\n:,;")
    rest = DANGLING.sub("", PLEASE.sub("", rest))
    if slot.kind in ("place", "word"):
        rest = rest.rstrip(".!?")
    at = text.find(rest, start)
    return at, at + len(rest)


def _skip_command(text: str, start: int, end: int, own: set[str]) -> int:
    skipped = FILLER
    for match in WORD.finditer(text, start, end):
        word = match.group().lower().partition("'")[0]
        if to_stem(word) in own or not own.isdisjoint(list_synonyms(to_stem(word))):
            skipped = CONNECTIVES  # this was the command: its object follows
        elif word not in skipped:
            break
        start = match.end()
    return start


def _list_word_spans(matches: Iterator[re.Match[str]]) -> Iterator[Span]:
    for match in matches:
        word = match.group(1).rstrip(".")
        if word and word.lower() not in STOP:
            yield match.start(1), match.start(1) + len(word)


YES_OR_NO = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip


def convert_value(slot: ParameterSlot, value: Any) -> Any:
    """Convert a value for the slot; UNSET if it doesn't fit."""
    text = str(value).strip()
    if slot.choices and not slot.described:
        same = (choice for choice in slot.choices if str(choice).lower() == text.lower())
        return next(same, UNSET)
    match slot.kind:
        case "number":
            return as_number(text, slot.whole)
        case "boolean":
            return YES_OR_NO.get(text.lower(), UNSET)
        case "array":
            return _as_list(slot, value)
        case "object":
            return value if isinstance(value, dict) else UNSET
        case _:
            return text or UNSET


def as_number(text: str, whole: bool) -> Any:
    """Parse a number; UNSET if it isn't one, or not an integer with `is_integer`."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return UNSET
    if not math.isfinite(value):
        return UNSET
    if value.is_integer() and (whole or "." not in text):
        return int(value)
    return UNSET if whole else value


def may_stand_for(kind: str, wanted: str) -> bool:
    """Tell whether a value of one kind can be used for another."""
    return kind == wanted or (wanted == "datetime" and kind == "date")


def _as_list(slot: ParameterSlot, value: Any) -> Any:
    if isinstance(value, list):
        return value
    parts = [part.strip() for part in str(value).split(",")]
    fit = [convert_value(slot.item, part) if slot.item else part for part in parts]
    return [part for part in fit if part is not UNSET] or UNSET


NEARBY = 40  # characters before a value that may say what it is
MANY = split_word_list(
    "max maximum limit count num number top last first size length n k total results"
)
COUNTED = re.compile(
    r"\b(?:last|first|top|latest|recent|newest|limit(?: of| to)?|max(?:imum)?(?: of)?|up to|only"
    r"|at most)\s+$",
    re.I,
)
FROM = re.compile(r"\b(?:from|of)\s+(?:the\s+)?$", re.I)
TO = re.compile(r"\b(?:to|into|in|against|with|for)\s+(?:the\s+)?$", re.I)
SAME_PLACE = re.compile(r"\s{1,3}(?:(?:in|at)\s{1,3})?", re.I)
NO = re.compile(
    r"\b(?:no|not|without|don't|never|skip(?:ping)?|exclud(?:e|ing))\s+(?:\w+\s+)?$", re.I
)
# Lines that may name the path of a repository, folder or file.
WHEREABOUTS = re.compile(
    r"\b(?:repo(?:sitory)?|work(?:ing directory|ing folder|space)|directory|folder|root|project"
    r"|path)\b",
    re.I,
)
FOLDERS = split_word_list("repo repository dir directory folder workspace cwd root")
A_FILE = re.compile(rf"\w\.(?:{EXTENSIONS})$")
WRITTEN = re.compile(r"[^\s,;\"'`]+")


@dataclass(frozen=True)
class MessageContext:
    """The conversation around a message, for values that the message omits."""

    instructions: str = ""
    earlier: tuple[str, ...] = ()  # earlier user messages, newest first
    used: dict[str, Any] = field(default_factory=dict)  # arguments of earlier calls, by name
    recent: frozenset[str] = frozenset()  # the tools called last, for "and in Berlin?"


@dataclass(frozen=True)
class PartialCall:
    """A tool with the arguments found so far and the missing ones."""

    tool: ToolSpec
    arguments: dict[str, Any]
    missing: tuple[str, ...]
    taken: tuple[ExtractedValue, ...]  # values of the message used in the arguments
    others: tuple[ExtractedValue, ...]  # other values for the same argument: Tokyo *and* Berlin
    slots: tuple[ParameterSlot, ...]

    @property
    def strong(self) -> int:
        """The number of values of strong kinds that were used."""
        return sum(found.kind in STRONG for found in self.taken) + len(self.others)

    @property
    def lone(self) -> ParameterSlot | None:
        """The required slot that each alternative value can fill, if any."""
        return find_lone_slot(self.slots)


def find_lone_slot(slots: Iterable[ParameterSlot]) -> ParameterSlot | None:
    """Return the only slot of a strong kind, if it is required."""
    strong = [slot for slot in slots if slot.kind in STRONG]
    return strong[0] if len(strong) == 1 and strong[0].required else None


def fill(tool: ToolSpec, text: str, context: MessageContext) -> PartialCall:
    """Fill a tool's arguments from a message."""
    return _ArgumentFiller(tool, text[:MAX_TEXT], context).filled()


class _ArgumentFiller:
    """Fills one tool's arguments: the values of the message, and which are already used."""

    def __init__(self, tool: ToolSpec, text: str, context: MessageContext) -> None:
        self.tool = tool
        self.text = text
        self.context = context
        self.found = extract_values(text)
        self.slots = parse_slots(tool.parameters)
        self.taken: list[ExtractedValue] = []
        self.arguments: dict[str, Any] = {}

    def filled(self) -> PartialCall:
        required = [slot for slot in self.slots if slot.required]
        optional = [slot for slot in self.slots if not slot.required]
        steps = (
            (self.slots, self._named),
            (sorted(required, key=_rank_slot), self._by_kind),
            (optional, self._if_said),
            (required, self._free),
            (_select_lone_text(required, optional), self._free),
            (required, self._known),
        )
        for slots, step in steps:
            for slot in slots:
                value = UNSET if slot.name in self.arguments else step(slot)
                if value is not UNSET:
                    self.arguments[slot.name] = value
        ordered = [slot.name for slot in self.slots if slot.name in self.arguments]
        return PartialCall(
            tool=self.tool,
            arguments={name: self.arguments[name] for name in ordered},
            missing=tuple(slot.name for slot in required if slot.name not in self.arguments),
            taken=tuple(self.taken),
            others=self._others(),
            slots=self.slots,
        )

    def _others(self) -> tuple[ExtractedValue, ...]:
        slot = find_lone_slot(self.slots)
        if slot is None or slot.name not in self.arguments:
            return ()
        seen = {str(self.arguments[slot.name])}
        fit = [found for found in self._unused() if may_stand_for(found.kind, slot.kind)]
        return tuple(
            found
            for at, found in enumerate(fit)
            if str(found.value) not in seen | {str(other.value) for other in fit[:at]}
        )

    # Named arguments: "max_count: 5", "timezone=Asia/Tokyo", "limit of 5".

    def _named(self, slot: ParameterSlot) -> Any:
        name = r"[ _-]?".join(map(re.escape, slot.words)) or re.escape(slot.name)
        assigned = r"\s{0,9}(?:=|:(?!//))\s{0,9}"
        if slot.kind == "number":
            assigned = rf"(?:{assigned}|\s+(?:is\s+|of\s+|to\s+)?(?=-?\d))"
        match = re.search(rf"(?<![\w/.-])(?:--)?{name}{assigned}", self.text, re.I)
        return self._written_at(slot, match.end()) if match else UNSET

    def _written_at(self, slot: ParameterSlot, at: int) -> Any:
        """Return the value at a position: JSON, a quote, a typed value or a word."""
        if self.text[at : at + 1] in ("[", "{"):
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, at)
            except (ValueError, RecursionError):
                return UNSET
            return self._take(ExtractedValue("literal", value, at, end))
        here = [found for found in self._unused() if found.start == at]
        if not here and (word := WRITTEN.match(self.text, at)):
            here = [ExtractedValue("word", word.group().rstrip(".!?)"), *word.span())]
        for found in sorted(here, key=lambda found: found.kind != slot.kind):
            value = convert_value(slot, found.value)
            if value is not UNSET:
                return self._take(found, value)
        return UNSET

    # Values of the right form.

    def _by_kind(self, slot: ParameterSlot) -> Any:
        if slot.choices or slot.kind == "choice":
            return self._choice(slot)
        match slot.kind:
            case "array":
                return self._several(slot)
            case "boolean":
                return self._yes_or_no(slot)
            case "number":
                return self._number(slot)
            case _:
                return self._one(slot) if slot.kind in STRONG else UNSET

    def _one(self, slot: ParameterSlot) -> Any:
        fit = [found for found in self._unused() if may_stand_for(found.kind, slot.kind)]
        if FOLDERS & set(slot.words):
            fit = [found for found in fit if not A_FILE.search(str(found.value))]
        if slot.role:
            pointing = [found for found in fit if self._role(found) == slot.role]
            rivals = [s for s in self.slots if s.kind == slot.kind and s.name != slot.name]
            if not pointing and any(rival.name not in self.arguments for rival in rivals):
                # Two slots and no preposition: use the order of the message.
                pointing = [found for found in fit if not self._role(found)]
            fit = pointing or ([] if len(fit) < 2 and rivals and slot.role == "source" else fit)
        return self._take(fit[0]) if fit else UNSET

    def _role(self, found: ExtractedValue) -> str:
        """Return "source" after `from` or a time (`14:30 in X`), "target" after `to`, else ""."""
        for other in self.found:
            between = self.text[other.end : found.start]
            if other.kind in ("time", "datetime") and SAME_PLACE.fullmatch(between):
                return "source"
        if FROM.search(self._before(found.start)):
            return "source"
        return "target" if TO.search(self._before(found.start)) else ""

    def _choice(self, slot: ParameterSlot) -> Any:
        said = " ".join(split_words(self.text))
        for choice in sorted(slot.choices, key=lambda choice: -len(str(choice))):
            name = " ".join(split_words(str(choice)))
            if name and re.search(rf"\b{re.escape(name)}s?\b", said):
                return choice
        return slot.choices[0] if len(slot.choices) == 1 else UNSET

    def _several(self, slot: ParameterSlot) -> Any:
        item = slot.item
        if item is not None and item.choices:
            said = set(split_words(self.text))
            return [c for c in item.choices if set(split_words(str(c))) <= said] or UNSET
        kinds = {"quoted", "path"}
        if item is not None and (item.kind in STRONG or item.kind == "number"):
            kinds = {item.kind}
        return [self._take(found) for found in self._unused() if found.kind in kinds] or UNSET

    def _yes_or_no(self, slot: ParameterSlot) -> Any:
        meant = [word for word in slot.words if word not in STOP and word != "include"]
        match = meant and re.search(rf"\b{re.escape(meant[-1])}\w{{0,3}}\b", self.text, re.I)
        return not NO.search(self._before(match.start())) if match else UNSET

    def _number(self, slot: ParameterSlot) -> Any:
        rivals = sum(s.kind == "number" and s.required for s in self.slots)
        kinds = {"number"}
        if sum(found.kind == "number" for found in self.found) < rivals:
            kinds.add("number word")
        return self._first(slot, (found for found in self._unused() if found.kind in kinds))

    # Optional arguments, only if the message mentions them.

    def _if_said(self, slot: ParameterSlot) -> Any:
        if slot.choices:
            value = self._choice(slot) if len(slot.choices) > 1 else UNSET
            ambiguous = set(split_words(str(value))) <= set(split_words(self.tool.name))
            return UNSET if ambiguous else value
        if slot.kind == "number":
            numbers = (f for f in self._unused() if f.kind in ("number", "number word"))
            counts = (f for f in numbers if COUNTED.search(self._before(f.start)))
            return self._first(slot, counts) if MANY & set(slot.words) else UNSET
        if slot.kind == "boolean":
            return self._yes_or_no(slot)
        return self._one(slot) if slot.kind in STRONG else UNSET

    # Free text.

    def _free(self, slot: ParameterSlot) -> Any:
        if slot.kind not in ("text", "word", "place", "array", "path", "revision"):
            return UNSET
        value = UNSET
        if slot.kind in ("word", "revision", "array"):
            value = self._first_word(list_named_spans(self.text, slot))
        if value is UNSET:
            quotes = (found for found in self._unused() if found.kind == "quoted")
            value = self._first(slot if slot.kind != "array" else None, quotes)
        if value is UNSET and slot.kind in ("text", "place", "word"):
            taken = [(found.start, found.end) for found in self.taken]
            rest = find_remaining_text(self.text, slot, self.tool.name, taken)
            value = self._first_word([rest] if rest else [])
            if rest and slot.kind == "place":
                # A city is also extracted as a time zone, so mark that as used.
                self.taken += [f for f in self.found if f.kind == "timezone" and f.overlaps(*rest)]
        return [value] if slot.kind == "array" and value is not UNSET else value

    def _first_word(self, spans: Iterable[tuple[int, int]]) -> Any:
        for start, end in spans:
            if not self._is_taken(start, end):
                return self._take(ExtractedValue("word", self.text[start:end], start, end))
        return UNSET

    # Values from the conversation and the schema.

    def _known(self, slot: ParameterSlot) -> Any:
        used = self.context.used.get(slot.name, UNSET)
        if (
            used is not UNSET
            and slot.kind in ("path", "word")
            and convert_value(slot, used) is not UNSET
        ):
            return used
        if slot.default is not UNSET:
            return slot.default
        if slot.described and slot.choices:
            return slot.choices[0]
        return next(self._whereabouts(), UNSET) if slot.kind == "path" else UNSET

    def _whereabouts(self) -> Iterator[str]:
        for text in self.context.earlier:
            yield from (found.value for found in extract_values(text) if found.kind == "path")
        for line in f"{self.context.instructions}\n{self.tool.description}".splitlines():
            if WHEREABOUTS.search(line):
                paths = (found.value for found in extract_values(line) if found.kind == "path")
                yield from (path for path in paths if path[0] in "/~." or ":\\" in path)

    # Bookkeeping.

    def _before(self, start: int) -> str:
        return self.text[max(0, start - NEARBY) : start]

    def _unused(self) -> list[ExtractedValue]:
        return [found for found in self.found if not self._is_taken(found.start, found.end)]

    def _is_taken(self, start: int, end: int) -> bool:
        return any(found.overlaps(start, end) for found in self.taken)

    def _first(self, slot: ParameterSlot | None, candidates: Iterable[ExtractedValue]) -> Any:
        for found in candidates:
            value = found.value if slot is None else convert_value(slot, found.value)
            if value is not UNSET:
                return self._take(found, value)
        return UNSET

    def _take(self, found: ExtractedValue, value: Any = UNSET) -> Any:
        self.taken.append(found)
        return found.value if value is UNSET else value


def _rank_slot(slot: ParameterSlot) -> int:
    """Rank slots so that ambiguous kinds come last."""
    return {"number": 1, "array": 2, "boolean": 3}.get(slot.kind, 0)


def _select_lone_text(
    required: list[ParameterSlot], optional: list[ParameterSlot]
) -> list[ParameterSlot]:
    """Return the only text slot of a tool without required slots, as of many search tools."""
    texts = [slot for slot in optional if slot.kind == "text"]
    return texts if not required and len(texts) == 1 else []
