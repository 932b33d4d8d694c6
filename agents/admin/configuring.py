"""An agent's configuration: instructions, model, bounds, budgets with their use, members."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin, AgentForm
from agents.budgets import (
    LARGEST,
    WARN_AT,
    BudgetLine,
    budgets_in_use,
    line_of,
    set_budgets,
)
from agents.callees import callees_of, set_callees
from agents.endpoint_rules import endpoint_of
from agents.governance.snapshots import snapshots
from agents.llm.prices import count_tokens, estimate_tokens, with_window
from agents.models import Agent, Budget
from agents.registration import AgentSpec, alter_agent, give_to
from agents.sessions.prompts import instructions, specs
from bonobot.lib.admin import Checkbox, IntegerInput, TextInput
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.sayings import say
from bonobot.tenancy.models import Membership
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action, Role
from bonobot.tenancy.screens import Visit, onward, refuse

BOUNDS = ("max_turns", "max_calls", "max_run_s", "calls_per_minute", "tool_search_above")
TEXTS = ("name", "slug", "description", "instructions")
PLAIN = (*TEXTS, "enabled", *BOUNDS)
MICRO = 1_000_000
SPARE_LINES = 3


def _bound(label: Any, help_text: Any, least: int = 1) -> forms.IntegerField:
    return forms.IntegerField(
        label=label, help_text=help_text, min_value=least, max_value=2**31 - 1, widget=IntegerInput
    )


class ConfigurationForm(AgentForm):
    """Everything about an agent but its servers and its policy."""

    slug = forms.SlugField(
        label=_("Slug"),
        max_length=64,
        widget=TextInput,
        help_text=_("Names the agent in commands and addresses."),
    )
    max_turns = _bound(_("Turns per message"), _("How often the model is asked at most."))
    max_calls = _bound(_("Calls per message"), _("Of all tools together."), least=0)
    max_run_s = _bound(_("Seconds per message"), _("Of running; waiting isn't counted."))
    calls_per_minute = _bound(_("Calls a minute"), _("Of all its sessions together."))
    tool_search_above = _bound(
        _("Tools shown at once"),
        _("With more, its model searches for them with find_tools; 0: it is always shown all."),
        least=0,
    )
    enabled = forms.BooleanField(label=_("Switched on"), required=False, widget=Checkbox)
    members = forms.MultipleChoiceField(
        label=_("Members who may run it"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("Owners and operators may run every agent."),
    )

    may_ask = forms.MultipleChoiceField(
        label=_("Agents that it may ask"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("By a tool for each, under its policy; what they spend, it pays too."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's members, and its agents."""
        super().__init__(principal, *args, **kwargs)
        agents = Agent.objects.for_organization(principal.organization_id)
        self.fields["may_ask"].choices = list(agents.values_list("slug", "name"))  # type: ignore[attr-defined]
        people = Membership.objects.for_organization(principal.organization_id).select_related(
            "user"
        )
        names = [
            (one.user.username, one.user.get_full_name() or one.user.username)
            for one in people.filter(role=Role.MEMBER).order_by("user__username")
        ]
        self.fields["members"].choices = names  # type: ignore[attr-defined]


@AgentAdmin.add_page("configuration", _("Configure"), order=20)
def configuration(visit: Visit) -> HttpResponseBase:
    """Show the form, or change the agent."""
    agent: Agent = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = ConfigurationForm(visit.principal, posted, initial=_initial(agent))
    if posted is not None and form.is_valid():
        try:
            _save(visit, agent, form)
        except Problem as problem:
            agent.refresh_from_db()
            refuse(form, problem)
        else:
            messages.success(visit.request, _t("Saved. It holds on the very next turn."))
            return onward(visit, "configuration")
    return visit.show(
        "agents/configuration.html",
        agent=agent,
        form=form,
        bounds=[form[name] for name in BOUNDS],
        size=_size(agent),
        budgets=budgets_in_use(agent),
        spare=range(SPARE_LINES),
        units=Budget.Unit.choices,
        periods=Budget.Period.choices,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


def _size(agent: Agent) -> dict[str, Any]:
    """Return about how many tokens each turn begins with, before anything was said."""
    snapshot = snapshots().current("agent", agent.pk)
    shown = snapshot.shown(())
    whole = instructions(agent.instructions, snapshot, (), (), shown)
    window = with_window(endpoint_of(agent.model_endpoint)).context_window
    prompt, tools = count_tokens(whole), estimate_tokens((), "", specs(shown))
    return {
        "own": count_tokens(agent.instructions),
        "prompt": prompt,
        "tools": tools,
        "shown": len(shown),
        "all": prompt + tools,
        "window": window,
    }


def _initial(agent: Agent) -> dict[str, Any]:
    return {
        **{name: getattr(agent, name) for name in PLAIN},
        "model_endpoint": agent.model_endpoint_id,
        "may_ask": callees_of(agent),
        "members": list(agent.members.values_list("username", flat=True)),
    }


def _save(visit: Visit, agent: Agent, form: ConfigurationForm) -> None:
    said = form.said()
    members, may_ask = said.pop("members"), said.pop("may_ask")
    lines = _lines(visit.request)
    alter_agent(visit.principal, agent, AgentSpec(**said))
    if set(members) != set(agent.members.values_list("username", flat=True)):
        give_to(visit.principal, agent, members)
    if set(may_ask) != set(callees_of(agent)):
        set_callees(visit.principal, agent, may_ask)
    now = [line_of(one) for one in agent.budgets.all()]
    if set(lines) != set(now) or len(lines) != len(now):
        set_budgets(visit.principal, agent, lines)


def _lines(request: HttpRequest) -> list[BudgetLine]:
    """Return the budgets as they were filled in; money is written in dollars."""
    posted: Any = request.POST
    columns = ("unit", "period", "limit", "scope", "warn-at")
    rows = zip(*(posted.getlist(f"budget-{name}") for name in columns), strict=False)
    return [
        BudgetLine(unit, period, amount(unit, limit), scope == "session", _percent(warn_at))
        for unit, period, limit, scope, warn_at in rows
        if limit
    ]


def _percent(text: str) -> int:
    return int(text) if text.isdecimal() else WARN_AT


def amount(unit: str, text: str) -> int:
    """Return a limit as it was written, dollars as micro-dollars; raises `Invalid`."""
    try:
        value = float(text.replace(",", "").replace("$", ""))
        whole = round(value * MICRO) if unit == Budget.Unit.MONEY else int(value)
    except (ValueError, OverflowError):
        whole = -1
    if not 0 <= whole <= LARGEST:
        raise Invalid(
            say("{text!r} is no limit.", text=text[:40]),
            field="budgets",
            remedy="Write a whole number, dollars where money is meant; empty removes it.",
        )
    return whole
