"""Entries of the audit log: rows with approvers, turns, and one entry."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, ExpressionWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from agents.admin.approval_entries import ApprovalEntry, load_approval_entry
from agents.admin.approvals import list_argument_changes
from agents.admin.audit_filters import (
    PENDING,
    parse_details,
)
from agents.approvals.pending_calls import IS_UNUSED
from agents.budgets.services import BudgetUse, find_budget_use
from agents.calls.require_approval import SESSION_APPROVAL
from agents.models import Approval, ModelEndpoint, Session, Step
from agents.policies.rule_texts import name_rule
from agents.sessions.child_sessions import CHILD_WAITING_CODE
from bonobot.accounts.templatetags.display import maybe_json
from bonobot.core.text.syntax_highlighting import highlight_json
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.uuids import parse_uuid
from bonobot.ledger.actor_names import get_actor_name
from bonobot.ledger.audit.action_titles import format_action
from bonobot.ledger.audit.renamed_codes import RENAMED_ACTIONS
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import NOT_APPROVED_CODES, is_approval_request
from mcp_servers.flow_labels.label_icons import LabelMark, list_label_marks

MAX_TURN_CALLS = 50
REQUESTER_KINDS = {
    "token": _("token"),
    "cli": _("command line"),
    "system": _("system"),
    "gateway": _("gateway"),
}
# What has a tool policy; an agent may have the name of its organization.
POLICY_OWNER_KINDS = {"agent": _("agent"), "organization": _("organization")}
# Calls of one model turn are one row, which unfolds.
MIN_FOLDED_CALLS = 2
MAX_TOOLS_NAMED = 3
# An entry this much later than the one before it in its turn has a place of its own in the list.
MAX_GROUP_GAP = timedelta(seconds=10)
# The outcome of a folded turn is the first of these that one of its calls has.
OUTCOME_ORDER = ("pending", "approved", "error", "refused", "unknown", "open", "cancelled", "ok")


@dataclass(frozen=True)
class CoveringApproval:
    """The approval of a tool for a session, as the entry of a call that it covers records it.

    Entries of earlier versions don't name who approved it, and when.
    """

    decided_by: str
    decided_at: datetime | None

    @property
    def decider_name(self) -> str:
        return get_actor_name("cli", "", self.decided_by) if self.decided_by else ""


@dataclass(frozen=True)
class CanceledRequest:
    """Who canceled a call that waited for approval, as its entry records it."""

    canceled_by: str

    @property
    def canceler_name(self) -> str:
        return get_actor_name("cli", "", self.canceled_by) if self.canceled_by else ""


@dataclass(frozen=True)
class ShownEntry:
    """An entry as a row: its outcome for readers, who answered its approval, and its subject.

    `answered_by` approved the call, or denied it if `is_denied`, or canceled it if it has a
    `canceled_request`. `covering_approval` approved its tool for the session. `is_changed`: the
    approver changed the arguments.
    """

    row: AuditRow
    outcome: str
    answered_by: str = ""
    is_denied: bool = False
    covering_approval: CoveringApproval | None = None
    canceled_request: CanceledRequest | None = None
    is_changed: bool = False

    @property
    def title(self) -> str:
        """The tool of a call; for other entries the action, such as "Server attached"."""
        if self.row.event_type == "call":
            name = self.row.tool_name or self.row.resource_name or self.row.resource_id
        elif self.is_changed:
            name = str(_("Call approved with changes"))
        else:
            name = capfirst(format_action(self.row.action))
        times = f" ×{self.row.repeats + 1}" if self.row.repeats else ""
        return make_visible(name, 120) + times

    @property
    def has_outcome(self) -> bool:
        """Whether the row shows an outcome: an answer, such as "Call denied", is in the title."""
        return self.row.event_type != "approval" or self.outcome != "ok"

    @property
    def rule_name(self) -> tuple[Any, str]:
        """What decided the call by a rule, and the tools that the rule matches."""
        if self.row.event_type != "call":
            return "", ""
        return name_rule(self.row.rule, of_agent=self.row.agent_id is not None)

    @property
    def rule_pattern(self) -> str:
        """The tools that the rule matches; blank if it is only the called one."""
        pattern = self.rule_name[1]
        return "" if pattern == self.row.tool_name else pattern

    @property
    def code(self) -> str:
        """The code of the outcome: none for a request of approval once the call was approved."""
        is_request = is_approval_request(self.row.outcome, self.row.code)
        return "" if is_request and self.outcome == "ok" else self.row.code

    @property
    def subject(self) -> str:
        """What an entry that isn't a call is about, such as the name of a server."""
        if self.row.event_type == "call":
            return ""
        if self.row.event_type == "model" and self.row.resource_id == ModelEndpoint.Kind.OFFLINE:
            return "Offline"  # as its endpoint is named; others have the name of their model
        name = make_visible(self.row.resource_name or self.row.resource_id, 120)
        is_policy = RENAMED_ACTIONS.get(self.row.action, self.row.action).startswith("tool_policy_")
        kind = POLICY_OWNER_KINDS.get(self.row.resource_type) if is_policy else None
        return f"{name} ({kind})" if kind else name

    @property
    def server_name(self) -> str:
        """The server of an entry; earlier versions didn't record it for changes of servers."""
        row = self.row
        return row.server_name or (row.resource_name if row.resource_type == "mcp_server" else "")

    @property
    def actor(self) -> str:
        """The agent, or who else acted."""
        return make_visible(self.row.agent_name, 80) or self.requester

    @property
    def requester(self) -> str:
        """Who acted: a person, a token, a part of Bonobot, or a user of the host."""
        row = self.row
        name = get_actor_name(self._get_requester_kind(), row.actor_id, row.actor_label)
        return make_visible(name, 80)

    @property
    def requester_kind(self) -> Any:
        """What acted, if it wasn't a person."""
        return REQUESTER_KINDS.get(self._get_requester_kind(), "")

    def _get_requester_kind(self) -> str:
        # A session has the label of who started it.
        is_of_command = self.row.actor_kind == "session" and self.row.actor_label.startswith("cli:")
        return "cli" if is_of_command else self.row.actor_kind


@dataclass(frozen=True)
class RepeatedCall:
    """A call that ended because its child session waits for a person; it is made again then."""

    is_waiting: bool


AnsweredApproval = Approval | CoveringApproval | CanceledRequest | RepeatedCall | None


def describe_entries(organization_id: UUID, rows: Iterable[AuditRow]) -> list[ShownEntry]:
    """Return the rows with their approvals (at most four queries)."""
    listed = list(rows)
    approvals = load_approvals(organization_id, listed)
    return [_describe_entry(row, approvals.get(row.pk)) for row in listed]


def load_approvals(organization_id: UUID, rows: Iterable[AuditRow]) -> dict[UUID, AnsweredApproval]:
    """Return the approvals of calls that needed one, or of their tools for the session, by entry.

    At most four queries; three if the rows have their texts. Calls that ended to wait for their
    child session have a `RepeatedCall`.
    """
    listed = list(rows)
    approved = _load_referenced_approvals(
        organization_id,
        [row for row in listed if row.decision == AuditRow.Decision.ASK],
        [row for row in listed if _is_approving_entry(row)],
    )
    refused = _load_refused_approvals(
        organization_id, [row.pk for row in listed if row.code in NOT_APPROVED_CODES]
    )
    repeated = _find_repeated_calls([row for row in listed if row.code == CHILD_WAITING_CODE])
    return approved | refused | repeated


def _find_repeated_calls(rows: Sequence[AuditRow]) -> dict[UUID, AnsweredApproval]:
    """Return the calls that ended to wait for their child session, by entry (one query)."""
    if not rows:
        return {}
    waiting_steps = Step.objects.filter(
        session_id__in={row.session_id for row in rows},
        session__status=Session.Status.WAITING,
        kind=Step.Kind.CALL,
        state=Step.State.INTENT,
    )
    payloads = waiting_steps.values_list("payload", flat=True)
    waiting_ids = {call_id for payload in payloads for call_id in payload.get("earlier", ())}
    return {row.pk: RepeatedCall(str(row.pk) in waiting_ids) for row in rows}


def _load_refused_approvals(
    organization_id: UUID, row_ids: Sequence[UUID]
) -> dict[UUID, AnsweredApproval]:
    """Return approvals that were denied or expired, of which the entries have only the code."""
    if not row_ids:
        return {}
    # The states are those of the index of the inbox.
    refused = Approval.objects.filter(
        organization_id=organization_id,
        state__in=(Approval.State.DENIED, Approval.State.EXPIRED, Approval.State.WAITING),
        call_id__in=row_ids,
    )
    return {approval.call_id: approval for approval in refused.order_by("created_at")}


def _is_approving_entry(row: AuditRow) -> bool:
    """Return whether an entry records that someone approved a call."""
    action = RENAMED_ACTIONS.get(row.action, row.action)
    return row.resource_type == "approval" and action == "call_approved"


def _load_referenced_approvals(
    organization_id: UUID, rows: Sequence[AuditRow], approving: Sequence[AuditRow]
) -> dict[UUID, AnsweredApproval]:
    """Return the approvals to which the texts of entries refer, and those of approving entries."""
    if not rows and not approving:
        return {}
    texts = {row.pk: row.opened for row in rows if "opened" not in row.get_deferred_fields()}
    if len(texts) < len(rows):
        deferred = AuditRow.objects.filter(pk__in=[row.pk for row in rows])
        texts = dict(deferred.values_list("pk", "opened"))
    details = {pk: parse_details(text) for pk, text in texts.items()}
    references = [str(entry.get("approval_id", "")) for entry in details.values()]
    references += [row.resource_id for row in approving]
    ids = [pk for reference in references if (pk := parse_uuid(reference))]
    found = Approval.objects.filter(organization_id=organization_id, pk__in=ids)
    approvals = found.annotate(is_unused=ExpressionWrapper(IS_UNUSED, BooleanField())).in_bulk()
    of_approving: dict[UUID, AnsweredApproval] = {
        row.pk: approvals.get(pk) for row in approving if (pk := parse_uuid(row.resource_id))
    }
    return of_approving | {pk: _find_approval(approvals, entry) for pk, entry in details.items()}


def _find_approval(
    approvals: Mapping[UUID, Approval], details: Mapping[str, Any]
) -> AnsweredApproval:
    if "canceled_by" in details:
        return CanceledRequest(str(details["canceled_by"]))
    reference = str(details.get("approval_id", ""))
    if reference == SESSION_APPROVAL:
        approved_at = parse_datetime(str(details.get("approved_at", "")))
        return CoveringApproval(str(details.get("approved_by", "")), approved_at)
    pk = parse_uuid(reference)
    return approvals.get(pk) if pk else None


def _describe_entry(row: AuditRow, approval: AnsweredApproval) -> ShownEntry:
    is_denied = isinstance(approval, Approval) and approval.state == Approval.State.DENIED
    is_changed = isinstance(approval, Approval) and approval.is_changed
    if _is_approving_entry(row):
        return ShownEntry(row, row.outcome, is_changed=is_changed)
    if isinstance(approval, RepeatedCall):
        return ShownEntry(row, PENDING if approval.is_waiting else AuditRow.Outcome.CANCELLED)
    if not is_approval_request(row.outcome, row.code):
        if isinstance(approval, CanceledRequest):
            canceler = make_visible(approval.canceler_name, 60)
            return ShownEntry(row, row.outcome, canceler, canceled_request=approval)
        if isinstance(approval, CoveringApproval):
            approver = make_visible(approval.decider_name, 60) or str(_("for the session"))
            return ShownEntry(row, row.outcome, approver, covering_approval=approval)
        approver = approval.decider_name if isinstance(approval, Approval) else ""
        return ShownEntry(
            row, row.outcome, make_visible(approver, 60), is_denied, is_changed=is_changed
        )
    if not isinstance(approval, Approval):
        return ShownEntry(row, "unknown")
    return ShownEntry(
        row,
        _get_request_outcome(approval),
        make_visible(approval.decider_name, 60),
        is_denied,
        is_changed=is_changed,
    )


def _get_request_outcome(approval: Approval) -> str:
    """Return the outcome of a call that an entry requests approval for."""
    state = approval.get_state_at(timezone.now())
    if state == Approval.State.APPROVED and getattr(approval, "is_unused", False):
        return "refused" if approval.is_expired else "approved"
    outcomes = {"waiting": PENDING, "approved": "ok", "withdrawn": "cancelled"}
    return outcomes.get(state, "refused")


@dataclass(frozen=True)
class EntryDetails:
    """Everything that the panel of an entry shows."""

    entry: ShownEntry
    opened: dict[str, Any]
    closed: dict[str, Any]
    labels: list[LabelMark]
    approval: Approval | None
    approval_entry: ApprovalEntry | None
    session: Session | None
    turn: AuditRow | None
    turn_step: Step | None
    turn_calls: list[ShownEntry]
    result: str | None
    budget_use: BudgetUse | None = None  # of the budget that denied it, in its period

    @property
    def is_of_agent(self) -> bool:
        """Whether it is a call or a model turn: someone requested it, and something else acted."""
        return self.entry.row.event_type in ("call", "model")

    @property
    def has_decision(self) -> bool:
        """Whether a rule decided: changes by people have only what was refused.

        The code of a connection's event says why it failed; no rule decided about it. A model turn
        has only what refused it, such as a budget.
        """
        row = self.entry.row
        if row.event_type == "model":
            return bool(row.code)
        is_decided = row.rule or (row.code and row.event_type != "connection")
        return row.event_type == "call" or bool(is_decided)

    @property
    def decision(self) -> str:
        """What the rule decided; the entry of a call that nobody approved has the answer."""
        row = self.entry.row
        return AuditRow.Decision.ASK if row.code in NOT_APPROVED_CODES else row.decision

    @property
    def argument_changes(self) -> list[tuple[str, str]]:
        """The lines of the arguments that the approver changed: added, removed or same."""
        return list_argument_changes(self.approval) if self.approval else []

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
    """Return the details of an entry (at most twelve queries)."""
    opened, closed = parse_details(row.opened), parse_details(row.closed)
    approvals = load_approvals(row.organization_id, [row])
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
        labels=_list_marks(opened),
        approval=approval if isinstance(approval, Approval) else None,
        approval_entry=load_approval_entry(row, opened),
        session=Session.objects.filter(
            organization_id=row.organization_id, pk=row.session_id
        ).first()
        if row.session_id
        else None,
        turn=turn,
        turn_step=steps_by_call.get(row.parent_id) if row.parent_id else None,
        turn_calls=_load_turn_calls(row if row.event_type == "model" else turn),
        result=str(own_step.payload["text"]) if own_step and own_step.payload.get("text") else None,
        budget_use=find_budget_use(row.organization_id, row.rule, row.agent_id),
    )


def _list_marks(opened: Mapping[str, Any]) -> list[LabelMark]:
    """Return the labels and annotations that the tool had when it was called."""
    annotations = dict.fromkeys(opened.get("hints", ()), True)
    marks = list_label_marks(opened.get("labels", ()), {"annotations": annotations})
    return [mark for mark in marks if mark.present]


@dataclass(frozen=True)
class TurnGroup:
    """The entries of a page that one model turn caused, in their order, after that of the turn.

    Other entries are groups of their own. `is_open` shows the entries of a folded group. Calls that
    ran much later, because they were approved first, are in another group with the next `number`,
    and `turn_at` is the time of the turn, if that is on the page.
    """

    turn_id: UUID
    entries: list[ShownEntry]
    is_open: bool = False
    number: int = 0
    turn_at: datetime | None = None

    @property
    def key(self) -> str:
        """A name of the group that no other one has."""
        return f"{self.turn_id}-{self.number}" if self.number else str(self.turn_id)

    @property
    def newest_at(self) -> datetime:
        """The time of the newest entry, whose place in the list the group has."""
        opened_at: datetime = self.entries[-1].row.opened_at
        return opened_at

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
    def answerers(self) -> str:
        """Who approved or denied the calls."""
        return ", ".join(sorted({call.answered_by for call in self.calls if call.answered_by}))

    @property
    def rule_owners(self) -> list[str]:
        """What decided the calls by a rule, such as "Policy"."""
        return sorted({str(call.rule_name[0]) for call in self.calls if call.rule_name[0]})

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

    Entries are newest first, those of a turn oldest first: what happened reads downward. The group
    of the entry with the ID `open_entry` is unfolded. Entries long after the others of their turn
    are a group at their own place, so that the times of the list are in order.
    """
    places: dict[UUID, int] = {}
    turns: dict[UUID, list[ShownEntry]] = {}
    for place, entry in enumerate(entries):
        places[entry.row.pk] = place
        turns.setdefault(entry.row.parent_id or entry.row.pk, []).append(entry)
    groups = [
        TurnGroup(
            turn_id,
            part,
            is_open=any(str(entry.row.pk) == open_entry for entry in part),
            number=number,
            turn_at=_find_turn_time(turn_id, members) if number else None,
        )
        for turn_id, members in turns.items()
        for number, part in enumerate(_split_at_gaps(members[::-1]))
    ]
    return sorted(groups, key=lambda group: places[group.entries[-1].row.pk])


def _split_at_gaps(entries: Sequence[ShownEntry]) -> list[list[ShownEntry]]:
    """Return the entries, oldest first, in parts that follow each other closely."""
    parts: list[list[ShownEntry]] = []
    for entry in entries:
        if not parts or entry.row.opened_at - parts[-1][-1].row.opened_at > MAX_GROUP_GAP:
            parts.append([])
        parts[-1].append(entry)
    return parts


def _find_turn_time(turn_id: UUID, members: Iterable[ShownEntry]) -> datetime | None:
    return next((item.row.opened_at for item in members if item.row.pk == turn_id), None)


def _rank_outcome(outcome: str) -> int:
    return OUTCOME_ORDER.index(outcome) if outcome in OUTCOME_ORDER else len(OUTCOME_ORDER)


def _get_duration(call: ShownEntry) -> timedelta:
    return timedelta(milliseconds=call.row.duration_ms or 0)
