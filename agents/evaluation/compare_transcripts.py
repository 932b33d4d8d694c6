"""Transcripts of recorded and replayed sessions, and their differences. Pure.

Calls of one message are paired by tool and arguments, in order, regardless of their turn. The rest
is paired by tool alone (arguments changed); what remains was added or is missing.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import unified_diff
from itertools import zip_longest
from typing import Any, Literal, Self

from agents.models import Step
from agents.sessions.history import list_current_steps
from bonobot.core.text.canonical_json import to_canonical_json

# The code of a call that the recording has no result for.
NOT_RECORDED = "not_recorded"
# Fields of a message and of a call that are kept in addition to the text.
MESSAGE_FIELDS = ("images", "files", "by", "output_schema")
CALL_FIELDS = ("frame", "found", "images")
DifferenceKind = Literal[
    "call_added", "call_missing", "arguments_changed", "decision_changed", "result_missing",
    "answer_changed", "ending_changed",
]  # fmt: skip
# Characters; longer texts are not compared line by line.
MAX_COMPARED_LENGTH = 64 * 1024
MaskFunction = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """How a call was decided: the verdict (allow, ask, deny) and the rule."""

    verdict: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call with its result; `arguments` is None if the model didn't write a JSON object.

    `code` is "" if it succeeded; `extra` has its fields out of `CALL_FIELDS`.
    """

    tool: str
    arguments: dict[str, Any] | None
    text: str = ""
    ok: bool = True
    code: str = ""
    verdict: str = "allow"
    rule: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """A model turn: its text and its calls."""

    text: str
    calls: tuple[RecordedCall, ...] = ()
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """A message and its turns; `code` says why it ended without an answer."""

    message: dict[str, Any]
    turns: tuple[RecordedTurn, ...] = ()
    code: str = ""

    @property
    def text(self) -> str:
        return str(self.message["text"])

    @property
    def answer(self) -> str:
        """The text of the last turn; "" if that one made calls."""
        last = self.turns[-1] if self.turns else None
        return last.text if last and not last.calls else ""

    @property
    def calls(self) -> list[tuple[int, RecordedCall]]:
        """The calls with the number of their turn, from 1."""
        return [(number, call) for number, turn in enumerate(self.turns, 1) for call in turn.calls]


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of a session with their turns and calls."""

    exchanges: tuple[TranscriptEntry, ...] = ()

    @property
    def turns(self) -> list[RecordedTurn]:
        return [turn for exchange in self.exchanges for turn in exchange.turns]

    @property
    def calls(self) -> list[RecordedCall]:
        return [call for recorded_turn in self.turns for call in recorded_turn.calls]

    @property
    def tokens(self) -> int:
        """The input and output tokens of all turns."""
        return sum(turn.input_tokens + turn.output_tokens for turn in self.turns)

    @property
    def cost_microusd(self) -> int:
        """The cost of all turns in millionths of a dollar."""
        return sum(turn.cost_microusd for turn in self.turns)

    def to_dict(self) -> dict[str, Any]:
        return {"exchanges": [asdict(exchange) for exchange in self.exchanges]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """Return the transcript that `to_dict` serialized."""
        return cls(tuple(map(_parse_entry, document["exchanges"])))


def _parse_entry(document: Mapping[str, Any]) -> TranscriptEntry:
    turns = tuple(
        RecordedTurn(**{**turn, "calls": tuple(RecordedCall(**call) for call in turn["calls"])})
        for turn in document["turns"]
    )
    return TranscriptEntry(document["message"], turns, document["code"])


def build_transcript(
    steps: Sequence[Step], decisions: Mapping[str, RecordedDecision]
) -> Transcript:
    """Return the transcript of a session's current steps.

    `decisions` are those about its calls, by call id. Turns that failed or were cut off are left
    out.
    """
    entries: list[TranscriptEntry] = []
    calls: dict[int, list[RecordedCall]] = {}
    current_steps = list_current_steps(steps)
    for step in current_steps:
        if step.kind == Step.Kind.CALL:
            calls.setdefault(step.turn, []).append(_build_call(step, decisions))
    for step in current_steps:
        if step.kind == Step.Kind.MESSAGE:
            extra_fields = {
                name: step.payload[name] for name in MESSAGE_FIELDS if name in step.payload
            }
            entries.append(TranscriptEntry({"text": step.payload["text"]} | extra_fields))
        elif entries:
            entries[-1] = _apply_step(entries[-1], step, calls)
    return Transcript(tuple(entries))


def _apply_step(
    entry: TranscriptEntry, step: Step, calls: Mapping[int, Sequence[RecordedCall]]
) -> TranscriptEntry:
    """Return an entry with one more of its steps applied."""
    if step.kind == Step.Kind.MODEL and step.state == Step.State.DONE:
        turn = _build_turn(step, tuple(calls.get(step.turn, ())))
        return TranscriptEntry(entry.message, (*entry.turns, turn), entry.code)
    if step.kind == Step.Kind.END:
        return TranscriptEntry(entry.message, entry.turns, step.payload.get("code", ""))
    return entry


def _build_turn(step: Step, calls: tuple[RecordedCall, ...]) -> RecordedTurn:
    payload = step.payload
    usage, endpoint = payload.get("usage", {}), payload.get("endpoint", {})
    return RecordedTurn(
        text=payload.get("text", ""),
        calls=calls,
        model=endpoint.get("name") or endpoint.get("model", ""),
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        cost_microusd=payload.get("cost_microusd", 0),
    )


def _build_call(step: Step, decisions: Mapping[str, RecordedDecision]) -> RecordedCall:
    payload = step.payload
    decision = decisions.get(str(step.call_id), RecordedDecision("allow"))
    return RecordedCall(
        tool=payload["name"],
        arguments=payload.get("arguments"),
        text=payload.get("text", ""),
        ok=step.state == Step.State.DONE,
        code=payload.get("code", ""),
        verdict=decision.verdict,
        rule=decision.rule,
        extra={name: payload[name] for name in CALL_FIELDS if payload.get(name)},
    )


NumberedCall = tuple[int, RecordedCall]
CallPair = tuple[NumberedCall, NumberedCall]


@dataclass(frozen=True, slots=True)
class TranscriptDifference:
    """A difference; `message` and `turn` count from 1, `turn` in the replay if it exists there.

    `before` and `after` are arguments as canonical JSON, verdicts or codes. `diff` has the changed
    lines of an answer.
    """

    kind: DifferenceKind
    message: int
    turn: int = 0
    tool: str = ""
    before: str = ""
    after: str = ""
    rule: str = ""
    code: str = ""
    diff: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallPairs:
    """The calls of a message on both sides: same, with other arguments, and unpaired."""

    same: tuple[CallPair, ...]
    altered: tuple[CallPair, ...]
    missing: tuple[NumberedCall, ...]
    added: tuple[NumberedCall, ...]


def compare_transcripts(before: Transcript, after: Transcript) -> list[TranscriptDifference]:
    """Return all differences, in the order of the messages."""
    differences: list[TranscriptDifference] = []
    pairs = zip_longest(before.exchanges, after.exchanges)
    for number, (before_entry, after_entry) in enumerate(pairs, 1):
        entry = before_entry or after_entry
        if entry is not None:
            empty_entry = TranscriptEntry(entry.message)
            differences += _compare_entries(
                number, before_entry or empty_entry, after_entry or empty_entry
            )
    return differences


def match_calls(before: Sequence[NumberedCall], after: Sequence[NumberedCall]) -> CallPairs:
    same, unmatched_before, unmatched_after = _match_by_key(
        before, after, lambda call: (call.tool, format_arguments(call))
    )
    changed_pairs, missing, added_calls = _match_by_key(
        unmatched_before, unmatched_after, lambda call: call.tool
    )
    return CallPairs(tuple(same), tuple(changed_pairs), tuple(missing), tuple(added_calls))


def format_arguments(call: RecordedCall) -> str:
    """Return the arguments of a call as canonical JSON."""
    return "" if call.arguments is None else to_canonical_json(call.arguments)


def _match_by_key(
    before: Sequence[NumberedCall],
    after: Sequence[NumberedCall],
    key: Callable[[RecordedCall], Hashable],
) -> tuple[list[CallPair], list[NumberedCall], list[NumberedCall]]:
    """Return the pairs with the same key, in order, and the unpaired calls of both sides."""
    calls_by_key: defaultdict[Hashable, deque[NumberedCall]] = defaultdict(deque)
    for numbered_call in before:
        calls_by_key[key(numbered_call[1])].append(numbered_call)
    pairs, unmatched_after = [], []
    for numbered_call in after:
        if queue := calls_by_key[key(numbered_call[1])]:
            pairs.append((queue.popleft(), numbered_call))
        else:
            unmatched_after.append(numbered_call)
    matched_ids = {id(matched_call) for matched_call, _ in pairs}
    return (
        pairs,
        [numbered_call for numbered_call in before if id(numbered_call) not in matched_ids],
        unmatched_after,
    )


def _compare_entries(
    message_number: int, before: TranscriptEntry, after: TranscriptEntry
) -> Iterator[TranscriptDifference]:
    matches = match_calls(before.calls, after.calls)
    for (_, old), (turn, new) in matches.altered:
        yield TranscriptDifference(
            "arguments_changed",
            message=message_number,
            turn=turn,
            tool=new.tool,
            before=format_arguments(old),
            after=format_arguments(new),
            code=new.code,
        )
    for (_, old), (turn, new) in (*matches.same, *matches.altered):
        yield from _compare_decisions(message_number, turn, old, new)
    for turn, call in matches.missing:
        yield TranscriptDifference(
            "call_missing", message_number, turn, call.tool, before=format_arguments(call)
        )
    for turn, call in matches.added:
        yield TranscriptDifference(
            "call_added",
            message=message_number,
            turn=turn,
            tool=call.tool,
            before="",
            after=format_arguments(call),
            rule=call.rule,
            code=call.code,
        )
    if before.code != after.code:
        yield TranscriptDifference(
            "ending_changed", message_number, before=before.code, after=after.code
        )
    if before.answer != after.answer:
        turn = len(after.turns)
        yield TranscriptDifference(
            "answer_changed",
            message_number,
            turn,
            diff=build_text_diff(before.answer, after.answer),
        )


def _compare_decisions(
    message_number: int, turn: int, old: RecordedCall, new: RecordedCall
) -> Iterator[TranscriptDifference]:
    if old.verdict != new.verdict:
        yield TranscriptDifference(
            "decision_changed",
            *(message_number, turn, new.tool, old.verdict, new.verdict, new.rule, new.code),
        )
    elif new.code == NOT_RECORDED and format_arguments(old) == format_arguments(new):
        yield TranscriptDifference(
            "result_missing",
            message_number,
            turn,
            new.tool,
            after=format_arguments(new),
            code=new.code,
        )


def build_text_diff(before: str, after: str) -> tuple[str, ...]:
    """Return the changed lines with one line of context; for long texts only the sizes."""
    if len(before) + len(after) > MAX_COMPARED_LENGTH:
        return (f"-{len(before):,} characters", f"+{len(after):,} characters")
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return tuple(lines)[2:]


def summarize_transcripts(before: Transcript, after: Transcript) -> dict[str, Any]:
    """Return the turns, calls, tokens and cost of both sides."""
    sides = {"before": before, "after": after}
    return {
        name: {
            "turns": len(transcript.turns),
            "calls": len(transcript.calls),
            "tokens": transcript.tokens,
            "cost_microusd": transcript.cost_microusd,
        }
        for name, transcript in sides.items()
    }
