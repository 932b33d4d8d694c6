"""A conversation in plain values: messages, model turns, and calls with their results. Pure.

A recording and its replay are both told so, and read from the same steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from agents.models import Step
from agents.sessions.branches import current

# What the answer of a call that the recording doesn't know says.
NOT_RECORDED = "not_recorded"
# Members of a message or a call that belong to it beside its text.
KEPT_OF_MESSAGES = ("images", "files", "by")
KEPT_OF_CALLS = ("frame", "found", "images")


@dataclass(frozen=True, slots=True)
class Ruled:
    """How a call was decided: the verdict (allow, ask, deny) and the rule that made it."""

    verdict: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Called:
    """A call with its result; `arguments` is None where the model wrote no JSON object.

    `code` is empty where it went well; `extra` are the members of `KEPT_OF_CALLS` that it has.
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
class Told:
    """One model turn: what it said, and the calls that it asked for."""

    text: str
    calls: tuple[Called, ...] = ()
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message and the turns that it led to; `code` says why it ended without an answer."""

    message: dict[str, Any]
    turns: tuple[Told, ...] = ()
    code: str = ""

    @property
    def text(self) -> str:
        """What was said to the agent."""
        return str(self.message["text"])

    @property
    def answer(self) -> str:
        """The text of the last turn, unless that one asked for calls."""
        last = self.turns[-1] if self.turns else None
        return last.text if last and not last.calls else ""

    @property
    def calls(self) -> list[tuple[int, Called]]:
        """The calls with the number of their turn, from 1."""
        return [(n, call) for n, turn in enumerate(self.turns, 1) for call in turn.calls]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What was said and done, message by message."""

    exchanges: tuple[Exchange, ...] = ()

    @property
    def turns(self) -> list[Told]:
        """All model turns."""
        return [turn for exchange in self.exchanges for turn in exchange.turns]

    @property
    def calls(self) -> list[Called]:
        """All calls."""
        return [call for turn in self.turns for call in turn.calls]

    @property
    def tokens(self) -> int:
        """The tokens of all turns, in and out."""
        return sum(turn.input_tokens + turn.output_tokens for turn in self.turns)

    @property
    def cost_microusd(self) -> int:
        """What the turns cost."""
        return sum(turn.cost_microusd for turn in self.turns)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"exchanges": [asdict(exchange) for exchange in self.exchanges]}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Self:
        """Return what `as_dict` wrote."""
        return cls(tuple(map(_exchange, stored["exchanges"])))


def _exchange(stored: Mapping[str, Any]) -> Exchange:
    turns = tuple(
        Told(**{**turn, "calls": tuple(Called(**call) for call in turn["calls"])})
        for turn in stored["turns"]
    )
    return Exchange(stored["message"], turns, stored["code"])


def conversation(steps: Sequence[Step], ruled: Mapping[str, Ruled]) -> Conversation:
    """Return what a session's steps say as it stands now.

    `ruled` are the decisions about its calls, by the ids of these. A turn that a model failed, or
    that was cut off, is left out: it belongs to its endpoint, not to what was said.
    """
    found: list[Exchange] = []
    calls: dict[int, list[Called]] = {}
    standing = current(steps)
    for step in standing:
        if step.kind == Step.Kind.CALL:
            calls.setdefault(step.turn, []).append(_called(step, ruled))
    for step in standing:
        if step.kind == Step.Kind.MESSAGE:
            said = {name: step.payload[name] for name in KEPT_OF_MESSAGES if name in step.payload}
            found.append(Exchange({"text": step.payload["text"]} | said))
        elif found:
            found[-1] = _with(found[-1], step, calls)
    return Conversation(tuple(found))


def _with(exchange: Exchange, step: Step, calls: Mapping[int, Sequence[Called]]) -> Exchange:
    """Return an exchange with what one more of its steps says."""
    if step.kind == Step.Kind.MODEL and step.state == Step.State.DONE:
        turn = _told(step, tuple(calls.get(step.turn, ())))
        return Exchange(exchange.message, (*exchange.turns, turn), exchange.code)
    if step.kind == Step.Kind.END:
        return Exchange(exchange.message, exchange.turns, step.payload.get("code", ""))
    return exchange


def _told(step: Step, calls: tuple[Called, ...]) -> Told:
    said = step.payload
    usage, endpoint = said.get("usage", {}), said.get("endpoint", {})
    return Told(
        text=said.get("text", ""),
        calls=calls,
        model=endpoint.get("name") or endpoint.get("model", ""),
        input_tokens=usage.get("input_tokens", 0),
        output_tokens=usage.get("output_tokens", 0),
        cost_microusd=said.get("cost_microusd", 0),
    )


def _called(step: Step, ruled: Mapping[str, Ruled]) -> Called:
    said = step.payload
    decided = ruled.get(str(step.call_id), Ruled("allow"))
    return Called(
        tool=said["name"],
        arguments=said.get("arguments"),
        text=said.get("text", ""),
        ok=step.state == Step.State.DONE,
        code=said.get("code", ""),
        verdict=decided.verdict,
        rule=decided.rule,
        extra={name: said[name] for name in KEPT_OF_CALLS if said.get(name)},
    )
