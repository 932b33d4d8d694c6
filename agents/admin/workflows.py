"""Workflows in the admin: edit, approve and run, with the steps of each run."""

import json
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Count, Prefetch, Q, QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.admin.assignments import (
    MAX_OFFERED,
    AssignableAdmin,
    AssignableForm,
    add_attach_actions,
    edit_assignable,
    render_assignments,
)
from agents.calls.parse_arguments import parse_arguments
from agents.models import Agent, Session, Workflow, WorkflowRun
from agents.models.agents import can_see_all_agents
from agents.models.workflows import MAX_SOURCE_LENGTH
from agents.sessions.services import can_run_agent, cancel_session
from agents.workflows.runs import list_steps, run_workflow
from agents.workflows.services import (
    WorkflowSpec,
    approve_workflow,
    delete_workflow,
    get_workflow,
    save_workflow,
)
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import render_badge
from bonobot.core.admin.theme import Textarea, TextInput, display, register
from bonobot.core.i18n.localization import format_number
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.admin.json_schema_table import build_schema_rows
from mcp_servers.schemas.examples import build_example

EXAMPLE_SOURCE = """\
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
        max_length=MAX_SOURCE_LENGTH,
        strip=False,
        widget=Textarea(attrs={"rows": 24, "spellcheck": "false", "class": "bb-code"}),
        help_text=_(
            "YAML or JSON with agent, inputs, steps, and outputs. Use ${/inputs/…} and "
            "${/steps/…} to refer to values."
        ),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Set the label and help text of the agents field."""
        super().__init__(principal, *args, **kwargs)
        self.fields["agents"].label = _("Agents with this tool")
        self.fields["agents"].help_text = _(
            "Available after someone who can review definitions approves this version."
        )

    def add_problem(self, problem: Problem) -> None:
        """Show a problem; errors inside the definition are shown at its field, with their path."""
        if problem.field not in self.fields:
            problem.extra.setdefault("path", problem.field)
            place = format_message("See the field `{path}`.", path=problem.field)
            problem.remedy = f"{problem.remedy} {place}".strip()
            problem.field = "source"
        super().add_problem(problem)


@register(Workflow)
class WorkflowAdmin(AssignableAdmin):
    """The active organization's workflows; members see those of their agents."""

    form_class = WorkflowForm
    add_template = "workflows/add.html"
    titles = (_("Create workflow"), _("The workflow was created."))
    list_display = (
        "name",
        "short_description",
        "runs_as",
        "tool_status",
        "run_count",
        "is_enabled",
    )
    list_display_links = ("name",)
    delete_note = _("Its versions and triggers are deleted too. Its runs are kept as sessions.")
    search_fields = ("name", "description", "agent__name")
    empty_icon = "account_tree"
    add_label = _("Create workflow")
    empty_text = _(
        "A workflow is a sequence of calls and agent requests with inputs, conditions, and "
        "outputs. People, clients, and agents can start it."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Workflow]:
        """Return the visible workflows with the number of their visible runs."""
        principal = self.get_principal(request)
        workflows: Any = Workflow.objects.visible_to(principal)
        is_visible_run = Q(runs__in=WorkflowRun.objects.visible_to(principal))
        annotated: QuerySet[Workflow] = workflows.select_related("agent").annotate(
            run_total=Count(
                "runs",
                distinct=True,
                filter=None if can_see_all_agents(principal) else is_visible_run,
            )
        )
        return annotated

    @display(description=_("description"))
    def short_description(self, workflow: Workflow) -> str:
        return make_visible(workflow.description, 120) or "–"

    @display(description=_("runs as"), ordering="agent__name")
    def runs_as(self, workflow: Workflow) -> str:
        return make_visible(workflow.agent.name, 60)

    @display(description=_("tool status"))
    def tool_status(self, workflow: Workflow) -> str:
        """Return its approval state as a tool."""
        return render_badge(workflow.state)

    @display(description=_("runs"), ordering="run_total")
    def run_count(self, workflow: Any) -> str:
        return format_number(workflow.run_total)

    def build_initial(self, principal: Principal) -> dict[str, Any]:
        """Add an example definition with one of the organization's agents."""
        agent = Agent.objects.for_organization(principal.organization_id).first()
        source = EXAMPLE_SOURCE.format(agent=agent.slug if agent else "AGENT")
        return super().build_initial(principal) | {"source": source}

    def save(self, principal: Principal, form: Any, row: Any = None) -> Workflow:
        """Create or update a workflow; raises `Problem`."""
        return save_workflow(principal, WorkflowSpec(**form.cleaned_data), row)

    def remove(self, principal: Principal, row: Any) -> Deletion | None:
        """Delete a workflow with its versions."""
        return delete_workflow(principal, row)


@WorkflowAdmin.add_page("change", _("Runs"), order=10, required_actions=READERS)
def show_runs(visit: ObjectRequest) -> HttpResponseBase:
    """Show the runs and the form that starts one."""
    workflow: Workflow = visit.object
    visible_runs = WorkflowRun.objects.visible_to(visit.principal).filter(workflow=workflow)
    sessions = Prefetch("session", Session.objects.with_waits())
    inputs = workflow.definition.get("inputs", {})
    return visit.render_tab(
        "workflows/runs.html",
        workflow=workflow,
        paged=visit.paginate(visible_runs.prefetch_related(sessions)),
        schema=build_schema_rows(inputs),
        start=json.dumps(build_example(inputs), indent=2, ensure_ascii=False),
        may_run=can_run_agent(visit.principal, workflow.agent),
    )


@WorkflowAdmin.add_object_action("start", required_actions=Action.RUN_AGENTS)
def start_run(visit: ObjectRequest) -> HttpResponseBase:
    inputs = parse_arguments(visit.request.POST.get("inputs") or "{}")
    run = run_workflow(visit.principal, visit.object, inputs)
    return redirect_to_page(visit, "run", f"?run={run.pk}")


@WorkflowAdmin.add_page("run", required_actions=READERS, parent_tab="change")
def show_run(visit: ObjectRequest) -> HttpResponseBase:
    if "run" not in visit.request.GET:
        return redirect_to_page(visit, "change")
    run = _get_run(visit, visit.request.GET.get("run"))
    return visit.render_tab(
        "workflows/run.html",
        workflow=visit.object,
        run=run,
        session=run.session,
        steps=list_steps(run),
        open=run.session.status in ("queued", "running", "waiting"),
    )


@WorkflowAdmin.add_object_action("cancel", required_actions=Action.RUN_AGENTS)
def handle_cancel_run(visit: ObjectRequest) -> HttpResponseBase:
    run = _get_run(visit, visit.request.POST.get("run"))
    if cancel_session(visit.principal, run.session):
        messages.success(visit.request, _t("Cancellation requested."))
    return redirect_to_page(visit, "run", f"?run={run.pk}")


@WorkflowAdmin.add_page("edit", _("Edit"), order=20)
def edit_workflow(visit: ObjectRequest) -> HttpResponseBase:
    """Show the definition with earlier versions, or update it."""
    workflow: Workflow = visit.object
    return edit_assignable(
        visit,
        "workflows/edit.html",
        {name: getattr(workflow, name) for name in ("name", "source", "enabled")},
        _t("Saved. Runs in progress aren't affected."),
        workflow=workflow,
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


@WorkflowAdmin.add_object_action("approve", required_actions=Action.APPROVE_DEFINITIONS)
def handle_approve(visit: ObjectRequest) -> HttpResponseBase:
    """Approve the shown version of the workflow."""
    approve_workflow(visit.principal, visit.object, visit.request.POST.get("digest", ""))
    messages.success(visit.request, _t("Approved. Its agents can now call this version."))
    return redirect_to_page(visit, "edit")


def _get_run(visit: ObjectRequest, run_id: str | None) -> WorkflowRun:
    visible_runs = WorkflowRun.objects.visible_to(visit.principal).filter(workflow=visit.object)
    run: WorkflowRun = visible_runs.select_related("session__agent").get_or_404(
        visit.object.organization_id, pk=run_id
    )
    return run


@AgentAdmin.add_page("workflows", _("Workflows"), order=44)
def show_workflows(visit: ObjectRequest) -> HttpResponseBase:
    """Show the workflows that the agent has as tools, and those that run as this agent."""
    agent: Agent = visit.object
    workflows = Workflow.objects.visible_to(visit.principal).select_related("agent")
    own_workflows = workflows.filter(agent=agent).order_by("name")
    attached_workflows = workflows.filter(assignments__agent=agent)
    return render_assignments(
        visit,
        "agents/workflows.html",
        workflows,
        attached_workflows,
        own_workflows=list(own_workflows[:MAX_OFFERED]),
    )


add_attach_actions(
    "workflow",
    get_workflow,
    lambda principal, workflow, slugs: save_workflow(
        principal, WorkflowSpec(name=workflow.name, agents=slugs), workflow
    ),
)
