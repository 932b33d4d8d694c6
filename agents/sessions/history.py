"""The conversation, built from a session's steps without superseded ones.

Superseded steps stay in the database, their calls in the audit log, and the session keeps their
flow labels. They are no longer part of the conversation.
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
    """Return the steps of the current conversation, in order."""
    kept: list[Step] = []
    for step in steps:
        if step.kind == Step.Kind.MESSAGE and (replaced := step.payload.get("replaces")):
            kept = [one for one in kept if one.seq < replaced]
        kept.append(step)
    return kept


def list_superseded_steps(steps: Sequence[Step]) -> set[int]:
    """Return the numbers of the steps that a later message superseded."""
    return {one.seq for one in steps} - {one.seq for one in list_current_steps(steps)}


def is_replaced(seq: int, replacing: Iterable[tuple[int, int]]) -> bool:
    """Tell whether a step is superseded; `replacements` are (replaced, own) message numbers."""
    return any(first <= seq < message for first, message in replacing)


# Found tools that a model is shown; it can find earlier ones again.
MOST_FOUND = 40
# The error code for a conversation that is too long for its model.
OVERFLOW = "model_context_exceeded"


@dataclass(frozen=True)
class SessionHistory:
    """The conversation so far and where it stopped, built from a session's steps."""

    messages: tuple[llm_interface.Message, ...]
    turn: int
    turns_since_message: int
    calls_since_message: int
    pending: tuple[Step, ...]
    last_user_text: str
    # The servers of the last turn, by id with their names; None before the first one.
    servers: dict[str, str] | None = None
    # Model turns that failed since the last answer or message, and the endpoint that answered.
    failures: tuple[TurnFailure, ...] = ()
    answered_by: str = ""
    # The uncompacted conversation, and what `messages` omits of it.
    entries: tuple[HistoryEntry, ...] = ()
    marks: CompactionMarks = field(default_factory=CompactionMarks)
    # How often a provider rejected it as too long since the last answer or message.
    overflows: int = 0
    # The tools that the model found with `find_tools`, the latest last.
    found: tuple[str, ...] = ()
    # The payload of the last completed model turn; None before the first.
    last_turn: dict[str, Any] | None = None
    # The steps before the first unsettled one: they no longer change.
    settled: tuple[Step, ...] = ()


def load_history(session_id: UUID, known: Sequence[Step] = ()) -> SessionHistory:
    """Load a session's history (one query); `settled_steps` aren't loaded again.

    Only the lease's holder may pass settled steps: nobody else writes while it holds the lease.
    """
    after = known[-1].seq if known else 0
    new = Step.objects.filter(session_id=session_id, seq__gt=after).order_by("seq")
    return build_history([*known, *new])


def build_history(steps: Sequence[Step]) -> SessionHistory:
    """Build the history from all steps of a session. Pure."""
    # Call ids contain the turn, so turn numbers of superseded steps aren't reused.
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
    """Accumulates a session's history, step by step."""

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
        """Add a step."""
        if step.kind == Step.Kind.MESSAGE:
            self._message(step)
        elif step.kind == Step.Kind.MODEL:
            self._model(step)
        elif step.kind == Step.Kind.CALL:
            self._call(step)
        elif step.kind == Step.Kind.NOTICE and "marks" in step.payload:
            self.marks = CompactionMarks(**step.payload["marks"])
            # The failed requests were larger than the next one.
            self.failures = []

    def _call(self, step: Step) -> None:
        self.calls += 1
        if step.state != Step.State.INTENT:
            self.entries.append(HistoryEntry(step.seq, _answer(step), str(step.call_id or "")))
        name = step.payload["name"]
        # Move tools that are found again or called to the end.
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
