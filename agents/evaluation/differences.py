"""What differs between a recording and its replay: calls, decisions, answers, cost. Pure.

Calls of one message are paired by tool and arguments, in order, whichever turn they came in; what
is left is paired by tool alone (its arguments changed), and the rest was added or is missing.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from itertools import zip_longest
from typing import Any, Literal

from agents.evaluation.conversations import NOT_RECORDED, Called, Conversation, Exchange
from bonobot.lib.canonical import canonical

Kind = Literal[
    "call_added", "call_missing", "arguments_changed", "decision_changed", "result_missing",
    "answer_changed", "ending_changed",
]  # fmt: skip
# Of a text that is compared line by line, in characters; of more only that it changed is said.
LONGEST_COMPARED = 64 * 1024

Numbered = tuple[int, Called]
Pair = tuple[Numbered, Numbered]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference; `message` and `turn` count from 1, `turn` in the replay where it is there.

    `before` and `after` say what was and what would be: arguments as canonical JSON, verdicts,
    codes. `diff` are the lines of an answer that changed.
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
class Paired:
    """The calls of a message on both sides: the same, with other arguments, and alone."""

    same: tuple[Pair, ...]
    altered: tuple[Pair, ...]
    missing: tuple[Numbered, ...]
    added: tuple[Numbered, ...]


def differences(before: Conversation, after: Conversation) -> list[Difference]:
    """Return all that differs, in the order of the messages."""
    found: list[Difference] = []
    pairs = zip_longest(before.exchanges, after.exchanges)
    for number, (was, would) in enumerate(pairs, 1):
        said = was or would
        if said is not None:
            nothing = Exchange(said.message)
            found += _of_message(number, was or nothing, would or nothing)
    return found


def paired(before: Sequence[Numbered], after: Sequence[Numbered]) -> Paired:
    """Return which calls of a message belong together."""
    same, left, right = _matched(before, after, lambda call: (call.tool, said(call)))
    altered, missing, added = _matched(left, right, lambda call: call.tool)
    return Paired(tuple(same), tuple(altered), tuple(missing), tuple(added))


def said(call: Called) -> str:
    """Return the arguments of a call as one text."""
    return "" if call.arguments is None else canonical(call.arguments)


def _matched(
    before: Sequence[Numbered], after: Sequence[Numbered], key: Callable[[Called], Hashable]
) -> tuple[list[Pair], list[Numbered], list[Numbered]]:
    """Return the pairs with the same key, in order, and what is left on either side."""
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


def _of_message(number: int, was: Exchange, would: Exchange) -> Iterator[Difference]:
    found = paired(was.calls, would.calls)
    for (_, old), (turn, new) in found.altered:
        yield Difference(
            "arguments_changed", number, turn, new.tool, said(old), said(new), code=new.code
        )
    for (_, old), (turn, new) in (*found.same, *found.altered):
        yield from _decided(number, turn, old, new)
    for turn, call in found.missing:
        yield Difference("call_missing", number, turn, call.tool, before=said(call))
    for turn, call in found.added:
        yield Difference(
            "call_added", number, turn, call.tool, "", said(call), call.rule, call.code
        )
    if was.code != would.code:
        yield Difference("ending_changed", number, before=was.code, after=would.code)
    if was.answer != would.answer:
        turn = len(would.turns)
        yield Difference("answer_changed", number, turn, diff=text_diff(was.answer, would.answer))


def _decided(number: int, turn: int, old: Called, new: Called) -> Iterator[Difference]:
    if old.verdict != new.verdict:
        yield Difference(
            "decision_changed",
            *(number, turn, new.tool, old.verdict, new.verdict, new.rule, new.code),
        )
    elif new.code == NOT_RECORDED and said(old) == said(new):
        yield Difference("result_missing", number, turn, new.tool, after=said(new), code=new.code)


def text_diff(before: str, after: str) -> tuple[str, ...]:
    """Return the lines that changed, with one line around each; of long texts only the sizes."""
    if len(before) + len(after) > LONGEST_COMPARED:
        return (f"-{len(before):,} characters", f"+{len(after):,} characters")
    lines = unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1)
    return tuple(lines)[2:]


def summed_up(before: Conversation, after: Conversation) -> dict[str, Any]:
    """Return turns, calls, tokens and cost of both sides."""
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
