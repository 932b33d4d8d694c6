"""Approvals in the admin: the inbox and the page of one approval."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin import ModelAdmin as DjangoModelAdmin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ERROR_FLAG, PAGE_VAR
from django.db.models import Case, IntegerField, QuerySet, When
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from agents.access_requests import can_answer_access_requests
from agents.admin.agents import READERS
from agents.admin.audit_names import MAX_SUGGESTED_NAMES, sort_names
from agents.approvals.change_arguments import approve_with_changes
from agents.approvals.changed_definitions import (
    DEFINITION_KINDS,
    find_changed_definitions,
    find_outdated_approvals,
    is_reviewed,
)
from agents.approvals.details_for_approvers import (
    count_earlier_answers,
    list_matching_rules,
    list_trace_steps,
)
from agents.approvals.pending_calls import is_unused
from agents.approvals.services import filter_same_call, is_own_call, resolve_approval
from agents.builtin_tools.registry import BUILTIN_TOOLS
from agents.builtin_tools.toolset_options import build_toolbox
from agents.calls.parse_arguments import parse_arguments
from agents.flow_labels.services import list_approval_label_sources
from agents.models import AccessRequest, Approval
from agents.models.approvals import WAITING
from bonobot.accounts.admin_base import ObjectRequest, TabbedAdmin, render_screen
from bonobot.accounts.admin_base.responses import FRAGMENT_HEADER, render_fragment
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, format_allowed_roles
from bonobot.accounts.templatetags.display import ago, render_badge
from bonobot.core.admin.theme import (
    ChoicesCheckboxFilter,
    DateTimeRangeFilter,
    DropdownFilter,
    FieldTextFilter,
    action,
    display,
    register,
)
from bonobot.core.i18n.localization import format_number, localize_names
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Forbidden, InvalidInput
from bonobot.core.text.syntax_highlighting import (
    MAX_SHOWN_LENGTH,
    diff_json,
    highlight_json_lines,
)
from bonobot.core.text.untrusted_text import make_visible
from bonobot.core.text.uuids import parse_uuid
from mcp_servers.flow_labels.effective_labels import get_effective_labels, load_label_context
from mcp_servers.flow_labels.label_icons import FLOW_MARKS, LabelMark, list_label_marks
from mcp_servers.models import Definition

WAITING_FIRST = Case(When(state=WAITING, then=0), default=1, output_field=IntegerField())
MAX_ANSWERED = 200  # calls that are answered at once
MAX_LISTED = 50
MAX_ACCESS_REQUESTS = 5  # shown above the pending calls
SHOWN_HEADER = "Bonobot-Shown"  # the calls that a script shows, to know which are still pending
TABS = {"pending": _("Pending"), "answered": _("Answered")}
TAB_QUERIES = {"pending": "", "answered": "?tab=answered"}
FILTER_FIELDS = (
    "q",
    *(f"{name}__icontains" for name in ("agent__name", "server_name", "own_name")),
)
ANSWER_MESSAGES = {
    "approve": _("Approved for this call only."),
    "approve_session": _("Approved for the rest of the session."),
    "approve_changed": _("Approved with changed arguments."),
    "deny": _("Denied."),
}
RETRY_MESSAGE = _("Approved. It runs when the client retries the call.")
EDIT_REMEDY = format_message("Correct the JSON, or approve the call without changes.")
# A call that expires within this time is marked.
URGENT = timedelta(minutes=15)


def render_confirmation(
    request: HttpRequest, folder: str, *, title: Any, rows: Sequence[Any], **context: Any
) -> HttpResponseBase:
    """Ask before several answers: in a dialog of the list, or without a script on a page.

    `rows` are the calls or requests, `answer` is approve or deny, and `action` that of the list.
    """
    template = f"{folder}/confirm_form.html"
    context |= {"title": title, "rows": rows, "selected": ACTION_CHECKBOX_NAME}
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(request, template, **context)
    context["form_template"] = f"admin/{template}"
    return render_screen(request, "parts/confirm_answers_page.html", **context)


class PartialNameFilter(FieldTextFilter):
    """A filter by a part of a name."""


class PersonRequestAdmin(TabbedAdmin):
    """Base of the admins of requests to people; members see their own."""

    needs_to_view = READERS
    can_add = False  # calls and servers create requests
    can_delete = False  # requests and answers are kept
    ordering = (WAITING_FIRST, "-created_at")
    list_select_related = ("agent",)

    @classmethod
    def render_badge(cls, person_request: Any) -> SafeString:
        """Return the badge of a request's current state; an overdue one shows as expired."""
        state = person_request.get_state_at(timezone.now())
        # Capitalized: the word "pending" alone means a pending review.
        label = capfirst(person_request.State(state).label)
        return render_badge(state, label)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: Any = self.model._default_manager
        visible_rows: QuerySet[Any] = rows.visible_to(self.get_principal(request))
        return visible_rows.select_related("agent", "organization", "session")

    @display(description=_("status"), ordering="state")
    def state_badge(self, person_request: Any) -> Any:
        return self.render_badge(person_request)

    @display(description=_("agent"), ordering="agent__name")
    def agent_name(self, person_request: Any) -> str:
        return make_visible(person_request.agent.name, 60) if person_request.agent else "–"

    @display(description=_("server"), ordering="server_name")
    def server(self, person_request: Any) -> str:
        return make_visible(person_request.server_name, 60) or "–"

    @display(description=_("requested"), ordering="created_at")
    def requested(self, person_request: Any) -> Any:
        return ago(person_request.created_at)

    @display(description=_("answered or expires"), ordering="expires_at")
    def answered_or_expires(self, person_request: Any) -> Any:
        """Return when it was answered or, if it wasn't, when it expires."""
        return ago(person_request.answered_at or person_request.expires_at)


class AnsweredFilter(DropdownFilter):
    """The tabs of the inbox: pending calls, or those that were answered or expired."""

    title = _("tab")
    parameter_name = "tab"

    def lookups(self, request: HttpRequest, model_admin: DjangoModelAdmin) -> Any:
        return tuple(TABS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Approval]) -> QuerySet[Approval]:
        """Return the pending calls, most urgent first, or the answered ones, latest first."""
        return filter_tab(queryset, read_tab(request))


def filter_tab(rows: Any, tab: str) -> Any:
    """Keep the rows of a tab of the inbox."""
    if tab == "pending":
        return rows.pending()
    return rows.exclude(state=WAITING, expires_at__gt=timezone.now())


def read_tab(request: HttpRequest) -> str:
    """Return the tab that a request shows; a filter by another state implies *Answered*."""
    states = request.GET.get("state__in", WAITING).split(",")
    default = "pending" if WAITING in states else "answered"
    tab = request.GET.get("tab", default)
    return tab if tab in TABS else default


@register(Approval)
class ApprovalAdmin(PersonRequestAdmin):
    """The active organization's approvals as an inbox; members see those of their own calls."""

    list_display = ("label",)
    list_filter = (
        AnsweredFilter,
        ("state", ChoicesCheckboxFilter),
        ("agent__name", PartialNameFilter),
        ("server_name", PartialNameFilter),
        ("own_name", PartialNameFilter),
        ("rule", PartialNameFilter),
        ("created_at", DateTimeRangeFilter),
    )
    search_fields = (
        "label",
        "own_name",
        "server_name",
        "agent__name",
        "requested_by",
        "rule",
        "reason",
    )
    list_per_page = MAX_LISTED
    actions = ("approve_chosen", "deny_chosen")
    action_needs: ClassVar[dict[str, Action]] = {
        "approve_chosen": Action.APPROVE_CALLS,
        "deny_chosen": Action.APPROVE_CALLS,
    }
    change_list_template = "admin/approvals/inbox.html"

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """Return whether the role may approve calls."""
        return self.can_perform(request, Action.APPROVE_CALLS)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order: pending calls by urgency, so that new ones are added at the end."""
        is_pending = read_tab(request) == "pending"
        return ("expires_at", "created_at") if is_pending else ("-decided_at", "-created_at")

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the inbox with the first call next to it, or only its list to a script."""
        title = capfirst(self.opts.verbose_name_plural)
        response = super().changelist_view(request, {"title": title, **(extra_context or {})})
        if not isinstance(response, TemplateResponse) or "cl" not in (response.context_data or {}):
            return response
        context: dict[str, Any] = response.context_data or {}
        approvals = list(context["cl"].result_list)
        context |= build_inbox(request, approvals, context["cl"].result_count)
        if FRAGMENT_HEADER in request.headers:
            context["still_pending"] = _list_still_pending(self.get_queryset(request), request)
            return render_fragment(request, "approvals/items.html", **context)
        principal = self.get_principal(request)
        if context["tab"] == "pending":
            context["access_requests"] = list_access_requests(principal)
        if approvals:
            context |= build_details(principal, approvals[0]) | {"is_preselected": True}
        return response

    @action(description=_("Approve…"), permissions=["answer"])
    def approve_chosen(
        self, request: HttpRequest, queryset: QuerySet[Approval]
    ) -> HttpResponseBase | None:
        """Confirm with an optional reason, then approve the pending calls, each once."""
        return self._answer_chosen(request, queryset, "approve")

    @action(description=_("Deny…"), permissions=["answer"])
    def deny_chosen(
        self, request: HttpRequest, queryset: QuerySet[Approval]
    ) -> HttpResponseBase | None:
        """Confirm with an optional message for the model, then deny the pending calls."""
        return self._answer_chosen(request, queryset, "deny")

    def _answer_chosen(
        self, request: HttpRequest, queryset: Any, answer: str
    ) -> HttpResponseBase | None:
        principal = self.get_principal(request)
        principal.require(Action.APPROVE_CALLS)
        pending = list(queryset.pending()[: MAX_ANSWERED + 1])
        has_more, pending = len(pending) > MAX_ANSWERED, pending[:MAX_ANSWERED]
        outdated = find_changed_definitions(pending) if answer == "approve" else {}
        pending = [approval for approval in pending if approval.pk not in outdated]
        if pending and "confirmed" not in request.POST:
            approve, deny = _("Approve these calls"), _("Deny these calls")
            if len(pending) == 1:
                approve, deny = _("Approve this call"), _("Deny this call")
            inbox_url = reverse("admin:agents_approval_changelist")
            query = _build_list_query(request)
            return render_confirmation(
                request,
                "approvals",
                title=deny if answer == "deny" else approve,
                rows=pending,
                has_more=has_more,
                answer=answer,
                action=f"{answer}_chosen",
                list_url=f"{inbox_url}?{query}" if query else inbox_url,
                opts=self.opts,
            )
        message = request.POST.get("message", "").strip()
        answered, skipped = _answer_all(principal, pending, answer, message)
        text = (
            ngettext("%(n)s call denied.", "%(n)s calls denied.", answered)
            if answer == "deny"
            else ngettext("%(n)s call approved.", "%(n)s calls approved.", answered)
        )
        skipped += len(outdated)
        if answered or not skipped:
            messages.success(request, text % {"n": format_number(answered)})
        if skipped:
            messages.warning(
                request,
                _t(
                    "Not answered: %(n)s. They were answered meanwhile, you requested them, or"
                    " their definitions changed."
                )
                % {"n": format_number(skipped)},
            )
        return None


def _build_list_query(request: HttpRequest) -> str:
    """Return the filters of the list, without its page."""
    query = request.GET.copy()
    for name in (PAGE_VAR, ERROR_FLAG):
        query.pop(name, None)
    return query.urlencode()


def _list_still_pending(rows: Any, request: HttpRequest) -> list[str]:
    """Return which of the calls that a script shows are pending, on any page (one query)."""
    shown_ids = request.headers.get(SHOWN_HEADER, "").split()[: MAX_ANSWERED + MAX_LISTED]
    ids = [pk for text in shown_ids if (pk := parse_uuid(text))]
    if not ids:
        return []
    return [str(pk) for pk in rows.pending().filter(pk__in=ids).values_list("pk", flat=True)]


def _answer_all(
    principal: Principal, approvals: Iterable[Approval], answer: str, message: str
) -> tuple[int, int]:
    """Answer calls one by one; return how many were answered, and how many couldn't be."""
    answered = skipped = 0
    for approval in approvals:
        try:
            resolve_approval(principal, approval, answer, message)
        except (Conflict, Forbidden):
            skipped += 1  # answered or expired meanwhile, an own call, or for another definition
        else:
            answered += 1
    return answered, skipped


@dataclass(frozen=True)
class ApprovalDefinition:
    """The current definition, and whether it differs from the one of the approval."""

    row: Definition
    changed: bool

    @property
    def difference(self) -> list[tuple[str, str]]:
        """Return what changed since the definition was approved."""
        return diff_json(self.row.pinned, self.row.payload) if self.changed else []


@dataclass(frozen=True)
class InboxItem:
    """A call in the list: its state, and the labels of its caller and its tool."""

    approval: Approval
    state: str
    is_urgent: bool
    is_outdated: bool  # the definition changed, so that it can't be approved
    minutes_left: int
    marks: list[LabelMark]


def build_inbox(request: HttpRequest, approvals: list[Approval], total: int) -> dict[str, Any]:
    """Return the context of the list (three queries); `total` calls are on all of its pages."""
    now, definitions = timezone.now(), _load_definitions(approvals)
    outdated = find_outdated_approvals(approvals, now)
    keys = [(approval.server_id, approval.own_name) for approval in approvals]
    return {
        "items": [
            InboxItem(
                approval,
                approval.get_state_at(now),
                is_urgent=is_urgent(approval, now),
                is_outdated=approval.pk in outdated,
                minutes_left=math.ceil((approval.expires_at - now).total_seconds() / 60),
                marks=list_tool_marks(approval, definitions.get(key), approval.flow_labels),
            )
            for approval, key in zip(approvals, keys, strict=True)
        ],
        "tab": read_tab(request),
        "tab_url": reverse("admin:agents_approval_changelist") + TAB_QUERIES[read_tab(request)],
        "list_query": _build_list_query(request),
        "other_count": total - len(approvals),
        "selectable": min(total, MAX_ANSWERED),
        "is_cut": total > MAX_ANSWERED,
        "pending_count": count_pending_calls(request),
        "is_filtered": any(request.GET.get(name) for name in FILTER_FIELDS),
        "filter_names": partial(list_filter_names, request),
    }


def list_filter_names(request: HttpRequest) -> dict[str, list[str]]:
    """Return the names of agents, servers and tools of the tab's latest calls (one query)."""
    visible_rows = Approval.objects.visible_to(resolve_principal(request))
    rows = filter_tab(visible_rows, read_tab(request)).order_by("-created_at")
    latest = rows.values_list("agent__name", "server_name", "own_name")[:MAX_SUGGESTED_NAMES]
    columns = zip(*latest, strict=True) if latest else ((), (), ())
    return {
        kind: sort_names(filter(None, names))
        for kind, names in zip(("agent", "server", "tool"), columns, strict=True)
    }


def list_access_requests(principal: Principal) -> list[AccessRequest]:
    """Return the latest pending access requests that the person can answer (one query)."""
    if not can_answer_access_requests(principal):
        return []
    pending = AccessRequest.objects.visible_to(principal).pending()
    return list(pending.select_related("agent").order_by("-created_at")[:MAX_ACCESS_REQUESTS])


def count_pending_calls(request: HttpRequest) -> int:
    """Return how many calls the person could answer, up to a limit (one query)."""
    pending = Approval.objects.visible_to(resolve_principal(request)).pending()
    counts = dict(pending.build_capped_count("calls"))
    return int(counts.get("calls", 0))


def is_urgent(approval: Approval, now: datetime) -> bool:
    """Return whether a pending call expires soon."""
    return approval.is_answerable(now) and approval.expires_at - now < URGENT


def _load_definitions(approvals: Iterable[Approval]) -> dict[Any, Definition]:
    keys = {(approval.server_id, approval.own_name) for approval in approvals}
    rows = Definition.objects.filter(
        server_id__in={server_id for server_id, _name in keys if server_id},
        name__in={name for _server_id, name in keys},
        kind=Definition.Kind.TOOL,
    )
    return {(row.server_id, row.name): row for row in rows.select_related("server__preset")}


def list_tool_marks(
    approval: Approval, definition: Definition | None, held_labels: Iterable[str] = ()
) -> list[LabelMark]:
    """Return the labels in effect and annotations of a call's tool, and labels of its caller.

    `definition` is that of the tool, with its server and preset; built-in tools have none.
    """
    labels, declaration = {*held_labels}, None
    tool = BUILTIN_TOOLS.get(approval.own_name) if approval.server_id is None else None
    if definition is not None:
        context = load_label_context(definition.server)
        labels |= {*get_effective_labels(definition, context)}
        declaration = definition.payload
    elif tool is not None and approval.agent is not None:
        labels |= {*tool.list_labels(build_toolbox(approval.agent))}
        declaration = tool.declaration
    return [mark for mark in list_label_marks(labels, declaration) if mark.present]


def build_details(principal: Principal, approval: Approval) -> dict[str, Any]:
    """Return the context of the details of one call (a fixed number of queries)."""
    now = timezone.now()
    rules = list_matching_rules(approval) if approval.is_answerable(now) else []
    marks = {name: text for match in rules for name, text in match.conditions.items()}
    lines = highlight_json_lines(approval.arguments, marks)
    size = len(format_arguments(approval))
    declared, is_tool = find_definition(approval), approval.method == "tools/call"
    return {
        "approval": approval,
        "state": approval.get_state_at(now),
        "answerable": approval.is_answerable(now),
        "is_unused": is_unused(approval),
        "is_urgent": is_urgent(approval, now),
        "own": is_own_call(principal, approval),
        "approvers": capfirst(localize_names(format_allowed_roles((Action.APPROVE_CALLS,)))),
        "needs_second_person": approval.organization.four_eyes,
        **_describe_change(approval),
        "declared": declared,
        "marks": list_tool_marks(approval, declared.row if declared and is_tool else None),
        "sources": [
            {"mark": FLOW_MARKS[source.label], "calls": source.calls}
            for source in list_approval_label_sources(approval)
        ],
        "rules": rules,
        "of_agent": approval.agent_id,
        "steps": list_trace_steps(approval),
        "earlier": count_earlier_answers(approval),
        "lines": lines,
        "argument_changes": list_argument_changes(approval),
        "editable_arguments": format_arguments(approval),
        "size": size,
        "cut": size > MAX_SHOWN_LENGTH,
    }


def _describe_change(approval: Approval) -> dict[str, Any]:
    """Return whether the definition changed so that the approval doesn't apply, and its successor.

    At most two queries.
    """
    definition = find_outdated_approvals([approval], timezone.now()).get(approval.pk)
    replaced_by = None
    if approval.state == Approval.State.WITHDRAWN and approval.definition_digest:
        later = filter_same_call(approval).filter(created_at__gt=approval.created_at)
        replaced_by = later.order_by("created_at").first()
    return {
        "is_outdated": definition is not None,
        "is_reviewed": definition is not None and is_reviewed(definition),
        "replaced_by": replaced_by,
    }


def list_argument_changes(approval: Approval) -> list[tuple[str, str]]:
    """Return the lines of the arguments, if the approver changed them: added, removed or same."""
    return (
        diff_json(approval.requested_arguments, approval.arguments) if approval.is_changed else []
    )


@ApprovalAdmin.add_page("change", required_actions=READERS)
def show_approval(visit: ObjectRequest) -> HttpResponseBase:
    """Show the call next to the list: why it waits, what led to it, and the possible answers."""
    request, approval = visit.request, visit.object
    details = build_details(visit.principal, approval)
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(request, "approvals/details.html", **details)
    is_pending = approval.is_answerable(timezone.now())
    query = request.GET.copy()
    query["tab"] = "pending" if is_pending else "answered"
    request.GET = query  # type: ignore[assignment]  # a copy, which may be changed
    rows = filter_tab(visit.admin.get_queryset(request), read_tab(request))
    rows = rows.order_by(*visit.admin.get_ordering(request))
    return render_screen(
        request,
        "approvals/approval.html",
        title=str(approval),
        object=approval,
        opts=visit.admin.opts,
        **build_inbox(request, list(rows[:MAX_LISTED]), rows[: MAX_ANSWERED + 1].count()),
        **details,
    )


@ApprovalAdmin.add_page("arguments", required_actions=READERS)
def download_arguments(visit: ObjectRequest) -> HttpResponseBase:
    """Return all arguments as a file, with secrets masked."""
    response = HttpResponse(format_arguments(visit.object), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{visit.object.pk}.json"'
    response["Cache-Control"] = "no-store"
    return response


@ApprovalAdmin.add_object_action("answer", required_actions=Action.APPROVE_CALLS)
def handle_answer(visit: ObjectRequest) -> HttpResponseBase | None:
    """Approve a call, approve for the session, or deny with a comment."""
    posted = visit.request.POST
    chosen_answer, message = posted.get("answer", ""), posted.get("message", "").strip()
    if chosen_answer == "approve_changed":
        arguments = parse_arguments(posted.get("arguments", ""), remedy=EDIT_REMEDY)
        approval = approve_with_changes(visit.principal, visit.object, arguments, message)
    else:
        if chosen_answer != "deny":
            _refuse_lost_changes(visit.object, posted.get("arguments"))
        approval = resolve_approval(visit.principal, visit.object, chosen_answer, message)
    is_retried = chosen_answer == "approve" and approval.session_id is None
    text = str(RETRY_MESSAGE if is_retried else ANSWER_MESSAGES[chosen_answer])
    if FRAGMENT_HEADER in visit.request.headers:
        details = build_details(visit.principal, approval)
        return render_fragment(
            visit.request, "approvals/details.html", answer_message=text, **details
        )
    messages.success(visit.request, text)
    return None


def _refuse_lost_changes(approval: Approval, entered_text: str | None) -> None:
    """Raise `InvalidInput` if the call would be approved without the changes in its form."""
    if entered_text is None:
        return
    if entered_text.replace("\r\n", "\n").strip() != format_arguments(approval).strip():
        raise InvalidInput(
            "You changed the arguments, but approved the call without the changes.",
            field="arguments",
            remedy="Approve the changed call, or discard the changes.",
        )


def find_definition(approval: Approval) -> ApprovalDefinition | None:
    """Return the definition of the call; None for built-in tools and deleted ones."""
    if approval.server_id is None:
        return None
    rows = Definition.objects.for_organization(approval.organization_id)
    same_name = rows.filter(
        server_id=approval.server_id,
        name=approval.own_name,
        kind__in=DEFINITION_KINDS.get(approval.method, tuple(Definition.Kind)),
    )
    definition = same_name.select_related("server__preset").first()
    if definition is None:
        return None
    return ApprovalDefinition(definition, changed=definition.digest != approval.definition_digest)


def format_arguments(approval: Approval) -> str:
    """Return the arguments as an approver reads and edits them, with secrets masked."""
    value: Any = approval.arguments
    return json.dumps(value, indent=2, ensure_ascii=False)
