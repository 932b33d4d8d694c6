"""What an agent has of what people write: a tab for its skills, and one for its workflows."""

from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.models import Agent, Skill, Workflow
from agents.named import agents_of
from agents.skills import keeping as skill_keeping
from agents.skills.keeping import SkillSpec, save_skill
from agents.workflows import keeping as workflow_keeping
from agents.workflows.keeping import WorkflowSpec, save_workflow
from bonobot.lib.untrusted import visible
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward

SHOWN_AT_ONCE = 30
OFFERED = 500


@AgentAdmin.add_page("skills", _("Skills"), order=43)
def skills(visit: Visit) -> HttpResponseBase:
    """Show the skills that the agent has, and those that it could be given."""
    rows: Any = Skill.objects.visible_to(visit.principal)
    return _shown(visit, "agents/skills.html", rows, rows.filter(given__agent=visit.object))


@AgentAdmin.add_page("workflows", _("Workflows"), order=44)
def workflows(visit: Visit) -> HttpResponseBase:
    """Show the workflows that the agent has as tools, and those that run as it."""
    agent: Agent = visit.object
    rows: Any = Workflow.objects.visible_to(visit.principal).select_related("agent")
    own = rows.filter(agent=agent).order_by("name")
    had = rows.filter(given__agent=agent)
    return _shown(visit, "agents/workflows.html", rows, had, own=list(own[:OFFERED]))


@AgentAdmin.add_deed("give_skill", needs=Action.MANAGE_WORKFLOWS)
def give_skill(visit: Visit) -> HttpResponseBase:
    """Give the agent a skill."""
    return _change_skill(visit, have=True)


@AgentAdmin.add_deed("take_skill", needs=Action.MANAGE_WORKFLOWS)
def take_skill(visit: Visit) -> HttpResponseBase:
    """Take a skill from the agent; the skill stays."""
    return _change_skill(visit, have=False)


@AgentAdmin.add_deed("give_workflow", needs=Action.MANAGE_WORKFLOWS)
def give_workflow(visit: Visit) -> HttpResponseBase:
    """Give the agent a workflow as a tool."""
    return _change_workflow(visit, have=True)


@AgentAdmin.add_deed("take_workflow", needs=Action.MANAGE_WORKFLOWS)
def take_workflow(visit: Visit) -> HttpResponseBase:
    """Take a workflow from the agent's tools; the workflow stays."""
    return _change_workflow(visit, have=False)


def _shown(visit: Visit, template: str, rows: Any, had: Any, **more: Any) -> HttpResponseBase:
    agent: Agent = visit.object
    page = Paginator(had.order_by("name"), SHOWN_AT_ONCE)
    others = rows.exclude(given__agent=agent).order_by("name")
    return visit.show(
        template,
        agent=agent,
        paged=page.get_page(visit.request.GET.get("page")),
        others=list(others[:OFFERED]),
        may_manage=visit.principal.may(Action.MANAGE_WORKFLOWS),
        **more,
    )


def _change_skill(visit: Visit, *, have: bool) -> HttpResponseBase:
    skill = skill_keeping.named(visit.principal, visit.request.POST.get("skill", ""))
    save_skill(
        visit.principal, SkillSpec(name=skill.name, agents=_those(visit, skill, have=have)), skill
    )
    return _done(visit, skill, "skills", have=have)


def _change_workflow(visit: Visit, *, have: bool) -> HttpResponseBase:
    found = workflow_keeping.named(visit.principal, visit.request.POST.get("workflow", ""))
    spec = WorkflowSpec(name=found.name, agents=_those(visit, found, have=have))
    save_workflow(visit.principal, spec, found)
    return _done(visit, found, "workflows", have=have)


def _those(visit: Visit, row: Skill | Workflow, *, have: bool) -> list[str]:
    """Return the agents that have it afterwards."""
    others = [slug for slug in agents_of(row) if slug != visit.object.slug]
    return [*others, visit.object.slug] if have else others


def _done(visit: Visit, row: Skill | Workflow, page: str, *, have: bool) -> HttpResponseBase:
    text = _t("%(agent)s has %(name)s.") if have else _t("%(agent)s no longer has %(name)s.")
    names = {"agent": visible(visit.object.name, 60), "name": visible(str(row), 80)}
    messages.success(visit.request, text % names)
    return onward(visit, page)
