"""Conversation read from steps; replaced messages.

Nothing is removed: the steps stay in their rows and the calls in the audit, and the session still
holds the labels that they brought. They are no longer part of the conversation. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from uuid import UUID

from agents.llm import interface as llm_interface
from agents.models import Step
from agents.sessions.compaction import CompactionMarks, HistoryEntry, compact_messages
from agents.sessions.model_fallback import TurnFailure


def list_current_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that the conversation consists of, in their order."""
    kept: list[Step] = []
    for step in steps:
        if step.kind == Step.Kind.MESSAGE and (replaced := step.payload.get("replaces")):
            kept = [one for one in kept if one.seq < replaced]
        kept.append(step)
    return kept


def list_superseded_steps(steps: Sequence[Step]) -> set[int]:
    """Return the numbers of those that a later message took the place of."""
    return {one.seq for one in steps} - {one.seq for one in list_current_steps(steps)}


def is_replaced(seq: int, replacing: Iterable[tuple[int, int]]) -> bool:
    """Tell whether a step is superseded, by the messages (what each replaces, its own number)."""
    return any(first <= seq < message for first, message in replacing)


# So many found tools a model is shown; what it found earlier it can find again.
MOST_FOUND = 40
# What a provider says of a conversation that is too long for its model.
OVERFLOW = "model_context_exceeded"


@dataclass(frozen=True)
class SessionHistory:
    """What a session's rows say: the conversation so far and where it stopped."""

    messages: tuple[llm_interface.Message, ...]
    turn: int
    turns_since_message: int
    calls_since_message: int
    pending: tuple[Step, ...]
    last_user_text: str
    # The servers of the last turn, by id with their names; None before the first one.
    servers: dict[str, str] | None = None
    # Model turns that failed since the last answer or message, and whose answer that was.
    failures: tuple[TurnFailure, ...] = ()
    answered_by: str = ""
    # The conversation as it was held, and what of it is left out of `messages`.
    entries: tuple[HistoryEntry, ...] = ()
    marks: CompactionMarks = field(default_factory=CompactionMarks)
    # How often a provider found it too long since the last answer or message.
    overflows: int = 0
    # The tools that its model has found, the latest last (`find_tools`).
    found: tuple[str, ...] = ()
    # What is written of the last model turn that ended; None before the first.
    last_turn: dict[str, Any] | None = None
    # The steps up to the first that isn't settled: they change no more.
    settled: tuple[Step, ...] = ()


def load_history(session_id: UUID, known: Sequence[Step] = ()) -> SessionHistory:
    """Read a session's steps (one query); those that are `known` to be settled aren't read again.

    Only its holder may know any: nobody else writes while it is held.
    """
    after = known[-1].seq if known else 0
    new = Step.objects.filter(session_id=session_id, seq__gt=after).order_by("seq")
    return build_history([*known, *new])


def build_history(steps: Sequence[Step]) -> SessionHistory:
    """Return what all steps of a session say, but for those that were replaced; pure."""
    # Calls are named by their turn, so those of superseded steps aren't counted from anew.
    reading = _HistoryReader(turn=max((one.turn for one in steps), default=0))
    for step in list_current_steps(steps):
        reading.take(step)
    return SessionHistory(
        messages=tuple(compact_messages(reading.entries, reading.marks)),
        turn=reading.turn,
        turns_since_message=reading.turns,
        calls_since_message=reading.calls,
        pending=tuple(one for one in steps if one.state == Step.State.INTENT),
        last_user_text=reading.text,
        servers=reading.servers,
        failures=tuple(reading.failures),
        answered_by=reading.answered_by,
        last_turn=reading.last_turn,
        entries=tuple(reading.entries),
        marks=reading.marks,
        overflows=reading.overflows,
        found=tuple(reading.found)[-MOST_FOUND:],
        settled=tuple(takewhile(lambda one: one.state != Step.State.INTENT, steps)),
    )


@dataclass
class _HistoryReader:
    """What the steps up to here say."""

    entries: list[HistoryEntry] = field(default_factory=list)
    marks: CompactionMarks = field(default_factory=CompactionMarks)
    overflows: int = 0
    failures: list[TurnFailure] = field(default_factory=list)
    turn: int = 0
    turns: int = 0
    calls: int = 0
    text: str = ""
    answered_by: str = ""
    last_turn: dict[str, Any] | None = None
    servers: dict[str, str] | None = None
    found: dict[str, None] = field(default_factory=dict)

    def take(self, step: Step) -> None:
        """Add what one more step says."""
        if step.kind == Step.Kind.MESSAGE:
            self._message(step)
        elif step.kind == Step.Kind.MODEL:
            self._model(step)
        elif step.kind == Step.Kind.CALL:
            self._call(step)
        elif step.kind == Step.Kind.NOTICE and "marks" in step.payload:
            self.marks = CompactionMarks(**step.payload["marks"])
            # What failed, failed with more than is sent now.
            self.failures = []

    def _call(self, step: Step) -> None:
        self.calls += 1
        if step.state != Step.State.INTENT:
            self.entries.append(HistoryEntry(step.seq, _answer(step), str(step.call_id or "")))
        name = step.payload["name"]
        # What is found again, or called, is the last to be forgotten.
        for one in (*step.payload.get("found", ()), *([name] if name in self.found else ())):
            self.found.pop(one, None)
            self.found[one] = None

    def _message(self, step: Step) -> None:
        self.text, self.turns, self.calls = step.payload["text"], 0, 0
        self.failures, self.answered_by, self.overflows = [], "", 0
        kept = {name: step.payload[name] for name in ("images", "files") if name in step.payload}
        self.entries.append(
            HistoryEntry(step.seq, llm_interface.build_user_message(self.text) | kept)
        )

    def _model(self, step: Step) -> None:
        self.turns += 1
        if step.state == Step.State.DONE:
            said = self.last_turn = step.payload
            self.entries.append(HistoryEntry(step.seq, said["message"]))
            self.overflows = 0
            self.servers = said.get("servers", self.servers)
            self.failures, self.answered_by = [], said.get("endpoint", {}).get("id", "")
        elif "retryable" in step.payload:
            self.failures.append(_build_failure(step.payload))
            self.overflows += step.payload.get("code") == OVERFLOW


def _build_failure(payload: Mapping[str, Any]) -> TurnFailure:
    return TurnFailure(
        endpoint_id=payload.get("endpoint", {}).get("id", ""),
        code=payload.get("code", ""),
        retryable=payload["retryable"],
        retry_after=payload.get("retry_after"),
    )


def _answer(step: Step) -> llm_interface.Message:
    payload = step.payload
    images = {"images": payload["images"]} if payload.get("images") else {}
    return images | llm_interface.build_tool_result(
        llm_interface.call_id(step.turn, step.index),
        payload["name"],
        payload.get("text", ""),
        is_error=step.state != Step.State.DONE,
        frame=payload.get("frame"),
    )
