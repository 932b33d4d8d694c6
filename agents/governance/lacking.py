"""Lacking: why an agent is left without a single tool, in one sentence for people and model (X2).

Pure over a snapshot.
"""

from collections import Counter
from dataclasses import dataclass

from agents.governance.policies import agent_stage
from agents.governance.snapshots import Snapshot, Tool
from bonobot.lib.sayings import say


@dataclass(frozen=True, slots=True)
class Lack:
    """Why there is none, and what to do."""

    code: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason} {self.remedy}"


def lack_of(snapshot: Snapshot) -> Lack | None:
    """Return why no tool of a server can be called; None where one can.

    Built-in tools alone don't count: nobody makes an agent for them.
    """
    mcp = [tool for tool in snapshot.tools.values() if tool.facts.source == "mcp"]
    if any(tool.decision.offered for tool in mcp):
        return None
    stage = agent_stage(snapshot.ruling.switches)
    if not stage.allows:
        return Lack(stage.code, stage.reason, stage.remedy)
    if not snapshot.servers:
        return Lack("no_server", "The agent has no server.", "Give it one on its servers tab.")
    there = [tool for tool in mcp if tool.facts.state != "gone"]
    if not there:
        return Lack(
            "nothing_offered",
            "Its servers have offered no tool so far.",
            "Refresh them and look at their health.",
        )
    return _commonest(there, snapshot)


def _commonest(tools: list[Tool], snapshot: Snapshot) -> Lack:
    """Return the reason that stands most often in the way, in the words of one such tool."""
    if snapshot.ruling.policy.mode == "none":
        return Lack(
            "denied_by_policy",
            "The tool policy's mode is `none`: it blocks every tool.",
            "An operator or owner can choose another mode on the agent's policy tab.",
        )
    code, count = Counter(tool.decision.code for tool in tools).most_common(1)[0]
    one = next(tool.decision for tool in tools if tool.decision.code == code)
    if len(tools) == 1:
        return Lack(code, one.reason, one.remedy)
    return Lack(
        code,
        say(
            "{count} of its {total} tools are refused alike: {reason}",
            count=count,
            total=len(tools),
            reason=one.reason,
        ),
        one.remedy,
    )
