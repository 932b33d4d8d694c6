"""Access requests in the admin: the list, the form, and the page of one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import BooleanField, ExpressionWrapper, Q, Value
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.access_requests import (
    ANSWER_PERMISSIONS,
    AccessRequestSpec,
    Answer,
    answer_access_request,
    can_answer_access_requests,
    cancel_access_request,
    check_target,
    create_access_request,
    find_agent,
    find_server,
    find_tool,
    is_requester,
    list_known_names,
)
from agents.admin.agents import READERS
from agents.admin.approvals import (
    MAX_ANSWERED,
    PartialNameFilter,
    PersonRequestAdmin,
    render_confirmation,
)
from agents.models import AccessRequest, Agent
from agents.models.access_requests import (
    MAX_REASON_LENGTH,
    MAX_TARGET_LENGTH,
    AccessRequestQuerySet,
)
from agents.models.approvals import WAITING
from bonobot.accounts.admin_base import (
    ObjectRequest,
    add_problem_message,
    add_problem_to_form,
    render_screen,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import (
    ChoicesCheckboxFilter,
    DateTimeRangeFilter,
    Select,
    Textarea,
    TextInput,
    action,
    display,
    register,
)
from bonobot.core.i18n.localization import localize_problem
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible

# Only servers and tools have a list of names: agents that a person knows need no request.
TARGET_HELP_TEXTS = {
    "server": _("Select a server, or enter the name of one to add."),
    "tool": _("Select a tool, or enter the name of one to add."),
    "agent": _("Enter the name of an agent that you can't use yet, or of a new one."),
}


class AccessRequestForm(forms.Form):
    """What is requested, for which agent, and why; the service validates the values."""

    kind = forms.ChoiceField(
        label=_("What do you need?"), choices=AccessRequest.Kind.choices, widget=Select
    )
    target = forms.CharField(
        label=_("Name"),
        max_length=MAX_TARGET_LENGTH,
        widget=TextInput(attrs={"data-lists": "kind", "autocomplete": "off"}),
    )
    agent = forms.ChoiceField(
        label=_("For agent"),
        required=False,
        widget=Select(attrs={"data-searchable-options": True}),
        help_text=_("The agent that gets the server or tool."),
    )
    reason = forms.CharField(
        label=_("Reason"), max_length=MAX_REASON_LENGTH, widget=Textarea(attrs={"rows": 4})
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the agents that the principal can see; the only one is selected.

        Without any, there is none to add a server or tool to: an agent is requested by default.
        """
        super().__init__(*args, **kwargs)
        agents = Agent.objects.visible_to(principal).order_by("name")
        choices = [(agent.slug, make_visible(agent.name, 80)) for agent in agents]
        self.fields["agent"].choices = [("", "–"), *choices]  # type: ignore[attr-defined]
        if len(choices) == 1 and not self.initial.get("agent"):
            self.initial["agent"] = choices[0][0]
        default_kind = AccessRequest.Kind.SERVER if choices else AccessRequest.Kind.AGENT
        self.initial["kind"] = self.initial.get("kind") or default_kind
        shown_kind = str(self["kind"].value())
        self.fields["target"].help_text = format_html_join(
            "",
            '<span data-shows="kind={}"{}>{}</span>',
            (
                (kind, "" if kind == shown_kind else mark_safe(" hidden"), text)
                for kind, text in TARGET_HELP_TEXTS.items()
            ),
        )

    def build_spec(self, principal: Principal) -> AccessRequestSpec:
        """Return the values; raises `NotFound` for an unknown agent."""
        values = self.cleaned_data
        slug = values["agent"]
        return AccessRequestSpec(
            kind=values["kind"],
            target=values["target"],
            reason=values["reason"],
            agent=Agent.objects.get_by_name(principal, slug) if slug else None,
        )


@register(AccessRequest)
class AccessRequestAdmin(PersonRequestAdmin):
    """The active organization's access requests; members see their own."""

    actions = ("approve_requests", "deny_requests")
    list_display = ("summary", "state_badge", "requested")
    list_display_links = None
    change_list_template = "admin/access_requests/list.html"
    list_filter = (
        ("state", ChoicesCheckboxFilter),
        ("kind", ChoicesCheckboxFilter),
        ("agent__name", PartialNameFilter),
        ("created_at", DateTimeRangeFilter),
    )
    search_fields = ("target", "reason", "agent__name", "requested_by")
    add_label = _("Request access")
    empty_icon = "key"
    empty_text = _(
        "Members can request a server, a tool, or an agent. Approving a request sets it up."
    )

    def get_queryset(self, request: HttpRequest) -> AccessRequestQuerySet:
        """Return the requests that the person may read, with the answers that they may give."""
        principal = self.get_principal(request)
        rows = AccessRequest.objects.visible_to(principal).select_related("agent")
        may_answer = can_answer_access_requests(principal)
        own = {"requested_by_kind": principal.kind, "requested_by_id": principal.id}
        others_only = may_answer and not principal.may(Action.MANAGE_AGENTS)
        may_approve = ~Q(**own) if others_only else Q(Value(may_answer))
        pending = Q(pk__in=AccessRequest.objects.filter(state=WAITING, expires_at__gt=Now()))
        return rows.annotate(
            may_approve=ExpressionWrapper(may_approve & pending, output_field=BooleanField()),
            may_deny=ExpressionWrapper(Q(Value(may_answer)) & pending, output_field=BooleanField()),
        )

    def get_list_display(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the columns: the answers only for those who can give them."""
        answers = ("answers",) if self.has_answer_permission(request) else ()
        return (*self.list_display, *answers)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show the list; a button of a row is the action for this row alone."""
        name, _separator, pk = request.POST.get("row", "").partition(" ")
        if pk:
            posted = request.POST.copy()
            posted["action"] = name
            posted.setlist(ACTION_CHECKBOX_NAME, [pk])
            request.POST = posted  # type: ignore[assignment]  # a copy, which may be changed
        return super().changelist_view(request, extra_context)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return whether the role can run agents, and so can request something for one."""
        return self.can_perform(request, Action.RUN_AGENTS)

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """Return whether the role can answer access requests."""
        return can_answer_access_requests(self.get_principal(request))

    @action(description=_("Approve…"), permissions=["answer"])
    def approve_requests(
        self, request: HttpRequest, queryset: AccessRequestQuerySet
    ) -> HttpResponseBase | None:
        """Confirm what is set up, then approve the pending requests."""
        return self._answer_selected(request, queryset, "approve")

    @action(description=_("Deny…"), permissions=["answer"])
    def deny_requests(
        self, request: HttpRequest, queryset: AccessRequestQuerySet
    ) -> HttpResponseBase | None:
        """Ask for a reason, then deny the pending requests."""
        return self._answer_selected(request, queryset, "deny")

    def _answer_selected(
        self, request: HttpRequest, queryset: AccessRequestQuerySet, answer: Answer
    ) -> HttpResponseBase | None:
        """Ask for confirmation, and for a message if it is required, then answer the requests."""
        access_requests = list(queryset.pending()[:MAX_ANSWERED])
        message = request.POST.get("message", "").strip()
        is_complete = "confirmed" in request.POST and (answer == "approve" or message)
        if access_requests and not is_complete:
            return self._render_confirmation(request, access_requests, answer)
        principal = self.get_principal(request)
        answered_count = 0
        for access_request in access_requests:
            try:
                answer_access_request(principal, access_request, answer, message)
            except Problem as problem:
                add_problem_message(request, problem)
            else:
                answered_count += 1
        if answered_count:
            approved, denied = _t("Requests approved: %(n)d."), _t("Requests denied: %(n)d.")
            text = approved if answer == "approve" else denied
            messages.success(request, text % {"n": answered_count})
        return None

    def _render_confirmation(
        self, request: HttpRequest, access_requests: Sequence[AccessRequest], answer: Answer
    ) -> HttpResponseBase:
        principal = self.get_principal(request)
        approve, deny = _("Approve these requests"), _("Deny these requests")
        if len(access_requests) == 1:
            approve, deny = _("Approve this request"), _("Deny this request")
        for row in access_requests:
            row.effect = describe_effect(principal, row)  # type: ignore[attr-defined]
        return render_confirmation(
            request,
            "access_requests",
            title=approve if answer == "approve" else deny,
            rows=access_requests,
            answer=answer,
            action=f"{answer}_requests",
            list_url=reverse("admin:agents_accessrequest_changelist"),
            is_message_required=answer == "deny",
            opts=self.opts,
        )

    @display(description=_("request"), ordering="target")
    def summary(self, access_request: AccessRequest) -> SafeString:
        """Return what is requested, for which agent, by whom, and why."""
        return render_to_string(
            "admin/access_requests/summary.html", {"access_request": access_request}
        )

    @display(description=_("answer"))
    def answers(self, access_request: AccessRequest) -> SafeString:
        """Return the buttons of a pending request."""
        return render_to_string(
            "admin/access_requests/answers.html", {"access_request": access_request}
        )

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the form, or create the request."""
        principal = self.get_principal(request)
        principal.require(Action.RUN_AGENTS)
        posted = request.POST if request.method == "POST" else None
        initial = {name: request.GET.get(name, "") for name in ("kind", "target", "agent")}
        form = AccessRequestForm(principal, posted, initial=initial)
        if form.is_bound and form.is_valid():
            try:
                create_access_request(principal, form.build_spec(principal))
            except Problem as problem:
                add_problem_to_form(form, problem)
            else:
                messages.success(request, _t("Requested. The answer is shown here."))
                return HttpResponseRedirect(reverse("admin:agents_accessrequest_changelist"))
        return render_screen(
            request,
            "access_requests/add.html",
            title=_("Request access"),
            form=form,
            names=list_known_names(principal),
            opts=self.opts,
        )


@AccessRequestAdmin.add_page("change", _("Request"), required_actions=READERS)
def show_access_request(visit: ObjectRequest) -> HttpResponseBase:
    """Show the request, what approving it does, and its answer."""
    access_request: AccessRequest = visit.object
    is_answerable = access_request.is_answerable(timezone.now())
    can_answer = is_answerable and can_answer_access_requests(visit.principal)
    is_own = is_requester(visit.principal, access_request)
    may_approve = can_answer and (not is_own or visit.principal.may(Action.MANAGE_AGENTS))
    effect = describe_effect(visit.principal, access_request) if may_approve else None
    return visit.render_tab(
        "access_requests/request.html",
        access_request=access_request,
        badge=AccessRequestAdmin.render_badge(access_request),
        answerable=is_answerable,
        can_approve=effect is not None and effect.is_possible,
        can_deny=can_answer,
        can_cancel=is_answerable and is_own,
        effect=effect,
        agent_url=find_agent_url(visit.principal, access_request),
    )


@AccessRequestAdmin.add_object_action("cancel", required_actions=READERS)
def cancel_own_access_request(visit: ObjectRequest) -> None:
    """Cancel one's own request."""
    cancel_access_request(visit.principal, visit.object)
    messages.success(visit.request, _t("Request canceled."))


@AccessRequestAdmin.add_object_action("approve", required_actions=ANSWER_PERMISSIONS)
def approve_access_request(visit: ObjectRequest) -> None:
    """Approve the request and set up what it asks for."""
    message = visit.request.POST.get("message", "")
    answer_access_request(visit.principal, visit.object, "approve", message)
    messages.success(visit.request, _t("Approved. Effective immediately."))


@AccessRequestAdmin.add_object_action("deny", required_actions=ANSWER_PERMISSIONS)
def deny_access_request(visit: ObjectRequest) -> None:
    """Deny the request; the requester gets the message."""
    message = visit.request.POST.get("message", "")
    answer_access_request(visit.principal, visit.object, "deny", message)
    messages.success(visit.request, _t("Denied."))


@dataclass(frozen=True)
class ApprovalEffect:
    """What approving a request does, or what must be done first."""

    text: str
    is_possible: bool = True


def describe_effect(principal: Principal, access_request: AccessRequest) -> ApprovalEffect:
    """Return what approving a request does; not possible if its target can't be set up."""
    try:
        check_target(principal, access_request)
        return ApprovalEffect(_describe_setup(access_request))
    except Problem as problem:
        return ApprovalEffect(localize_problem(problem), is_possible=False)


def find_agent_url(principal: Principal, access_request: AccessRequest) -> str:
    """Return the page of the agent that an approved request is about; blank if there is none."""
    if access_request.state != AccessRequest.State.APPROVED:
        return ""
    is_for_agent = access_request.kind == AccessRequest.Kind.AGENT
    try:
        agent = find_agent(access_request) if is_for_agent else access_request.agent
    except Problem:  # several have the name by now
        return ""
    if agent is None or not Agent.objects.visible_to(principal).filter(pk=agent.pk).exists():
        return ""
    return reverse("admin:agents_agent_change", args=[agent.pk])


def _describe_setup(access_request: AccessRequest) -> str:
    """Describe what is set up; raises `Conflict` if several objects have the requested name."""
    values = {
        "target": make_visible(access_request.target, 120),
        "agent": make_visible(access_request.agent.name, 80) if access_request.agent else "",
        "who": make_visible(access_request.requested_by, 80),
    }
    if access_request.kind == AccessRequest.Kind.TOOL and access_request.agent:
        if tool := find_tool(access_request, access_request.agent):
            values["target"] = make_visible(tool.name, 120)
        return _t("Sets the tool %(target)s to Allow for the agent %(agent)s.") % values
    if access_request.kind == AccessRequest.Kind.AGENT:
        if find_agent(access_request) is not None:
            return _t("Gives %(who)s access to the agent %(target)s.") % values
        return _t("Creates the agent %(target)s and gives %(who)s access to it.") % values
    if find_server(access_request) is not None:
        return _t("Attaches the server %(target)s to the agent %(agent)s.") % values
    text = _t("Adds the preset %(target)s as a server and attaches it to the agent %(agent)s.")
    return text % values
