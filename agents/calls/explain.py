"""Explain why a tool can be called or not, and why a server has no callable tools.

Each stage is evaluated on its own, even after one that denies, and names who can change it.
Nothing is called, reserved or written.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from agents.budgets.limits import build_budget_key, build_charge, select_limits, to_whole_units
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.flow_labels.call_effects import build_flow_keys
from agents.policies.decisions import StageVerdict, evaluate_agent_stage, evaluate_tool_stages
from agents.policies.rules import Arguments
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import ALLOWED_ROLES, Action
from bonobot.core import rate_limiter
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.amounts import MICROUSD_PER_USD
from bonobot.ledger.budget_balances import load_balances
from bonobot.ledger.budgets import describe_remedy
from bonobot.ledger.models import FlowCell, RateCell
from mcp_servers.flow_labels import FlowLabel, decode_labels
from mcp_servers.flow_labels.token_labels import HELD_LABELS
from mcp_servers.models import Server
from mcp_servers.schemas.defaults import fill_defaults
from mcp_servers.schemas.subprocess_pool import check_tool_arguments
from mcp_servers.tool_names import parse_rule_target

MICROSECONDS_PER_SECOND = 1_000_000
# The names of the decision stages here, in order.
DECISION_STAGES = (
    *("switches", "server", "attachment", "definition"),
    *("attachment_lists", "organization_rules", "policy"),
)
# The action needed to change a stage's verdict; some codes need a different one.
CHANGED_BY: Mapping[str, Action | None] = {
    "resolve": Action.MANAGE_AGENTS,
    "arguments": None,
    "switches": Action.MANAGE_AGENTS,
    "server": Action.MANAGE_SERVERS,
    "attachment": Action.MANAGE_AGENTS,
    "definition": Action.APPROVE_DEFINITIONS,
    "attachment_lists": Action.MANAGE_AGENTS,
    "organization_rules": Action.MANAGE_ORGANIZATION,
    "policy": Action.MANAGE_AGENTS,
    "approval": Action.APPROVE_CALLS,
    "flow": Action.APPROVE_CALLS,
    "rate": Action.MANAGE_AGENTS,
    "budgets": Action.MANAGE_AGENTS,
    "kill_switch_enabled": Action.MANAGE_ORGANIZATION,
    "tool_disabled": Action.MANAGE_SERVERS,
    "definition_rejected": None,
    "tool_gone": None,
}
CALLER = format_message("the caller")
SERVER_MAKERS = format_message("the server's developers")
LABEL_WORDS: Mapping[FlowLabel, str] = {
    FlowLabel.PRIVATE_DATA: format_message("private data"),
    FlowLabel.UNTRUSTED_CONTENT: format_message("untrusted content"),
    FlowLabel.SENDS_OUT: format_message("external effect"),
    FlowLabel.REPEATABLE: format_message("idempotent"),
}
NO_LABELS = format_message("nothing")


@dataclass(frozen=True, slots=True)
class StageExplanation:
    """The verdict of one stage: `allow`, `ask`, `deny`, or `skip` if it doesn't apply."""

    stage: str
    verdict: str
    rule: str = ""
    code: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def changeable_by(self) -> str:
        """The roles, or other parties, that can change this verdict."""
        action = CHANGED_BY.get(self.code, CHANGED_BY[self.stage])
        if action is None:
            return CALLER if self.stage == "arguments" else SERVER_MAKERS
        return ALLOWED_ROLES[action]

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON data."""
        return {
            "stage": self.stage,
            "verdict": self.verdict,
            "allows": self.verdict != "deny",
            "rule": self.rule,
            "code": self.code,
            "reason": self.reason,
            "remedy": self.remedy,
            "changeable_by": self.changeable_by,
        }


def explain_call(
    principal: Principal,
    snapshot: CallSnapshot,
    tool: SnapshotTool,
    arguments: Arguments | None = None,
) -> dict[str, Any]:
    """Return the decision that a call by the principal would get, with every stage.

    `first` names the first stage that denies, else the first that asks. Without `arguments`, rules
    with conditions count as in `CallSnapshot.tools`. Queries the database.
    """
    stages = list(_explain_stages(principal, snapshot, tool, arguments))
    blocking_stage = next((stage for stage in stages if stage.verdict == "deny"), None)
    blocking_stage = blocking_stage or next(
        (stage for stage in stages if stage.verdict == "ask"), None
    )
    deciding_stage = blocking_stage or next(stage for stage in stages if stage.stage == "policy")
    return {
        "tool": tool.name,
        "decision": blocking_stage.verdict if blocking_stage else "allow",
        "allowed": blocking_stage is None,
        "first": blocking_stage.stage if blocking_stage else "",
        "code": deciding_stage.code,
        "rule": deciding_stage.rule,
        "reason": deciding_stage.reason,
        "remedy": deciding_stage.remedy,
        "changeable_by": deciding_stage.changeable_by if blocking_stage else "",
        "stages": [stage.as_dict() for stage in stages],
    }


def _explain_stages(
    principal: Principal, snapshot: CallSnapshot, tool: SnapshotTool, arguments: Arguments | None
) -> Iterator[StageExplanation]:
    yield _explain_resolution(tool)
    yield _explain_arguments(tool, arguments)
    decided_arguments = fill_defaults(tool.input_schema, arguments)
    verdicts = list(evaluate_tool_stages(tool.facts, snapshot.effective_policy, decided_arguments))
    for name, verdict in zip(DECISION_STAGES, verdicts, strict=True):
        yield _build_stage_explanation(name, verdict)
    yield _explain_approval(verdicts)
    yield _explain_flow_labels(principal, snapshot, tool)
    yield _explain_rate_limit(snapshot)
    yield _explain_budgets(snapshot, tool)


def _explain_resolution(tool: SnapshotTool) -> StageExplanation:
    origin = (
        format_message("of the server `{server}`", server=tool.facts.server_name)
        if tool.facts.server_name
        else format_message("built in")
    )
    return StageExplanation(
        "resolve",
        "allow",
        "resolve",
        reason=format_message(
            "The call resolves to the tool `{tool}`, {whose}.",
            tool=tool.facts.own_name,
            whose=origin,
        ),
    )


def _explain_arguments(tool: SnapshotTool, arguments: Arguments | None) -> StageExplanation:
    if arguments is None:
        return StageExplanation("arguments", "skip", reason="No arguments were given to check.")
    try:
        get_runtime().call(
            check_tool_arguments, tool.input_schema, dict(arguments), tool.schema_verdict
        )
    except Problem as problem:
        prefix = f"{problem.field}: " if problem.field else ""
        reason = f"{prefix}{problem}"
        return StageExplanation(
            "arguments", "deny", "arguments", problem.code, reason, problem.remedy
        )
    return StageExplanation(
        "arguments", "allow", "arguments", reason="The arguments match the tool's input schema."
    )


def _build_stage_explanation(name: str, stage_verdict: StageVerdict) -> StageExplanation:
    verdict = "deny" if not stage_verdict.allows else "ask" if stage_verdict.asks else "allow"
    code = "approval_required" if stage_verdict.asks else stage_verdict.code
    return StageExplanation(
        name, verdict, stage_verdict.rule, code, stage_verdict.reason, stage_verdict.remedy
    )


def _explain_approval(verdicts: list[StageVerdict]) -> StageExplanation:
    asking_verdict = next((verdict for verdict in verdicts if verdict.asks), None)
    if asking_verdict is None:
        return StageExplanation("approval", "allow", reason="No rule requires approval.")
    return StageExplanation(
        "approval",
        "ask",
        asking_verdict.rule,
        "approval_required",
        "A person must approve this call, or the tool for one session.",
        "The call creates an approval request on the Approvals page.",
    )


def _explain_flow_labels(
    principal: Principal, snapshot: CallSnapshot, tool: SnapshotTool
) -> StageExplanation:
    """Explain the labels held outside sessions and those the tool would add."""
    current_labels = _load_held_labels(principal, snapshot)
    tool_labels = _join_labels(tool.labels)
    seen_labels = _join_labels(decode_labels(current_labels))
    reason = format_message(
        "Seen outside a session: {seen}. Labels of the tool: {adds}.",
        seen=seen_labels,
        adds=tool_labels,
    )
    if FlowLabel.SENDS_OUT in tool.labels and current_labels & HELD_LABELS == HELD_LABELS:
        return StageExplanation(
            "flow",
            "ask",
            "flow",
            "flow_needs_approval",
            format_message(
                "{reason} Private data and untrusted content were seen, and the tool can "
                "send them out.",
                reason=reason,
            ),
            "Someone who can approve calls must approve it on the Approvals page.",
        )
    return StageExplanation("flow", "allow", "flow", reason=reason)


def _join_labels(labels: Collection[str]) -> str:
    return ", ".join(LABEL_WORDS[FlowLabel(label)] for label in labels) or NO_LABELS


def _load_held_labels(principal: Principal, snapshot: CallSnapshot) -> int:
    keys = build_flow_keys(principal, agent_id=snapshot.agent_id)
    label_bits = 0
    for labels in FlowCell.objects.filter(pk__in=keys).values_list("labels", flat=True):
        label_bits |= labels
    return label_bits


def _explain_rate_limit(snapshot: CallSnapshot) -> StageExplanation:
    rate_charge = build_charge(
        snapshot.organization_id, "agent", snapshot.agent_id, snapshot.calls_per_minute or 1
    )
    tat = RateCell.objects.filter(pk=rate_charge.key).values_list("tat", flat=True).first() or 0
    now, interval = (
        int(timezone.now().timestamp() * MICROSECONDS_PER_SECOND),
        rate_limiter.compute_interval(rate_charge.per_minute),
    )
    # Round up: a partly regained call doesn't count yet.
    remaining = max(0, rate_charge.burst - -(-max(0, tat - now) // interval))
    reason = format_message(
        "{left} of {burst} calls are available now. {per_minute} become available per minute.",
        left=remaining,
        burst=rate_charge.burst,
        per_minute=rate_charge.per_minute,
    )
    verdict = rate_limiter.admit_request(tat, now, interval, rate_charge.burst)
    if verdict.allowed:
        return StageExplanation("rate", "allow", rate_charge.key, reason=reason)
    wait_s = -(-verdict.retry_after // MICROSECONDS_PER_SECOND)
    return StageExplanation(
        "rate",
        "deny",
        rate_charge.key,
        "rate_limited",
        reason,
        format_message("Try again in {seconds} s.", seconds=wait_s),
    )


def _explain_budgets(snapshot: CallSnapshot, tool: SnapshotTool) -> StageExplanation:
    """Explain what is left of each budget; denies if no call is left."""
    limits = select_limits(snapshot.limits, server_id=tool.facts.server_id, session_id=None)
    if not limits:
        return StageExplanation("budgets", "allow", reason="No budget is set.")
    now = timezone.now()
    keys = [build_budget_key(snapshot.organization_id, limit, now) for limit in limits]
    cells = load_balances(keys)
    descriptions, exhausted_key = [], ""
    for limit, key in zip(limits, keys, strict=True):
        used = to_whole_units(limit.unit, cells[key].spent + cells[key].reserved)
        remaining = max(0, limit.limit - used)
        period = {"day": "per day", "month": "per month"}.get(limit.period, "in total")
        descriptions.append(
            f"{_format_remaining(limit.unit, remaining, limit.limit)} {period} ({limit.scope})"
        )
        if cells[key].spent >= limit.limit and limit.unit == "calls":
            exhausted_key = exhausted_key or key
    reason = format_message("Remaining: {limits}.", limits="; ".join(descriptions))
    if not exhausted_key:
        return StageExplanation("budgets", "allow", reason=reason)
    remedy = describe_remedy(exhausted_key)
    return StageExplanation("budgets", "deny", exhausted_key, "budget_exhausted", reason, remedy)


def _format_remaining(unit: str, remaining: int, limit: int) -> str:
    """Return the remaining amount for people: money in dollars."""
    if unit == "microusd":
        decimals = 2 if remaining >= MICROUSD_PER_USD or not remaining else 4
        remaining_usd, total = remaining / MICROUSD_PER_USD, limit / MICROUSD_PER_USD
        return f"${remaining_usd:,.{decimals}f} of ${total:,.2f}"
    return f"{remaining:,} of {limit:,} {unit}"


@dataclass(frozen=True, slots=True)
class NoToolsReason:
    """Why a server or agent has no callable tools, and what to do.

    `denied_count` is the number of the agent's tools if its policy denies all of them, else 0.
    """

    code: str
    reason: str
    remedy: str
    denied_count: int = 0

    def __str__(self) -> str:
        return f"{self.reason} {self.remedy}"


def build_missing_tool_error(principal: Principal, snapshot: CallSnapshot, name: str) -> NotFound:
    """Return why an agent doesn't have a tool: its server isn't attached, or there is no such tool.

    Servers that aren't attached are named only to principals who can view servers.
    """
    code, detail = (
        "unknown_tool",
        format_message(
            "The agent `{agent_slug}` has no tool {name!r}.",
            agent_slug=snapshot.agent_slug,
            name=name,
        ),
    )
    remedy = "List the agent's tools. New tools appear after discovery on their server."
    server = _find_named_server(snapshot, name) if principal.may(Action.VIEW) else None
    if server is not None and server.pk in snapshot.servers:
        detail = format_message(
            "The server `{server}` has no tool {name!r}.", server=server.slug, name=name
        )
        remedy = format_message(
            "Refresh the server if the tool is new: `bonobot mcp refresh {server}`.",
            server=server.slug,
        )
    elif server is not None:
        code = "not_attached"
        detail = format_message(
            "The server `{server}` isn't attached to the agent `{agent_slug}`.",
            server=server.slug,
            agent_slug=snapshot.agent_slug,
        )
        remedy = format_message(
            "Attach it on the agent's Tools tab, or with `bonobot mcp connect {server} --agent "
            "{agent_slug}`.",
            server=server.slug,
            agent_slug=snapshot.agent_slug,
        )
    return NotFound(detail, code=code, field="tool", rule="resolve", remedy=remedy)


def _find_named_server(snapshot: CallSnapshot, name: str) -> Server | None:
    """Return the server that a tool's name begins with; the agent's own ones take precedence."""
    if not name.startswith("mcp_"):
        return None
    scopes = [snapshot.organization_id, *([snapshot.agent_id] if snapshot.agent_id else [])]
    rows = Server.objects.for_organization(snapshot.organization_id).filter(scope_id__in=scopes)
    servers = {row.slug: row for row in sorted(rows, key=lambda row: row.pk in snapshot.servers)}
    try:
        return servers.get(parse_rule_target(name, servers).server)
    except InvalidInput:
        return None


def find_no_tools_reason(snapshot: CallSnapshot) -> NoToolsReason | None:
    """Return why no server tool can be called; None if one can.

    Built-in tools don't count: an agent needs at least one server tool to be useful.
    """
    mcp_tools = [tool for tool in snapshot.tools.values() if tool.facts.source == "mcp"]
    if any(tool.decision.is_callable for tool in mcp_tools):
        return None
    stage = evaluate_agent_stage(snapshot.effective_policy.switches)
    if not stage.allows:
        return NoToolsReason(stage.code, stage.reason, stage.remedy)
    if not snapshot.servers:
        return NoToolsReason(
            "no_server", "The agent has no server.", "Attach one on the agent's Tools tab."
        )
    available_tools = [tool for tool in mcp_tools if tool.facts.state != "gone"]
    if not available_tools:
        return NoToolsReason(
            "nothing_offered",
            "The agent's servers haven't declared any tools.",
            "Refresh the servers and check their health.",
        )
    return _find_main_reason(available_tools, snapshot)


def _find_main_reason(tools: list[SnapshotTool], snapshot: CallSnapshot) -> NoToolsReason:
    """Return the most frequent reason, as worded for one of the tools."""
    if {tool.decision.code for tool in tools} == {"denied_by_policy"}:
        return NoToolsReason(
            "denied_by_policy",
            format_message("All {count} tools are set to Deny.", count=len(tools))
            if len(tools) > 1
            else "The only tool is set to Deny.",
            "An operator or owner can choose tools on the agent's Tools tab.",
            denied_count=len(tools),
        )
    code, count = Counter(tool.decision.code for tool in tools).most_common(1)[0]
    decision = next(tool.decision for tool in tools if tool.decision.code == code)
    if len(tools) == 1:
        return NoToolsReason(code, decision.reason, decision.remedy)
    return NoToolsReason(
        code,
        format_message(
            "{count} of its {total} tools are denied for the same reason: {reason}",
            count=count,
            total=len(tools),
            reason=decision.reason,
        ),
        decision.remedy,
    )
