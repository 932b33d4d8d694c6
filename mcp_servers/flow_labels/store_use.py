"""Infer whether a call reads or writes its server's store (pure).

Uses the same words as suggested labels. A call writes unless its words say that it only reads, and
reads unless they say that it only adds. A server's annotations can add a write (`readOnlyHint:
false`), but never remove one; for API operations, the annotation is ours, from the method.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.inference import SEEN, LabelContext, is_of_the_web
from mcp_servers.flow_labels.label_words import verbs, words
from mcp_servers.flow_labels.tool_clues import ToolClues, read_clues

_READS = ("read", "look")
_WRITES = frozenset({"act", "change", "control", "run", "send"})
_ADDS = ("change", "control", "send")


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Whether a call reads and writes its server's store; `is_public_web`: it reads the web."""

    reads: bool = True
    writes: bool = True
    of_web: bool = False

    def with_labels(self, labels: Collection[str]) -> "StoreUse":
        """Return the use by a tool with these labels: labels of read data imply a read."""
        brings = {FlowLabel.PRIVATE_DATA} if self.of_web else {*SEEN}
        return self if self.reads or not {*labels} & brings else replace(self, reads=True)

    def with_answers(self) -> "StoreUse":
        """Return the use by a call that sends answers to the server's requests: it writes."""
        return replace(self, writes=True)


NO_STORE = StoreUse(reads=False, writes=False)
READS_ONLY = StoreUse(reads=True, writes=False)


def infer_store_use(kind: str, payload: Mapping[str, Any], known: LabelContext) -> StoreUse:
    """Return whether a call of a definition reads or writes its server's store."""
    if kind != "tool":
        return READS_ONLY
    clues = read_clues(payload)
    if _is_pure(clues):
        return NO_STORE
    if known.transport == "openapi":
        return _use_of_operation(payload, clues)
    writes = not _only_reads(clues) or _hint(payload, "readOnlyHint") is False
    of_web = clues.deed == "read" and not clues.is_in_browser and is_of_the_web(clues)
    return StoreUse(not (of_web or _only_adds(clues)), writes, of_web)


def _use_of_operation(payload: Mapping[str, Any], clues: ToolClues) -> StoreUse:
    if _hint(payload, "readOnlyHint") is True:
        return READS_ONLY
    return StoreUse(reads=not _only_adds(clues), writes=True)


def _hint(payload: Mapping[str, Any], name: str) -> Any:
    hints = payload.get("annotations")
    return hints.get(name) if isinstance(hints, Mapping) else None


def _is_pure(clues: ToolClues) -> bool:
    """Tell whether the tool stores nothing: `add` may calculate, `set_timer` stores."""
    deeds = verbs("verbs")
    changes = {word for word in clues.name if deeds.get(word) in _WRITES}
    return clues.is_pure and not clues.runs_code and changes <= words("other", "pure")


def _only_reads(clues: ToolClues) -> bool:
    """Tell whether clear words say that the tool reads, and no argument allows more."""
    if clues.deed not in _READS or clues.is_deed_a_guess or clues.runs_code:
        return False
    return not (clues.chooses & _WRITES or _takes_statement(clues))


def _takes_statement(clues: ToolClues) -> bool:
    """Tell whether an argument is a database statement and no clear verb says that it reads."""
    named = {name.lower() for name in clues.arguments} & words("arguments", "statement")
    deeds = verbs("verbs")
    return bool(named) and not any(deeds.get(word) == "read" for word in clues.name)


def _only_adds(clues: ToolClues) -> bool:
    """Tell whether the tool adds data without returning existing data.

    Tools that edit a part may return the rest (`edit_file`: a diff).
    """
    if clues.deed not in _ADDS or clues.is_deed_a_guess or clues.runs_code:
        return False
    return not ("read" in clues.chooses or {*clues.name} & words("other", "editing"))
