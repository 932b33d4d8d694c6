"""Compaction of long conversations. Pure.

No rows are deleted. A notice stores the marks: up to which step results are omitted, and up to
which step the conversation is replaced by a digest. The request depends only on the rows and the
latest marks, so every runner sends the same. A call is never separated from its result: the digest
ends where a round starts (a message, or a model turn with the results of its calls).
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agents.llm.interface import Message, build_user_message
from agents.llm.token_estimates import estimate_tokens

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
            if _estimate_tokens(digest) < _estimate_tokens(shortened_messages)
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
    saved_tokens = _estimate_tokens(compact_messages(entries, marks)) - _estimate_tokens(
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


def _estimate_tokens(messages: Sequence[Message]) -> int:
    return estimate_tokens(messages)
