"""Whether a call reads or writes its server's store (pure).

It is inferred from the same words as suggested labels. A call writes unless its words say that it
only reads, and reads unless they say that it only adds. A server's annotations can add a write
(`readOnlyHint: false`), but never remove one; for API operations, the annotation is ours, from the
method.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.suggested_labels import (
    READ_DATA_LABELS,
    LabelContext,
    ToolClues,
    extract_clues,
    get_verb_actions,
    get_words,
    is_public_web,
)

_READ_ACTIONS = ("read", "look")
_WRITE_ACTIONS = frozenset({"act", "change", "control", "run", "send"})
_ADD_ACTIONS = ("change", "control", "send")


@dataclass(frozen=True, slots=True)
class StoreUse:
    """Whether a call reads and writes its server's store; `is_public_web`: it reads the web."""

    reads: bool = True
    writes: bool = True
    is_public_web: bool = False

    def with_labels(self, labels: Collection[str]) -> "StoreUse":
        """Return the use by a tool with these labels: labels of read data imply a read."""
        read_labels = {FlowLabel.PRIVATE_DATA} if self.is_public_web else {*READ_DATA_LABELS}
        return self if self.reads or not {*labels} & read_labels else replace(self, reads=True)

    def with_answers(self) -> "StoreUse":
        """Return the use by a call that sends answers to the server's requests: it writes."""
        return replace(self, writes=True)


NO_STORE = StoreUse(reads=False, writes=False)
READS_ONLY = StoreUse(reads=True, writes=False)


def infer_store_use(kind: str, payload: Mapping[str, Any], context: LabelContext) -> StoreUse:
    """Return whether a call of a definition reads or writes its server's store."""
    if kind != "tool":
        return READS_ONLY
    clues = extract_clues(payload)
    if _is_pure(clues):
        return NO_STORE
    if context.transport == "openapi":
        return _infer_operation_use(payload, clues)
    writes = not _is_read_only(clues) or _get_read_only_hint(payload) is False
    reads_web = clues.action == "read" and not clues.is_browser_tool and is_public_web(clues)
    return StoreUse(not (reads_web or _is_add_only(clues)), writes, reads_web)


def _infer_operation_use(payload: Mapping[str, Any], clues: ToolClues) -> StoreUse:
    if _get_read_only_hint(payload) is True:
        return READS_ONLY
    return StoreUse(reads=not _is_add_only(clues), writes=True)


def _get_read_only_hint(payload: Mapping[str, Any]) -> Any:
    hints = payload.get("annotations")
    return hints.get("readOnlyHint") if isinstance(hints, Mapping) else None


def _is_pure(clues: ToolClues) -> bool:
    """Tell whether the tool stores nothing: `add` may calculate, `set_timer` stores."""
    actions = get_verb_actions("verbs")
    writing_words = {word for word in clues.name_words if actions.get(word) in _WRITE_ACTIONS}
    return clues.is_pure and not clues.can_run_code and writing_words <= get_words("other", "pure")


def _is_read_only(clues: ToolClues) -> bool:
    """Tell whether clear words say that the tool reads, and no argument allows more."""
    if clues.action not in _READ_ACTIONS or clues.is_action_guessed or clues.can_run_code:
        return False
    return not (clues.selectable_actions & _WRITE_ACTIONS or _has_statement(clues))


def _has_statement(clues: ToolClues) -> bool:
    """Tell whether an argument is a database statement and no clear verb says that it reads."""
    statement_arguments = {name.lower() for name in clues.arguments} & get_words(
        "arguments", "statement"
    )
    actions = get_verb_actions("verbs")
    return bool(statement_arguments) and not any(
        actions.get(word) == "read" for word in clues.name_words
    )


def _is_add_only(clues: ToolClues) -> bool:
    """Tell whether the tool adds data without returning existing data.

    Tools that edit a part may return the rest (`edit_file`: a diff).
    """
    if clues.action not in _ADD_ACTIONS or clues.is_action_guessed or clues.can_run_code:
        return False
    return not (
        "read" in clues.selectable_actions or {*clues.name_words} & get_words("other", "editing")
    )
