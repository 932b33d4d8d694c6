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
from agents.admin.policy_groups import SHOWN_AT_ONCE, groups, key_of, shown, spread
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
from bonobot.lib.translating import ours
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.models import Organization
from bonobot.tenancy.roles import WHO_MAY, Action
from bonobot.tenancy.screens import Visit, fragment, onward, screen


@AgentAdmin.add_page("policy", _("Policy"), order=40)
def policy(visit: Visit) -> HttpResponseBase:
    """Show the policy, or replace it."""
    agent: Agent = visit.object
    query, posted = visit.request.GET, visit.request.POST
    snapshot = snapshots().current("agent", agent.pk)
    tools = _tools(snapshot)
    sought = query.get("q", "").strip()
    found = _found(tools, sought)
    listed, stored = shown(found, posted), policy_text(agent)
    problem, tried, draft = None, None, draft_of(stored, tools, listed)
    if visit.request.method == "POST":
        draft = typed_draft(posted, tools, listed)
        try:
            tried = _saved(visit, posted_text(posted, tools, stored, spread(found, posted)))
        except Problem as refusal:
            problem = refusal
        else:
            if tried is None:
                return onward(visit, "policy", f"?{query.urlencode()}" if query else "")
    return visit.show(
        "agents/policy.html",
        agent=agent,
        draft=draft,
        groups=groups(found, draft.ruled, posted),
        found=len(found),
        many=len(tools) > SHOWN_AT_ONCE,
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
    found = _found(tools, visit.request.GET.get("q", "").strip())
    text = posted_text(posted, tools, policy_text(agent), spread(found, posted))
    ruling = replace(snapshot.ruling, policy=drafted(agent, text))
    decided = [replace(tool, decision=decide(tool.facts, ruling)) for tool in found]
    return fragment(
        visit.request,
        "agents/policy_preview.html",
        agent=agent,
        tools=[tool for tool in decided if f"rule-{tool.name}" in posted],
        groups=groups(decided, (), posted),
    )


@AgentAdmin.add_page("policy_rows")
def rows(visit: Visit) -> HttpResponseBase:
    """Return a part of one group's rows, for a script that opens it."""
    agent: Agent = visit.object
    query = visit.request.GET
    tools = _tools(snapshots().current("agent", agent.pk))
    found = _found(tools, query.get("q", "").strip())
    paged = Paginator(
        [tool for tool in found if key_of(tool) == query.get("group")], SHOWN_AT_ONCE
    ).get_page(query.get("page"))
    return fragment(
        visit.request,
        "agents/policy_rows.html",
        agent=agent,
        ruled=draft_of(policy_text(agent), tools, list(paged)).ruled,
        choices=CHOICES,
        group=query.get("group", ""),
        paged=paged,
        q=query.get("q", ""),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
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


def _order(tool: Tool) -> tuple[bool, str, str, str]:
    return tool.facts.source == "builtin", tool.facts.server_name, key_of(tool), tool.name


def _found(tools: Sequence[Tool], sought: str) -> Sequence[Tool]:
    """Return the tools with every word in their name, server or description."""
    words = sought.lower().split()
    return [tool for tool in tools if all(word in _described(tool) for word in words)]


def _described(tool: Tool) -> str:
    about = f"{tool.description} {ours(tool.description)}"
    return f"{tool.name} {tool.facts.server_name} {about}".lower()
