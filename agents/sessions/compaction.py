"""Keep requests within the model's context window.

The window's size comes from the endpoint or the published list of models. If it is unknown and the
provider rejects a request as too long, the conversation is compacted to half and sent once more.

No rows are deleted. A notice stores the marks: up to which step results are omitted, and up to
which step the conversation is replaced by a digest. The request depends only on the rows and the
latest marks, so every runner sends the same. A call is never separated from its result: the digest
ends where a round starts (a message, or a model turn with the results of its calls).
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from agents.calls.snapshots import CallSnapshot
from agents.llm import interface as llm_interface
from agents.llm.interface import Message, build_user_message
from agents.llm.token_estimates import estimate_tokens
from agents.model_endpoints.request_budget import DEFAULT_ANSWER_TOKENS, correct_estimate
from agents.models import Step
from agents.sessions import step_store
from agents.sessions.leases import SessionLease
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime

if TYPE_CHECKING:
    from agents.sessions.history import SessionHistory
    from agents.sessions.run_context import RunContext

# Percent of the window that a request and its answer may use, because counts are estimates.
USABLE_PERCENT = 90
# Percent of the available tokens to compact to, so that not every turn compacts again.
TARGET_PERCENT = 60
# Rounds whose results are kept first; a result shorter than its placeholder is always kept.
RECENT_ROUNDS = 4
# Maximum lengths of a digest and its parts, in characters.
DIGEST_LENGTH, DIGEST_TEXT_LENGTH, DIGEST_ARGUMENTS_LENGTH, LAST_MESSAGE_LENGTH = (
    8_000,
    400,
    120,
    8_000,
)
# Maximum result lengths to try when nothing else is enough, in characters.
RESULT_LENGTH_LIMITS = (16_384, 4_096, 1_024)
DIGEST_HEADING = (
    "[The earlier part of this conversation was omitted, because the conversation is too long. "
    "Summary:]"
)
LAST_MESSAGE_HEADING = "[The latest message of the user, in full:]"
OMITTED_RESULT_TEXT = (
    "[omitted: {size} characters. To read them, call read_result with result_id {result_id}]"
)
TRUNCATED_RESULT_TEXT = (
    "\n[truncated: {kept} of {size} characters shown. To read on, call read_result with result_id "
    "{result_id}]"
)

# Stored steps of previous releases have the old names.
RENAMED_MARKS = {"told_before": "digested_before"}

FitCheck = Callable[[Sequence[Message]], bool]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One message of a conversation with its step's number; for a result, also its call's id."""

    seq: int
    message: Message
    result_id: str = ""


@dataclass(frozen=True, slots=True)
class CompactionMarks:
    """What is omitted, by step number.

    Messages before `digested_before` are summarized in a digest, results before `results_before`
    are omitted, and other results have at most `longest` characters (None: no limit).
    """

    digested_before: int = 0
    results_before: int = 0
    longest: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the marks as stored in a step."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "CompactionMarks":
        """Return the marks stored in a step, also by a previous release."""
        return cls(**{RENAMED_MARKS.get(name, name): value for name, value in stored.items()})


def compact_messages(entries: Sequence[HistoryEntry], marks: CompactionMarks) -> list[Message]:
    """Return the messages to send; never more or longer than the original ones."""
    digested_entries = [entry for entry in entries if entry.seq < marks.digested_before]
    recent_messages = [
        _shorten_entry(entry, marks) for entry in entries if entry.seq >= marks.digested_before
    ]
    if not digested_entries:
        return recent_messages
    digest = [
        _extract_attachments(digested_entries)
        | build_user_message(_summarize_entries(digested_entries))
    ]
    shortened_messages = [_shorten_entry(entry, marks) for entry in digested_entries]
    return [
        *(
            digest
            if estimate_tokens(digest) < estimate_tokens(shortened_messages)
            else shortened_messages
        ),
        *recent_messages,
    ]


def plan_compaction(
    entries: Sequence[HistoryEntry], marks: CompactionMarks, fits: FitCheck
) -> CompactionMarks | None:
    """Return the least strict marks with which the messages fit, else the strictest ones.

    None if they fit already, or if nothing more can be omitted.
    """
    if fits(compact_messages(entries, marks)):
        return None
    new_marks = marks
    for new_marks in _iterate_stricter_marks(entries, marks, fits):
        if fits(compact_messages(entries, new_marks)):
            break
    saved_tokens = estimate_tokens(compact_messages(entries, marks)) - estimate_tokens(
        compact_messages(entries, new_marks)
    )
    return new_marks if saved_tokens > 0 else None


def _iterate_stricter_marks(
    entries: Sequence[HistoryEntry], marks: CompactionMarks, fits: FitCheck
) -> Iterator[CompactionMarks]:
    round_starts = [entry.seq for entry in entries if entry.message["role"] != "tool"]
    if not round_starts:
        return
    for recent_count in (RECENT_ROUNDS, 1):
        results_before = max(
            marks.results_before, round_starts[-min(recent_count, len(round_starts))]
        )
        yield replace(marks, results_before=results_before)
    marks = replace(marks, results_before=max(marks.results_before, round_starts[-1]))
    digest_ends = [seq for seq in round_starts if seq > marks.digested_before]
    # A later digest end means a smaller request, so binary search finds the first that fits.
    first_fitting = bisect_left(
        digest_ends,
        True,
        key=lambda seq: fits(compact_messages(entries, replace(marks, digested_before=seq))),
    )
    if digest_ends:
        marks = replace(
            marks, digested_before=digest_ends[min(first_fitting, len(digest_ends) - 1)]
        )
        yield marks
    for max_length in RESULT_LENGTH_LIMITS:
        if marks.longest is None or max_length < marks.longest:
            marks = replace(marks, longest=max_length)
            yield marks


def _shorten_entry(entry: HistoryEntry, marks: CompactionMarks) -> Message:
    message = entry.message
    if message["role"] != "tool" or not entry.result_id:
        return message
    size = len(message["text"])
    if entry.seq < marks.results_before:
        pointer = OMITTED_RESULT_TEXT.format(size=size, result_id=entry.result_id)
        if len(pointer) < size:
            return _remove_fields(message, "frame", "images") | {"text": pointer}
    elif marks.longest is not None and size > marks.longest:
        cut_notice = TRUNCATED_RESULT_TEXT.format(
            kept=marks.longest, size=size, result_id=entry.result_id
        )
        if marks.longest + len(cut_notice) < size:
            return _remove_fields(message, "images") | {
                "text": message["text"][: marks.longest] + cut_notice
            }
    return message


def _remove_fields(message: Message, *names: str) -> Message:
    return {name: value for name, value in message.items() if name not in names}


def _summarize_entries(entries: Sequence[HistoryEntry]) -> str:
    """Return a digest of the entries; the oldest are dropped if not all fit."""
    lines: list[str] = []
    remaining_length = DIGEST_LENGTH
    for entry in reversed(entries):
        line = _format_entry(entry)
        if len(line) > remaining_length:
            lines.append(f"[{len(entries) - len(lines)} earlier ones]")
            break
        remaining_length -= len(line)
        lines.append(line)
    user_texts = [
        user_entry.message["text"] for user_entry in entries if user_entry.message["role"] == "user"
    ]
    last_message = (
        [LAST_MESSAGE_HEADING, user_texts[-1][:LAST_MESSAGE_LENGTH]] if user_texts else []
    )
    return "\n".join([DIGEST_HEADING, *reversed(lines), *last_message])


def _extract_attachments(entries: Sequence[HistoryEntry]) -> Message:
    """Return the attachments of the user's latest message."""
    user_messages = [entry.message for entry in entries if entry.message["role"] == "user"]
    return {
        name: user_messages[-1][name]
        for name in ("images", "files")
        if user_messages and name in user_messages[-1]
    }


def _format_call(call: Mapping[str, Any]) -> str:
    arguments = _shorten_text(json.dumps(call["arguments"]), DIGEST_ARGUMENTS_LENGTH)
    return f"{call['name']}({arguments})"


def _format_entry(entry: HistoryEntry) -> str:
    message = entry.message
    match message["role"]:
        case "user":
            return f"User: {_shorten_text(message['text'], DIGEST_TEXT_LENGTH)}"
        case "assistant":
            calls = [_format_call(call) for call in message["calls"]]
            text = _shorten_text(message["text"], DIGEST_TEXT_LENGTH)
            return f"You: {text}{' – called ' if calls else ''}{', '.join(calls)}"
        case _:
            outcome = "failed" if message["is_error"] else "answered"
            size = len(message["text"])
            return f"{message['name']} {outcome}, {size} characters, result_id {entry.result_id}"


def _shorten_text(text: str, max_length: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= max_length else f"{flat[:max_length]}…"


class ContextExceeded(Problem):
    """A request doesn't fit into the model's window, even after compaction."""

    code = "context_exceeded"
    status = 422


async def compact_history(
    lease: SessionLease, context: "RunContext", history: "SessionHistory", snapshot: CallSnapshot
) -> "SessionHistory":
    """Return the history, compacted if needed to fit the next model's window.

    Raises `ContextExceeded` if it can't fit.
    """
    endpoint = context.choose_endpoint(history)
    window = endpoint.context_window
    if window is None:
        return history
    answer_tokens = min(endpoint.max_tokens or DEFAULT_ANSWER_TOKENS, window // 4)
    count_request_tokens = _build_counter(context, history, snapshot)
    limit = window * USABLE_PERCENT // 100 - answer_tokens
    if count_request_tokens(history.messages) <= limit:
        return history
    marks = plan_compaction(
        history.entries, history.marks, _build_fit_check(count_request_tokens, limit)
    )
    if marks is not None:
        history = await _save_compaction(lease, history, marks)
    if (needed_tokens := count_request_tokens(history.messages)) > window:
        raise ContextExceeded(
            format_message(
                "The request has about {needed:,} tokens, and the model {title!r} accepts "
                "{window:,}. Everything that can be omitted was omitted.",
                needed=needed_tokens,
                title=endpoint.title,
                window=window,
            ),
            remedy="Send a shorter message, select fewer tools for the agent, shorten its "
            "instructions, or choose a model with a larger context window.",
        )
    return history


async def compact_after_overflow(
    lease: SessionLease, context: "RunContext", history: "SessionHistory", snapshot: CallSnapshot
) -> bool:
    """Compact a conversation that a provider rejected as too long, once per answer.

    Return whether it was compacted.
    """
    if history.overflow_count != 1:
        return False
    count_request_tokens = _build_counter(context, history, snapshot)
    limit = count_request_tokens(history.messages) // 2
    marks = plan_compaction(
        history.entries, history.marks, lambda messages: count_request_tokens(messages) <= limit
    )
    if marks is None:
        return False
    await _save_compaction(lease, history, marks)
    return True


def _build_counter(
    context: "RunContext", history: "SessionHistory", snapshot: CallSnapshot
) -> "_TokenCounter":
    tools = snapshot.list_shown_tools(history.found_tools)
    endpoint = context.choose_endpoint(history)
    text = build_instructions(
        context.agent.instructions,
        snapshot,
        context.unavailable_servers,
        (),
        tools,
        native_tools=endpoint.native_tools,
        output_schema=context.get_output_schema(history),
    )
    return _TokenCounter(
        history,
        endpoint,
        estimate_tokens((), text, build_tool_specs(tools)),
    )


class _TokenCounter:
    """Estimates a request's tokens, corrected by the usage that the last turn reported."""

    def __init__(
        self,
        history: "SessionHistory",
        endpoint: llm_interface.ModelEndpointConfig,
        fixed_tokens: int,
    ) -> None:
        last_turn = history.last_turn or {}
        is_same_endpoint = (
            last_turn.get("endpoint", {}).get("id") == endpoint.id
        )  # tokenizers differ
        self._last_turn = last_turn if is_same_endpoint else None
        self.fixed_tokens = correct_estimate(fixed_tokens, self._last_turn)

    def __call__(self, messages: Sequence[llm_interface.Message]) -> int:
        return self.fixed_tokens + correct_estimate(estimate_tokens(messages), self._last_turn)


def _build_fit_check(count_request_tokens: _TokenCounter, limit: int) -> FitCheck:
    target = (
        count_request_tokens.fixed_tokens
        + max(0, limit - count_request_tokens.fixed_tokens) * TARGET_PERCENT // 100
    )
    return lambda messages: count_request_tokens(messages) <= target


async def _save_compaction(
    lease: SessionLease, history: "SessionHistory", marks: CompactionMarks
) -> "SessionHistory":
    """Store the marks in a notice and return the history as compacted by them."""
    digested_count = sum(entry.seq < marks.digested_before for entry in history.entries)
    omitted_count = sum(
        entry.message["role"] == "tool"
        and marks.digested_before <= entry.seq < marks.results_before
        for entry in history.entries
    )
    parts = [f"the first {digested_count} messages are summarized" if digested_count else ""]
    parts.append(f"the results of {omitted_count} later calls are omitted" if omitted_count else "")
    parts.append(f"results have at most {marks.longest:,} characters" if marks.longest else "")
    text = (
        "The conversation is too long for the model, so it was compacted: "
        f"{', '.join(part for part in parts if part)}. The session keeps all messages, and the "
        "agent can read the results again."
    )
    payload = {"code": "compacted", "text": text, "marks": marks.to_dict()}
    await get_runtime().run_orm(step_store.append_step, lease, Step.Kind.NOTICE, payload)
    messages = tuple(compact_messages(history.entries, marks))
    # The requests that failed were larger than the next one.
    return replace(history, messages=messages, marks=marks, failures=())
