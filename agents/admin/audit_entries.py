"""Entries of the audit log: rows with approvers, calls over time, turns, and one entry."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import QueryDict
from django.utils import timezone
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from agents.admin.audit_filters import (
    MAX_PENDING,
    PENDING,
    PLAIN_PARAMETERS,
    TIME_PARAMETER,
    build_period_query,
    parse_details,
    parse_uuid,
)
from agents.models import Approval, Step
from bonobot.accounts.templatetags.display import maybe_json
from bonobot.core.text.syntax_highlighting import highlight_json
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.activity import ROLLUP_COLUMNS, ActivityBar, load_activity
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import is_approval_request
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.label_icons import FLOW_MARKS, LabelMark

FOR_SESSION = "session"  # `approval_id` of a call that an approval of the session covers
DEFAULT_SPAN = timedelta(hours=24)
MAX_TURN_CALLS = 50
REQUESTER_KINDS = {
    "token": _("token"),
    "cli": _("command line"),
    "system": _("system"),
    "gateway": _("gateway"),
}
WIDTH, HEIGHT, GAP = 1000, 100, 0.2
SERIES = ("ok", "refused", PENDING, "error")
# Calls of one model turn are one row, which unfolds.
MIN_FOLDED_CALLS = 2
MAX_TOOLS_NAMED = 3
# The outcome of a folded turn is the first of these that one of its calls has.
OUTCOME_ORDER = ("pending", "error", "refused", "unknown", "open", "cancelled", "ok")


@dataclass(frozen=True)
class ShownEntry:
    """An entry as a row: its outcome for readers, who approved it, and what it is about."""

    row: AuditRow
    outcome: str
    approved_by: str = ""

    @property
    def title(self) -> str:
        """The tool of a call; for other entries the action, such as "Server attached"."""
        if self.row.event_type == "call":
            name = self.row.tool_name or self.row.resource_name or self.row.resource_id
        else:
            name = capfirst(format_action(self.row.action))
        times = f" ×{self.row.repeats + 1}" if self.row.repeats else ""
        return make_visible(name, 120) + times

    @property
    def subject(self) -> str:
        """What an entry that isn't a call is about, such as the name of a server."""
        if self.row.event_type == "call":
            return ""
        return make_visible(self.row.resource_name or self.row.resource_id, 120)

    @property
    def actor(self) -> str:
        """The agent, or who else acted."""
        return make_visible(self.row.agent_name, 80) or self.requester

    @property
    def requester(self) -> str:
        """Who acted: a person, a token, a part of Bonobot, or a user of the host."""
        label = self.row.actor_label or self.row.actor_id
        return make_visible(label.removeprefix(f"{self.row.actor_kind}:"), 80)

    @property
    def requester_kind(self) -> Any:
        """What acted, if it wasn't a person."""
        return REQUESTER_KINDS.get(self.row.actor_kind, "")


def describe_entries(organization_id: UUID, rows: Iterable[AuditRow]) -> list[ShownEntry]:
    """Return the rows with their approvals (at most two queries)."""
    listed = list(rows)
    approvals = _load_approvals(organization_id, listed)
    return [_describe_entry(row, approvals.get(row.pk)) for row in listed]


def _load_approvals(
    organization_id: UUID, rows: Iterable[AuditRow]
) -> dict[UUID, Approval | str | None]:
    """Return the approvals of calls that needed one, by entry; or `FOR_SESSION`."""
    row_ids = [row.pk for row in rows if row.decision == AuditRow.Decision.ASK]
    if not row_ids:
        return {}
    texts = AuditRow.objects.filter(pk__in=row_ids).values_list("pk", "opened")
    references = {pk: str(parse_details(text).get("approval_id", "")) for pk, text in texts}
    ids = [pk for reference in references.values() if (pk := parse_uuid(reference))]
    approvals = Approval.objects.filter(organization_id=organization_id, pk__in=ids).in_bulk()
    return {
        pk: FOR_SESSION if reference == FOR_SESSION else _find_approval(approvals, reference)
        for pk, reference in references.items()
    }


def _find_approval(approvals: Mapping[UUID, Approval], reference: str) -> Approval | None:
    pk = parse_uuid(reference)
    return approvals.get(pk) if pk else None


def _describe_entry(row: AuditRow, approval: Approval | str | None) -> ShownEntry:
    if not is_approval_request(row.outcome, row.code):
        if approval == FOR_SESSION:
            return ShownEntry(row, row.outcome, str(_("for the session")))
        approver = approval.decided_by if isinstance(approval, Approval) else ""
        return ShownEntry(row, row.outcome, make_visible(approver, 60))
    if not isinstance(approval, Approval):
        return ShownEntry(row, "unknown")
    outcomes = {"waiting": PENDING, "approved": "ok", "withdrawn": "cancelled"}
    state = approval.get_state_at(timezone.now())
    return ShownEntry(row, outcomes.get(state, "refused"), make_visible(approval.decided_by, 60))


@dataclass(frozen=True)
class Histogram:
    """The bars of calls over time, their scale, and whether all filters are applied."""

    bars: list[dict[str, Any]]
    highest: int
    total: int
    step: timedelta
    ticks: list[tuple[float, datetime]]


def build_histogram(
    organization_id: UUID, query: QueryDict, period: tuple[datetime | None, datetime | None]
) -> Histogram | None:
    """Return the calls over time for the list's filters; None if rollups don't know a filter."""
    filters = _select_rollup_filters(query)
    if filters is None:
        return None
    until = min(period[1] or timezone.now(), timezone.now())
    since = period[0] or until - DEFAULT_SPAN
    if since >= until:
        return None
    bars = load_activity(organization_id, since, until, filters)
    _add_pending(organization_id, bars, filters)
    highest = max((bar.total for bar in bars), default=0) or 1
    width = WIDTH / len(bars)
    shown_parts = [
        {
            "bar": bar,
            "x": round(index * width, 2),
            "full_width": round(width, 2),
            "parts": _stack_parts(bar, index * width, width, highest),
            "query": build_period_query(query, bar.begins, bar.ends),
        }
        for index, bar in enumerate(bars)
    ]
    every = max(1, len(bars) // 6)
    # The last label would be wider than its bars.
    labeled = range(0, len(bars) - every // 2, every)
    ticks = [(round(100 * at / len(bars), 2), bars[at].begins) for at in labeled]
    return Histogram(
        shown_parts,
        highest=highest,
        total=sum(bar.total for bar in bars),
        step=bars[0].ends - bars[0].begins,
        ticks=ticks,
    )


def _select_rollup_filters(query: QueryDict) -> dict[str, Any] | None:
    """Return the filters that rollups have, or None if there is another one."""
    filters: dict[str, Any] = {}
    for name in query:
        value = query.get(name, "").strip()
        is_plain = name in PLAIN_PARAMETERS or name.startswith(f"{TIME_PARAMETER}_")
        # The bars have all outcomes, of calls.
        if is_plain or not value or name.startswith("outcome"):
            continue
        if name == "kind" and value == "call":
            continue
        if name not in ROLLUP_COLUMNS:
            return None
        filters[name] = parse_uuid(value) if name.endswith("_id") else value
    return None if None in filters.values() else filters


def _add_pending(
    organization_id: UUID, bars: list[ActivityBar], filters: Mapping[str, Any]
) -> None:
    """Count the calls that wait for approval at the time of their request (one query)."""
    columns = {"agent_id": "agent_id", "server_id": "server_id", "tool_name": "own_name"}
    if not set(filters) <= set(columns):
        return
    conditions = {columns[name]: value for name, value in filters.items()}
    rows: Any = Approval.objects.filter(organization_id=organization_id, **conditions)
    step = bars[0].ends - bars[0].begins
    times = rows.pending().values_list("created_at", flat=True)[:MAX_PENDING]
    for created_at in times:
        index = (created_at - bars[0].begins) // step
        if 0 <= index < len(bars):
            bars[index].counts[PENDING] += 1


def _stack_parts(bar: ActivityBar, x: float, width: float, highest: int) -> list[dict[str, Any]]:
    parts, base = [], float(HEIGHT)
    for series in SERIES:
        if count := bar.counts[series]:
            height = HEIGHT * count / highest
            base -= height
            parts.append(
                {
                    "series": series,
                    "x": round(x + width * GAP / 2, 2),
                    "width": round(width * (1 - GAP), 2),
                    "y": round(base, 2),
                    "height": round(height, 2),
                }
            )
    return parts


@dataclass(frozen=True)
class EntryDetails:
    """Everything that the panel of an entry shows."""

    entry: ShownEntry
    opened: dict[str, Any]
    closed: dict[str, Any]
    labels: list[LabelMark]
    approval: Approval | None
    turn: AuditRow | None
    turn_step: Step | None
    turn_calls: list[ShownEntry]
    result: str | None

    @property
    def request(self) -> Any:
        """The arguments of a call, secrets masked, or what another entry records."""
        return self.opened.get("arguments") or self.opened

    @property
    def shown_result(self) -> str:
        """The result of a call in a session, or what was recorded at the end."""
        return maybe_json(self.result) if self.result else highlight_json(self.closed)


def _load_turn_calls(turn: AuditRow | None) -> list[ShownEntry]:
    """Return the calls of a model turn, oldest first (at most three queries).

    As in the list, a call that was answered isn't listed with its request, too.
    """
    if turn is None or turn.event_type != "model" or turn.session_id is None:
        return []
    # The index of sessions finds them.
    calls = AuditRow.objects.for_organization(turn.organization_id).filter(
        session_id=turn.session_id, parent_id=turn.pk, opened_at__gte=turn.opened_at
    )
    rows = calls.order_by("opened_at", "seq").defer("opened", "closed")[:MAX_TURN_CALLS]
    return [
        entry
        for entry in describe_entries(turn.organization_id, rows)
        if entry.outcome == PENDING or not is_approval_request(entry.row.outcome, entry.row.code)
    ]


def load_entry_details(row: AuditRow) -> EntryDetails:
    """Return the details of an entry (at most nine queries)."""
    opened, closed = parse_details(row.opened), parse_details(row.closed)
    approvals = _load_approvals(row.organization_id, [row])
    approval = approvals.get(row.pk)
    turn = (
        AuditRow.objects.for_organization(row.organization_id).filter(pk=row.parent_id).first()
        if row.parent_id
        else None
    )
    steps = Step.objects.filter(
        session__organization_id=row.organization_id,
        call_id__in=[pk for pk in (row.pk, row.parent_id) if pk],
    )
    steps_by_call = {step.call_id: step for step in steps}
    own_step = steps_by_call.get(row.pk)
    return EntryDetails(
        entry=_describe_entry(row, approval),
        opened=opened,
        closed=closed,
        labels=[FLOW_MARKS[FlowLabel(name)] for name in opened.get("labels", ())],
        approval=approval if isinstance(approval, Approval) else None,
        turn=turn,
        turn_step=steps_by_call.get(row.parent_id) if row.parent_id else None,
        turn_calls=_load_turn_calls(row if row.event_type == "model" else turn),
        result=str(own_step.payload["text"]) if own_step and own_step.payload.get("text") else None,
    )


@dataclass(frozen=True)
class TurnGroup:
    """The entries of a page that one model turn caused, newest first, with that of the turn.

    Other entries are groups of their own. `is_open` shows the entries of a folded group.
    """

    turn_id: UUID
    entries: list[ShownEntry]
    is_open: bool = False

    @property
    def calls(self) -> list[ShownEntry]:
        return [entry for entry in self.entries if entry.row.event_type == "call"]

    @property
    def is_folded(self) -> bool:
        """Whether the group has a row of its own above its entries."""
        return len(self.calls) >= MIN_FOLDED_CALLS

    @property
    def rows(self) -> list[tuple[ShownEntry, str]]:
        """The entries with their place on the line of the group: start, middle or end."""
        if len(self.entries) == 1:
            return [(self.entries[0], "")]
        first = "middle" if self.is_folded else "start"
        parts = [first, *("middle" for _ in self.entries[2:]), "end"]
        return list(zip(self.entries, parts, strict=True))

    @property
    def tools(self) -> str:
        """The names of the called tools, such as "get_time ×2, convert_time", at most three."""
        counts = Counter(call.title for call in self.calls)
        names = [name if n == 1 else f"{name} ×{n}" for name, n in counts.items()]
        return ", ".join(names[:MAX_TOOLS_NAMED]) + (", …" if len(names) > MAX_TOOLS_NAMED else "")

    @property
    def outcome(self) -> str:
        """The most severe outcome of the calls."""
        return min((call.outcome for call in self.calls), key=_rank_outcome)

    @property
    def outcome_count(self) -> int:
        """How many calls have that outcome; 0 if all have."""
        count = sum(call.outcome == self.outcome for call in self.calls)
        return 0 if count == len(self.calls) else count

    @property
    def servers(self) -> list[str]:
        return sorted({call.row.server_name for call in self.calls if call.row.server_name})

    @property
    def approvers(self) -> str:
        return ", ".join(sorted({call.approved_by for call in self.calls if call.approved_by}))

    @property
    def duration_ms(self) -> int | None:
        """The time from the first call's start to the last one's end; None while one runs."""
        durations = [call.row.duration_ms for call in self.calls]
        if any(duration is None for duration in durations):
            return None
        start: datetime = min(call.row.opened_at for call in self.calls)
        ends: Any = [call.row.opened_at + _get_duration(call) for call in self.calls]
        return round((max(ends) - start) / timedelta(milliseconds=1))


def group_turns(entries: Iterable[ShownEntry], open_entry: str = "") -> list[TurnGroup]:
    """Return the entries by model turn, at the place of the newest of each.

    The group of the entry with the ID `open_entry` is unfolded.
    """
    groups: dict[UUID, list[ShownEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.row.parent_id or entry.row.pk, []).append(entry)
    return [
        TurnGroup(turn_id, members, any(str(entry.row.pk) == open_entry for entry in members))
        for turn_id, members in groups.items()
    ]


def _rank_outcome(outcome: str) -> int:
    return OUTCOME_ORDER.index(outcome) if outcome in OUTCOME_ORDER else len(OUTCOME_ORDER)


def _get_duration(call: ShownEntry) -> timedelta:
    return timedelta(milliseconds=call.row.duration_ms or 0)
