"""Explain: why an agent can, or can't, use a tool — the whole door, stage by stage (FEATURES X2).

Each stage says what it would say by itself, also behind one that refuses, and who can change it.
Nothing is called, reserved or written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from agents.governance.flows import SEEN, flow_keys
from agents.governance.limits import applying, budget_key, charge, whole
from agents.governance.policies import Stage, stages
from agents.governance.rules import Arguments
from agents.governance.snapshots import Snapshot, Tool
from bonobot.ledger.models import FlowCell, RateCell
from bonobot.ledger.usage import spent_many
from bonobot.lib import rates
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import WHO_MAY, Action
from mcp_servers.labels import Label, labels_in
from mcp_servers.schema_worker import check

MICROSECONDS = 1_000_000
# What the stages of a decision are called here, in their order.
DECIDING = (
    *("switches", "server", "binding", "definition"),
    *("binding_lists", "organization_rules", "policy"),
)
# Who can change what a stage says; for some codes it is somebody else.
CHANGED_BY: Mapping[str, Action | None] = {
    "resolve": Action.MANAGE_AGENTS,
    "arguments": None,
    "switches": Action.MANAGE_AGENTS,
    "server": Action.MANAGE_SERVERS,
    "binding": Action.MANAGE_AGENTS,
    "definition": Action.APPROVE_DEFINITIONS,
    "binding_lists": Action.MANAGE_AGENTS,
    "organization_rules": Action.MANAGE_ORGANIZATION,
    "policy": Action.MANAGE_AGENTS,
    "consent": Action.APPROVE_CALLS,
    "flow": Action.APPROVE_CALLS,
    "rate": Action.MANAGE_AGENTS,
    "budgets": Action.MANAGE_AGENTS,
    "organization_halted": Action.MANAGE_ORGANIZATION,
    "tool_disabled": Action.MANAGE_SERVERS,
    "definition_refused": None,
    "tool_gone": None,
}
WHOEVER_CALLS, THE_SERVER = "whoever calls", "the server's makers"


@dataclass(frozen=True, slots=True)
class Explained:
    """What one stage of the door says: `allow`, `ask`, `deny`, or `skip` where it has no say."""

    stage: str
    verdict: str
    rule: str = ""
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def who(self) -> str:
        """Name the roles (or those) who can change what this stage says."""
        action = CHANGED_BY.get(self.code, CHANGED_BY[self.stage])
        if action is None:
            return WHOEVER_CALLS if self.stage == "arguments" else THE_SERVER
        return WHO_MAY[action]

    def as_dict(self) -> dict[str, Any]:
        """Return it as programs read it."""
        return {
            "stage": self.stage,
            "verdict": self.verdict,
            "allows": self.verdict != "deny",
            "rule": self.rule,
            "code": self.code,
            "reason": self.reason,
            "remedy": self.remedy,
            "who": self.who,
        }


def explain(
    principal: Principal, snapshot: Snapshot, tool: Tool, arguments: Arguments | None = None
) -> dict[str, Any]:
    """Return what a call of the principal's would come to, with every stage of the door.

    `first` names the first stage that refuses, else the first that asks. Without `arguments` the
    rules with conditions say what they might (as in `Snapshot.tools`). Does queries.
    """
    found = list(_stages(principal, snapshot, tool, arguments))
    first = next((one for one in found if one.verdict == "deny"), None)
    first = first or next((one for one in found if one.verdict == "ask"), None)
    deciding = first or next(one for one in found if one.stage == "policy")
    return {
        "tool": tool.name,
        "decision": first.verdict if first else "allow",
        "allowed": first is None,
        "first": first.stage if first else "",
        "code": deciding.code,
        "rule": deciding.rule,
        "reason": deciding.reason,
        "remedy": deciding.remedy,
        "who": deciding.who if first else "",
        "stages": [one.as_dict() for one in found],
    }


def _stages(
    principal: Principal, snapshot: Snapshot, tool: Tool, arguments: Arguments | None
) -> Iterator[Explained]:
    yield _resolved(tool)
    yield _arguments(tool, arguments)
    decided = list(stages(tool.facts, snapshot.ruling, arguments))
    for name, stage in zip(DECIDING, decided, strict=True):
        yield _as_explained(name, stage)
    yield _consent(decided)
    yield _flow(principal, snapshot, tool)
    yield _rate(snapshot)
    yield _budgets(snapshot, tool)


def _resolved(tool: Tool) -> Explained:
    whose = f"of the server `{tool.facts.server_name}`" if tool.facts.server_name else "built in"
    return Explained(
        "resolve",
        "allow",
        "resolve",
        reason=say(
            "It is the tool `{own_name}`, {whose}.", own_name=tool.facts.own_name, whose=whose
        ),
    )


def _arguments(tool: Tool, arguments: Arguments | None) -> Explained:
    if arguments is None:
        return Explained("arguments", "skip", reason="No arguments were given to check.")
    try:
        runtime().call(check, tool.input_schema, dict(arguments), tool.judgement)
    except Problem as problem:
        at = f"{problem.field}: " if problem.field else ""
        reason = f"{at}{problem}"
        return Explained("arguments", "deny", "arguments", problem.code, reason, problem.remedy)
    return Explained("arguments", "allow", "arguments", reason="They fit the tool's input schema.")


def _as_explained(name: str, stage: Stage) -> Explained:
    verdict = "deny" if not stage.allows else "ask" if stage.asks else "allow"
    code = "approval_required" if stage.asks else stage.code
    return Explained(name, verdict, stage.rule, code, stage.reason, stage.remedy)


def _consent(decided: list[Stage]) -> Explained:
    asking = next((stage for stage in decided if stage.asks), None)
    if asking is None:
        return Explained("consent", "allow", reason="No rule asks a person.")
    return Explained(
        "consent",
        "ask",
        asking.rule,
        "approval_required",
        "A person has to say yes to this very call, or to the tool for one session.",
        "The call writes the question; it is answered in the approvals inbox.",
    )


def _flow(principal: Principal, snapshot: Snapshot, tool: Tool) -> Explained:
    """Say what the caller outside a session holds, and what the tool would add."""
    held = _held(principal, snapshot)
    adds = ", ".join(tool.labels) or "nothing"
    seen = ", ".join(labels_in(held)) or "nothing"
    reason = say("Held outside a session: {seen}; the tool's labels: {adds}.", seen=seen, adds=adds)
    if Label.SENDS_OUT in tool.labels and held & SEEN == SEEN:
        return Explained(
            "flow",
            "ask",
            "flow",
            "flow_needs_approval",
            say(
                "{reason} Private data and untrusted content were seen, and it can send them out.",
                reason=reason,
            ),
            "A person looks at the call and answers in the approvals inbox.",
        )
    return Explained("flow", "allow", "flow", reason=reason)


def _held(principal: Principal, snapshot: Snapshot) -> int:
    keys = flow_keys(principal, agent_id=snapshot.agent_id)
    held = 0
    for labels in FlowCell.objects.filter(pk__in=keys).values_list("labels", flat=True):
        held |= labels
    return held


def _rate(snapshot: Snapshot) -> Explained:
    one = charge(
        snapshot.organization_id, "agent", snapshot.agent_id, snapshot.calls_per_minute or 1
    )
    tat = RateCell.objects.filter(pk=one.key).values_list("tat", flat=True).first() or 0
    now, interval = int(timezone.now().timestamp() * MICROSECONDS), rates.interval(one.per_minute)
    # What is owed rounds up: a call that is half back doesn't count yet.
    left = max(0, one.burst - -(-max(0, tat - now) // interval))
    reason = say(
        "{left} of {burst} calls are free at once; {per_minute} a minute come back.",
        left=left,
        burst=one.burst,
        per_minute=one.per_minute,
    )
    verdict = rates.admit(tat, now, interval, one.burst)
    if verdict.allowed:
        return Explained("rate", "allow", one.key, reason=reason)
    wait_s = -(-verdict.retry_after // MICROSECONDS)
    return Explained(
        "rate",
        "deny",
        one.key,
        "rate_limited",
        reason,
        say("Try again in {wait_s} s.", wait_s=wait_s),
    )


def _budgets(snapshot: Snapshot, tool: Tool) -> Explained:
    """Say what is left of each budget; a call is refused where no call is left."""
    limits = applying(snapshot.limits, server_id=tool.facts.server_id, session_id=None)
    if not limits:
        return Explained("budgets", "allow", reason="No budget is set.")
    now = timezone.now()
    keys = [budget_key(snapshot.organization_id, limit, now) for limit in limits]
    cells = spent_many(keys)
    said, spent_up = [], ""
    for limit, key in zip(limits, keys, strict=True):
        used = whole(limit.unit, cells[key].spent + cells[key].reserved)
        left = max(0, limit.limit - used)
        period = {"day": "a day", "month": "a month"}.get(limit.period, "in total")
        said.append(f"{_worth(limit.unit, left, limit.limit)} {period} ({limit.scope})")
        if not left and limit.unit == "calls":
            spent_up = spent_up or key
    reason = say("Left: {said}.", said="; ".join(said))
    if not spent_up:
        return Explained("budgets", "allow", reason=reason)
    remedy = "Wait for the next period, or ask who may to raise the budget."
    return Explained("budgets", "deny", spent_up, "budget_exhausted", reason, remedy)


def _worth(unit: str, left: int, limit: int) -> str:
    """Return what is left of a limit as people read it: money in dollars."""
    if unit == "microusd":
        return f"${left / 1e6:,.4f} of ${limit / 1e6:,.2f}"
    return f"{left:,} of {limit:,} {unit}"
