"""Simulate a changed policy, or a shadow policy, over past calls.

Calls are read from the audit log in pages, newest first. The simulation ignores what the policy
can't change: kill switches count as on, definitions as approved, servers as attached now.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.utils import timezone

from agents.models import Agent
from agents.policies.compare_decisions import RULED, PolicyComparison, VerdictPair
from agents.policies.decisions import ON, EffectivePolicy, ToolFacts
from agents.policies.queries import apply_organization_policy, load_policy
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

DAYS = 7
MOST_DAYS = 366
PAGE = 500
MOST_ROWS = 50_000
MOST_S = 10.0
SAMPLES = 5  # call ids per group
LONGEST_NAME = 255  # of the audit column; the sealed text has the whole name


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

    `elsewhere` counts calls refused for other reasons than policy; `otherwise` those decided
    differently then than they would be now. `stopped` says what ended the simulation early:
    `rows`, `time`, or nothing.
    """

    since: datetime
    rows: int = 0
    calls: int = 0
    same: int = 0
    flipped: int = 0
    undecidable: int = 0
    elsewhere: int = 0
    otherwise: int = 0
    stopped: str = ""
    until: datetime | None = None
    groups: dict[tuple[Any, ...], SimulationGroup] = field(default_factory=dict)

    @property
    def flips(self) -> list[SimulationGroup]:
        """The groups whose verdict flips, most calls first."""
        return self._sorted("flip")

    @property
    def unsure(self) -> list[SimulationGroup]:
        """The undecidable groups, most calls first."""
        return self._sorted("undecidable")

    def count(self, call: "AuditedCall", found: VerdictPair, calls: int) -> None:
        """Add calls with the same verdicts."""
        if not calls:
            return
        if found.kind == "same":
            self.same += calls
            return
        if found.kind == "flip":
            self.flipped += calls
        else:
            self.undecidable += calls
        after = found.after if found.kind == "flip" else ""
        key = (found.kind, call.agent_id, call.server_id, call.tool, found.before, after)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = SimulationGroup(
                agent_id=call.agent_id,
                agent_name=call.agent_name,
                server_id=call.server_id,
                server_name=call.server_name,
                tool=call.tool,
                before=found.before,
                after=after,
                rule=found.rule if after else "",
            )
        group.calls += calls
        if len(group.samples) < SAMPLES and str(call.id) not in group.samples:
            group.samples.append(str(call.id))

    def as_dict(self) -> dict[str, Any]:
        """Return the simulation for REST and the command line."""
        counts = ("rows", "calls", "same", "flipped", "undecidable", "elsewhere", "otherwise")
        return {
            "since": self.since.isoformat(),
            "until": self.until.isoformat() if self.until else None,
            **{name: getattr(self, name) for name in counts},
            "complete": not self.stopped,
            "stopped": self.stopped or None,
            "flips": [group.as_dict() for group in self.flips],
            "unsure": [group.as_dict() for group in self.unsure],
        }

    def _sorted(self, kind: str) -> list[SimulationGroup]:
        found = [group for key, group in self.groups.items() if key[0] == kind]
        return sorted(found, key=lambda one: (-one.calls, one.server_name, one.tool, one.after))


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

    @property
    def ruled(self) -> bool:
        """Whether policy decided the call, and nothing else refused it."""
        return self.decision != AuditRow.Decision.DENY or self.code in RULED

    @property
    def facts(self) -> ToolFacts:
        """The facts of its tool for decisions, with everything enabled and approved."""
        source = "builtin" if self.resource_type == "builtin_tool" else "mcp"
        return ToolFacts(source, self.tool, self.tool, self.server_id)


COLUMNS = (
    *("pk", "seq", "opened_at", "agent_id", "agent_name", "server_id", "server_name"),
    *("resource_type", "tool_name", "decision", "code", "repeats"),
)


class PolicyComparisonCache:
    """Caches the policy comparison of each agent, and of each server for direct calls.

    `apply_change` returns the changed effective policy; its second argument says whether the
    policy is an agent's.
    """

    def __init__(self, changed: Callable[[EffectivePolicy, bool], EffectivePolicy]) -> None:
        self._changed = changed
        self._found: dict[tuple[str, UUID | None], PolicyComparison | None] = {}

    def over(self, call: AuditedCall) -> PolicyComparison | None:
        """Return the comparison for a call; None if its agent or server was deleted."""
        key = ("agent", call.agent_id) if call.agent_id else ("server", call.server_id)
        if key not in self._found:
            self._found[key] = self._read(*key)
        return self._found[key]

    def _read(self, kind: str, pk: UUID | None) -> PolicyComparison | None:
        if pk is None:
            return None
        try:
            policy = load_policy(kind, pk)
        except NotFound:
            return None
        now = replace(policy, switches=ON)
        return PolicyComparison(now, self._changed(now, kind == "agent"))


def replay(
    principal: Principal,
    owner: Owner,
    text: PolicySpec,
    *,
    days: int = DAYS,
    most_rows: int = MOST_ROWS,
    most_s: float = MOST_S,
) -> PolicySimulation:
    """Simulate the owner's policy `spec` over the calls of the last days.

    For an agent these are its own calls, for the organization all tool calls. Reads at most
    `max_rows` audit rows and for `max_seconds`, newest first. Raises `InvalidInput` for an invalid
    policy, or days outside 1 to 366.
    """
    principal.require(Action.VIEW_AUDIT)
    found = PolicySimulation(since=_calculate_start(days))
    comparisons = PolicyComparisonCache(_build_policy_override(owner, build_policy(owner, text)))
    for page in _load_pages(found, owner, most_rows, most_s):
        ruled = list(_filter_decided_calls(found, comparisons, page))
        _read_details(call for call, comparison in ruled if _needs_text(comparison, call))
        for call, comparison in ruled:
            _compare_call(found, comparison, call)
    return found


def simulate_shadow_policy(
    principal: Principal,
    owner: Owner,
    *,
    most_rows: int = MOST_ROWS,
    most_s: float = MOST_S,
) -> PolicySimulation | None:
    """Return what the shadow policy would have decided since it was set; None without one.

    Uses recorded decisions, so only repeats of a refusal can be undecidable.
    """
    principal.require(Action.VIEW_AUDIT)
    draft = find_draft(owner)
    if draft is None:
        return None
    found = PolicySimulation(since=draft.since)
    told_as = SHADOW if isinstance(owner, Agent) else ORGANIZATION_SHADOW
    comparisons = PolicyComparisonCache(_build_policy_override(owner, get_draft_policy(owner)))
    for page in _load_pages(found, owner, most_rows, most_s):
        ruled = list(_filter_decided_calls(found, comparisons, page))
        _read_details(call for call, _ in ruled)
        for call, comparison in ruled:
            shadow = call.details.get(told_as)
            verdicts = VerdictPair("same")
            if shadow:
                verdicts = VerdictPair("flip", call.decision, shadow["decision"], shadow["rule"])
            _count_call(found, comparison, call, verdicts)
    return found


def _build_policy_override(
    owner: Owner, policy: Policy
) -> Callable[[EffectivePolicy, bool], EffectivePolicy]:
    """Return a function that applies another policy of the owner to an effective policy."""
    if isinstance(owner, Agent):
        return lambda ruling, of_agent: replace(ruling, policy=policy)
    return lambda ruling, of_agent: apply_organization_policy(ruling, policy, of_agent)


def _filter_decided_calls(
    found: PolicySimulation, comparisons: PolicyComparisonCache, page: Iterable[AuditedCall]
) -> Iterator[tuple[AuditedCall, PolicyComparison]]:
    """Yield the calls decided by policy; count the others."""
    for call in page:
        if not call.ruled:
            found.elsewhere += 1 + call.repeats
        elif comparison := comparisons.over(call):
            yield call, comparison
        else:
            found.count(call, VerdictPair("undecidable"), 1 + call.repeats)


def _calculate_start(days: int) -> datetime:
    if not 1 <= days <= MOST_DAYS:
        raise InvalidInput(
            format_message("{days} days can't be replayed.", days=days),
            code="bad_days",
            field="days",
            remedy=format_message("Give a number between 1 and {most_days}.", most_days=MOST_DAYS),
        )
    return timezone.now() - timedelta(days=days)


def _load_pages(
    found: PolicySimulation, owner: Owner, most_rows: int, most_s: float
) -> Iterator[list[AuditedCall]]:
    """Yield the owner's tool calls since the simulation's start in pages, newest first."""
    ends = monotonic() + most_s
    rows = AuditRow.objects.of(get_organization_id(owner)).filter(opened_at__gte=found.since)
    if isinstance(owner, Agent):
        rows = rows.filter(agent_id=owner.pk, action="agent_tool_call")
    else:
        rows = rows.filter(action__in=("agent_tool_call", "tool_call"))
    last: AuditedCall | None = None
    while True:
        room = most_rows - found.rows
        page = [
            AuditedCall(*values)
            for values in _filter_after(rows, last).values_list(*COLUMNS)[: PAGE + 1]
        ]
        more, page = len(page) > min(PAGE, room), page[: min(PAGE, room)]
        if page:
            last = page[-1]
            found.until = last.opened_at
            found.rows += len(page)
            found.calls += sum(1 + call.repeats for call in page)
            yield page
        if not more:
            return
        if found.rows >= most_rows or monotonic() >= ends:
            found.stopped = "rows" if found.rows >= most_rows else "time"
            return


def _filter_after(rows: QuerySet[AuditRow], last: AuditedCall | None) -> QuerySet[AuditRow]:
    """Return the rows that follow `last`, using the index on the time."""
    if last is None:
        return rows
    return rows.filter(opened_at__lte=last.opened_at).exclude(
        Q(opened_at=last.opened_at) & Q(seq__gte=last.seq)
    )


def _needs_text(comparison: PolicyComparison, call: AuditedCall) -> bool:
    cut = len(call.tool) >= LONGEST_NAME
    return cut or comparison.without_arguments(call.facts) is None


def _read_details(calls: Iterable[AuditedCall]) -> None:
    """Load the details and full tool names of these calls (one query)."""
    wanted = {call.id: call for call in calls}
    if not wanted:
        return
    texts = AuditRow.objects.filter(pk__in=wanted).values_list("pk", "opened")
    for row_id, opened in texts:
        call = wanted[row_id]
        call.details = json.loads(opened).get("details", {})
        call.tool = call.details.get("tool_name", call.tool)


def _compare_call(found: PolicySimulation, comparison: PolicyComparison, call: AuditedCall) -> None:
    verdicts = comparison.of(call.facts, call.details.get("arguments"))
    if verdicts.before and verdicts.before != call.decision:
        settled = comparison.without_arguments(call.facts)
        found.otherwise += 1 + (call.repeats if settled else 0)
    _count_call(found, comparison, call, verdicts)


def _count_call(
    found: PolicySimulation, comparison: PolicyComparison, call: AuditedCall, verdicts: VerdictPair
) -> None:
    """Count a call and its repeats, whose arguments aren't stored."""
    found.count(call, verdicts, 1)
    if call.repeats:
        settled = comparison.without_arguments(call.facts)
        found.count(call, verdicts if settled else VerdictPair("undecidable"), call.repeats)
