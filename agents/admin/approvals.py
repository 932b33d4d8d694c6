"""The inbox of approvals: calls that wait for a person, first those that wait."""

import json
from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Case, IntegerField, Model, QuerySet, When
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.approvals import answer
from agents.models import Approval
from bonobot.lib.admin import (
    FieldTextFilter,
    MultipleChoicesDropdownFilter,
    WithinFilter,
    action,
    display,
    register,
)
from bonobot.lib.problems import Conflict
from bonobot.lib.untrusted import visible
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import PagedAdmin, screen
from bonobot.tenancy.templatetags.bonobot import ago, badge_html

WAITING_FIRST = Case(
    When(state=Approval.State.WAITING, then=0), default=1, output_field=IntegerField()
)
MOST_DENIED = 200
BRIEF = 160  # characters of arguments in the list


class Part(FieldTextFilter):
    """A name, looked for by a part of it."""


def state_badge(approval: Approval) -> SafeString:
    """Return what became of the question; one that is overdue reads as what it is."""
    state = approval.state
    if state == Approval.State.WAITING and not approval.answerable(timezone.now()):
        state = Approval.State.EXPIRED
    tones: dict[str, str] = {"denied": "deny", "expired": "refused"}
    return badge_html(tones.get(state, state), Approval.State(state).label)


@register(Approval)
class ApprovalAdmin(PagedAdmin):
    """The active organization's questions; members see what they asked themselves."""

    list_display = ("tool", "state_now", "agent_name", "server", "asks", "why", "asked_at", "until")
    list_filter = (
        ("state", MultipleChoicesDropdownFilter),
        ("agent__name", Part),
        ("server_name", Part),
        ("own_name", Part),
        ("rule", Part),
        ("created_at", WithinFilter),
    )
    search_fields = ("label", "server_name", "agent__name", "requested_by", "rule", "reason")
    ordering = (WAITING_FIRST, "-created_at")
    list_select_related = ("agent",)
    actions = ("deny_chosen",)
    change_list_template = "admin/approvals/list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Approval]:
        """Return the questions that the person may read."""
        mine: Any = Approval.objects.visible_to(self.principal(request))
        return mine.select_related("agent", "session")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Let in readers, and members who run agents."""
        return self.may(request, Action.RUN_AGENTS) or super().has_view_permission(request, obj)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never: the door asks."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Never: what was asked and answered stays."""
        return False

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """Follow the roles' table."""
        return self.may(request, Action.APPROVE_CALLS)

    @display(description=_("call"), ordering="label")
    def tool(self, approval: Approval) -> SafeString:
        """Return the tool, with the beginning of its arguments (secrets are masked in them)."""
        given = json.dumps(approval.arguments, ensure_ascii=False) if approval.arguments else ""
        return format_html(
            '<span class="bb-cell">{}<span class="bb-brief bb-small bb-mono">{}</span></span>',
            visible(approval.label, 80),
            visible(given, BRIEF),
        )

    @display(description=_("state"), ordering="state")
    def state_now(self, approval: Approval) -> Any:
        """Return what became of it."""
        return state_badge(approval)

    @display(description=_("agent"), ordering="agent__name")
    def agent_name(self, approval: Approval) -> str:
        """Return the agent."""
        return visible(approval.agent.name, 60) if approval.agent else "–"

    @display(description=_("server"), ordering="server_name")
    def server(self, approval: Approval) -> str:
        """Return the server."""
        return visible(approval.server_name, 60) or "–"

    @display(description=_("asked by"), ordering="requested_by")
    def asks(self, approval: Approval) -> str:
        """Return who stands behind the call."""
        return visible(approval.requested_by, 60)

    @display(description=_("rule"), ordering="rule")
    def why(self, approval: Approval) -> str:
        """Return the rule that asked."""
        return visible(approval.rule, 60)

    @display(description=_("asked"), ordering="created_at")
    def asked_at(self, approval: Approval) -> Any:
        """Return when it was asked."""
        return ago(approval.created_at)

    @display(description=_("answered, or expires"), ordering="expires_at")
    def until(self, approval: Approval) -> Any:
        """Return when it was answered; where it wasn't, when it expires."""
        return ago(approval.decided_at or approval.expires_at)

    @action(description=_("Deny what is ticked …"), permissions=["answer"])
    def deny_chosen(
        self, request: HttpRequest, queryset: QuerySet[Approval]
    ) -> HttpResponseBase | None:
        """Ask first, for a word to the models too; then deny what still waits."""
        principal = self.principal(request)
        principal.require(Action.APPROVE_CALLS)
        chosen = list(queryset.filter(state=Approval.State.WAITING)[:MOST_DENIED])
        if chosen and "confirmed" not in request.POST:
            return screen(
                request,
                "approvals/deny.html",
                title=_("Deny these calls"),
                chosen=chosen,
                selected=ACTION_CHECKBOX_NAME,
                opts=self.opts,
            )
        denied = 0
        for approval in chosen:
            try:
                answer(principal, approval, "deny", request.POST.get("word", "").strip())
            except Conflict:
                continue  # answered or expired meanwhile; the list shows it
            denied += 1
        messages.success(request, _t("%(n)d of the ticked were denied.") % {"n": denied})
        return None
