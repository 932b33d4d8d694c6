"""Explain: why an agent can, or can't, use a tool — every stage with its verdict (FEATURES X2)."""

from typing import Any

from agents.governance.policies import stages
from agents.governance.snapshots import Snapshot, Tool


def explain(snapshot: Snapshot, tool: Tool) -> dict[str, Any]:
    """Return the decision and what each stage of it said by itself, in order."""
    decision = tool.decision
    server_id = tool.facts.server_id
    verdicts = stages(
        tool.facts,
        policy=snapshot.policy,
        scope=snapshot.scopes.get(server_id) if server_id else None,
        agent_enabled=snapshot.agent_enabled,
    )
    return {
        "tool": tool.name,
        "allowed": decision.allowed,
        "code": decision.code,
        "rule": decision.rule,
        "reason": decision.reason,
        "remedy": decision.remedy,
        "stages": [
            {
                "stage": stage.name,
                "allows": stage.allows,
                "rule": stage.rule,
                "code": stage.code,
                "reason": stage.reason,
                "remedy": stage.remedy,
            }
            for stage in verdicts
        ],
    }
