"""From a message to calls: one tool or several, or the question that has to be asked first."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agents.llm.offline.choosing import Candidate, Index
from agents.llm.offline.evidence import STRONG, found_in
from agents.llm.offline.filling import Context, Filling, fill
from agents.llm.offline.fitting import fitting
from agents.llm.offline.slots import UNSET
from agents.llm.offline.words import HARMFUL_STEMS, stems
from agents.llm.port import ToolSpec

Call = tuple[str, dict[str, Any]]

MAX_CALLS = 8  # from one message in words
MAX_SPLIT = 600  # characters of a message that is tried in parts
MAX_TRIES = 24  # parts that are tried
ENDS = re.compile(r"(?<=[.?!;])\s+|\n+|,?\s+(?:and then|then)\s+", re.I)
JOINTS = re.compile(r",?\s+and\s+|,\s+", re.I)


@dataclass(frozen=True)
class Plan:
    """What to do about a message: calls, or a filling with something missing, or tools to offer."""

    calls: tuple[Call, ...] = ()
    question: Filling | None = None
    nearby: tuple[ToolSpec, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A question of the turn before: the tool, what was known, and what was missing."""

    tool: str
    arguments: dict[str, Any]
    missing: tuple[str, ...]


def plan(text: str, index: Index, context: Context, asked: Asked | None = None) -> Plan:
    """Return what to do about a message in words."""
    whole = index.best(text, context)
    if asked is not None and not (whole is not None and whole.ready and whole.by_words):
        answered = _answered(asked, text, index, context)
        if answered is not None:
            return answered
    parts = _Parts(index, context, text, whole)
    calls = parts.calls() if len(text) <= MAX_SPLIT else None
    if calls and (whole is None or not whole.ready or parts.says_more_than(whole)):
        return Plan(calls=tuple(calls[:MAX_CALLS]))
    if whole is None:
        near = [found for found in index.candidates(text, context) if found.convincing]
        return Plan(nearby=tuple(found.filling.tool for found in near[:MAX_CALLS]))
    return planned(whole.filling)


def planned(filling: Filling) -> Plan:
    """Return the calls that a filling stands for, or it as a question."""
    if filling.missing:
        return Plan(question=filling)
    return Plan(calls=tuple(_each(filling))[:MAX_CALLS])


def _each(filling: Filling) -> Iterator[Call]:
    """Yield one call for each value of the one thing asked for, unless a call does harm."""
    yield filling.tool.name, filling.arguments
    slot = filling.lone
    if slot is not None and HARMFUL_STEMS.isdisjoint(stems(filling.tool.name)):
        for found in filling.others:
            yield filling.tool.name, filling.arguments | {slot.name: found.value}


def _is_in(start: int, filling: Filling) -> bool:
    return any(found.start <= start < found.end for found in filling.taken)


def _answered(asked: Asked, text: str, index: Index, context: Context) -> Plan | None:
    """Take the message as the answer to a question, if it is one."""
    tool = next((tool for tool in index.tools if tool.name == asked.tool), None)
    if tool is None:
        return None
    filling = fill(tool, text, context)
    new = {name: filling.arguments[name] for name in asked.missing if name in filling.arguments}
    missing = [name for name in asked.missing if name not in new]
    for slot in filling.slots:
        if missing == [slot.name] and not new:
            # The answer to one question is the answer, whatever its form.
            value = fitting(slot, text.strip().strip("\"'`"))
            if value is not UNSET:
                new, missing = {slot.name: value}, []
    if not new:
        return None
    arguments = asked.arguments | new
    return planned(replace(filling, arguments=arguments, missing=tuple(missing)))


class _Parts:
    """A message taken apart: each part has to be a ready call, or there are no parts."""

    def __init__(self, index: Index, context: Context, text: str, whole: Candidate | None) -> None:
        self.index = index
        # What one part leaves out, another may say: "git status and git log of /repo".
        recent = frozenset({whole.filling.tool.name}) if whole else context.recent
        self.context = replace(context, earlier=(text, *context.earlier), recent=recent)
        self.text = text
        self.tries = 0
        self.named: dict[str, bool] = {}  # tools, and whether the part says what they do

    def calls(self) -> list[Call] | None:
        found = self._split(self.text)
        if found is None:
            return None
        distinct = [call for at, call in enumerate(found) if call not in found[:at]]
        return distinct if len(distinct) > 1 else None

    def says_more_than(self, whole: Candidate) -> bool:
        """Tell whether the parts say more together than the message as one."""
        told = [f for f in found_in(self.text) if f.kind in STRONG or f.kind == "quoted"]
        if not all(_is_in(found.start, whole.filling) for found in told):
            return True
        return len(self.named) > 1 and all(self.named.values())

    def _split(self, text: str) -> list[Call] | None:
        pieces = [piece for piece in ENDS.split(text) if piece.strip()]
        if len(pieces) > 1:
            return self._all(pieces)
        for joint in JOINTS.finditer(text):
            if not self._quoted(joint.start(), text):
                found = self._all([text[: joint.start()], text[joint.end() :]])
                if found is not None:
                    return found
        return None

    def _all(self, pieces: Sequence[str]) -> list[Call] | None:
        calls: list[Call] = []
        for piece in pieces:
            found = self._one(piece)
            if found is None:
                return None
            calls.extend(found)
        return calls

    def _one(self, piece: str) -> list[Call] | None:
        self.tries += 1
        if self.tries > MAX_TRIES:
            return None
        candidate = self.index.best(piece, self.context)
        if candidate is not None and candidate.ready:
            inner = self._split(piece)
            if inner is None:
                name = candidate.filling.tool.name
                self.named[name] = set(stems(name)[-1:]) <= set(stems(piece))
            return inner or list(_each(candidate.filling))
        return self._split(piece)

    @staticmethod
    def _quoted(at: int, text: str) -> bool:
        return any(f.kind == "quoted" and f.start < at < f.end for f in found_in(text))
