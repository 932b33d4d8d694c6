"""Sessions in the admin: list, page, timeline, and the session tab of an agent."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.admin.chat import read_attachments, read_output_schema
from agents.admin.session_steps import load_latest_steps, load_session_facts, load_steps
from agents.approvals.services import revoke_session_approval
from agents.evaluation.recordings import FINISHED_STATUSES
from agents.flow_labels.services import parse_labels
from agents.images import build_blob_response, get_session_blob
from agents.models import (
    Agent,
    Approval,
    ElicitationRequest,
    Recording,
    Session,
    SessionApproval,
    Step,
)
from agents.sessions import services as sessions
from agents.sessions.export import build_file_response
from agents.sessions.quarantine import release_quarantined_session
from agents.sessions.session_import import MAX_FILE_BYTES, import_session, parse_session_file
from agents.sessions.timeline_bars import (
    TimelineBar,
    TimelineEvent,
    TimelineSection,
    TimelineWait,
    build_timeline,
)
from bonobot.accounts.admin_base import ObjectRequest, TabbedAdmin, render_fragment
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago, cost, render_badge
from bonobot.accounts.templatetags.display import tokens as format_tokens
from bonobot.core.admin.theme import (
    ChoicesCheckboxFilter,
    DateTimeRangeFilter,
    display,
    register,
)
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.models import AuditRow
from mcp_servers.flow_labels.label_icons import FLOW_MARKS, LabelMark

MAX_TIMELINE_STEPS = 500
MAX_GRANTS = 50


@register(Session)
class SessionAdmin(TabbedAdmin):
    """The active organization's sessions; members see their own."""

    needs_to_view = READERS
    has_bulk_actions = False
    list_display = (
        "session",
        "agent",
        "state",
        "started",
        "started_by_name",
        "calls",
        "tokens",
        "cost",
    )
    list_filter = (("status", ChoicesCheckboxFilter), ("created_at", DateTimeRangeFilter))
    search_fields = ("title", "agent__name", "started_by", "error_code")
    ordering = ("-created_at",)
    list_select_related = ("agent",)
    change_list_template = "admin/sessions/list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        """Return the sessions that the person may read."""
        sessions = Session.objects.visible_to(self.get_principal(request))
        return sessions.with_waits().select_related("agent")

    @display(description=_("session"))
    def session(self, session: Session) -> str:
        return make_visible(str(session), 90)

    @display(description=_("status"), ordering="status")
    def state(self, session: Session) -> str:
        """Return the badge of the status."""
        return render_badge(session.shown_status, session.shown_status_text, session.error_code)

    @display(description=_("started"), ordering="created_at")
    def started(self, session: Session) -> Any:
        return ago(session.created_at)

    @display(description=_("by"), ordering="started_by")
    def started_by_name(self, session: Session) -> str:
        return make_visible(session.starter_name)

    @display(description=_("tokens"), ordering="input_tokens")
    def tokens(self, session: Session) -> str:
        return format_tokens(session.input_tokens + session.output_tokens)

    @display(description=_("cost"), ordering="cost_microusd")
    def cost(self, session: Session) -> str:
        return cost(session.cost_microusd, session.input_tokens + session.output_tokens)


@SessionAdmin.add_page("image", required_actions=READERS)
def show_image(visit: ObjectRequest) -> HttpResponseBase:
    return build_blob_response(get_session_blob(visit.object, visit.request.GET.get("sha256", "")))


@SessionAdmin.add_page("file", required_actions=READERS)
def show_file(visit: ObjectRequest) -> HttpResponseBase:
    """Return an attached text file."""
    return build_blob_response(
        get_session_blob(visit.object, visit.request.GET.get("sha256", ""), payload_key="files")
    )


@SessionAdmin.add_page("export", required_actions=READERS)
def download_session(visit: ObjectRequest) -> HttpResponseBase:
    """Return the session as a file (`?as=markdown` or `json`)."""
    return build_file_response(visit.object, visit.request.GET.get("as", "markdown"))


@SessionAdmin.add_page("change", _("Chat"), required_actions=READERS)
def show_session(visit: ObjectRequest) -> HttpResponseBase:
    """Show the conversation: its last steps, or those after `?after=`."""
    session: Session = visit.object
    after_seq = _parse_after(visit)
    return visit.render_tab(
        "sessions/session.html",
        session=session,
        facts=load_session_facts(session),
        session_steps=(
            load_latest_steps(session, visit.principal)
            if after_seq is None
            else load_steps(session, visit.principal, after_seq)
        ),
        grants=session.grants.all(),
        may_run=sessions.can_run_agent(visit.principal, session.agent),
        recording_id=(recording_id := _find_recording_id(visit)),
        may_record=not recording_id
        and visit.principal.may(Action.MANAGE_AGENTS)
        and session.status in FINISHED_STATUSES,
    )


@SessionAdmin.add_page("steps", required_actions=READERS)
def show_steps(visit: ObjectRequest) -> HttpResponseBase:
    """Return the steps after `?after=` as a fragment."""
    session: Session = visit.object
    return render_fragment(
        visit.request,
        "sessions/steps.html",
        session=session,
        session_steps=load_steps(session, visit.principal, _parse_after(visit) or 0),
        facts=load_session_facts(session),
        may_run=sessions.can_run_agent(visit.principal, session.agent),
    )


@SessionAdmin.add_object_action("send", required_actions=Action.RUN_AGENTS)
def send_message(visit: ObjectRequest) -> None:
    files = read_attachments(visit.request)
    sessions.send_message(
        visit.principal,
        visit.object,
        visit.request.POST.get("text", ""),
        files,
        output_schema=read_output_schema(visit.request),
    )


@SessionAdmin.add_object_action("retry", required_actions=Action.RUN_AGENTS)
def resend_message(visit: ObjectRequest) -> None:
    """Send a message again in place of the old one, unchanged or with a new `text`."""
    posted = visit.request.POST
    seq = posted.get("seq", "")
    sessions.resend_message(
        visit.principal,
        visit.object,
        int(seq) if seq.isdecimal() and len(seq) < 10 else None,
        posted.get("text"),
        read_attachments(visit.request),
    )


@SessionAdmin.add_object_action("cancel", required_actions=Action.RUN_AGENTS)
def cancel_session(visit: ObjectRequest) -> None:
    if sessions.cancel_session(visit.principal, visit.object):
        messages.success(visit.request, _t("Session stopped."))
    else:
        messages.info(visit.request, _t("Nothing is running, so there is nothing to cancel."))


@SessionAdmin.add_object_action("release", required_actions=Action.MANAGE_AGENTS)
def release_session(visit: ObjectRequest) -> None:
    release_quarantined_session(visit.principal, visit.object)
    messages.success(visit.request, _t("Released. The session continues."))


@SessionAdmin.add_object_action("revoke", required_actions=Action.APPROVE_CALLS)
def handle_revoke(visit: ObjectRequest) -> None:
    grants = SessionApproval.objects.filter(session=visit.object)
    organization_id = visit.principal.organization_id
    grant: SessionApproval = grants.get_or_404(organization_id, pk=visit.request.POST.get("grant"))
    revoke_session_approval(visit.principal, grant)
    text = _t("%(tool)s requires approval again, starting with the next call.")
    messages.success(visit.request, text % {"tool": make_visible(grant.label, 120)})


def _find_recording_id(visit: ObjectRequest) -> UUID | None:
    """Return the id of the session's recording, if the person may view it."""
    if not visit.principal.may(Action.VIEW):
        return None
    recordings = Recording.objects.filter(agent=visit.object.agent_id, session_id=visit.object.pk)
    recording_id: UUID | None = recordings.values_list("pk", flat=True).first()
    return recording_id


def _parse_after(visit: ObjectRequest) -> int | None:
    text = visit.request.GET.get("after", "")
    return min(int(text), 2**31 - 1) if text.isdecimal() and len(text) < 12 else None


@dataclass(frozen=True)
class TimelineRow:
    """A timeline bar with its audit row."""

    bar: TimelineBar
    audit: AuditRow | None = None
    labels: tuple[LabelMark, ...] = ()

    @property
    def tool_name(self) -> str:
        """The server's own name of a called tool."""
        return make_visible(self.audit.tool_name, 80) if self.audit else self.bar.event.title

    @property
    def is_denied(self) -> bool:
        return self.audit is not None and self.audit.outcome == AuditRow.Outcome.REFUSED

    @property
    def has_decision(self) -> bool:
        """Whether a call was decided; a model turn has a decision only if it was denied."""
        is_call = self.bar.event.kind == "call"
        return self.audit is not None and (is_call or self.is_denied)

    @property
    def tokens(self) -> int:
        return self.audit.input_tokens + self.audit.output_tokens if self.audit else 0


@SessionAdmin.add_page("timeline", _("Timeline"), order=20, required_actions=READERS)
def show_timeline(visit: ObjectRequest) -> HttpResponseBase:
    """Show the timeline of a session's latest steps (4 queries)."""
    session: Session = visit.object
    latest = session.steps.order_by("-seq")[: MAX_TIMELINE_STEPS + 1]
    steps = [item for item in latest if item.kind != Step.Kind.NOTICE]
    audit_rows = _load_audit_rows(steps)
    sections = build_timeline(
        _build_timeline_events(session, steps[:MAX_TIMELINE_STEPS]), timezone.now()
    )
    return visit.render_tab(
        "sessions/timeline.html",
        session=session,
        sections=[(item, _build_timeline_rows(item, audit_rows)) for item in sections],
        cut=len(steps) > MAX_TIMELINE_STEPS,
        most=MAX_TIMELINE_STEPS,
    )


def _build_timeline_events(session: Session, steps: list[Step]) -> list[TimelineEvent]:
    approvals = list(Approval.objects.filter(session=session).order_by("created_at"))
    waits_by_step: dict[str, list[TimelineWait]] = {}
    for person_request in approvals:
        for key in {str(person_request.pk), str(person_request.call_id)}:
            waits_by_step.setdefault(key, []).append(
                TimelineWait(person_request.created_at, person_request.answered_at)
            )
    return [
        *(_build_timeline_event(step, waits_by_step) for step in steps),
        *(
            TimelineEvent(
                key=str(person_request.pk),
                kind="question",
                state=person_request.state,
                title=_t("Elicitation request from %(server)s")
                % {"server": make_visible(person_request.server_name, 80)},
                started_at=person_request.created_at,
                ended_at=person_request.answered_at,
                waits=(TimelineWait(person_request.created_at, person_request.answered_at),),
            )
            for person_request in ElicitationRequest.objects.filter(session=session).order_by(
                "created_at"
            )
        ),
    ]


def _build_timeline_event(
    step: Step, waits_by_step: dict[str, list[TimelineWait]]
) -> TimelineEvent:
    payload = step.payload
    approval_id = str((payload.get("approval") or {}).get("approval_id", ""))
    titles = {
        Step.Kind.MESSAGE: make_visible(str(payload.get("text", "")), 80),
        Step.Kind.MODEL: _t("Model turn %(n)s") % {"n": step.turn},
        Step.Kind.CALL: make_visible(str(payload.get("name", "")), 80),
        Step.Kind.END: _name_end(str(payload.get("code", ""))),
    }
    kind: Any = str(step.kind)
    return TimelineEvent(
        key=str(step.call_id or ""),
        kind=kind,
        state=step.state,
        title=titles[Step.Kind(step.kind)],
        started_at=step.started_at,
        ended_at=step.finished_at,
        waits=tuple(waits_by_step.get(approval_id) or waits_by_step.get(str(step.call_id)) or ()),
    )


def _name_end(code: str) -> str:
    """Return how a message ended, by the code of its end."""
    if code:
        return _t("Canceled") if code == "cancelled" else _t("Failed")
    return _t("Completed")


def _load_audit_rows(steps: list[Step]) -> dict[str, AuditRow]:
    ids: list[UUID] = [step.call_id for step in steps if step.call_id]
    return {str(row.pk): row for row in AuditRow.objects.filter(pk__in=ids)} if ids else {}


def _build_timeline_rows(
    section: TimelineSection, audit_rows: dict[str, AuditRow]
) -> list[TimelineRow]:
    return [_build_timeline_row(bar, audit_rows.get(bar.event.key)) for bar in section.bars]


def _build_timeline_row(bar: TimelineBar, audit: AuditRow | None) -> TimelineRow:
    label_names = sorted(parse_labels(audit)) if audit and audit.event_type == "call" else []
    return TimelineRow(
        bar, audit, tuple(FLOW_MARKS[name] for name in label_names if name in FLOW_MARKS)
    )


@AgentAdmin.add_page(
    "sessions", _("Sessions"), order=50, required_actions=(Action.RUN_AGENTS, Action.VIEW)
)
def show_agent_sessions(visit: ObjectRequest) -> HttpResponseBase:
    """Show the agent's sessions, latest first, and their session approvals."""
    agent: Agent = visit.object
    visible_sessions = (
        Session.objects.visible_to(visit.principal).filter(agent=agent).order_by("-created_at")
    )
    grants = agent.grants.filter(session__in=visible_sessions).select_related("session")[
        :MAX_GRANTS
    ]
    return visit.render_tab(
        "agents/sessions.html",
        agent=agent,
        paged=visit.paginate(visible_sessions.with_waits()),
        grants=grants,
        may_import=agent.enabled and sessions.can_run_agent(visit.principal, agent),
    )


@AgentAdmin.add_object_action("import_session", required_actions=Action.RUN_AGENTS)
def handle_import(visit: ObjectRequest) -> HttpResponseBase:
    """Import the uploaded JSON export and show the session."""
    file: Any = visit.request.FILES.get("file")
    if file is None:
        raise InvalidInput(
            "No file was selected.", field="file", remedy="Select the JSON export of a session."
        )
    content = bytes(file.read(MAX_FILE_BYTES + 1))
    session = import_session(visit.principal, visit.object, parse_session_file(content))
    messages.success(visit.request, _t("Imported. Send a message to continue the session."))
    return HttpResponseRedirect(reverse("admin:agents_session_change", args=(session.pk,)))
