"""Steps of a session, prepared for its page.

Steps contain untrusted text of models and servers, which templates escape.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Max, Q
from django.utils import timezone

from agents.admin.approvals import (
    format_arguments,
    list_argument_changes,
)
from agents.admin.audit_entries import AnsweredApproval, CoveringApproval, load_approvals
from agents.admin.elicitations import ElicitationForm, build_form
from agents.approvals.changed_definitions import find_changed_definitions, is_reviewed
from agents.approvals.services import is_own_call
from agents.budgets.services import BudgetUse, list_session_budget_use
from agents.elicitations.services import can_answer
from agents.flow_labels.services import LabelSource, list_session_labels, parse_labels
from agents.models import Approval, ElicitationRequest, Inbox, Session, Step, ToolName
from agents.sessions.child_sessions import build_child_id_of_step
from agents.sessions.events import RESTING_STATUSES
from agents.sessions.history import is_superseded
from agents.sessions.partial_output import TEXT_FIELDS
from bonobot.accounts.principals import Principal
from bonobot.core.text.syntax_highlighting import MAX_SHOWN_LENGTH
from bonobot.ledger.models import AuditRow
from mcp_servers.client.mcp_extensions import UI_EXTENSION, list_app_pages
from mcp_servers.flow_labels.effective_labels import LABEL_NAMES
from mcp_servers.flow_labels.label_icons import FLOW_MARKS, LabelMark
from mcp_servers.models import Definition

STEPS_SHOWN = 500
TOOLS_SHOWN = 12
CUT_OFF_CODE = "cut_off"  # of an answer whose run ended before it was complete
# Templates of the kinds of steps that aren't named by their kind.
TEMPLATES = {"message": "user_message", "model": "model_turn"}


@dataclass(frozen=True)
class StepRow:
    """A step as the page shows it; `version` changes when its display does."""

    step: Step
    audit: AuditRow | None = None
    approval: Approval | None = None
    # The answered approval of a call that ran or was denied.
    answered: Approval | None = None
    # The viewer made the call, so another person has to approve it.
    is_own_call: bool = False
    # Replaced by a later message, so no longer part of the conversation.
    superseded: bool = False
    # A message that was edited or resent: the numbers of all its versions, in order.
    versions: tuple[int, ...] = ()
    # The message that replaced all of its versions, because it replaced an earlier one.
    versions_end: int | None = None
    # The elicitation request that a notice is about, and whether the viewer can answer it here.
    elicitation: ElicitationRequest | None = None
    can_answer_here: bool = False
    # The tool of a call that neither its result nor an audit entry names.
    tool: ToolName | None = None
    # The end of a turn for the error of the model turn above it.
    repeats_error: bool = False
    # The approval of the tool for the session that covered the call.
    covering_approval: CoveringApproval | None = None
    # A message that was sent while the agent worked on an earlier one.
    is_interjection: bool = False
    # The tool has an app (MCP Apps), which only clients show.
    has_app: bool = False
    # The current definition, if it changed so that the approval no longer applies.
    changed_definition: Definition | None = None
    # The session that the call started, while that waits for a person.
    waiting_child: Session | None = None

    @property
    def elicitation_form(self) -> ElicitationForm | None:
        if self.elicitation is None or not self.can_answer_here:
            return None
        return build_form(self.elicitation)

    @property
    def waits_for_answer(self) -> bool:
        """Return whether a person can still answer the elicitation request."""
        return self.elicitation is not None and self.elicitation.is_answerable(timezone.now())

    @property
    def payload(self) -> dict[str, Any]:
        payload = dict(self.step.payload)
        if payload.get("by"):
            payload["by"] = self.step.author_name
        return payload

    @property
    def version(self) -> str:
        """Return a key that identifies the displayed state of the step."""
        suffix = f"-{self.approval.state}-{self.answerable}" if self.approval else ""
        suffix += "-changed" if self.changed_definition else ""
        suffix += "-waiting" if self.waiting_child else ""
        if self.elicitation:
            suffix += f"-{self.elicitation.state}-{self.waits_for_answer}"
        length = sum(len(str(self.step.payload.get(name, ""))) for name in TEXT_FIELDS)
        return f"{self.step.state}-{length}{suffix}"

    @property
    def answerable(self) -> bool:
        """Return whether the call waits for an answer that can still be given."""
        return self.approval is not None and self.approval.is_answerable(timezone.now())

    @property
    def is_reviewed(self) -> bool:
        """Return whether the changed definition is approved."""
        return self.changed_definition is not None and is_reviewed(self.changed_definition)

    @property
    def version_number(self) -> int:
        """Return which of its versions a message is, from 1."""
        return self.versions.index(self.step.seq) + 1 if self.versions else 1

    @property
    def template(self) -> str:
        kind = str(self.step.kind)
        return f"admin/sessions/{TEMPLATES.get(kind, kind)}.html"

    @property
    def server_name(self) -> str:
        """Return the name of a called tool's server; blank for a built-in tool."""
        names = (
            self.step.payload.get("server"),
            self.audit and self.audit.server_name,
            self.approval and self.approval.server_name,
            self.tool and self.tool.server.name,
        )
        return str(next(filter(None, names), ""))

    @property
    def tool_name(self) -> str:
        """Return the server's own name of a called tool."""
        names = (
            self.audit and self.audit.tool_name,
            self.approval and self.approval.own_name,
            self.tool and self.tool.own_name,
        )
        return str(next(filter(None, names), self.step.payload.get("name", "")))

    @property
    def result_text(self) -> str:
        """Return the result; a refusal names the tool as its call does, not as the model."""
        payload = self.step.payload
        text, listed_name = str(payload.get("text", "")), payload.get("name", "")
        if "rule" not in payload or not listed_name:
            return text
        return re.sub(
            rf"(?<!\w){re.escape(listed_name)}(?!\w)", lambda _match: self.tool_name, text
        )

    @property
    def arguments(self) -> Any:
        return self.step.payload.get("arguments")

    @property
    def editable_arguments(self) -> str:
        """Return the arguments to change before approval; blank if they can't be changed here."""
        if self.approval is None or not self.approval.may_be_changed or self.is_own_call:
            return ""
        text = format_arguments(self.approval)
        return text if len(text) <= MAX_SHOWN_LENGTH else ""

    @property
    def argument_changes(self) -> list[tuple[str, str]]:
        """Return the lines of the arguments that the approver changed: added, removed or same."""
        return list_argument_changes(self.answered) if self.answered else []

    @property
    def labels(self) -> tuple[LabelMark, ...]:
        """Return the marks of the call's flow labels."""
        label_names = parse_labels(self.audit) if self.audit else ()
        return tuple(FLOW_MARKS[name] for name in sorted(label_names) if name in FLOW_MARKS)

    @property
    def result(self) -> Any:
        """Return a call's result: parsed where it is JSON, else text."""
        return self.step.payload.get("text", "")


@dataclass(frozen=True)
class SessionSteps:
    """A session's steps after `after`, its pending messages, and its status."""

    session: Session
    lines: tuple[StepRow, ...]
    pending: tuple[Inbox, ...]
    after: int
    earlier_after: int | None

    @property
    def rests(self) -> bool:
        return self.session.status in RESTING_STATUSES

    @property
    def is_waiting(self) -> bool:
        return self.session.status == Session.Status.WAITING

    @property
    def rest_state(self) -> str:
        """Return whether the session rests, for scripts: `waiting` (for a person), or a boolean."""
        return "waiting" if self.is_waiting else str(self.rests).lower()

    @property
    def current(self) -> StepRow | None:
        """Return the oldest step that runs now: a call, or a model turn."""
        return next(
            (
                line
                for line in self.lines
                if line.step.state == Step.State.INTENT and line.approval is None
            ),
            None,
        )

    @property
    def busy(self) -> bool:
        """Return whether the session runs, waits or is queued."""
        return not self.rests


@dataclass(frozen=True)
class SessionFacts:
    """What the panel next to a conversation shows; turns and calls since the last message."""

    turns: int
    calls: int
    tools: tuple[tuple[str, str, int], ...]
    labels: tuple[tuple[Any, LabelSource], ...]
    budgets: tuple[BudgetUse, ...]


def load_session_facts(session: Session) -> SessionFacts:
    """Return the facts of a session's rail (at most seven queries)."""
    messages = session.steps.filter(kind=Step.Kind.MESSAGE)
    last_message = messages.aggregate(last=Max("seq"))["last"] or 0
    since = session.steps.filter(seq__gt=last_message).aggregate(
        turns=Count("pk", filter=Q(kind=Step.Kind.MODEL)),
        calls=Count("pk", filter=Q(kind=Step.Kind.CALL)),
    )
    calls = session.steps.filter(kind=Step.Kind.CALL)
    names = ("payload__tool", "payload__name", "payload__server")
    counts = list(calls.values_list(*names).annotate(count=Count("pk")))
    # A call that hasn't ended, or wasn't made, has no name of the server's own.
    tools = _load_tool_names(session, [name for own_name, name, _s, _n in counts if not own_name])
    calls_by_tool: Counter[tuple[str, str]] = Counter()
    for own_name, name, server, count in counts:
        tool = tools.get(name)
        key = (tool.own_name, tool.server.name) if tool else (str(own_name or name), server or "")
        calls_by_tool[key] += count
    return SessionFacts(
        turns=since["turns"],
        calls=since["calls"],
        tools=tuple(
            (name, server, count)
            for (name, server), count in sorted(
                calls_by_tool.items(), key=lambda item: (-item[1], item[0])
            )[:TOOLS_SHOWN]
        ),
        labels=tuple((LABEL_NAMES[label.label], label) for label in list_session_labels(session)),
        budgets=tuple(list_session_budget_use(session)),
    )


def load_latest_steps(session: Session, principal: Principal) -> SessionSteps:
    """Return the last steps of a session, one page of them."""
    last = session.steps.aggregate(last=Max("seq"))["last"] or 0
    return load_steps(session, principal, max(0, last - STEPS_SHOWN))


def load_steps(session: Session, principal: Principal, after: int = 0) -> SessionSteps:
    """Return a session's steps after `after` with their audit rows (three queries).

    Calls that needed approval are loaded with the answers (at most two more), waiting calls with
    their approvals (three more) and elicitation requests (one more), running calls with sessions
    that they started (one more), calls of servers with the apps of their tools (one more), and
    calls that weren't made with the names of their tools (one more). If there are more steps than
    one page, replacements by later messages are loaded; if the first one is a message, the step
    before it (one more each).
    """
    steps = list(session.steps.filter(seq__gt=after).order_by("seq")[:STEPS_SHOWN])
    audit_rows = _load_audit_rows(steps)
    answers = load_approvals(session.organization_id, audit_rows.values())
    approvals = _load_pending_approvals(session, steps)
    changed = _find_changed_definitions(approvals)
    own_call = bool(approvals) and is_own_call(principal, next(iter(approvals.values())))
    elicitations = _load_elicitations(session, steps)
    waiting_children = _load_waiting_children(session, steps)
    app_tools = _find_tools_with_apps(audit_rows.values())
    tools = _load_tool_names(session, _list_unnamed_tools(steps, audit_rows))
    replacements = _list_replacements(session, steps)
    versions = _group_versions(replacements)
    interjections = _find_interjections(session, steps)
    lines = tuple(
        StepRow(
            shown_step,
            audit_rows.get(shown_step.call_id),
            approvals.get(shown_step.pk),
            _get_answer(shown_step, answers),
            own_call,
            is_superseded(shown_step.seq, replacements),
            *versions.get(shown_step.seq, ((), None)),
            changed_definition=changed.get(shown_step.pk),
            waiting_child=waiting_children.get(shown_step.pk),
            elicitation=(elicitation := elicitations.get(shown_step.pk)),
            can_answer_here=_can_answer_here(principal, elicitation),
            tool=tools.get(shown_step.payload.get("name")),
            has_app=_get_tool_key(audit_rows.get(shown_step.call_id)) in app_tools,
            repeats_error=_repeats_error(session, steps, shown_step),
            covering_approval=_get_covering_approval(shown_step, answers),
            is_interjection=shown_step.seq in interjections,
        )
        for shown_step in steps
        if _should_show(shown_step) and not _repeats_stop(steps, shown_step)
    )
    return SessionSteps(
        session=session,
        lines=lines,
        pending=tuple(session.inbox.filter(kind=Inbox.Kind.MESSAGE, processed_at=None)),
        after=_find_last_settled(steps, after),
        earlier_after=max(0, after - STEPS_SHOWN) if after else None,
    )


def _load_audit_rows(steps: Iterable[Step]) -> dict[UUID | None, AuditRow]:
    ids = [step.call_id for step in steps if step.call_id and step.kind == Step.Kind.CALL]
    return {row.pk: row for row in AuditRow.objects.filter(pk__in=ids)} if ids else {}


def _list_unnamed_tools(
    steps: Iterable[Step], audit_rows: Mapping[UUID | None, AuditRow]
) -> list[str]:
    """Return the agent's names of tools whose calls don't have the server's own name."""
    return [
        step.payload["name"]
        for step in steps
        if step.kind == Step.Kind.CALL
        and not step.payload.get("tool")
        and step.call_id not in audit_rows
    ]


def _load_tool_names(session: Session, names: Sequence[str]) -> dict[str, ToolName]:
    """Return the tools of servers with some of the agent's names, by name (one query, or none)."""
    if not names:
        return {}
    rows = ToolName.objects.filter(agent_id=session.agent_id, name__in=set(names))
    return {row.name: row for row in rows.select_related("server")}


def _list_replacements(session: Session, steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return the ranges of replaced steps: (first replaced step, replacing message)."""
    later_messages = (
        session.steps.filter(
            seq__gt=steps[-1].seq, kind=Step.Kind.MESSAGE, payload__has_key="replaces"
        )
        if len(steps) == STEPS_SHOWN
        else ()
    )
    return [
        (step.payload["replaces"], step.seq)
        for step in (*steps, *later_messages)
        if "replaces" in step.payload
    ]


def _group_versions(
    replacements: Iterable[tuple[int, int]],
) -> dict[int, tuple[tuple[int, ...], int | None]]:
    """Return each message's versions, and what replaced them with an earlier message."""
    pairs = sorted(replacements, key=lambda pair: pair[1])
    groups: dict[int, list[int]] = {}
    for replaced_seq, seq in pairs:
        group = groups.setdefault(replaced_seq, [replaced_seq])
        group.append(seq)
        groups[seq] = group
    return {
        seq: (
            tuple(group),
            next((end for first, end in pairs if first < group[0] and end > group[-1]), None),
        )
        for seq, group in groups.items()
    }


def _load_pending_approvals(session: Session, steps: Iterable[Step]) -> dict[Any, Approval]:
    """Return the approvals of calls that have not run yet, by step."""
    approval_ids = {
        step.pk: step.payload["approval"]["approval_id"]
        for step in steps
        if step.state == Step.State.INTENT and "approval" in step.payload
    }
    if not approval_ids:
        return {}
    rows = {str(row.pk): row for row in session.approvals.filter(pk__in=approval_ids.values())}
    return {
        step: rows[approval_id] for step, approval_id in approval_ids.items() if approval_id in rows
    }


def _load_waiting_children(session: Session, steps: Iterable[Step]) -> dict[Any, Session]:
    """Return the sessions that running calls started and that wait for a person, by step."""
    running_calls = [
        step
        for step in steps
        if step.kind == Step.Kind.CALL
        and step.state == Step.State.INTENT
        and "approval" not in step.payload
    ]
    if not running_calls:
        return {}
    child_ids = {build_child_id_of_step(step): step.pk for step in running_calls}
    children = session.children.with_waits().filter(pk__in=child_ids)
    return {
        child_ids[child.pk]: child
        for child in children
        if child.shown_status == Session.Status.WAITING
    }


def _find_changed_definitions(approvals: Mapping[Any, Approval]) -> dict[Any, Definition]:
    """Return the definitions that changed, so that their approvals no longer apply, by step."""
    changed = find_changed_definitions(approvals.values())
    return {
        step: changed[approval.pk] for step, approval in approvals.items() if approval.pk in changed
    }


def _get_tool_key(row: AuditRow | None) -> tuple[UUID | None, str]:
    return (row.server_id, row.tool_name) if row else (None, "")


def _find_tools_with_apps(rows: Iterable[AuditRow]) -> set[tuple[UUID | None, str]]:
    """Return which of the called tools name an app page, by server and name (one query, or none).

    None if apps aren't relayed to clients, since then no client shows them.
    """
    keys = {_get_tool_key(row) for row in rows if row.server_id}
    if not keys or UI_EXTENSION not in settings.BONOBOT_EXTENSIONS:
        return set()
    definitions = Definition.objects.filter(
        server_id__in={server_id for server_id, _name in keys},
        name__in={name for _server_id, name in keys},
        kind=Definition.Kind.TOOL,
        payload__has_key="_meta",
    )
    return {
        (definition.server_id, definition.name)
        for definition in definitions
        if any(list_app_pages(definition.payload))
    }


def _get_answer(step: Step, approvals: Mapping[UUID, AnsweredApproval]) -> Approval | None:
    """Return the answered approval of a call that ended."""
    approval = approvals.get(step.call_id) if step.call_id else None
    return approval if isinstance(approval, Approval) and approval.decided_by else None


def _get_covering_approval(
    step: Step, approvals: Mapping[UUID, AnsweredApproval]
) -> CoveringApproval | None:
    approval = approvals.get(step.call_id) if step.call_id else None
    return approval if isinstance(approval, CoveringApproval) else None


def _find_interjections(session: Session, steps: Sequence[Step]) -> set[int]:
    """Return the messages that the model read before it answered an earlier one.

    At most one query: if the first step is a message, for the step before it.
    """
    if not steps:
        return set()
    is_working = False
    if steps[0].kind == Step.Kind.MESSAGE and steps[0].seq > 1:
        before = session.steps.filter(seq=steps[0].seq - 1).first()
        is_working = before is not None and before.kind in (Step.Kind.CALL, Step.Kind.MODEL)
    found = set()
    for step in steps:
        if step.kind == Step.Kind.MESSAGE and is_working and "replaces" not in step.payload:
            found.add(step.seq)
        is_working = step.kind in (Step.Kind.CALL, Step.Kind.MODEL) or (
            is_working and step.kind != Step.Kind.END
        )
    return found


def _load_elicitations(session: Session, steps: Iterable[Step]) -> dict[Any, ElicitationRequest]:
    """Return the elicitation requests of notices, by step (one query, or none)."""
    request_ids = {
        step.pk: step.payload["question_id"] for step in steps if "question_id" in step.payload
    }
    if not request_ids:
        return {}
    requests = session.elicitation_requests.filter(pk__in=request_ids.values())
    rows = {str(row.pk): row for row in requests}
    return {
        step: rows[request_id] for step, request_id in request_ids.items() if request_id in rows
    }


def _can_answer_here(principal: Principal, elicitation: ElicitationRequest | None) -> bool:
    """Return whether a form waits for this person.

    Requests that open a URL or seem to ask for a secret are answered on their own page.
    """
    return (
        elicitation is not None
        and elicitation.mode == ElicitationRequest.Mode.FORM
        and not elicitation.flags
        and elicitation.is_answerable(timezone.now())
        and can_answer(principal, elicitation)
    )


def _find_last_settled(steps: Iterable[Step], after: int) -> int:
    """Return the last step up to which nothing changes anymore."""
    for step in steps:
        if step.state == Step.State.INTENT:
            break
        after = step.seq
    return after


def _repeats_error(session: Session, steps: Sequence[Step], end: Step) -> bool:
    """Tell whether the step before an end shows the same error (one query if it isn't loaded)."""
    if end.kind != Step.Kind.END or not end.payload.get("code"):
        return False
    loaded = (step for step in steps if step.seq == end.seq - 1)
    before = next(loaded, None) or session.steps.filter(seq=end.seq - 1).first()
    if before is None or before.kind != Step.Kind.MODEL:
        return False
    return all(before.payload.get(name) == end.payload[name] for name in ("code", "detail"))


def _repeats_stop(steps: Sequence[Step], end: Step) -> bool:
    """Return whether the answer above the end of a canceled turn shows that it was stopped."""
    if end.kind != Step.Kind.END or end.payload.get("code") != "cancelled":
        return False
    before = next((step for step in steps if step.seq == end.seq - 1), None)
    return before is not None and before.payload.get("code") == CUT_OFF_CODE


def _should_show(step: Step) -> bool:
    """Return False for model turns that only requested calls, and for ends after an answer."""
    if step.kind == Step.Kind.END:
        return "code" in step.payload or "output" in step.payload
    if step.kind != Step.Kind.MODEL or step.state == Step.State.INTENT:
        return True
    return bool(step.payload.get("text") or step.state != Step.State.DONE)
