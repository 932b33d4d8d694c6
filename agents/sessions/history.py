"""The conversation, built from a session's steps without superseded ones.

Superseded steps stay in the database, their calls in the audit log, and the session keeps their
flow labels. They are no longer part of the conversation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any
from uuid import UUID

from django.db.models import IntegerField, UUIDField

from agents.builtin_tools.toolsets.find_tools import MAX_FOUND_TOOLS
from agents.llm import interface as llm_interface
from agents.models import Step
from agents.sessions.compaction import CompactionMarks, HistoryEntry, compact_messages
from agents.sessions.model_retries_and_fallback import TurnFailure
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter

# The error code for a conversation that is too long for its model.
CONTEXT_EXCEEDED_CODE = "model_context_exceeded"


def list_current_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of the current conversation, in order."""
    current_steps: list[Step] = []
    for step in steps:
        if step.kind == Step.Kind.MESSAGE and (replaced_seq := step.payload.get("replaces")):
            current_steps = [
                earlier_step for earlier_step in current_steps if earlier_step.seq < replaced_seq
            ]
        current_steps.append(step)
    return current_steps


def find_superseded_seqs(steps: Sequence[Step]) -> set[int]:
    """Return the numbers of the steps that a later message superseded."""
    return {step.seq for step in steps} - {step.seq for step in list_current_steps(steps)}


def is_superseded(seq: int, replacements: Iterable[tuple[int, int]]) -> bool:
    """Tell whether a step is superseded; `replacements` are (replaced, own) message numbers."""
    return any(replaced_seq <= seq < message_seq for replaced_seq, message_seq in replacements)


@dataclass(frozen=True)
class SessionHistory:
    """The conversation so far and where it stopped, built from a session's steps."""

    messages: tuple[llm_interface.Message, ...]
    turn: int
    turns_since_message: int
    calls_since_message: int
    pending_steps: tuple[Step, ...]
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
    overflow_count: int = 0
    # The tools that the model found with `find_tools`, the latest last.
    found_tools: tuple[str, ...] = ()
    # The output schema of the message in progress (None: the agent's), and how many answers
    # violated the schema.
    output_schema: dict[str, Any] | None = None
    rejected_count: int = 0
    # The payload of the last completed model turn; None before the first.
    last_turn: dict[str, Any] | None = None
    # The steps before the first unsettled one: they no longer change.
    settled_steps: tuple[Step, ...] = ()


_NEW_STEPS = PreparedQuery(
    lambda: Step.objects.filter(
        session=QueryParameter("session", output_field=UUIDField()),
        seq__gt=QueryParameter("after_seq", output_field=IntegerField()),
    ).order_by("seq")
)


def load_history(session_id: UUID, settled_steps: Sequence[Step] = ()) -> SessionHistory:
    """Load a session's history (one query); `settled_steps` aren't loaded again.

    Only the lease's holder may pass settled steps: no other process writes during the lease.
    """
    after_seq = settled_steps[-1].seq if settled_steps else 0
    new_steps = _NEW_STEPS.fetch(session=session_id, after_seq=after_seq)
    return build_history([*settled_steps, *new_steps])


def build_history(steps: Sequence[Step]) -> SessionHistory:
    """Build the history from all steps of a session. Pure."""
    # Call ids contain the turn, so turn numbers of superseded steps aren't reused.
    reader = _HistoryReader(turn=max((other_step.turn for other_step in steps), default=0))
    for step in list_current_steps(steps):
        reader.add_step(step)
    return SessionHistory(
        messages=tuple(compact_messages(reader.entries, reader.marks)),
        turn=reader.turn,
        turns_since_message=reader.turns,
        calls_since_message=reader.calls,
        pending_steps=tuple(
            other_step for other_step in steps if other_step.state == Step.State.INTENT
        ),
        last_user_text=reader.last_user_text,
        servers=reader.servers,
        failures=tuple(reader.failures),
        answered_by=reader.answered_by,
        last_turn=reader.last_turn,
        entries=tuple(reader.entries),
        marks=reader.marks,
        overflow_count=reader.overflow_count,
        output_schema=reader.output_schema,
        rejected_count=reader.rejected_count,
        found_tools=tuple(reader.found_tools)[-MAX_FOUND_TOOLS:],
        settled_steps=tuple(takewhile(lambda step: step.state != Step.State.INTENT, steps)),
    )


@dataclass
class _HistoryReader:
    """Accumulates a session's history, step by step."""

    entries: list[HistoryEntry] = field(default_factory=list)
    marks: CompactionMarks = field(default_factory=CompactionMarks)
    overflow_count: int = 0
    failures: list[TurnFailure] = field(default_factory=list)
    turn: int = 0
    turns: int = 0
    calls: int = 0
    last_user_text: str = ""
    answered_by: str = ""
    last_turn: dict[str, Any] | None = None
    servers: dict[str, str] | None = None
    found_tools: dict[str, None] = field(default_factory=dict)
    output_schema: dict[str, Any] | None = None
    rejected_count: int = 0

    def add_step(self, step: Step) -> None:
        """Add a step."""
        if step.kind == Step.Kind.MESSAGE:
            self._add_message(step)
        elif step.kind == Step.Kind.MODEL:
            self._add_model_turn(step)
        elif step.kind == Step.Kind.CALL:
            self._add_call(step)
        elif step.kind == Step.Kind.NOTICE and "marks" in step.payload:
            self.marks = CompactionMarks.from_dict(step.payload["marks"])
            # The failed requests were larger than the next one.
            self.failures = []
        elif step.kind == Step.Kind.NOTICE and "correction" in step.payload:
            self.rejected_count += 1
            correction = llm_interface.build_user_message(step.payload["correction"])
            self.entries.append(HistoryEntry(step.seq, correction))
        elif step.kind == Step.Kind.END:
            self.output_schema = None

    def _add_call(self, step: Step) -> None:
        self.calls += 1
        if step.state != Step.State.INTENT:
            self.entries.append(
                HistoryEntry(step.seq, _build_tool_result(step), str(step.call_id or ""))
            )
        name = step.payload["name"]
        # Move tools that are found again or called to the end.
        for tool_name in (
            *step.payload.get("found", ()),
            *([name] if name in self.found_tools else ()),
        ):
            self.found_tools.pop(tool_name, None)
            self.found_tools[tool_name] = None

    def _add_message(self, step: Step) -> None:
        self.last_user_text, self.turns, self.calls = step.payload["text"], 0, 0
        self.failures, self.answered_by, self.overflow_count = [], "", 0
        self.rejected_count = 0
        # A message that was sent meanwhile keeps the schema of the one in progress.
        self.output_schema = step.payload.get("output_schema", self.output_schema)
        attachments = {
            name: step.payload[name] for name in ("images", "files") if name in step.payload
        }
        self.entries.append(
            HistoryEntry(
                step.seq, llm_interface.build_user_message(self.last_user_text) | attachments
            )
        )

    def _add_model_turn(self, step: Step) -> None:
        self.turns += 1
        if step.state == Step.State.DONE:
            payload = self.last_turn = step.payload
            self.entries.append(HistoryEntry(step.seq, payload["message"]))
            self.overflow_count = 0
            self.servers = payload.get("servers", self.servers)
            self.failures, self.answered_by = [], payload.get("endpoint", {}).get("id", "")
        elif "retryable" in step.payload:
            self.failures.append(_build_failure(step.payload))
            self.overflow_count += step.payload.get("code") == CONTEXT_EXCEEDED_CODE


def _build_failure(payload: Mapping[str, Any]) -> TurnFailure:
    return TurnFailure(
        endpoint_id=payload.get("endpoint", {}).get("id", ""),
        code=payload.get("code", ""),
        retryable=payload["retryable"],
        retry_after=payload.get("retry_after"),
    )


def _build_tool_result(step: Step) -> llm_interface.Message:
    payload = step.payload
    extra: dict[str, Any] = {"images": payload["images"]} if payload.get("images") else {}
    if payload.get("code") and payload.get("rule"):
        extra["is_denied"] = True
    return extra | llm_interface.build_tool_result(
        llm_interface.build_call_id(step.turn, step.index),
        payload["name"],
        payload.get("text", ""),
        is_error=step.state != Step.State.DONE,
        frame=payload.get("frame"),
    )
