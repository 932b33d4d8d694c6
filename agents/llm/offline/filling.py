"""Fill a tool's arguments from what was said: named values first, then by kind, then free text.

Nothing is made up: a required argument that neither the message, nor the conversation, nor the
schema gives is reported as missing.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agents.llm.offline.evidence import EXTENSIONS, MAX_TEXT, STRONG, Found, found_in
from agents.llm.offline.fitting import fitting, may_stand_for
from agents.llm.offline.freetext import after_its_name, rest_of
from agents.llm.offline.slots import UNSET, Slot, slots_of
from agents.llm.offline.words import STOP, listed, words
from agents.llm.port import ToolSpec

NEARBY = 40  # characters before a value that may say what it is
MANY = listed("max maximum limit count num number top last first size length n k total results")
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
# Where a repository, folder or file is, when the message doesn't say.
WHEREABOUTS = re.compile(
    r"\b(?:repo(?:sitory)?|work(?:ing directory|ing folder|space)|directory|folder|root|project"
    r"|path)\b",
    re.I,
)
FOLDERS = listed("repo repository dir directory folder workspace cwd root")
A_FILE = re.compile(rf"\w\.(?:{EXTENSIONS})$")
WRITTEN = re.compile(r"[^\s,;\"'`]+")


@dataclass(frozen=True)
class Context:
    """What the conversation holds beside the message: where to look for what it leaves out."""

    instructions: str = ""
    earlier: tuple[str, ...] = ()  # what people said before, newest first
    used: dict[str, Any] = field(default_factory=dict)  # arguments of earlier calls, by name
    recent: frozenset[str] = frozenset()  # the tools called last, for "and in Berlin?"


@dataclass(frozen=True)
class Filling:
    """A tool with the arguments that were found, and what is missing."""

    tool: ToolSpec
    arguments: dict[str, Any]
    missing: tuple[str, ...]
    taken: tuple[Found, ...]  # what of the message went into the arguments
    others: tuple[Found, ...]  # what could be said in the same place: Tokyo *and* Berlin
    slots: tuple[Slot, ...]

    @property
    def strong(self) -> int:
        """Return how many unmistakable values of the message found a place."""
        return sum(found.kind in STRONG for found in self.taken) + len(self.others)

    @property
    def lone(self) -> Slot | None:
        """Return the required slot that could be filled again and again, if there is one."""
        return lone_slot(self.slots)


def lone_slot(slots: Iterable[Slot]) -> Slot | None:
    """Return the only slot of an unmistakable kind, if it is required."""
    strong = [slot for slot in slots if slot.kind in STRONG]
    return strong[0] if len(strong) == 1 and strong[0].required else None


def fill(tool: ToolSpec, text: str, context: Context) -> Filling:
    """Fill a tool's arguments from a message."""
    return _Draft(tool, text[:MAX_TEXT], context).filled()


class _Draft:
    """The work on one filling: what was found, and what of it is already used."""

    def __init__(self, tool: ToolSpec, text: str, context: Context) -> None:
        self.tool = tool
        self.text = text
        self.context = context
        self.found = found_in(text)
        self.slots = slots_of(tool.parameters)
        self.taken: list[Found] = []
        self.arguments: dict[str, Any] = {}

    def filled(self) -> Filling:
        required = [slot for slot in self.slots if slot.required]
        optional = [slot for slot in self.slots if not slot.required]
        steps = (
            (self.slots, self._named),
            (sorted(required, key=_most_telling), self._by_kind),
            (optional, self._if_said),
            (required, self._free),
            (_lone_text(required, optional), self._free),
            (required, self._known),
        )
        for slots, step in steps:
            for slot in slots:
                value = UNSET if slot.name in self.arguments else step(slot)
                if value is not UNSET:
                    self.arguments[slot.name] = value
        ordered = [slot.name for slot in self.slots if slot.name in self.arguments]
        return Filling(
            tool=self.tool,
            arguments={name: self.arguments[name] for name in ordered},
            missing=tuple(slot.name for slot in required if slot.name not in self.arguments),
            taken=tuple(self.taken),
            others=self._others(),
            slots=self.slots,
        )

    def _others(self) -> tuple[Found, ...]:
        slot = lone_slot(self.slots)
        if slot is None or slot.name not in self.arguments:
            return ()
        seen = {str(self.arguments[slot.name])}
        fit = [found for found in self._unused() if may_stand_for(found.kind, slot.kind)]
        return tuple(
            found
            for at, found in enumerate(fit)
            if str(found.value) not in seen | {str(other.value) for other in fit[:at]}
        )

    # What names the argument: "max_count: 5", "timezone=Asia/Tokyo", "limit of 5".

    def _named(self, slot: Slot) -> Any:
        name = r"[ _-]?".join(map(re.escape, slot.words)) or re.escape(slot.name)
        assigned = r"\s{0,9}(?:=|:(?!//))\s{0,9}"
        if slot.kind == "number":
            assigned = rf"(?:{assigned}|\s+(?:is\s+|of\s+|to\s+)?(?=-?\d))"
        match = re.search(rf"(?<![\w/.-])(?:--)?{name}{assigned}", self.text, re.I)
        return self._written_at(slot, match.end()) if match else UNSET

    def _written_at(self, slot: Slot, at: int) -> Any:
        """Return the value that is written at a place: JSON, a quote, something typed, a word."""
        if self.text[at : at + 1] in ("[", "{"):
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, at)
            except (ValueError, RecursionError):
                return UNSET
            return self._take(Found("literal", value, at, end))
        here = [found for found in self._unused() if found.start == at]
        if not here and (word := WRITTEN.match(self.text, at)):
            here = [Found("word", word.group().rstrip(".!?)"), *word.span())]
        for found in sorted(here, key=lambda found: found.kind != slot.kind):
            value = fitting(slot, found.value)
            if value is not UNSET:
                return self._take(found, value)
        return UNSET

    # What has the right form.

    def _by_kind(self, slot: Slot) -> Any:
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

    def _one(self, slot: Slot) -> Any:
        fit = [found for found in self._unused() if may_stand_for(found.kind, slot.kind)]
        if FOLDERS & set(slot.words):
            fit = [found for found in fit if not A_FILE.search(str(found.value))]
        if slot.role:
            pointing = [found for found in fit if self._role(found) == slot.role]
            rivals = [s for s in self.slots if s.kind == slot.kind and s.name != slot.name]
            if not pointing and any(rival.name not in self.arguments for rival in rivals):
                # Two slots and no word that says which way: in the order of the message.
                pointing = [found for found in fit if not self._role(found)]
            fit = pointing or ([] if len(fit) < 2 and rivals and slot.role == "source" else fit)
        return self._take(fit[0]) if fit else UNSET

    def _role(self, found: Found) -> str:
        """Return which way a value points: `from X`, `to Y`, and `14:30 in X` is where from."""
        for other in self.found:
            between = self.text[other.end : found.start]
            if other.kind in ("time", "datetime") and SAME_PLACE.fullmatch(between):
                return "source"
        if FROM.search(self._before(found.start)):
            return "source"
        return "target" if TO.search(self._before(found.start)) else ""

    def _choice(self, slot: Slot) -> Any:
        said = " ".join(words(self.text))
        for choice in sorted(slot.choices, key=lambda choice: -len(str(choice))):
            name = " ".join(words(str(choice)))
            if name and re.search(rf"\b{re.escape(name)}s?\b", said):
                return choice
        return slot.choices[0] if len(slot.choices) == 1 else UNSET

    def _several(self, slot: Slot) -> Any:
        item = slot.item
        if item is not None and item.choices:
            said = set(words(self.text))
            return [c for c in item.choices if set(words(str(c))) <= said] or UNSET
        kinds = {"quoted", "path"}
        if item is not None and (item.kind in STRONG or item.kind == "number"):
            kinds = {item.kind}
        return [self._take(found) for found in self._unused() if found.kind in kinds] or UNSET

    def _yes_or_no(self, slot: Slot) -> Any:
        meant = [word for word in slot.words if word not in STOP and word != "include"]
        match = meant and re.search(rf"\b{re.escape(meant[-1])}\w{{0,3}}\b", self.text, re.I)
        return not NO.search(self._before(match.start())) if match else UNSET

    def _number(self, slot: Slot) -> Any:
        rivals = sum(s.kind == "number" and s.required for s in self.slots)
        kinds = {"number"}
        if sum(found.kind == "number" for found in self.found) < rivals:
            kinds.add("number word")
        return self._first(slot, (found for found in self._unused() if found.kind in kinds))

    # Optional arguments only when something says so.

    def _if_said(self, slot: Slot) -> Any:
        if slot.choices:
            value = self._choice(slot) if len(slot.choices) > 1 else UNSET
            ambiguous = set(words(str(value))) <= set(words(self.tool.name))
            return UNSET if ambiguous else value
        if slot.kind == "number":
            numbers = (f for f in self._unused() if f.kind in ("number", "number word"))
            counts = (f for f in numbers if COUNTED.search(self._before(f.start)))
            return self._first(slot, counts) if MANY & set(slot.words) else UNSET
        if slot.kind == "boolean":
            return self._yes_or_no(slot)
        return self._one(slot) if slot.kind in STRONG else UNSET

    # Free text.

    def _free(self, slot: Slot) -> Any:
        if slot.kind not in ("text", "word", "place", "array", "path", "revision"):
            return UNSET
        value = UNSET
        if slot.kind in ("word", "revision", "array"):
            value = self._first_word(after_its_name(self.text, slot))
        if value is UNSET:
            quotes = (found for found in self._unused() if found.kind == "quoted")
            value = self._first(slot if slot.kind != "array" else None, quotes)
        if value is UNSET and slot.kind in ("text", "place", "word"):
            taken = [(found.start, found.end) for found in self.taken]
            rest = rest_of(self.text, slot, self.tool.name, taken)
            value = self._first_word([rest] if rest else [])
            if rest and slot.kind == "place":
                # The city that is meant is found as the time zone named after it, too.
                self.taken += [f for f in self.found if f.kind == "timezone" and f.overlaps(*rest)]
        return [value] if slot.kind == "array" and value is not UNSET else value

    def _first_word(self, spans: Iterable[tuple[int, int]]) -> Any:
        for start, end in spans:
            if not self._is_taken(start, end):
                return self._take(Found("word", self.text[start:end], start, end))
        return UNSET

    # What isn't said here but known.

    def _known(self, slot: Slot) -> Any:
        used = self.context.used.get(slot.name, UNSET)
        if used is not UNSET and slot.kind in ("path", "word") and fitting(slot, used) is not UNSET:
            return used
        if slot.default is not UNSET:
            return slot.default
        if slot.described and slot.choices:
            return slot.choices[0]
        return next(self._whereabouts(), UNSET) if slot.kind == "path" else UNSET

    def _whereabouts(self) -> Iterator[str]:
        for text in self.context.earlier:
            yield from (found.value for found in found_in(text) if found.kind == "path")
        for line in f"{self.context.instructions}\n{self.tool.description}".splitlines():
            if WHEREABOUTS.search(line):
                paths = (found.value for found in found_in(line) if found.kind == "path")
                yield from (path for path in paths if path[0] in "/~." or ":\\" in path)

    # Bookkeeping.

    def _before(self, start: int) -> str:
        return self.text[max(0, start - NEARBY) : start]

    def _unused(self) -> list[Found]:
        return [found for found in self.found if not self._is_taken(found.start, found.end)]

    def _is_taken(self, start: int, end: int) -> bool:
        return any(found.overlaps(start, end) for found in self.taken)

    def _first(self, slot: Slot | None, candidates: Iterable[Found]) -> Any:
        for found in candidates:
            value = found.value if slot is None else fitting(slot, found.value)
            if value is not UNSET:
                return self._take(found, value)
        return UNSET

    def _take(self, found: Found, value: Any = UNSET) -> Any:
        self.taken.append(found)
        return found.value if value is UNSET else value


def _most_telling(slot: Slot) -> int:
    """Order slots so that kinds which could be mistaken for others come last."""
    return {"number": 1, "array": 2, "boolean": 3}.get(slot.kind, 0)


def _lone_text(required: list[Slot], optional: list[Slot]) -> list[Slot]:
    """Return the one text of a tool that requires nothing, as a search often declares it."""
    texts = [slot for slot in optional if slot.kind == "text"]
    return texts if not required and len(texts) == 1 else []
