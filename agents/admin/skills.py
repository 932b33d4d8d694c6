"""Skills in the admin: edit, attach to agents, compare versions and run."""

from typing import Any

from django import forms
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.admin.assignments import (
    AssignableAdmin,
    AssignableForm,
    add_attach_actions,
    edit_assignable,
    render_assignments,
)
from agents.models import Agent, AgentAssignment, Skill
from agents.models.agents import filter_by_visible_agents
from agents.models.skills import SKILL_TEXTS
from agents.sessions.services import can_run_agent, run_skill
from agents.skills import (
    SkillSpec,
    delete_skill,
    format_lines,
    get_skill,
    parse_lines,
    read_arguments,
    save_skill,
)
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.models import Deletion
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Textarea, TextInput, display, register
from bonobot.core.problems import InvalidInput
from bonobot.core.text.untrusted_text import make_visible


class SkillForm(AssignableForm):
    """The form of a skill."""

    name = forms.SlugField(label=_("Name"), max_length=64, widget=TextInput)
    title = forms.CharField(
        label=_("Title"), max_length=SKILL_TEXTS["title"], required=False, widget=TextInput
    )
    description = forms.CharField(
        label=_("Description"),
        max_length=SKILL_TEXTS["description"],
        required=False,
        widget=TextInput,
        help_text=_("One line. Agents use it to choose a skill."),
    )
    text = forms.CharField(
        label=_("Instructions"),
        max_length=SKILL_TEXTS["text"],
        strip=False,
        widget=Textarea(attrs={"rows": 14}),
        help_text=_("Use ${name} to insert an argument."),
    )
    arguments = forms.CharField(
        label=_("Arguments"),
        required=False,
        widget=Textarea(attrs={"rows": 4, "spellcheck": "false"}),
        help_text=_(
            'One per line, such as severity! = low ["low", "high"]: how bad it is. ! marks '
            "a required argument."
        ),
    )

    def build_spec(self) -> SkillSpec:
        """Return the specification of the form; raises `InvalidInput`."""
        values = dict(self.cleaned_data)
        arguments = parse_lines(values.pop("arguments"))
        return SkillSpec(**values, arguments=[argument.as_dict() for argument in arguments])


@register(Skill)
class SkillAdmin(AssignableAdmin):
    """The active organization's skills; members see those of their agents."""

    form_class = SkillForm
    add_template = "skills/add.html"
    titles = (_("Create skill"), _("The skill was created."))
    list_display = ("skill", "short_description", "agent_names", "version", "is_enabled")
    search_fields = ("name", "title", "description")
    delete_note = _("All its versions are also deleted, and it is detached from its agents.")
    empty_icon = "school"
    add_label = _("Create skill")
    empty_text = _(
        "A skill is a set of instructions with a name and arguments. People run skills. "
        "Agents read the skills attached to them when they need them."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Skill]:
        """Return the visible skills with the visible agents that have them."""
        rows: Any = Skill.objects.visible_to(self.get_principal(request))
        visible_assignments = filter_by_visible_agents(
            AgentAssignment.objects.select_related("agent"), self.get_principal(request)
        )
        skills: QuerySet[Skill] = rows.prefetch_related(
            Prefetch("assignments", visible_assignments)
        )
        return skills

    @display(description=_("skill"), ordering="name", header=True)
    def skill(self, skill: Skill) -> tuple[str, str]:
        title = make_visible(str(skill), 80)
        return title, "" if title == skill.name else skill.name

    @display(description=_("description"))
    def short_description(self, skill: Skill) -> str:
        return make_visible(skill.description, 120) or "–"

    @display(description=_("agents"))
    def agent_names(self, skill: Skill) -> str:
        names = sorted(assignment.agent.name for assignment in skill.assignments.all())
        return ", ".join(make_visible(name, 60) for name in names) or "–"

    def save(self, principal: Principal, form: Any, row: Any = None) -> Skill:
        """Create or update a skill; raises `Problem`."""
        return save_skill(principal, form.build_spec(), row)

    def remove(self, principal: Principal, row: Any) -> Deletion | None:
        """Delete a skill with its versions."""
        return delete_skill(principal, row)


@SkillAdmin.add_page("change", _("Run"), order=10, required_actions=READERS)
def show_skill(visit: ObjectRequest) -> HttpResponseBase:
    """Show the skill with a form for its arguments."""
    skill: Skill = visit.object
    visible_assignments = filter_by_visible_agents(
        skill.assignments.select_related("agent"), visit.principal
    )
    agents = [assignment.agent for assignment in visible_assignments.order_by("agent__name")]
    return visit.render_tab(
        "skills/run.html",
        skill=skill,
        arguments=read_arguments(skill.arguments),
        agents=[agent for agent in agents if can_run_agent(visit.principal, agent)],
        attached_agents=[agent.slug for agent in agents],
    )


@SkillAdmin.add_object_action("run", required_actions=Action.RUN_AGENTS)
def start_skill_session(visit: ObjectRequest) -> HttpResponseBase:
    """Start a session of the chosen agent with the skill as its first message."""
    skill, posted = visit.object, visit.request.POST
    values = {
        argument.name: posted[f"argument-{argument.name}"]
        for argument in read_arguments(skill.arguments)
        if posted.get(f"argument-{argument.name}")
    }
    if not posted.get("agent"):
        raise InvalidInput(
            "No agent was selected.", field="agent", remedy="Choose an agent that has this skill."
        )
    agent = Agent.objects.get_by_name(visit.principal, posted["agent"])
    session = run_skill(visit.principal, skill, agent, values)
    address = reverse("admin:agents_agent_change", args=[agent.pk])
    return HttpResponseRedirect(f"{address}?session={session.pk}")


@SkillAdmin.add_page("edit", _("Edit"), order=20)
def edit_skill(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form with earlier versions, or update the skill."""
    skill: Skill = visit.object
    initial = {name: getattr(skill, name) for name in ("name", *SKILL_TEXTS, "enabled")}
    initial["arguments"] = format_lines(read_arguments(skill.arguments))
    return edit_assignable(
        visit,
        "skills/edit.html",
        initial,
        _t("Saved. Effective from the next turn."),
        skill=skill,
    )


@AgentAdmin.add_page("skills", _("Skills"), order=43)
def show_skills(visit: ObjectRequest) -> HttpResponseBase:
    """Show the agent's skills and those that can be attached."""
    skills = Skill.objects.visible_to(visit.principal)
    return render_assignments(
        visit, "agents/skills.html", skills, skills.filter(assignments__agent=visit.object)
    )


add_attach_actions(
    "skill",
    get_skill,
    lambda principal, skill, slugs: save_skill(
        principal, SkillSpec(name=skill.name, agents=slugs), skill
    ),
)
