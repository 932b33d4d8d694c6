"""Agents in the admin: list, configuration and metrics, and the agents panel of a server."""

import json
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.db.models import (
    BooleanField,
    Count,
    ExpressionWrapper,
    IntegerField,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
)
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.access_requests import list_recent_requests
from agents.admin import agent_bulk_actions
from agents.assignments import list_callable_agents, set_callable_agents
from agents.budgets.services import (
    DEFAULT_WARN_AT,
    MAX_LIMIT,
    BudgetLine,
    build_line,
    list_budget_use,
    set_budgets,
)
from agents.call_activity import RANGES, CallActivity
from agents.calls.snapshots import get_snapshot_cache
from agents.llm.token_estimates import count_tokens, estimate_tokens
from agents.model_endpoints.services import build_endpoint, fill_context_window
from agents.models import Agent, AgentServer, Budget, ModelEndpoint, Session
from agents.services import (
    AgentSpec,
    attach_server,
    create_agent,
    delete_agent,
    set_agent_members,
    update_agent,
)
from agents.sessions.output_schemas import MAX_OUTPUT_SCHEMA_SIZE
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from bonobot.accounts.admin_base import (
    ObjectRequest,
    TabbedAdmin,
    TabGroup,
    add_problem_to_form,
    redirect_to_page,
    render_screen,
)
from bonobot.accounts.admin_base.fieldsets import CollapsibleFieldset
from bonobot.accounts.admin_base.form_conflicts import describe_last_change
from bonobot.accounts.admin_base.responses import add_deleted_message
from bonobot.accounts.deletions import can_restore_later
from bonobot.accounts.models import Membership
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role
from bonobot.accounts.templatetags.display import ago
from bonobot.core.admin.theme import (
    Checkbox,
    IntegerInput,
    Select,
    Textarea,
    TextInput,
    action,
    display,
    register,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.amounts import MICROUSD_PER_USD, parse_number
from mcp_servers.models import Definition, Server

# Members see only their own rows, as `visible_to` of each model defines.
READERS = (Action.RUN_AGENTS, Action.VIEW)
MAX_NAMES_SHOWN = 10
MAX_OWN_REQUESTS = 5
LIMIT_FIELDS = ("max_turns", "max_calls", "max_run_s", "calls_per_minute", "tool_search_above")
TEXT_FIELDS = ("name", "slug", "description", "instructions")
COPIED_FIELDS = (*TEXT_FIELDS, "tools_in_prompt", *LIMIT_FIELDS)
EMPTY_BUDGET_LINES = 3
MAX_OFFERED_SERVERS = 200


@register(Agent)
class AgentAdmin(TabbedAdmin):
    """The active organization's agents; members see the agents they may run."""

    needs_to_view = READERS
    needs_to_change = Action.MANAGE_AGENTS
    list_display = (
        "agent",
        "model_name",
        "last_session",
        "server_count",
        "running_sessions",
        "switch",
        "run",
    )
    change_columns = {"switch": "is_enabled"}
    list_filter = ("enabled",)
    search_fields = ("name", "slug", "description")
    ordering = ("name",)
    list_select_related = ("model_endpoint",)
    change_list_template = "admin/agents/list.html"
    actions = ("enable_chosen", "disable_chosen", "remove_chosen")
    add_label = _("Create agent")
    tab_groups = (
        TabGroup(_("Chat"), ("change",)),
        TabGroup(_("Tools"), ("servers", "builtin", "policy", "simulate")),
        TabGroup(_("Configure"), ("configuration", "skills", "workflows", "notes")),
        TabGroup(_("Activity"), ("sessions", "recordings")),
        TabGroup(_("Metrics"), ("metrics",)),
        TabGroup(_("Connect"), ("clients",)),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Agent]:
        """Return the visible agents with what the list shows, in one query."""
        attached_servers = AgentServer.objects.filter(agent=OuterRef("pk"), enabled=True).order_by()
        failing_servers = attached_servers.filter(
            server__status__in=(Server.Status.ERROR, Server.Status.NEEDS_REAUTH),
            server__enabled=True,
        )
        principal = self.get_principal(request)
        sessions = Session.objects.visible_to(principal).filter(agent=OuterRef("pk")).order_by()
        agents: Any = Agent.objects.visible_to(principal).annotate(
            bound=_build_count_subquery(attached_servers, Count("pk")),
            troubled=_build_count_subquery(failing_servers, Count("pk")),
            running=_build_count_subquery(sessions.unfinished(), Count("pk")),
            latest=Subquery(sessions.values("agent").annotate(n=Max("created_at")).values("n")),
        )
        return agents

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Show members their access requests and the answers below the list."""
        context = extra_context or {}
        principal = self.get_principal(request)
        if principal.may(Action.RUN_AGENTS) and not principal.may(Action.VIEW):
            context |= {"own_requests": list_recent_requests(principal)[:MAX_OWN_REQUESTS]}
        return super().changelist_view(request, context)

    def get_list_display(self, request: HttpRequest) -> Any:
        """Return the columns, without servers or chats for those who can't open them."""
        principal = self.get_principal(request)
        needed = {"server_count": Action.VIEW, "run": Action.RUN_AGENTS}
        return tuple(
            column
            for column in super().get_list_display(request)
            if column not in needed or principal.may(needed[column])
        )

    @display(description=_("agent"), ordering="name")
    def agent(self, agent: Agent) -> str:
        """Return the name, with the description."""
        return render_to_string("admin/agents/name.html", {"agent": agent})

    @display(description=_("model"), ordering="model_endpoint__name")
    def model_name(self, agent: Agent) -> str:
        """Return the name of its model endpoint."""
        return agent.model_endpoint.name

    @display(description=_("servers"), ordering="bound")
    def server_count(self, agent: Any) -> str:
        return render_to_string("admin/agents/list_servers.html", {"agent": agent})

    @display(description=_("running"), ordering="running")
    def running_sessions(self, agent: Any) -> str:
        """Return the number of running sessions."""
        return str(agent.running) if agent.running else "–"

    @display(description=_("last session"), ordering="latest")
    def last_session(self, agent: Any) -> Any:
        return ago(agent.latest)

    @display(description=_("enabled"), ordering="enabled")
    def switch(self, agent: Agent) -> str:
        url = reverse("admin:agents_agent_toggle", args=[agent.pk])
        return render_to_string("admin/parts/list_switch.html", {"row": agent, "url": url})

    @display(description=_("enabled"), ordering="enabled")
    def is_enabled(self, agent: Agent) -> str:
        """Return the state of the switch, for people who may not change it."""
        return _t("yes") if agent.enabled else _t("no")

    @display(description=_("action"))
    def run(self, agent: Agent) -> str:
        """Return the button that opens a chat."""
        return render_to_string("admin/agents/list_chat_link.html", {"agent": agent})

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Drop Django's delete action; ours offers to undo it."""
        actions = super().get_actions(request)
        actions.pop("delete_selected", None)
        return actions

    @action(description=_("Enable"), permissions=["change"])
    def enable_chosen(self, request: HttpRequest, queryset: QuerySet[Agent]) -> None:
        """Enable the selected agents."""
        agent_bulk_actions.check_agent_count(agents := list(queryset))
        agent_bulk_actions.set_agents_enabled(request, agents, enabled=True)

    @action(description=_("Disable…"), permissions=["change"])
    def disable_chosen(
        self, request: HttpRequest, queryset: QuerySet[Agent]
    ) -> HttpResponseBase | None:
        """Confirm, then disable the selected agents."""
        agent_bulk_actions.check_agent_count(agents := list(queryset))
        if "confirmed" not in request.POST:
            return agent_bulk_actions.confirm_disabling(self, request, agents)
        agent_bulk_actions.set_agents_enabled(request, agents, enabled=False)
        return None

    @action(description=_("Delete…"), permissions=["delete"])
    def remove_chosen(
        self, request: HttpRequest, queryset: QuerySet[Agent]
    ) -> HttpResponseBase | None:
        """Confirm with what else is deleted, then delete the selected agents."""
        agent_bulk_actions.check_agent_count(agents := list(queryset))
        if "confirmed" not in request.POST:
            return agent_bulk_actions.confirm_deletion(self, request, agents)
        agent_bulk_actions.delete_agents(request, agents)
        return None

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Show the form, or create the agent."""
        principal = self.get_principal(request)
        principal.require(Action.MANAGE_AGENTS)
        form = NewAgentForm(principal, request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            try:
                agent = form.save(principal)
            except Problem as problem:
                add_problem_to_form(form, problem)
            else:
                success_text = _t("%(agent)s was created. Choose which tools it can use.")
                messages.success(request, success_text % {"agent": agent})
                address = reverse("admin:agents_agent_servers", args=[agent.pk])
                return HttpResponseRedirect(address)
        return render_screen(
            request, "agents/add.html", title=_("Create agent"), form=form, opts=self.opts
        )

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponseBase:
        """Confirm with the list of what else is deleted, then delete the agent."""
        principal = self.get_principal(request)
        agent = self.get_object_or_404(request, object_id)
        principal.require(Action.MANAGE_AGENTS)
        private_servers = list(Server.objects.in_scope(agent.pk))
        if request.method == "POST":
            name = str(agent)
            add_deleted_message(request, name, delete_agent(principal, agent))
            return HttpResponseRedirect(reverse("admin:agents_agent_changelist"))
        return render_screen(
            request,
            "agents/remove.html",
            title=_("Delete agent"),
            object=agent,
            opts=self.opts,
            last_change=describe_last_change(request, object_id),
            deleted=agent_bulk_actions.list_deleted_rows([agent], private_servers),
            stopped=agent_bulk_actions.describe_stopped_work([agent]),
            restorable=can_restore_later("agent", agent, *private_servers),
        )


class AgentDetailsForm(forms.Form):
    """Name, instructions and model of an agent."""

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
        help_text=_("What the agent does, and how. The list of its tools is added automatically."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's models."""
        super().__init__(*args, **kwargs)
        endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
        self.fields["model_endpoint"].queryset = endpoints  # type: ignore[attr-defined]

    def get_field_values(self) -> dict[str, Any]:
        """Return the cleaned values for `AgentSpec`."""
        return dict(self.cleaned_data)


@dataclass(frozen=True)
class LeftOutServers:
    """The servers that a new agent isn't offered."""

    disabled: list[Server]
    more: int  # enabled ones, because they are too many


def offer_servers(field: forms.Field, principal: Principal) -> LeftOutServers:
    """Set the choices of a field to the enabled servers of the pool, connected ones first.

    Returns the other ones.
    """
    is_unusable = ExpressionWrapper(~Q(status=Server.Status.CONNECTED), BooleanField())
    servers = Server.objects.in_scope(principal.organization_id).alias(is_unusable=is_unusable)
    pool = servers.order_by("is_unusable", "name")
    enabled_ids = list(pool.enabled().values_list("pk", flat=True))
    offered_ids = enabled_ids[:MAX_OFFERED_SERVERS]
    tools = Definition.objects.tools().filter(server=OuterRef("pk"), present=True).order_by()
    field.queryset = pool.filter(pk__in=offered_ids).annotate(  # type: ignore[attr-defined]
        tool_total=_build_count_subquery(tools, Count("pk"), of="server"),
        callable_total=_build_count_subquery(tools.callable(), Count("pk"), of="server"),
    )
    return LeftOutServers(
        disabled=list(pool.filter(enabled=False)[:MAX_OFFERED_SERVERS]),
        more=len(enabled_ids) - len(offered_ids),
    )


class NewAgentForm(AgentDetailsForm):
    """A new agent with its first servers."""

    servers = forms.ModelMultipleChoiceField(
        label=_("Servers"),
        queryset=Server.objects.none(),
        required=False,
        widget=forms.CheckboxSelectMultiple(attrs={"class": "bb-tick"}),
        help_text=_("You choose their tools in the next step."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the servers of the pool."""
        super().__init__(principal, *args, **kwargs)
        self.left_out = offer_servers(self.fields["servers"], principal)

    def save(self, principal: Principal) -> Agent:
        """Create the agent and attach its servers, in one transaction."""
        values = self.get_field_values()
        servers = values.pop("servers")
        with transaction.atomic():
            agent = create_agent(principal, AgentSpec(**values))
            for server in servers:
                attach_server(principal, agent, server)
        return agent


def _build_count_subquery(rows: QuerySet[Any], count: Any, of: str = "agent") -> Coalesce:
    counts = rows.values(of).annotate(n=count).values("n")
    return Coalesce(Subquery(counts, output_field=IntegerField()), 0)


def _build_limit_field(label: Any, help_text: Any, minimum: int = 1) -> forms.IntegerField:
    return forms.IntegerField(
        label=label,
        help_text=help_text,
        min_value=minimum,
        max_value=2**31 - 1,
        widget=IntegerInput,
    )


class AgentConfigurationForm(AgentDetailsForm):
    """All settings of an agent except its servers, its policy, and the switch in its header."""

    slug = forms.SlugField(
        label=_("Slug"),
        max_length=64,
        widget=TextInput,
        help_text=_("Identifies the agent in commands and URLs."),
    )
    max_turns = _build_limit_field(
        _("Turns per message"), _("Maximum number of times the model is called.")
    )
    max_calls = _build_limit_field(_("Calls per message"), _("Across all tools."), minimum=0)
    max_run_s = _build_limit_field(
        _("Seconds per message"), _("Running time only. Waiting time isn't counted.")
    )
    calls_per_minute = _build_limit_field(_("Calls per minute"), _("Across all of its sessions."))
    tool_search_above = _build_limit_field(
        _("Tools shown at once"),
        _(
            "If there are more, the model searches for them with find_tools. Set to 0 to "
            "always show all tools."
        ),
        minimum=0,
    )
    tools_in_prompt = forms.BooleanField(
        label=_("List tools in the prompt"),
        required=False,
        widget=Checkbox,
        help_text=_(
            "The system prompt lists the servers' tools with description and parameters. Models "
            "without tool calls always get this list."
        ),
    )
    output_schema = forms.CharField(
        label=_("Output schema"),
        required=False,
        strip=True,
        max_length=2 * MAX_OUTPUT_SCHEMA_SIZE,
        widget=Textarea(attrs={"rows": 6}),
        help_text=_(
            "A JSON Schema that final answers must match. Leave empty for answers in plain text."
        ),
    )
    members = forms.MultipleChoiceField(
        label=_("Members who can run it"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_("Owners and operators can run every agent."),
    )

    callable_agents = forms.MultipleChoiceField(
        label=_("Agents it can ask"),
        required=False,
        widget=forms.CheckboxSelectMultiple,
        help_text=_(
            "Adds one tool per agent, subject to this agent's policy. Usage of these agents "
            "also counts toward this agent's budgets."
        ),
    )

    def clean_output_schema(self) -> dict[str, Any]:
        """Return the schema as an object; empty: none."""
        text = self.cleaned_data["output_schema"]
        try:
            schema = json.loads(text) if text else {}
        except (ValueError, RecursionError):
            schema = None
        if not isinstance(schema, dict):
            raise forms.ValidationError(_("Enter a JSON object."))
        return schema

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's members and agents."""
        super().__init__(principal, *args, **kwargs)
        agents = Agent.objects.for_organization(principal.organization_id)
        self.fields["callable_agents"].choices = list(agents.values_list("slug", "name"))  # type: ignore[attr-defined]
        memberships = Membership.objects.for_organization(principal.organization_id).select_related(
            "user"
        )
        choices = [
            (membership.user.username, membership.user.get_full_name() or membership.user.username)
            for membership in memberships.filter(role=Role.MEMBER).order_by("user__username")
        ]
        self.fields["members"].choices = choices  # type: ignore[attr-defined]


@AgentAdmin.add_page("configuration", _("Configuration"), order=20)
def show_configuration(visit: ObjectRequest) -> HttpResponseBase:
    """Show the form, or update the agent."""
    agent: Agent = visit.object
    posted = visit.request.POST if visit.request.method == "POST" else None
    form = AgentConfigurationForm(visit.principal, posted, initial=_build_initial(agent))
    if posted is not None and form.is_valid():
        try:
            _save(visit, agent, form)
        except Problem as problem:
            agent.refresh_from_db()
            add_problem_to_form(form, problem)
        else:
            messages.success(visit.request, _t("Saved. Effective from the next turn."))
            return redirect_to_page(visit, "configuration")
    return visit.render_tab(
        "agents/configuration.html",
        agent=agent,
        form=form,
        fieldsets=_list_fieldsets(form),
        limit_fields=[form[name] for name in LIMIT_FIELDS],
        size=_estimate_prompt_size(agent),
        budgets=list_budget_use(agent),
        empty_lines=range(EMPTY_BUDGET_LINES),
        units=Budget.Unit.choices,
        periods=Budget.Period.choices,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


def _list_fieldsets(form: AgentConfigurationForm) -> list[CollapsibleFieldset]:
    """Return the settings that are changed rarely."""
    members, callable_agents = form["members"], form["callable_agents"]
    limits = [form[name] for name in LIMIT_FIELDS]
    prompt = [form["tools_in_prompt"], form["output_schema"]]
    return [
        CollapsibleFieldset(title=_("Limits"), fields=limits, lists_defaults=True),
        CollapsibleFieldset(title=_("Prompt and output"), fields=prompt),
        CollapsibleFieldset(
            title=callable_agents.label, fields=[callable_agents], lists_defaults=True
        ),
        CollapsibleFieldset(title=members.label, fields=[members], lists_defaults=True),
    ]


def _estimate_prompt_size(agent: Agent) -> dict[str, Any]:
    """Return the estimated number of prompt tokens of a session without messages."""
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    shown_tools = snapshot.list_shown_tools(())
    endpoint = build_endpoint(agent.model_endpoint)
    instructions = build_instructions(
        agent.instructions,
        snapshot,
        (),
        shown_tools=shown_tools,
        native_tools=endpoint.native_tools,
        output_schema=agent.output_schema,
    )
    window = fill_context_window(endpoint).context_window
    prompt, tools = (
        count_tokens(instructions),
        estimate_tokens((), "", build_tool_specs(shown_tools)),
    )
    return {
        "own": count_tokens(agent.instructions),
        "prompt": prompt,
        "tools": tools,
        "shown": len(shown_tools),
        "all": prompt + tools,
        "window": window,
    }


def _build_initial(agent: Agent) -> dict[str, Any]:
    return {
        **{name: getattr(agent, name) for name in COPIED_FIELDS},
        "model_endpoint": agent.model_endpoint_id,
        "output_schema": json.dumps(agent.output_schema, indent=2, ensure_ascii=False)
        if agent.output_schema
        else "",
        "callable_agents": list_callable_agents(agent),
        "members": list(agent.members.values_list("username", flat=True)),
    }


def _save(visit: ObjectRequest, agent: Agent, form: AgentConfigurationForm) -> None:
    values = form.get_field_values()
    members, callable_agents = values.pop("members"), values.pop("callable_agents")
    budget_lines = _parse_budget_lines(visit.request)
    update_agent(visit.principal, agent, AgentSpec(**values))
    if set(members) != set(agent.members.values_list("username", flat=True)):
        set_agent_members(visit.principal, agent, members)
    if set(callable_agents) != set(list_callable_agents(agent)):
        set_callable_agents(visit.principal, agent, callable_agents)
    stored_lines = [build_line(budget) for budget in agent.budgets.all()]
    if set(budget_lines) != set(stored_lines) or len(budget_lines) != len(stored_lines):
        set_budgets(visit.principal, agent, budget_lines)


def _parse_budget_lines(request: HttpRequest) -> list[BudgetLine]:
    """Return the posted budgets; money is in dollars."""
    posted: Any = request.POST
    columns = ("unit", "period", "limit", "scope", "warn-at")
    budget_rows = zip(*(posted.getlist(f"budget-{name}") for name in columns), strict=False)
    return [
        BudgetLine(
            unit,
            period=period,
            limit=parse_amount(unit, limit),
            each_session=scope == "session",
            warn_at=_parse_percent(warn_at),
        )
        for unit, period, limit, scope, warn_at in budget_rows
        if limit
    ]


def _parse_percent(text: str) -> int:
    return int(text) if text.isdecimal() else DEFAULT_WARN_AT


def parse_amount(unit: str, text: str) -> int:
    """Return a typed limit as a number, dollars as micro-dollars; raises `InvalidInput`."""
    try:
        value = parse_number(text.replace("$", ""))
        amount = round(value * MICROUSD_PER_USD) if unit == Budget.Unit.MONEY else int(value)
    except ValueError:
        amount = -1
    if not 0 <= amount <= MAX_LIMIT:
        raise InvalidInput(
            format_message("{text!r} isn't a valid limit.", text=text[:40]),
            field="budgets",
            remedy="Enter an amount in dollars of 0 or more."
            if unit == Budget.Unit.MONEY
            else "Enter a whole number of 0 or more.",
        )
    return amount


@AgentAdmin.add_page("metrics", _("Metrics"), order=52)
def show_metrics(visit: ObjectRequest) -> HttpResponseBase:
    """Show the agent's calls, failures, durations and costs over time."""
    agent: Agent = visit.object
    activity = CallActivity(
        agent.organization_id,
        visit.request.GET.get("range", ""),
        agent_id=agent.pk,
    )
    return visit.render_tab("agents/metrics.html", agent=agent, activity=activity, ranges=RANGES)
