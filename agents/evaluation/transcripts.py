"""Transcripts of recorded and replayed sessions, and their differences. Pure.

Calls of one message are paired by tool and arguments, in order, whatever their turn. The rest is
paired by tool alone (arguments changed); what remains was added or is missing.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import unified_diff
from itertools import zip_longest
from typing import Any, Literal, Self

from agents.calls.resolve import build_unknown_name_error
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.models import Step
from agents.policies.decisions import EffectivePolicy, PolicyDecision, decide
from agents.policies.rules import Policy
from agents.sessions.history import list_current_steps
from bonobot.core.text.canonical_json import to_canonical_json

# The code of a call that the recording has no result for.
NOT_RECORDED = "not_recorded"
# Fields of a message and of a call that are kept besides the text.
KEPT_OF_MESSAGES = ("images", "files", "by")
KEPT_OF_CALLS = ("frame", "found", "images")


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
        """The text of the message."""
        return str(self.message["text"])

    @property
    def answer(self) -> str:
        """The text of the last turn; "" if that one made calls."""
        last = self.turns[-1] if self.turns else None
        return last.text if last and not last.calls else ""

    @property
    def calls(self) -> list[tuple[int, RecordedCall]]:
        """The calls with the number of their turn, from 1."""
        return [(n, call) for n, turn in enumerate(self.turns, 1) for call in turn.calls]


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of a session with their turns and calls."""

    exchanges: tuple[TranscriptEntry, ...] = ()

    @property
    def turns(self) -> list[RecordedTurn]:
        """All model turns."""
        return [turn for exchange in self.exchanges for turn in exchange.turns]

    @property
    def calls(self) -> list[RecordedCall]:
        """All calls."""
        return [call for turn in self.turns for call in turn.calls]

    @property
    def tokens(self) -> int:
        """The input and output tokens of all turns."""
        return sum(turn.input_tokens + turn.output_tokens for turn in self.turns)

    @property
    def cost_microusd(self) -> int:
        """The cost of all turns in millionths of a dollar."""
        return sum(turn.cost_microusd for turn in self.turns)

    def as_dict(self) -> dict[str, Any]:
        """Return the transcript as JSON values."""
        return {"exchanges": [asdict(exchange) for exchange in self.exchanges]}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return the transcript that `to_dict` serialized."""
        return cls(tuple(map(_parse_entry, stored["exchanges"])))


def _parse_entry(stored: Mapping[str, Any]) -> TranscriptEntry:
    turns = tuple(
        RecordedTurn(**{**turn, "calls": tuple(RecordedCall(**call) for call in turn["calls"])})
        for turn in stored["turns"]
    )
    return TranscriptEntry(stored["message"], turns, stored["code"])


def build_transcript(steps: Sequence[Step], ruled: Mapping[str, RecordedDecision]) -> Transcript:
    """Return the transcript of a session's current steps.

    `decisions` are those about its calls, by call id. Turns that failed or were cut off are left
    out.
    """
    found: list[TranscriptEntry] = []
    calls: dict[int, list[RecordedCall]] = {}
    standing = list_current_steps(steps)
    for step in standing:
        if step.kind == Step.Kind.CALL:
            calls.setdefault(step.turn, []).append(_build_call(step, ruled))
    for step in standing:
        if step.kind == Step.Kind.MESSAGE:
            said = {name: step.payload[name] for name in KEPT_OF_MESSAGES if name in step.payload}
            found.append(TranscriptEntry({"text": step.payload["text"]} | said))
        elif found:
            found[-1] = _with(found[-1], step, calls)
    return Transcript(tuple(found))


def _with(
    exchange: TranscriptEntry, step: Step, calls: Mapping[int, Sequence[RecordedCall]]
) -> TranscriptEntry:
    """Return an entry with one more of its steps applied."""
    if step.kind == Step.Kind.MODEL and step.state == Step.State.DONE:
        turn = _build_turn(step, tuple(calls.get(step.turn, ())))
        return TranscriptEntry(exchange.message, (*exchange.turns, turn), exchange.code)
    if step.kind == Step.Kind.END:
        return TranscriptEntry(exchange.message, exchange.turns, step.payload.get("code", ""))
    return exchange


def _build_turn(step: Step, calls: tuple[RecordedCall, ...]) -> RecordedTurn:
    said = step.payload
    usage, endpoint = said.get("usage", {}), said.get("endpoint", {})
    return RecordedTurn(
        text=said.get("text", ""),
        calls=calls,
        model=endpoint.get("name") or endpoint.get("model", ""),
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        cost_microusd=said.get("cost_microusd", 0),
    )


def _build_call(step: Step, ruled: Mapping[str, RecordedDecision]) -> RecordedCall:
    said = step.payload
    decided = ruled.get(str(step.call_id), RecordedDecision("allow"))
    return RecordedCall(
        tool=said["name"],
        arguments=said.get("arguments"),
        text=said.get("text", ""),
        ok=step.state == Step.State.DONE,
        code=said.get("code", ""),
        verdict=decided.verdict,
        rule=decided.rule,
        extra={name: said[name] for name in KEPT_OF_CALLS if said.get(name)},
    )


Kind = Literal[
    "call_added", "call_missing", "arguments_changed", "decision_changed", "result_missing",
    "answer_changed", "ending_changed",
]  # fmt: skip
# Characters; longer texts are not compared line by line.
LONGEST_COMPARED = 64 * 1024

Numbered = tuple[int, RecordedCall]
Pair = tuple[Numbered, Numbered]


@dataclass(frozen=True, slots=True)
class TranscriptDifference:
    """A difference; `message` and `turn` count from 1, `turn` in the replay if it exists there.

    `before` and `after` are arguments as canonical JSON, verdicts or codes. `diff` has the changed
    lines of an answer.
    """

    kind: Kind
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

    same: tuple[Pair, ...]
    altered: tuple[Pair, ...]
    missing: tuple[Numbered, ...]
    added: tuple[Numbered, ...]


def compare_transcripts(before: Transcript, after: Transcript) -> list[TranscriptDifference]:
    """Return all differences, in the order of the messages."""
    found: list[TranscriptDifference] = []
    pairs = zip_longest(before.exchanges, after.exchanges)
    for number, (was, would) in enumerate(pairs, 1):
        said = was or would
        if said is not None:
            nothing = TranscriptEntry(said.message)
            found += _compare_entries(number, was or nothing, would or nothing)
    return found


def match_calls(before: Sequence[Numbered], after: Sequence[Numbered]) -> CallPairs:
    """Return the pairs of calls of a message."""
    same, left, right = _match_by_key(
        before, after, lambda call: (call.tool, format_arguments(call))
    )
    altered, missing, added = _match_by_key(left, right, lambda call: call.tool)
    return CallPairs(tuple(same), tuple(altered), tuple(missing), tuple(added))


def format_arguments(call: RecordedCall) -> str:
    """Return the arguments of a call as canonical JSON."""
    return "" if call.arguments is None else to_canonical_json(call.arguments)


def _match_by_key(
    before: Sequence[Numbered], after: Sequence[Numbered], key: Callable[[RecordedCall], Hashable]
) -> tuple[list[Pair], list[Numbered], list[Numbered]]:
    """Return the pairs with the same key, in order, and the unpaired calls of both sides."""
    waiting: defaultdict[Hashable, deque[Numbered]] = defaultdict(deque)
    for one in before:
        waiting[key(one[1])].append(one)
    pairs, right = [], []
    for one in after:
        if queue := waiting[key(one[1])]:
            pairs.append((queue.popleft(), one))
        else:
            right.append(one)
    taken = {id(was) for was, _ in pairs}
    return pairs, [one for one in before if id(one) not in taken], right


def _compare_entries(
    number: int, was: TranscriptEntry, would: TranscriptEntry
) -> Iterator[TranscriptDifference]:
    found = match_calls(was.calls, would.calls)
    for (_, old), (turn, new) in found.altered:
        yield TranscriptDifference(
            "arguments_changed",
            number,
            turn,
            new.tool,
            format_arguments(old),
            format_arguments(new),
            code=new.code,
        )
    for (_, old), (turn, new) in (*found.same, *found.altered):
        yield from _compare_decisions(number, turn, old, new)
    for turn, call in found.missing:
        yield TranscriptDifference(
            "call_missing", number, turn, call.tool, before=format_arguments(call)
        )
    for turn, call in found.added:
        yield TranscriptDifference(
            "call_added", number, turn, call.tool, "", format_arguments(call), call.rule, call.code
        )
    if was.code != would.code:
        yield TranscriptDifference("ending_changed", number, before=was.code, after=would.code)
    if was.answer != would.answer:
        turn = len(would.turns)
        yield TranscriptDifference(
            "answer_changed", number, turn, diff=build_text_diff(was.answer, would.answer)
        )


def _compare_decisions(
    number: int, turn: int, old: RecordedCall, new: RecordedCall
) -> Iterator[TranscriptDifference]:
    if old.verdict != new.verdict:
        yield TranscriptDifference(
            "decision_changed",
            *(number, turn, new.tool, old.verdict, new.verdict, new.rule, new.code),
        )
    elif new.code == NOT_RECORDED and format_arguments(old) == format_arguments(new):
        yield TranscriptDifference(
            "result_missing", number, turn, new.tool, after=format_arguments(new), code=new.code
        )


def build_text_diff(before: str, after: str) -> tuple[str, ...]:
    """Return the changed lines with one line of context; for long texts only the sizes."""
    if len(before) + len(after) > LONGEST_COMPARED:
        return (f"-{len(before):,} characters", f"+{len(after):,} characters")
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return tuple(lines)[2:]


def summarize_transcripts(before: Transcript, after: Transcript) -> dict[str, Any]:
    """Return the turns, calls, tokens and cost of both sides."""
    sides = {"before": before, "after": after}
    return {
        name: {
            "turns": len(one.turns),
            "calls": len(one.calls),
            "tokens": one.tokens,
            "cost_microusd": one.cost_microusd,
        }
        for name, one in sides.items()
    }


Masking = Callable[[Any], Any]


def apply_policy(snapshot: CallSnapshot, policy: Policy | None) -> CallSnapshot:
    """Return an agent's snapshot under another tool policy; None keeps the current one."""
    if policy is None:
        return snapshot
    ruling = replace(snapshot.ruling, policy=policy)
    tools = {name: _decide_tool(tool, ruling) for name, tool in snapshot.tools.items()}
    return replace(snapshot, tools=tools, ruling=ruling)


def _decide_tool(tool: SnapshotTool, ruling: EffectivePolicy) -> SnapshotTool:
    about = ruling.rules_about(tool.facts)
    return replace(
        tool,
        decision=decide(tool.facts, ruling),
        conditional=tuple(rule for rule in about if rule.condition is not None),
    )


def _deny_unknown_tool(snapshot: CallSnapshot, name: str) -> PolicyDecision:
    problem = build_unknown_name_error(f"The agent `{snapshot.agent_name}`", "tool", name)
    return PolicyDecision("deny", problem.rule, problem.code, str(problem), problem.remedy)


class RecordedResults:
    """The results of a recording by tool and arguments, each returned once, in order.

    Calls that policy denied have no result.
    """

    def __init__(self, recorded: Transcript, masking: Masking) -> None:
        self._masking = masking
        self._results: defaultdict[tuple[str, str], deque[RecordedCall]] = defaultdict(deque)
        for call in recorded.calls:
            if call.verdict != "deny":
                self._results[self._key(call.tool, call.arguments)].append(call)

    def answer(
        self, snapshot: CallSnapshot, name: str, arguments: dict[str, Any] | None
    ) -> RecordedCall:
        """Return the result of a call: a denial, the recorded result, or `not_recorded`.

        Calls that need an approval count as approved.
        """
        tool = snapshot.tools.get(name)
        decision = (
            snapshot.decided(tool, arguments or {}) if tool else _deny_unknown_tool(snapshot, name)
        )
        masked = None if arguments is None else dict(self._masking(arguments))
        asked = RecordedCall(name, masked, verdict=decision.verdict, rule=decision.rule)
        if not decision.offered:
            text = f"{decision.reason} {decision.remedy}".strip()
            return replace(asked, text=text, ok=False, code=decision.code)
        if not (known := self._results[self._key(name, arguments)]):
            text = f"The recording has no result of `{name}` with these arguments."
            return replace(asked, text=text, ok=False, code=NOT_RECORDED)
        found = known.popleft()
        return replace(found, arguments=masked, verdict=decision.verdict, rule=decision.rule)

    def _key(self, tool: str, arguments: dict[str, Any] | None) -> tuple[str, str]:
        return tool, "" if arguments is None else to_canonical_json(self._masking(arguments))
