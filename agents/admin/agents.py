"""The list of agents, and making one."""

from typing import Any

from django import forms
from django.contrib import messages
from django.db.models import Count, IntegerField, Max, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.readers import READERS
from agents.models import Agent, Binding, ModelEndpoint, Session
from agents.registration import AgentSpec, add_agent, remove_agent
from bonobot.lib.admin import Select, Textarea, TextInput, display, register
from bonobot.lib.problems import Problem
from bonobot.lib.untrusted import visible
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import PagedAdmin, refuse, screen
from bonobot.tenancy.templatetags.bonobot import ago
from mcp_servers.models import Server


@register(Agent)
class AgentAdmin(PagedAdmin):
    """The active organization's agents; members see those given to them."""

    needs_to_view = READERS
    needs_to_change = Action.MANAGE_AGENTS
    list_display = (
        "agent",
        "thinks_with",
        "server_count",
        "sessions_now",
        "last_session",
        "switch",
        "run",
    )
    changing_columns = {"switch": "is_on"}
    list_filter = ("enabled",)
    search_fields = ("name", "slug", "description")
    ordering = ("name",)
    list_select_related = ("model_endpoint",)
    change_list_template = "admin/agents/list.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        """Return the visible agents with what the list shows, in one query."""
        bindings = Binding.objects.filter(agent=OuterRef("pk"), enabled=True).order_by()
        troubled = bindings.filter(
            server__status__in=(Server.Status.ERROR, Server.Status.NEEDS_REAUTH),
            server__enabled=True,
        )
        principal = self.principal(request)
        sessions = Session.objects.visible_to(principal).filter(agent=OuterRef("pk")).order_by()
        agents: Any = Agent.objects.visible_to(principal).annotate(
            bound=_number(bindings, Count("pk")),
            troubled=_number(troubled, Count("pk")),
            running=_number(sessions.unfinished(), Count("pk")),
            latest=Subquery(sessions.values("agent").annotate(n=Max("created_at")).values("n")),
        )
        return agents

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Offer none: an agent's deeds are on its pages."""
        return {}

    @display(description=_("agent"), ordering="name", header=True)
    def agent(self, agent: Agent) -> tuple[str, str]:
        """Return the name and what it is for."""
        return visible(agent.name), visible(agent.description or agent.slug, 100)

    @display(description=_("model"), ordering="model_endpoint__name")
    def thinks_with(self, agent: Agent) -> str:
        """Return the model that it thinks with."""
        return agent.model_endpoint.name

    @display(description=_("servers"), ordering="bound")
    def server_count(self, agent: Any) -> str:
        """Return how many servers it has, and whether one is in trouble."""
        return render_to_string("admin/agents/servers_cell.html", {"agent": agent})

    @display(description=_("running"), ordering="running")
    def sessions_now(self, agent: Any) -> str:
        """Return how many sessions run."""
        return str(agent.running) if agent.running else "–"

    @display(description=_("last session"), ordering="latest")
    def last_session(self, agent: Any) -> Any:
        """Return when it was last asked."""
        return ago(agent.latest)

    @display(description=_("on"), ordering="enabled")
    def switch(self, agent: Agent) -> str:
        """Return the switch."""
        return render_to_string("admin/agents/switch.html", {"agent": agent})

    @display(description=_("on"), ordering="enabled")
    def is_on(self, agent: Agent) -> str:
        """Return where it stands, for those who may not switch it."""
        return _t("yes") if agent.enabled else _t("no")

    @display(description="")
    def run(self, agent: Agent) -> str:
        """Return the way to talk to it."""
        return render_to_string("admin/agents/run.html", {"agent": agent})

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show our own form, or make the agent."""
        principal = self.principal(request)
        principal.require(Action.MANAGE_AGENTS)
        form = AgentForm(principal, request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            try:
                agent = add_agent(principal, AgentSpec(**form.said()))
            except Problem as problem:
                refuse(form, problem)
            else:
                text = _t("%(agent)s was made. Give it servers, then say which tools it may use.")
                messages.success(request, text % {"agent": agent})
                address = reverse("admin:agents_agent_servers", args=[agent.pk])
                return HttpResponseRedirect(address)
        return screen(request, "agents/add.html", title=_("New agent"), form=form, opts=self.opts)

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Ask first, with what else goes; then remove."""
        principal = self.principal(request)
        agent = self.find(request, object_id)
        principal.require(Action.MANAGE_AGENTS)
        if request.method == "POST":
            remove_agent(principal, agent)
            messages.success(request, _t("%(agent)s was removed.") % {"agent": agent})
            return HttpResponseRedirect(reverse("admin:agents_agent_changelist"))
        return screen(
            request,
            "agents/remove.html",
            title=_("Remove an agent"),
            object=agent,
            opts=self.opts,
            sessions=agent.sessions.count(),
            private=list(Server.objects.in_scope(agent.pk)),
        )


class AgentForm(forms.Form):
    """What an agent is: its name, its instructions, and the model that it thinks with."""

    name = forms.CharField(label=_("Name"), max_length=255, widget=TextInput)
    description = forms.CharField(
        label=_("Description"), required=False, max_length=500, widget=TextInput
    )
    model_endpoint = forms.ModelChoiceField(
        label=_("Model"), queryset=ModelEndpoint.objects.none(), widget=Select, empty_label=None
    )
    instructions = forms.CharField(
        label=_("Instructions"),
        required=False,
        max_length=100_000,
        widget=Textarea(attrs={"rows": 10}),
        help_text=_("What it is to do, and how. The list of its tools is added by itself."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's models."""
        super().__init__(*args, **kwargs)
        offered = ModelEndpoint.objects.for_organization(principal.organization_id)
        self.fields["model_endpoint"].queryset = offered  # type: ignore[attr-defined]

    def said(self) -> dict[str, Any]:
        """Return what was filled in, as the operations take it."""
        return dict(self.cleaned_data)


def _number(rows: QuerySet[Any], counted: Any) -> Coalesce:
    grouped = rows.values("agent").annotate(n=counted).values("n")
    return Coalesce(Subquery(grouped, output_field=IntegerField()), 0)
