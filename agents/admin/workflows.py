"""Workflows in the admin: edit, approve and run, with the steps of each run."""

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS
from agents.admin.server_calls import read_arguments
from agents.admin.skills_and_workflows import VERSIONS_SHOWN, AssignableAdmin, AssignableForm
from agents.assignments import list_agent_slugs
from agents.models import Agent, Workflow, WorkflowRun
from agents.models.reach import sees_every_agent
from agents.models.workflows import LONGEST_SOURCE
from agents.sessions.services import cancel, may_run
from agents.workflows.queries import list_steps
from agents.workflows.services import (
    WorkflowSpec,
    approve_workflow,
    remove_workflow,
    run_workflow,
    save_workflow,
)
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import badge_html
from bonobot.core.admin.theme import Textarea, TextInput, display, register
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.admin.json_schema_table import build_example, build_schema_rows

SHOWN_AT_ONCE = 30
START = """\
agent: {agent}
description: What it is for
inputs:
  type: object
  properties:
    title: {{type: string}}
  required: [title]
steps:
  - id: first
    call: mcp_server_tool
    arguments: {{query: "${{/inputs/title}}"}}
outputs:
  found: ${{/steps/first/text}}
"""


class WorkflowForm(AssignableForm):
    """The form of a workflow."""

    name = forms.SlugField(label=_("Name"), max_length=64, widget=TextInput)
    source = forms.CharField(
        label=_("Definition"),
        max_length=LONGEST_SOURCE,
        strip=False,
        widget=Textarea(attrs={"rows": 24, "spellcheck": "false", "class": "bb-code"}),
        help_text=_("YAML or JSON: agent, inputs, steps, outputs. ${/inputs/…} and ${/steps/…}."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Set the label and help text of the agents field."""
        super().__init__(principal, *args, **kwargs)
        self.fields["agents"].label = _("Agents that have it as a tool")
        self.fields["agents"].help_text = _(
            "Once somebody who approves definitions has approved it as it stands."
        )

    def refuse(self, problem: Problem) -> None:
        """Show a problem; errors inside the definition are shown at its field, with their path."""
        if problem.field not in self.fields:
            problem.extra.setdefault("path", problem.field)
            problem.remedy = f"{problem.remedy} ({problem.field})".strip()
            problem.field = "source"
        super().refuse(problem)


@register(Workflow)
class WorkflowAdmin(AssignableAdmin):
    """The active organization's workflows; members see those of their agents."""

    written_form = WorkflowForm
    add_template = "workflows/add.html"
    titles = (_("Write a workflow"), _("The workflow is written."))
    list_display = ("name", "about", "runs_as", "as_tool", "run_count", "on")
    list_display_links = ("name",)
    removing = _("Its versions and triggers go with it; its runs stay as sessions.")
    search_fields = ("name", "description", "agent__name")
    empty_icon = "account_tree"
    empty_text = _(
        "A workflow is a sequence of calls and questions to agents, with inputs, conditions and "
        "outputs. People, programs and agents start it."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Workflow]:
        """Return the visible workflows with the number of their visible runs."""
        principal = self.principal(request)
        found: Any = Workflow.objects.visible_to(principal)
        mine = Q(runs__in=WorkflowRun.objects.visible_to(principal))
        counted: QuerySet[Workflow] = found.select_related("agent").annotate(
            run_total=Count(
                "runs", distinct=True, filter=None if sees_every_agent(principal) else mine
            )
        )
        return counted

    @display(description=_("what it does"))
    def about(self, workflow: Workflow) -> str:
        """Return the description."""
        return make_visible(workflow.description, 120)

    @display(description=_("runs as"), ordering="agent__name")
    def runs_as(self, workflow: Workflow) -> str:
        """Return the agent."""
        return make_visible(workflow.agent.name, 60)

    @display(description=_("as a tool"))
    def as_tool(self, workflow: Workflow) -> str:
        """Return its approval state as a tool."""
        return badge_html(workflow.state)

    @display(description=_("runs"), ordering="run_total")
    def run_count(self, workflow: Any) -> str:
        """Return the number of runs."""
        return f"{workflow.run_total:,}"

    def beginning(self, principal: Principal) -> dict[str, Any]:
        """Add an example definition with one of the organization's agents."""
        agent = Agent.objects.for_organization(principal.organization_id).first()
        start = START.format(agent=agent.slug if agent else "AGENT")
        return super().beginning(principal) | {"source": start}

    def save(self, principal: Principal, form: Any, row: Any = None) -> Workflow:
        """Create or update a workflow; raises `Problem`."""
        return save_workflow(principal, WorkflowSpec(**form.cleaned_data), row)

    def remove(self, principal: Principal, row: Any) -> None:
        """Delete a workflow with its versions."""
        remove_workflow(principal, row)


@WorkflowAdmin.add_page("change", _("Runs"), order=10, needs=READERS)
def show_runs(visit: ObjectRequest) -> HttpResponseBase:
    """Show the runs and the form that starts one."""
    workflow: Workflow = visit.object
    mine: Any = WorkflowRun.objects.visible_to(visit.principal).filter(workflow=workflow)
    page = Paginator(mine.select_related("session"), SHOWN_AT_ONCE)
    inputs = workflow.definition.get("inputs", {})
    return visit.show(
        "workflows/runs.html",
        workflow=workflow,
        paged=page.get_page(visit.request.GET.get("page")),
        schema=build_schema_rows(inputs),
        start=json.dumps(build_example(inputs), indent=2, ensure_ascii=False),
        may_run=may_run(visit.principal, workflow.agent),
    )


@WorkflowAdmin.add_deed("start", needs=Action.RUN_AGENTS)
def start(visit: ObjectRequest) -> HttpResponseBase:
    """Start a run and go to it."""
    inputs = read_arguments(visit.request.POST.get("inputs", ""))
    run = run_workflow(visit.principal, visit.object, inputs)
    return redirect_to_page(visit, "run", f"?run={run.pk}")


@WorkflowAdmin.add_page("run", needs=READERS, under="change")
def show_run(visit: ObjectRequest) -> HttpResponseBase:
    """Show one run with its steps."""
    if "run" not in visit.request.GET:
        return redirect_to_page(visit, "change")
    run = _run_of(visit, visit.request.GET.get("run"))
    return visit.show(
        "workflows/run.html",
        workflow=visit.object,
        run=run,
        session=run.session,
        steps=list_steps(run),
        open=run.session.status in ("queued", "running", "waiting"),
    )


@WorkflowAdmin.add_deed("cancel", needs=Action.RUN_AGENTS)
def cancel_run(visit: ObjectRequest) -> HttpResponseBase:
    """Cancel a run."""
    run = _run_of(visit, visit.request.POST.get("run"))
    if cancel(visit.principal, run.session):
        messages.success(visit.request, _t("The run is being cancelled."))
    return redirect_to_page(visit, "run", f"?run={run.pk}")


@WorkflowAdmin.add_page("write", _("Write"), order=20)
def write(visit: ObjectRequest) -> HttpResponseBase:
    """Show the definition with earlier versions, or update it."""
    workflow: Workflow = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = WorkflowForm(visit.principal, posted, initial=_build_initial(workflow))
    if posted is not None:
        visit.principal.require(Action.MANAGE_WORKFLOWS)
        if form.written(lambda entered: _save_workflow(visit, entered)):
            messages.success(visit.request, _t("Saved. Runs that have begun go on as before."))
            return redirect_to_page(visit, "write")
    return visit.show(
        "workflows/write.html",
        workflow=workflow,
        form=form,
        versions=list(workflow.versions.all()[:VERSIONS_SHOWN]),
        may_manage=visit.principal.may(Action.MANAGE_WORKFLOWS),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


@WorkflowAdmin.add_deed("approve", needs=Action.APPROVE_DEFINITIONS)
def approve(visit: ObjectRequest) -> HttpResponseBase:
    """Approve the shown version of the workflow."""
    approve_workflow(visit.principal, visit.object, visit.request.POST.get("digest", ""))
    messages.success(visit.request, _t("Agents that have it may call it as it stands."))
    return redirect_to_page(visit, "write")


def _save_workflow(visit: ObjectRequest, form: Any) -> Workflow:
    return save_workflow(visit.principal, WorkflowSpec(**form.cleaned_data), visit.object)


def _run_of(visit: ObjectRequest, run_id: str | None) -> WorkflowRun:
    mine: Any = WorkflowRun.objects.visible_to(visit.principal).filter(workflow=visit.object)
    found: WorkflowRun = mine.select_related("session__agent").get_or_404(
        visit.object.organization_id, pk=run_id
    )
    return found


def _build_initial(workflow: Workflow) -> dict[str, Any]:
    names = ("name", "source", "enabled")
    return {name: getattr(workflow, name) for name in names} | {
        "agents": list_agent_slugs(workflow)
    }
