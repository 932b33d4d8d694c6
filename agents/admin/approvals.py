"""Approvals in the admin: the inbox and the page of one approval."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Case, IntegerField, Model, QuerySet, When
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS
from agents.approvals.services import is_own_call, resolve_approval
from agents.flow_labels.services import list_approval_label_sources
from agents.models import Approval
from agents.models.approvals import WAITING
from bonobot.accounts.admin_base import ObjectRequest, TabbedAdmin, render_screen
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import ago, render_badge, render_two_lines
from bonobot.core.admin.theme import (
    DateTimeRangeFilter,
    FieldTextFilter,
    MultipleChoicesDropdownFilter,
    action,
    display,
    register,
)
from bonobot.core.problems import Conflict
from bonobot.core.text.syntax_highlighting import MAX_SHOWN_LENGTH, diff_json
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Definition

WAITING_FIRST = Case(When(state=WAITING, then=0), default=1, output_field=IntegerField())


class PartialNameFilter(FieldTextFilter):
    """A filter by a part of a name."""


class PersonRequestAdmin(TabbedAdmin):
    """Base of the admins of requests to people; members see their own.

    `tones` maps states to badge colors where the names differ.
    """

    needs_to_view = READERS
    tones: ClassVar[dict[str, str]] = {}
    ordering = (WAITING_FIRST, "-created_at")
    list_select_related = ("agent",)

    @classmethod
    def render_badge(cls, person_request: Any) -> SafeString:
        """Return the badge of a request's current state; an overdue one shows as expired."""
        state = person_request.get_state_at(timezone.now())
        return render_badge(cls.tones.get(state, state), person_request.State(state).label)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the requests that the person may read."""
        rows: Any = self.model._default_manager
        visible_rows: QuerySet[Any] = rows.visible_to(self.get_principal(request))
        return visible_rows.select_related("agent", "session")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: calls and servers create requests."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: requests and answers are kept."""
        return False

    @display(description=_("status"), ordering="state")
    def state_now(self, person_request: Any) -> Any:
        """Return the badge of the state."""
        return self.render_badge(person_request)

    @display(description=_("agent"), ordering="agent__name")
    def agent_name(self, person_request: Any) -> str:
        """Return the agent's name."""
        return make_visible(person_request.agent.name, 60) if person_request.agent else "–"

    @display(description=_("server"), ordering="server_name")
    def server(self, person_request: Any) -> str:
        """Return the server's name."""
        return make_visible(person_request.server_name, 60) or "–"

    @display(description=_("requested"), ordering="created_at")
    def asked_at(self, person_request: Any) -> Any:
        """Return when the request was created."""
        return ago(person_request.created_at)

    @display(description=_("answered or expires"), ordering="expires_at")
    def until(self, person_request: Any) -> Any:
        """Return when it was answered or, if it wasn't, when it expires."""
        return ago(person_request.answered_at or person_request.expires_at)


MAX_DENIED = 200
ARGUMENTS_PREVIEW_LENGTH = 160  # characters of arguments in the list


@register(Approval)
class ApprovalAdmin(PersonRequestAdmin):
    """The active organization's approvals; members see those of their own calls."""

    tones: ClassVar[dict[str, str]] = {"denied": "deny", "expired": "refused"}
    list_display = ("tool", "state_now", "agent_name", "why", "asked_at", "until")
    list_filter = (
        ("state", MultipleChoicesDropdownFilter),
        ("agent__name", PartialNameFilter),
        ("server_name", PartialNameFilter),
        ("own_name", PartialNameFilter),
        ("rule", PartialNameFilter),
        ("created_at", DateTimeRangeFilter),
    )
    search_fields = ("label", "server_name", "agent__name", "requested_by", "rule", "reason")
    actions = ("deny_chosen",)
    action_needs: ClassVar[dict[str, Action]] = {"deny_chosen": Action.APPROVE_CALLS}
    change_list_template = "admin/approvals/list.html"

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """Return whether the role may approve calls."""
        return self.can_perform(request, Action.APPROVE_CALLS)

    @display(description=_("call"), ordering="label")
    def tool(self, approval: Approval) -> SafeString:
        """Return the tool with the start of its arguments, secrets masked."""
        arguments = json.dumps(approval.arguments, ensure_ascii=False) if approval.arguments else ""
        return render_two_lines(
            make_visible(approval.label, 80),
            make_visible(arguments, ARGUMENTS_PREVIEW_LENGTH),
            "bb-mono",
        )

    @display(description=_("agent"), ordering="agent__name")
    def agent_name(self, approval: Approval) -> SafeString:
        """Return the agent and the person who made the call."""
        name, person = super().agent_name(approval), make_visible(approval.requested_by, 60)
        return render_two_lines(name, person)

    @display(description=_("rule"), ordering="rule")
    def why(self, approval: Approval) -> str:
        """Return the rule that requires approval."""
        return make_visible(approval.rule, 60)

    @action(description=_("Deny selected…"), permissions=["answer"])
    def deny_chosen(
        self, request: HttpRequest, queryset: QuerySet[Approval]
    ) -> HttpResponseBase | None:
        """Confirm with an optional comment for the model, then deny the waiting calls."""
        principal = self.get_principal(request)
        principal.require(Action.APPROVE_CALLS)
        waiting_approvals = list(queryset.filter(state=Approval.State.WAITING)[:MAX_DENIED])
        if waiting_approvals and "confirmed" not in request.POST:
            return render_screen(
                request,
                "approvals/deny.html",
                title=_("Deny these calls"),
                chosen=waiting_approvals,
                selected=ACTION_CHECKBOX_NAME,
                opts=self.opts,
            )
        denied_count = 0
        for approval in waiting_approvals:
            try:
                resolve_approval(
                    principal, approval, "deny", request.POST.get("message", "").strip()
                )
            except Conflict:
                continue  # answered or expired in the meantime
            denied_count += 1
        messages.success(request, _t("Calls denied: %(n)d.") % {"n": denied_count})
        return None


DEFINITION_KINDS = {
    "tools/call": (Definition.Kind.TOOL,),
    "resources/read": (Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE),
    "prompts/get": (Definition.Kind.PROMPT,),
}
LABEL_TEXTS = {
    "private_data": _("private data"),
    "untrusted_content": _("untrusted content"),
    "sends_out": _("external effect"),
}
ANSWER_MESSAGES = {
    "approve": _("Approved for this call only."),
    "approve_session": _("Approved for the rest of the session."),
    "deny": _("Denied."),
}


@dataclass(frozen=True)
class ApprovalDefinition:
    """The current definition, and whether it differs from the one of the approval."""

    row: Definition
    changed: bool

    @property
    def difference(self) -> list[tuple[str, str]]:
        """Return what changed since the definition was approved."""
        return diff_json(self.row.pinned, self.row.payload) if self.changed else []


@ApprovalAdmin.add_page("change", _("Request"), needs=READERS)
def show_approval(visit: ObjectRequest) -> HttpResponseBase:
    """Show the call, who made it, why it waits, and the possible answers."""
    approval: Approval = visit.object
    arguments = _format_arguments(approval)
    return visit.render_tab(
        "approvals/approval.html",
        approval=approval,
        badge=ApprovalAdmin.render_badge(approval),
        answerable=approval.is_answerable(timezone.now()),
        own=is_own_call(visit.principal, approval),
        declared=find_definition(approval),
        brought=[
            (LABEL_TEXTS.get(source.label, source.label), source.calls)
            for source in list_approval_label_sources(approval)
        ],
        size=len(arguments),
        cut=len(arguments) > MAX_SHOWN_LENGTH,
    )


@ApprovalAdmin.add_page("arguments", needs=READERS)
def download_arguments(visit: ObjectRequest) -> HttpResponseBase:
    """Return all arguments as a file, with secrets masked."""
    response = HttpResponse(_format_arguments(visit.object), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{visit.object.pk}.json"'
    response["Cache-Control"] = "no-store"
    return response


@ApprovalAdmin.add_object_action("answer", needs=Action.APPROVE_CALLS)
def handle_answer(visit: ObjectRequest) -> None:
    """Approve once, approve for the session, or deny with a comment."""
    posted = visit.request.POST
    chosen_answer = posted.get("answer", "")
    resolve_approval(
        visit.principal, visit.object, chosen_answer, posted.get("message", "").strip()
    )
    messages.success(visit.request, str(ANSWER_MESSAGES[chosen_answer]))


def find_definition(approval: Approval) -> ApprovalDefinition | None:
    """Return the definition of the call; None for built-in tools and deleted ones."""
    if approval.server_id is None:
        return None
    rows = Definition.objects.for_organization(approval.organization_id)
    definition = rows.filter(
        server_id=approval.server_id,
        name=approval.own_name,
        kind__in=DEFINITION_KINDS.get(approval.method, tuple(Definition.Kind)),
    ).first()
    if definition is None:
        return None
    return ApprovalDefinition(definition, changed=definition.digest != approval.definition_digest)


def _format_arguments(approval: Approval) -> str:
    value: Any = approval.arguments
    return json.dumps(value, indent=2, ensure_ascii=False)
