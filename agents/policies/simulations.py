"""Simulate a changed policy, or a shadow policy, over past calls.

Calls are read from the audit log in pages, newest first. The simulation ignores what the policy
can't change: kill switches count as on, definitions as approved, servers as attached now.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from agents.models import Agent
from agents.policies.compare_decisions import (
    POLICY_DENIAL_CODES,
    PolicyComparison,
    VerdictPair,
    is_hidden,
)
from agents.policies.decisions import ALL_SWITCHES_ON, EffectivePolicy, ToolFacts
from agents.policies.effective_policies import apply_organization_policy, load_policy
from agents.policies.rules import Policy
from agents.policies.services import Owner, PolicySpec, get_organization_id
from agents.policies.shadow_mode import (
    ORGANIZATION_SHADOW,
    SHADOW,
    build_policy,
    find_draft,
    get_draft_policy,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import APPROVAL_REQUIRED_CODE, NOT_APPROVED_CODES
from mcp_servers.models import Definition
from mcp_servers.schemas.defaults import fill_defaults

DEFAULT_DAYS = 7
MAX_DAYS = 366
PAGE_SIZE = 500
MAX_ROWS = 50_000
MAX_SECONDS = 10.0
MAX_SAMPLES = 5  # call ids per group
MAX_NAME_LENGTH = 255  # of the audit column; the sealed text has the whole name
COLUMNS = (
    *("pk", "seq", "opened_at", "agent_id", "agent_name", "server_id", "server_name"),
    *("resource_type", "tool_name", "decision", "code", "repeats"),
)


@dataclass(slots=True)
class SimulationGroup:
    """Calls of one tool with the same verdicts; `after` is empty if undecidable."""

    agent_id: UUID | None
    agent_name: str
    server_id: UUID | None
    server_name: str
    tool: str
    before: str
    after: str
    rule: str = ""
    calls: int = 0
    samples: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the group for REST and the command line."""
        return {
            "agent_id": str(self.agent_id) if self.agent_id else None,
            "agent": self.agent_name,
            "server_id": str(self.server_id) if self.server_id else None,
            "server": self.server_name,
            "tool": self.tool,
            "before": self.before or None,
            "after": self.after or None,
            "rule": self.rule,
            "calls": self.calls,
            "samples": list(self.samples),
        }


@dataclass(slots=True)
class PolicySimulation:
    """The result of a simulation, in calls (repeated refusals count each time).

    `other_denials` counts calls denied for reasons other than rules, and `already_changed` calls
    that the current policy would decide differently than the audit log shows. `stopped` is the
    limit that ended the simulation early: `rows`, `time`, or empty. `before` and
    `after` count the decided calls by verdict.
    """

    since: datetime
    rows: int = 0
    calls: int = 0
    unchanged: int = 0
    changed: int = 0
    undecidable: int = 0
    other_denials: int = 0
    already_changed: int = 0
    stopped: str = ""
    until: datetime | None = None
    groups: dict[tuple[Any, ...], SimulationGroup] = field(default_factory=dict)
    before: Counter[str] = field(default_factory=Counter)
    after: Counter[str] = field(default_factory=Counter)

    @property
    def changed_groups(self) -> list[SimulationGroup]:
        """The groups whose verdict changes, most calls first."""
        return self._list_groups("changed")

    @property
    def undecidable_groups(self) -> list[SimulationGroup]:
        """The undecidable groups, most calls first."""
        return self._list_groups("undecidable")

    def add_calls(self, call: "AuditedCall", verdicts: VerdictPair, calls: int) -> None:
        if not calls:
            return
        if verdicts.before and verdicts.after:
            self.before[verdicts.before] += calls
            self.after[verdicts.after] += calls
        if verdicts.kind == "unchanged":
            self.unchanged += calls
            return
        if verdicts.kind == "changed":
            self.changed += calls
        else:
            self.undecidable += calls
        after = verdicts.after if verdicts.kind == "changed" else ""
        key = (verdicts.kind, call.agent_id, call.server_id, call.tool, verdicts.before, after)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = SimulationGroup(
                agent_id=call.agent_id,
                agent_name=call.agent_name,
                server_id=call.server_id,
                server_name=call.server_name,
                tool=call.tool,
                before=verdicts.before,
                after=after,
                rule=verdicts.rule if after else "",
            )
        group.calls += calls
        if len(group.samples) < MAX_SAMPLES and str(call.id) not in group.samples:
            group.samples.append(str(call.id))

    def as_dict(self) -> dict[str, Any]:
        """Return the simulation for REST and the command line."""
        counts = (
            "rows",
            "calls",
            "unchanged",
            "changed",
            "undecidable",
            "other_denials",
            "already_changed",
        )
        return {
            "since": self.since.isoformat(),
            "until": self.until.isoformat() if self.until else None,
            **{name: getattr(self, name) for name in counts},
            "complete": not self.stopped,
            "stopped": self.stopped or None,
            "changed_groups": [group.as_dict() for group in self.changed_groups],
            "undecidable_groups": [group.as_dict() for group in self.undecidable_groups],
        }

    def _list_groups(self, kind: str) -> list[SimulationGroup]:
        groups = [group for key, group in self.groups.items() if key[0] == kind]
        return sorted(
            groups, key=lambda item: (-item.calls, item.server_name, item.tool, item.after)
        )


@dataclass(slots=True)
class AuditedCall:
    """A call from the columns of the audit log; `details` are loaded from the sealed text."""

    id: UUID
    seq: int
    opened_at: datetime
    agent_id: UUID | None
    agent_name: str
    server_id: UUID | None
    server_name: str
    resource_type: str
    tool: str
    decision: str
    code: str
    repeats: int
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A rule asked; that nobody approved the call isn't policy.
        if self.code in NOT_APPROVED_CODES:
            self.decision = AuditRow.Decision.ASK

    @property
    def is_decided_by_policy(self) -> bool:
        """Whether policy decided the call, and nothing else refused it."""
        return self.decision != AuditRow.Decision.DENY or self.code in POLICY_DENIAL_CODES

    @property
    def facts(self) -> ToolFacts:
        """The facts of its tool for decisions, with everything enabled and approved."""
        source = "builtin" if self.resource_type == "builtin_tool" else "mcp"
        return ToolFacts(source, self.tool, self.tool, self.server_id)


class PolicyComparisonCache:
    """Caches the policy comparison of each agent, and of each server for direct calls.

    `apply_change` returns the changed effective policy; its second argument says whether the
    policy is an agent's.
    """

    def __init__(self, apply_change: Callable[[EffectivePolicy, bool], EffectivePolicy]) -> None:
        self._apply_change = apply_change
        self._comparisons: dict[tuple[str, UUID | None], PolicyComparison | None] = {}

    def find_comparison(self, call: AuditedCall) -> PolicyComparison | None:
        """Return the comparison for a call; None if its agent or server was deleted."""
        key = ("agent", call.agent_id) if call.agent_id else ("server", call.server_id)
        if key not in self._comparisons:
            self._comparisons[key] = self._load_comparison(*key)
        return self._comparisons[key]

    def _load_comparison(self, kind: str, pk: UUID | None) -> PolicyComparison | None:
        if pk is None:
            return None
        try:
            policy = load_policy(kind, pk)
        except NotFound:
            return None
        current = replace(policy, switches=ALL_SWITCHES_ON)
        return PolicyComparison(current, self._apply_change(current, kind == "agent"))


def simulate_policy(
    principal: Principal,
    owner: Owner,
    spec: PolicySpec,
    *,
    days: int = DEFAULT_DAYS,
    max_rows: int = MAX_ROWS,
    max_seconds: float = MAX_SECONDS,
) -> PolicySimulation:
    """Simulate the owner's policy `spec` over the calls of the last days.

    For an agent these are its own calls, for the organization all tool calls. Reads at most
    `max_rows` audit rows and for `max_seconds`, newest first. Raises `InvalidInput` for an invalid
    policy, or days outside 1 to 366.
    """
    principal.require(Action.VIEW_AUDIT)
    simulation = PolicySimulation(since=_calculate_start(days))
    comparisons = PolicyComparisonCache(_build_policy_override(owner, build_policy(owner, spec)))
    for page in _load_pages(simulation, owner, max_rows, max_seconds):
        decided_calls = list(_filter_decided_calls(simulation, comparisons, page))
        detailed_calls = [
            call for call, comparison in decided_calls if _needs_details(comparison, call)
        ]
        _read_details(detailed_calls)
        _fill_schema_defaults(detailed_calls)
        for call, comparison in decided_calls:
            _compare_call(simulation, comparison, call)
    return simulation


def simulate_shadow_policy(
    principal: Principal,
    owner: Owner,
    *,
    max_rows: int = MAX_ROWS,
    max_seconds: float = MAX_SECONDS,
) -> PolicySimulation | None:
    """Return what the shadow policy would have decided since it was set; None without one.

    Uses recorded decisions, so only repeats of a refusal can be undecidable.
    """
    principal.require(Action.VIEW_AUDIT)
    draft = find_draft(owner)
    if draft is None:
        return None
    simulation = PolicySimulation(since=draft.since)
    details_key = SHADOW if isinstance(owner, Agent) else ORGANIZATION_SHADOW
    comparisons = PolicyComparisonCache(_build_policy_override(owner, get_draft_policy(owner)))
    for page in _load_pages(simulation, owner, max_rows, max_seconds):
        decided_calls = list(_filter_decided_calls(simulation, comparisons, page))
        _read_details(call for call, _ in decided_calls)
        for call, comparison in decided_calls:
            shadow = call.details.get(details_key)
            verdicts = VerdictPair("unchanged")
            if shadow:
                verdicts = VerdictPair("changed", call.decision, shadow["decision"], shadow["rule"])
            _count_call(simulation, comparison, call, verdicts)
    return simulation


def _build_policy_override(
    owner: Owner, policy: Policy
) -> Callable[[EffectivePolicy, bool], EffectivePolicy]:
    """Return a function that applies another policy of the owner to an effective policy."""
    if isinstance(owner, Agent):
        return lambda current_policy, of_agent: replace(current_policy, policy=policy)
    return lambda current_policy, of_agent: apply_organization_policy(
        current_policy, policy, of_agent
    )


def _filter_decided_calls(
    simulation: PolicySimulation, comparisons: PolicyComparisonCache, page: Iterable[AuditedCall]
) -> Iterator[tuple[AuditedCall, PolicyComparison]]:
    """Yield the calls decided by policy; count the others."""
    for call in page:
        if not call.is_decided_by_policy:
            simulation.other_denials += 1 + call.repeats
        elif comparison := comparisons.find_comparison(call):
            yield call, comparison
        else:
            simulation.add_calls(call, VerdictPair("undecidable"), 1 + call.repeats)


def _calculate_start(days: int) -> datetime:
    if not 1 <= days <= MAX_DAYS:
        raise InvalidInput(
            format_message("{days} days can't be simulated.", days=days),
            code="bad_days",
            field="days",
            remedy=format_message("Use a number from 1 to {limit}.", limit=MAX_DAYS),
        )
    return timezone.now() - timedelta(days=days)


def _load_pages(
    simulation: PolicySimulation, owner: Owner, max_rows: int, max_seconds: float
) -> Iterator[list[AuditedCall]]:
    """Yield the owner's tool calls since the simulation's start in pages, newest first."""
    deadline = monotonic() + max_seconds
    rows = AuditRow.objects.for_organization(get_organization_id(owner)).filter(
        opened_at__gte=simulation.since
    )
    # The call that was approved, was denied or expired has an entry of its own.
    rows = rows.exclude(outcome=AuditRow.Outcome.REFUSED, code=APPROVAL_REQUIRED_CODE)
    if isinstance(owner, Agent):
        rows = rows.filter(agent_id=owner.pk, action="agent_tool_call")
    else:
        rows = rows.filter(action__in=("agent_tool_call", "tool_call"))
    last: AuditedCall | None = None
    while True:
        remaining_rows = max_rows - simulation.rows
        page = [
            AuditedCall(*values)
            for values in _filter_after(rows, last).values_list(*COLUMNS)[: PAGE_SIZE + 1]
        ]
        has_more, page = (
            len(page) > min(PAGE_SIZE, remaining_rows),
            page[: min(PAGE_SIZE, remaining_rows)],
        )
        if page:
            last = page[-1]
            simulation.until = last.opened_at
            simulation.rows += len(page)
            simulation.calls += sum(1 + call.repeats for call in page)
            yield page
        if not has_more:
            return
        if simulation.rows >= max_rows or monotonic() >= deadline:
            simulation.stopped = "rows" if simulation.rows >= max_rows else "time"
            return


def _filter_after(rows: QuerySet[AuditRow], last: AuditedCall | None) -> QuerySet[AuditRow]:
    """Return the rows that follow `last`, using the index on the time."""
    if last is None:
        return rows
    return rows.filter(opened_at__lte=last.opened_at).exclude(
        Q(opened_at=last.opened_at) & Q(seq__gte=last.seq)
    )


def _needs_details(comparison: PolicyComparison, call: AuditedCall) -> bool:
    is_truncated = len(call.tool) >= MAX_NAME_LENGTH
    return is_truncated or comparison.compare_without_arguments(call.facts) is None


def _read_details(calls: Iterable[AuditedCall]) -> None:
    """Load the details and full tool names of these calls (one query)."""
    calls_by_id = {call.id: call for call in calls}
    if not calls_by_id:
        return
    entries = AuditRow.objects.filter(pk__in=calls_by_id).values_list("pk", "opened")
    for row_id, opened_text in entries:
        call = calls_by_id[row_id]
        call.details = json.loads(opened_text).get("details", {})
        call.tool = call.details.get("tool_name", call.tool)


def _fill_schema_defaults(calls: Collection[AuditedCall]) -> None:
    """Add the defaults that count as provided values in decisions (one query).

    Past calls are simulated with the schemas that the servers declare now.
    """
    tools = Definition.objects.filter(
        kind=Definition.Kind.TOOL,
        server_id__in={call.server_id for call in calls if call.server_id},
        name__in={call.tool for call in calls},
    )
    schemas: dict[tuple[UUID | None, str], dict[str, Any]] = {
        (tool.server_id, tool.name): tool.input_schema for tool in tools
    }
    for call in calls:
        arguments, schema = call.details.get("arguments"), schemas.get((call.server_id, call.tool))
        if schema and not is_hidden(arguments):
            call.details["arguments"] = fill_defaults(schema, arguments)


def _compare_call(
    simulation: PolicySimulation, comparison: PolicyComparison, call: AuditedCall
) -> None:
    verdicts = comparison.compare_call(call.facts, call.details.get("arguments"))
    if verdicts.before and verdicts.before != call.decision:
        tool_verdicts = comparison.compare_without_arguments(call.facts)
        simulation.already_changed += 1 + (call.repeats if tool_verdicts else 0)
    _count_call(simulation, comparison, call, verdicts)


def _count_call(
    simulation: PolicySimulation,
    comparison: PolicyComparison,
    call: AuditedCall,
    verdicts: VerdictPair,
) -> None:
    """Count a call and its repeats, whose arguments aren't stored."""
    simulation.add_calls(call, verdicts, 1)
    if call.repeats:
        tool_verdicts = comparison.compare_without_arguments(call.facts)
        simulation.add_calls(
            call, verdicts if tool_verdicts else VerdictPair("undecidable"), call.repeats
        )
