"""What a person needs to decide about a call: its rules, its cause, and earlier answers."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Count, Max, Q
from django.utils import timezone

from agents.models import Approval, Step
from agents.policies.effective_policies import load_policy
from agents.policies.rule_texts import describe_condition, format_condition
from agents.policies.rules import Policy, Rule
from bonobot.core.problems import NotFound

ANSWERED_STATES = (Approval.State.APPROVED, Approval.State.DENIED)
HISTORY = timedelta(days=30)
MAX_STEPS_SHOWN = 8


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
    names = answered.filter(decided_at=counts["last_at"]).values_list("decided_by", flat=True)
    last_by = names.first() if counts["last_at"] else ""
    return EarlierAnswers(**counts, last_by=last_by or "")


def list_preceding_steps(approval: Approval) -> list[Step]:
    """Return what led to a session's call: from the last message on, oldest first (two queries)."""
    if approval.session_id is None:
        return []
    steps = Step.objects.filter(session_id=approval.session_id)
    own_seq = steps.filter(call_id=approval.call_id).values_list("seq", flat=True).first()
    if own_seq is None:
        return []
    kinds = (Step.Kind.MESSAGE, Step.Kind.MODEL, Step.Kind.CALL)
    latest = list(
        steps.filter(seq__lt=own_seq, kind__in=kinds).order_by("-seq")[: MAX_STEPS_SHOWN * 4]
    )
    preceding: list[Step] = []
    for step in latest:
        if len(preceding) < MAX_STEPS_SHOWN or step.kind == Step.Kind.MESSAGE:
            preceding.append(step)
        if step.kind == Step.Kind.MESSAGE:
            break
    return preceding[::-1]
