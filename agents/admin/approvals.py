"""The inbox of approvals: calls that wait for a person, first those that wait."""

import json
from typing import ClassVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.inbox import InboxAdmin, Part
from agents.approvals import answer
from agents.models import Approval
from bonobot.lib.admin import (
    MultipleChoicesDropdownFilter,
    WithinFilter,
    action,
    display,
    register,
)
from bonobot.lib.problems import Conflict
from bonobot.lib.untrusted import visible
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import screen
from bonobot.tenancy.templatetags.bonobot import two_lines

MOST_DENIED = 200
BRIEF = 160  # characters of arguments in the list


@register(Approval)
class ApprovalAdmin(InboxAdmin):
    """The active organization's questions; members see what they asked themselves."""

    tones: ClassVar[dict[str, str]] = {"denied": "deny", "expired": "refused"}
    list_display = ("tool", "state_now", "agent_name", "why", "asked_at", "until")
    list_filter = (
        ("state", MultipleChoicesDropdownFilter),
        ("agent__name", Part),
        ("server_name", Part),
        ("own_name", Part),
        ("rule", Part),
        ("created_at", WithinFilter),
    )
    search_fields = ("label", "server_name", "agent__name", "requested_by", "rule", "reason")
    actions = ("deny_chosen",)
    action_needs: ClassVar[dict[str, Action]] = {"deny_chosen": Action.APPROVE_CALLS}
    change_list_template = "admin/approvals/list.html"

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """Follow the roles' table."""
        return self.may(request, Action.APPROVE_CALLS)

    @display(description=_("call"), ordering="label")
    def tool(self, approval: Approval) -> SafeString:
        """Return the tool, with the beginning of its arguments (secrets are masked in them)."""
        given = json.dumps(approval.arguments, ensure_ascii=False) if approval.arguments else ""
        return two_lines(visible(approval.label, 80), visible(given, BRIEF), "bb-mono")

    @display(description=_("agent"), ordering="agent__name")
    def agent_name(self, approval: Approval) -> SafeString:
        """Return the agent, and who stands behind the call."""
        name, person = super().agent_name(approval), visible(approval.requested_by, 60)
        return two_lines(name, person)

    @display(description=_("rule"), ordering="rule")
    def why(self, approval: Approval) -> str:
        """Return the rule that asked."""
        return visible(approval.rule, 60)

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
