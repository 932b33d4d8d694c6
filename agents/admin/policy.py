"""The policy screens: an agent's, with one table of all tools, and the organization's (A14)."""

from collections.abc import Sequence
from dataclasses import replace

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.ruling import (
    CHOICES,
    EXAMPLE,
    MODES,
    draft_of,
    posted_text,
    typed_draft,
)
from agents.governance.lacking import lack_of
from agents.governance.policies import decide
from agents.governance.snapshots import Snapshot, Tool, snapshots
from agents.models import Agent
from agents.replay import DAYS, Replay, replay
from agents.tool_policies import PolicyText, drafted, policy_text, set_policy
from bonobot.lib.problems import Problem
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import WHO_MAY, Action
from bonobot.tenancy.screens import Visit, fragment, onward, screen

TOOLS_SHOWN = 200  # on one page


@AgentAdmin.add_page("policy", _("Policy"), order=40)
def policy(visit: Visit) -> HttpResponseBase:
    """Show the policy, or replace it."""
    agent: Agent = visit.object
    query = visit.request.GET
    snapshot = snapshots().current("agent", agent.pk)
    tools = _tools(snapshot)
    sought = query.get("q", "").strip()
    page = Paginator(_found(tools, sought), TOOLS_SHOWN).get_page(query.get("page"))
    listed, stored = list(page), policy_text(agent)
    problem, tried, draft = None, None, draft_of(stored, tools, listed)
    if visit.request.method == "POST":
        posted = visit.request.POST
        draft = typed_draft(posted, tools, listed)
        try:
            tried = _saved(visit, posted_text(posted, tools, stored))
        except Problem as refusal:
            problem = refusal
        else:
            if tried is None:
                return onward(visit, "policy", f"?{query.urlencode()}" if query else "")
    return visit.show(
        "agents/policy.html",
        agent=agent,
        draft=draft,
        paged=page,
        q=sought,
        total=len(tools),
        modes=MODES,
        choices=CHOICES,
        example=EXAMPLE,
        problem=problem,
        tried=tried,
        days=DAYS,
        lack=lack_of(snapshot),
        allowed=sum(tool.decision.allowed for tool in tools),
        asked=sum(tool.decision.verdict == "ask" for tool in tools),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        may_try=visit.principal.may(Action.VIEW_AUDIT),
        status=problem.status if problem else 200,
    )


def _saved(visit: Visit, wanted: PolicyText) -> Replay | None:
    """Save the policy; or return what it would have decided, if that was asked for."""
    if visit.request.POST.get("do") == "try":
        return replay(visit.principal, visit.object, wanted)
    set_policy(visit.principal, visit.object, wanted)
    messages.success(visit.request, _t("Saved. It holds on the very next call."))
    return None


@AgentAdmin.add_deed("policy_preview", needs=Action.MANAGE_AGENTS)
def preview(visit: Visit) -> HttpResponseBase:
    """Return what would hold of each tool if the form were saved; nothing is written."""
    agent: Agent = visit.object
    posted = visit.request.POST
    snapshot = snapshots().current("agent", agent.pk)
    tools = _tools(snapshot)
    text = posted_text(posted, tools, policy_text(agent))
    ruling = replace(snapshot.ruling, policy=drafted(agent, text))
    shown = [tool for tool in tools if f"rule-{tool.name}" in posted]
    return fragment(
        visit.request,
        "agents/policy_preview.html",
        agent=agent,
        tools=[replace(tool, decision=decide(tool.facts, ruling)) for tool in shown],
    )


def own_policy(request: HttpRequest) -> HttpResponseBase:
    """Show what the organization rules for every agent, or replace it."""
    principal = principal_of(request)
    principal.require(Action.VIEW)
    organization = Organization.objects.get(pk=principal.organization_id)
    stored = policy_text(organization)
    problem, draft = None, draft_of(stored, (), ())
    if request.method == "POST":
        try:
            set_policy(principal, organization, posted_text(request.POST, (), stored))
        except Problem as refusal:
            problem, draft = refusal, typed_draft(request.POST, (), ())
        else:
            messages.success(request, _t("Saved. It holds on the very next call."))
            return HttpResponseRedirect(reverse("admin:organization_policy"))
    return screen(
        request,
        "organization_policy.html",
        title=_("Rules of the organization"),
        draft=draft,
        modes=MODES,
        choices=CHOICES,
        example=EXAMPLE,
        problem=problem,
        may_manage=principal.may(Action.MANAGE_ORGANIZATION),
        who=WHO_MAY[Action.MANAGE_ORGANIZATION],
        status=problem.status if problem else 200,
    )


def _tools(snapshot: Snapshot) -> list[Tool]:
    """Return the agent's tools, built-in ones last; those that are gone can't be ruled on."""
    found = snapshot.tools.values()
    return sorted((tool for tool in found if tool.facts.state != "gone"), key=_order)


def _order(tool: Tool) -> tuple[bool, str, str]:
    return tool.facts.source == "builtin", tool.facts.server_name, tool.name


def _found(tools: Sequence[Tool], sought: str) -> Sequence[Tool]:
    """Return the tools with every word in their name, server or description."""
    words = sought.lower().split()
    return [tool for tool in tools if all(word in _described(tool) for word in words)]


def _described(tool: Tool) -> str:
    return f"{tool.name} {tool.facts.server_name} {tool.description}".lower()
