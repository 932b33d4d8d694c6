"""What the calls of a replayed session get: the recorded results, under a tool policy. Pure."""

from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

from agents.calls.resolve import build_unknown_name_error
from agents.calls.snapshots import CallSnapshot, decide_tool
from agents.evaluation.compare_transcripts import (
    NOT_RECORDED,
    MaskFunction,
    RecordedCall,
    Transcript,
)
from agents.policies.decisions import PolicyDecision
from agents.policies.rules import Policy
from bonobot.core.text.canonical_json import to_canonical_json


def apply_policy(snapshot: CallSnapshot, policy: Policy | None) -> CallSnapshot:
    """Return an agent's snapshot under another tool policy; None keeps the current one."""
    if policy is None:
        return snapshot
    effective_policy = replace(snapshot.effective_policy, policy=policy)
    tools = {name: decide_tool(tool, effective_policy) for name, tool in snapshot.tools.items()}
    return replace(snapshot, tools=tools, effective_policy=effective_policy)


def _deny_unknown_tool(snapshot: CallSnapshot, name: str) -> PolicyDecision:
    problem = build_unknown_name_error(f"The agent `{snapshot.agent_name}`", "tool", name)
    return PolicyDecision(
        "deny", rule=problem.rule, code=problem.code, reason=str(problem), remedy=problem.remedy
    )


class RecordedResults:
    """The results of a recording by tool and arguments, each returned once, in order.

    Calls that policy denied have no result.
    """

    def __init__(self, transcript: Transcript, mask_value: MaskFunction) -> None:
        self._mask_value = mask_value
        self._results: defaultdict[tuple[str, str], deque[RecordedCall]] = defaultdict(deque)
        for call in transcript.calls:
            if call.verdict != "deny":
                self._results[self._build_key(call.tool, call.arguments)].append(call)

    def resolve_call(
        self, snapshot: CallSnapshot, name: str, arguments: dict[str, Any] | None
    ) -> RecordedCall:
        """Return the result of a call: a denial, the recorded result, or `not_recorded`.

        Calls that need an approval count as approved.
        """
        tool = snapshot.find_tool(name)
        decision = (
            snapshot.decide_call(tool, arguments or {})
            if tool
            else _deny_unknown_tool(snapshot, name)
        )
        masked_arguments = None if arguments is None else dict(self._mask_value(arguments))
        call = RecordedCall(name, masked_arguments, verdict=decision.verdict, rule=decision.rule)
        if not decision.is_callable:
            text = f"{decision.reason} {decision.remedy}".strip()
            return replace(call, text=text, ok=False, code=decision.code)
        if not (remaining_results := self._results[self._build_key(name, arguments)]):
            text = f"The recording has no result of `{name}` with these arguments."
            return replace(call, text=text, ok=False, code=NOT_RECORDED)
        result = remaining_results.popleft()
        return replace(
            result, arguments=masked_arguments, verdict=decision.verdict, rule=decision.rule
        )

    def _build_key(self, tool: str, arguments: dict[str, Any] | None) -> tuple[str, str]:
        return tool, "" if arguments is None else to_canonical_json(self._mask_value(arguments))
