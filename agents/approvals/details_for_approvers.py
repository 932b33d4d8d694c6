"""What a person needs to decide about a call: its rules, its cause, and earlier answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Max, Q
from django.utils import timezone

from agents.models import Approval, Step, ToolName
from agents.policies.decision_texts import is_tool_setting
from agents.policies.effective_policies import load_policy
from agents.policies.rule_texts import describe_condition, format_condition
from agents.policies.rules import Policy, Rule
from bonobot.core.problems import NotFound

ANSWERED_STATES = (Approval.State.APPROVED, Approval.State.DENIED)
HISTORY = timedelta(days=30)
MAX_STEPS_SHOWN = 8
CANCELED_CODES = ("not_made", "cancelled")
DENIED_CODES = ("approval_denied", "approval_expired", "approval_cancelled")


@dataclass(frozen=True)
class MatchingRule:
    """A rule that applies to a call, and the policy that it belongs to."""

    rule: Rule
    of_organization: bool

    @property
    def effect(self) -> str:
        """The effect of the rule: ask or allow."""
        return self.rule.effect

    @property
    def pattern(self) -> str:
        return self.rule.pattern

    @property
    def is_setting(self) -> bool:
        """Whether it is the setting of the tool or its server in the table of the agent's tools."""
        return not self.of_organization and is_tool_setting(f"policy:all:{self.rule}")

    @property
    def condition(self) -> str:
        """The condition of the rule in words; blank if it always applies."""
        return format_condition(self.rule.condition)

    @property
    def conditions(self) -> dict[str, str]:
        """What the rule requires of each argument, in words."""
        return describe_condition(self.rule.condition)


def list_matching_rules(approval: Approval) -> list[MatchingRule]:
    """Return the rules that apply to a call now, those that ask first (at most six queries).

    Masked arguments are compared as they are shown, so a condition on a secret isn't met.
    """
    kind, key = (
        ("agent", approval.agent_id) if approval.agent_id else ("server", approval.server_id)
    )
    if key is None:
        return []
    try:
        effective = load_policy(kind, key)
    except NotFound:
        return []
    policies = ((effective.organization, True), (effective.policy, kind == "server"))
    rules = [
        MatchingRule(rule, of_organization)
        for policy, of_organization in policies
        for rule in _iterate_rules(policy, approval)
    ]
    return sorted(rules, key=lambda match: match.effect != "ask")


def _iterate_rules(policy: Policy, approval: Approval) -> Iterator[Rule]:
    source = "mcp" if approval.server_id else "builtin"
    for rule in policy.list_tool_rules(source, approval.server_id, approval.own_name):
        if rule.effect != "deny" and rule.is_condition_met(approval.arguments):
            yield rule


@dataclass(frozen=True)
class EarlierAnswers:
    """How often calls of the same tool were approved and denied, and the last answer."""

    approved: int
    denied: int
    last_at: datetime | None
    last_by: str = ""


def count_earlier_answers(approval: Approval) -> EarlierAnswers:
    """Return the answers about the same tool in the 30 days before (two queries)."""
    answered = Approval.objects.filter(
        organization_id=approval.organization_id,
        state__in=ANSWERED_STATES,
        created_at__gte=timezone.now() - HISTORY,
        server_id=approval.server_id,
        own_name=approval.own_name,
    ).exclude(pk=approval.pk)
    counts = answered.aggregate(
        approved=Count("pk", filter=Q(state=Approval.State.APPROVED)),
        denied=Count("pk", filter=Q(state=Approval.State.DENIED)),
        last_at=Max("decided_at"),
    )
    last = answered.filter(decided_at=counts["last_at"]).first() if counts["last_at"] else None
    return EarlierAnswers(**counts, last_by=last.decider_name if last else "")


@dataclass(frozen=True)
class TraceStep:
    """A step that led to a call, another call of its turn, or (`is_own`) the call itself.

    A call is named as its server names it, with its outcome.
    """

    step: Step
    tool: ToolName | None = None
    approval: Approval | None = None
    is_own: bool = False

    @property
    def tool_name(self) -> str:
        payload, approval = self.step.payload, self.approval
        own_name = payload.get("tool") or (self.tool and self.tool.own_name)
        return str(own_name or (approval and approval.own_name) or payload.get("name", ""))

    @property
    def server_name(self) -> str:
        server_name = self.step.payload.get("server") or (self.tool and self.tool.server.name)
        return str(server_name or (self.approval and self.approval.server_name) or "")

    @property
    def outcome(self) -> str:
        """Return what became of a call: waiting, running, done, cancelled, denied or failed."""
        payload = self.step.payload
        if self.is_own and self.approval:
            return str(self.approval.state)
        if self.step.state == Step.State.INTENT:
            return str(self.approval.state) if self.approval else "running"
        if payload.get("code") in CANCELED_CODES:
            return "cancelled"
        is_denied = payload.get("rule") or payload.get("code") in DENIED_CODES
        return "denied" if is_denied else str(self.step.state)


def list_trace_steps(approval: Approval) -> list[TraceStep]:
    """Return what led to a session's call, from the last message on, and the calls of its turn.

    Oldest first. At most four queries: two for the steps, two for the names and approvals of calls.
    """
    steps = _load_trace_steps(approval)
    calls = [step for step in steps if step.kind == Step.Kind.CALL]
    names = {step.payload.get("name") for step in calls if not step.payload.get("tool")}
    tools: dict[str, ToolName] = {}
    if names and approval.agent_id is not None:
        rows = ToolName.objects.filter(agent_id=approval.agent_id, name__in=names)
        tools = {row.name: row for row in rows.select_related("server")}
    others = [step for step in calls if step.call_id != approval.call_id]
    ids = {pk for step in others if (pk := _get_approval_id(step))}
    approvals = {str(row.pk): row for row in Approval.objects.filter(pk__in=ids)} if ids else {}
    return [
        TraceStep(
            step,
            tools.get(str(step.payload.get("name"))),
            approval if is_own else approvals.get(str(_get_approval_id(step))),
            is_own,
        )
        for step in steps
        for is_own in (step.call_id == approval.call_id,)
    ]


def _get_approval_id(step: Step) -> str | None:
    """Return the ID of the approval that a call waits for, or waited for until now."""
    approval_id = step.payload.get("approval", {}).get("approval_id")
    return str(approval_id) if approval_id and step.state == Step.State.INTENT else None


def _load_trace_steps(approval: Approval) -> list[Step]:
    if approval.session_id is None:
        return []
    steps = Step.objects.filter(session_id=approval.session_id)
    own = steps.filter(call_id=approval.call_id).first()
    if own is None:
        return []
    kinds = (Step.Kind.MESSAGE, Step.Kind.MODEL, Step.Kind.CALL)
    same_turn = steps.filter(seq__gte=own.seq, turn=own.turn, kind=Step.Kind.CALL).order_by("seq")
    latest = list(
        steps.filter(seq__lt=own.seq, kind__in=kinds).order_by("-seq")[: MAX_STEPS_SHOWN * 4]
    )
    preceding: list[Step] = []
    for step in latest:
        if len(preceding) < MAX_STEPS_SHOWN or step.kind == Step.Kind.MESSAGE:
            preceding.append(step)
        if step.kind == Step.Kind.MESSAGE:
            break
    return [*preceding[::-1], *same_turn[:MAX_STEPS_SHOWN]]
