"""Compaction of long conversations. Pure.

No rows are deleted. A notice stores the marks: up to which step results are omitted, and up to
which step the conversation is replaced by a digest. The request depends only on the rows and the
latest marks, so every runner sends the same. A call is never separated from its result: the digest
ends where a round starts (a message, or a model turn with the results of its calls).
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from agents.llm.interface import Message, build_user_message
from agents.llm.pricing import estimate_tokens

# Rounds whose results are kept first; a result shorter than its placeholder is always kept.
RECENT = 4
# Maximum lengths of a digest and its parts, in characters.
DIGEST, SAID, ARGUMENTS, LAST_SAID = 8_000, 400, 120, 8_000
# Maximum result lengths to try when nothing else is enough, in characters.
CUTS = (16_384, 4_096, 1_024)
HEAD = (
    "[The earlier part of this conversation was left out, because it grew too long. What was said "
    "and done in it, in short:]"
)
LAST = "[The latest message of the user, in full:]"
POINTER = "[left out: {size} characters; read_result reads them, result_id {result_id}]"
CUT = "\n[cut: {kept} of {size} characters; read_result reads on, result_id {result_id}]"

Fits = Callable[[Sequence[Message]], bool]


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One message of a conversation with its step's number; for a result, also its call's id."""

    seq: int
    message: Message
    result_id: str = ""


@dataclass(frozen=True, slots=True)
class CompactionMarks:
    """What is omitted, by step number.

    Messages before `told_before` are summarized in a digest, results before `results_before` are
    omitted, and other results have at most `longest` characters (None: no limit).
    """

    told_before: int = 0
    results_before: int = 0
    longest: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the marks as stored in a step."""
        return asdict(self)


def compact_messages(entries: Sequence[HistoryEntry], marks: CompactionMarks) -> list[Message]:
    """Return the messages to send; never more or longer than the original ones."""
    old = [entry for entry in entries if entry.seq < marks.told_before]
    kept = [_shorten_entry(entry, marks) for entry in entries if entry.seq >= marks.told_before]
    if not old:
        return kept
    digest = [_extract_attachments(old) | build_user_message(_summarize_entries(old))]
    plain = [_shorten_entry(entry, marks) for entry in old]
    return [*(digest if _estimate_tokens(digest) < _estimate_tokens(plain) else plain), *kept]


def plan(
    entries: Sequence[HistoryEntry], marks: CompactionMarks, fits: Fits
) -> CompactionMarks | None:
    """Return the least strict marks with which the messages fit, else the strictest ones.

    None if they fit already, or if nothing more can be omitted.
    """
    if fits(compact_messages(entries, marks)):
        return None
    found = marks
    for found in _list_stricter_marks(entries, marks, fits):
        if fits(compact_messages(entries, found)):
            break
    saved = _estimate_tokens(compact_messages(entries, marks)) - _estimate_tokens(
        compact_messages(entries, found)
    )
    return found if saved > 0 else None


def _list_stricter_marks(
    entries: Sequence[HistoryEntry], marks: CompactionMarks, fits: Fits
) -> Iterator[CompactionMarks]:
    rounds = [one.seq for one in entries if one.message["role"] != "tool"]
    if not rounds:
        return
    for recent in (RECENT, 1):
        results = max(marks.results_before, rounds[-min(recent, len(rounds))])
        yield replace(marks, results_before=results)
    marks = replace(marks, results_before=max(marks.results_before, rounds[-1]))
    ends = [seq for seq in rounds if seq > marks.told_before]
    # A later digest end means a smaller request, so binary search finds the first that fits.
    first = bisect_left(
        ends, True, key=lambda seq: fits(compact_messages(entries, replace(marks, told_before=seq)))
    )
    if ends:
        marks = replace(marks, told_before=ends[min(first, len(ends) - 1)])
        yield marks
    for longest in CUTS:
        if marks.longest is None or longest < marks.longest:
            marks = replace(marks, longest=longest)
            yield marks


def _shorten_entry(entry: HistoryEntry, marks: CompactionMarks) -> Message:
    message = entry.message
    if message["role"] != "tool" or not entry.result_id:
        return message
    size = len(message["text"])
    if entry.seq < marks.results_before:
        pointer = POINTER.format(size=size, result_id=entry.result_id)
        if len(pointer) < size:
            return _remove_fields(message, "frame", "images") | {"text": pointer}
    elif marks.longest is not None and size > marks.longest:
        note = CUT.format(kept=marks.longest, size=size, result_id=entry.result_id)
        if marks.longest + len(note) < size:
            return _remove_fields(message, "images") | {
                "text": message["text"][: marks.longest] + note
            }
    return message


def _remove_fields(message: Message, *names: str) -> Message:
    return {name: value for name, value in message.items() if name not in names}


def _summarize_entries(old: Sequence[HistoryEntry]) -> str:
    """Return a digest of the entries; the oldest are dropped if not all fit."""
    lines: list[str] = []
    room = DIGEST
    for entry in reversed(old):
        line = _format_entry(entry)
        if len(line) > room:
            lines.append(f"[{len(old) - len(lines)} earlier ones]")
            break
        room -= len(line)
        lines.append(line)
    said = [one.message["text"] for one in old if one.message["role"] == "user"]
    last = [LAST, said[-1][:LAST_SAID]] if said else []
    return "\n".join([HEAD, *reversed(lines), *last])


def _extract_attachments(old: Sequence[HistoryEntry]) -> Message:
    """Return the attachments of the user's latest message."""
    said = [one.message for one in old if one.message["role"] == "user"]
    return {name: said[-1][name] for name in ("images", "files") if said and name in said[-1]}


def _format_entry(entry: HistoryEntry) -> str:
    message = entry.message
    match message["role"]:
        case "user":
            return f"User: {_shorten_text(message['text'], SAID)}"
        case "assistant":
            calls = [
                f"{one['name']}({_shorten_text(json.dumps(one['arguments']), ARGUMENTS)})"
                for one in message["calls"]
            ]
            said = _shorten_text(message["text"], SAID)
            return f"You: {said}{' – called ' if calls else ''}{', '.join(calls)}"
        case _:
            outcome = "failed" if message["is_error"] else "answered"
            size = len(message["text"])
            return f"{message['name']} {outcome}, {size} characters, result_id {entry.result_id}"


def _shorten_text(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}…"


def _estimate_tokens(messages: Sequence[Message]) -> int:
    return estimate_tokens(messages)
