"""Answering calls from a recording: decided by the rules as they would be, sent nowhere. Pure."""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from agents.evaluation.conversations import NOT_RECORDED, Called, Conversation
from agents.governance.policies import Decision, Ruling, decide
from agents.governance.rules import Policy
from agents.governance.snapshots import Snapshot, Tool
from agents.targets import unknown
from bonobot.lib.canonical import canonical

Masking = Callable[[Any], Any]


def under(snapshot: Snapshot, policy: Policy | None) -> Snapshot:
    """Return an agent's snapshot as it would be under another tool policy; None: as it is."""
    if policy is None:
        return snapshot
    ruling = replace(snapshot.ruling, policy=policy)
    tools = {name: _under(tool, ruling) for name, tool in snapshot.tools.items()}
    return replace(snapshot, tools=tools, ruling=ruling)


def _under(tool: Tool, ruling: Ruling) -> Tool:
    about = ruling.rules_about(tool.facts)
    return replace(
        tool,
        decision=decide(tool.facts, ruling),
        conditional=tuple(rule for rule in about if rule.condition is not None),
    )


def _unknown(snapshot: Snapshot, name: str) -> Decision:
    problem = unknown(f"The agent `{snapshot.agent_name}`", "tool", name)
    return Decision("deny", problem.rule, problem.code, str(problem), problem.remedy)


class Answers:
    """The results of a recording by tool and arguments, each given once, in their order.

    Results of calls that were refused by rules are none: nobody knows what they would have given.
    """

    def __init__(self, recorded: Conversation, masking: Masking) -> None:
        self._masking = masking
        self._results: defaultdict[tuple[str, str], deque[Called]] = defaultdict(deque)
        for call in recorded.calls:
            if call.verdict != "deny":
                self._results[self._key(call.tool, call.arguments)].append(call)

    def answer(self, snapshot: Snapshot, name: str, arguments: dict[str, Any] | None) -> Called:
        """Return what a call would give: a refusal, the recorded result, or `not_recorded`.

        A call that a person would be asked about counts as allowed by them.
        """
        tool = snapshot.tools.get(name)
        decision = snapshot.decided(tool, arguments or {}) if tool else _unknown(snapshot, name)
        masked = None if arguments is None else dict(self._masking(arguments))
        asked = Called(name, masked, verdict=decision.verdict, rule=decision.rule)
        if not decision.offered:
            text = f"{decision.reason} {decision.remedy}".strip()
            return replace(asked, text=text, ok=False, code=decision.code)
        if not (known := self._results[self._key(name, arguments)]):
            text = f"The recording has no result of `{name}` with these arguments."
            return replace(asked, text=text, ok=False, code=NOT_RECORDED)
        found = known.popleft()
        return replace(found, arguments=masked, verdict=decision.verdict, rule=decision.rule)

    def _key(self, tool: str, arguments: dict[str, Any] | None) -> tuple[str, str]:
        return tool, "" if arguments is None else canonical(self._masking(arguments))
