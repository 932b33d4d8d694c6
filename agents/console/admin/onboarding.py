"""Onboarding pages and forms."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.functional import lazy
from django.utils.http import urlencode
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.server_imports import import_servers
from agents.console.onboarding import (
    SLUGS,
    OnboardingProgress,
    OnboardingStep,
    load_onboarding_progress,
    set_onboarding_closed,
    set_step_skipped,
)
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.model_endpoints.try_endpoint import EndpointTestResult, try_endpoint
from agents.models import Agent, ModelEndpoint
from agents.services import AgentSpec, attach_server, create_agent
from agents.tool_matrix.services import save_settings
from agents.tool_matrix.settings import Setting
from bonobot.accounts.admin_base.responses import View, add_problem_to_form, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Checkbox, SecretInput, Select, Textarea, TextInput
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from mcp_servers.admin import add_servers, openapi, preset_gallery
from mcp_servers.admin.definitions import DefinitionRow, build_definition_row
from mcp_servers.admin.review_new_servers import show_added_servers
from mcp_servers.admin.servers import POOL_DESTINATION
from mcp_servers.flow_labels.services import load_label_context
from mcp_servers.models import Definition, Server

MAX_OFFERED = 50
INSTRUCTIONS = _("Use your tools. State clearly what you did and what didn't work.")


class OnboardingModelEndpointForm(forms.Form):
    """A model endpoint with its most common fields."""

    name = forms.CharField(label=_("Name"), max_length=255, widget=TextInput)
    kind = forms.ChoiceField(
        label=_("Type"), choices=ModelEndpoint.Kind.choices, initial="openai", widget=Select
    )
    base_url = forms.CharField(
        label=_("URL"),
        required=False,
        widget=TextInput(attrs={"placeholder": "https://api.openai.com/v1"}),
        help_text=_("Leave empty to use the provider's default."),
    )
    model = forms.CharField(label=_("Model"), max_length=255, widget=TextInput)
    api_key = forms.CharField(
        label=_("API key"),
        required=False,
        widget=SecretInput(),
        help_text=_("Encrypted when saved and never shown again."),
    )
    allow_private = forms.BooleanField(
        label=_("Allow private or loopback address"),
        required=False,
        widget=Checkbox,
        help_text=_("For Ollama or vLLM on your own network. Platform administrators only."),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Disable private addresses for all but platform administrators."""
        super().__init__(*args, **kwargs)
        may_allow = principal.may(Action.ALLOW_PRIVATE_ADDRESS)
        self.fields["allow_private"].disabled = not may_allow

    def save(self, principal: Principal) -> ModelEndpoint:
        """Create the endpoint, or update one with the same name."""
        endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
        values = dict(self.cleaned_data)
        existing_endpoint = endpoints.filter(name=values["name"]).first()
        saved_endpoint: ModelEndpoint = save_endpoint(
            principal, ModelEndpointSpec(**values), endpoint=existing_endpoint
        )
        return saved_endpoint


class OnboardingAgentForm(forms.Form):
    """An agent with its model, servers and policy."""

    name = forms.CharField(label=_("Name"), max_length=255, widget=TextInput)
    instructions = forms.CharField(
        label=_("Instructions"),
        required=False,
        initial=INSTRUCTIONS,
        max_length=100_000,
        widget=Textarea(attrs={"rows": 4}),
    )
    model_endpoint = forms.ModelChoiceField(
        label=_("Model"), queryset=ModelEndpoint.objects.none(), widget=Select, empty_label=None
    )
    servers = forms.ModelMultipleChoiceField(
        label=_("Servers"),
        queryset=Server.objects.none(),
        widget=forms.CheckboxSelectMultiple(attrs={"class": "bb-tick"}),
        help_text=_(
            "The agent can call their approved tools. Its policy can restrict this further."
        ),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's models and pool servers."""
        super().__init__(*args, **kwargs)
        organization_id = principal.organization_id
        models: Any = self.fields["model_endpoint"]
        models.queryset = ModelEndpoint.objects.for_organization(organization_id)
        servers: Any = self.fields["servers"]
        pool = Server.objects.in_scope(organization_id).filter(enabled=True).order_by("name")
        offered_ids = list(pool.values_list("pk", flat=True)[:MAX_OFFERED])
        servers.queryset = pool.filter(pk__in=offered_ids)
        servers.required = bool(offered_ids)  # optional if the server step was skipped

    def save(self, principal: Principal) -> Agent:
        """Create the agent, attach the servers and allow their tools, in one transaction."""
        values = self.cleaned_data
        with transaction.atomic():
            agent = create_agent(
                principal,
                AgentSpec(
                    name=values["name"],
                    instructions=values["instructions"],
                    model_endpoint=values["model_endpoint"],
                ),
            )
            for server in values["servers"]:
                attach_server(principal, agent, server)
            # The servers' own settings, so that the switches of the agent's tools change them.
            defaults = {server.pk: Setting.ALLOW for server in values["servers"]}
            save_settings(principal, agent, {}, defaults)
        return agent


MAX_SERVERS = 10
MAX_DEFINITIONS = 50
OFFLINE_ENDPOINT = {"name": "Offline", "kind": "offline", "model": "offline"}
ADD_SERVER_VIEWS: dict[str, Callable[..., HttpResponseBase]] = {
    "presets": preset_gallery.choose_preset,
    "paste": import_servers,
    "openapi": openapi.add_api,
    "operations": openapi.add_declared_api,
    "form": add_servers.add_by_form,
}


def _build_action_url(view_name: str, *args: Any) -> str:
    return reverse(f"admin:first_run_{view_name}", args=args)


def build_onboarding_url(step: str = "", **query: Any) -> str:
    """Return the URL of onboarding, at an optional step."""
    parameters = {**({"step": step} if step else {}), **query}
    return f"{reverse('admin:first_run')}{f'?{urlencode(parameters)}' if parameters else ''}"


ONBOARDING_DESTINATION = replace(
    POOL_DESTINATION,
    title=_("Connect your first server"),
    url=_build_action_url,
    build_next_url=lambda server: build_onboarding_url("connect", connect=server.pk),
    onward=lazy(build_onboarding_url, str)(),
)


def show_onboarding(request: HttpRequest) -> HttpResponseBase:
    """Show the checklist with the current step, or perform the posted action."""
    principal = resolve_principal(request)
    principal.require(Action.MANAGE_SERVERS)
    if request.method == "POST" and (response := _perform_action(request, principal)):
        return response
    progress = load_onboarding_progress(principal.organization_id)
    step = _select_step(request, progress)
    form = _build_form(request, principal, step)
    is_saved = _save_form(principal, form)
    if isinstance(is_saved, Agent):
        return _redirect_after_creation(request, is_saved)
    test_result = problem = None
    if is_saved is not None:
        if request.POST.get("do") == "offline":  # it can't fail a test
            messages.success(request, _t("The offline model was added."))
            return HttpResponseRedirect(build_onboarding_url())
        test_result, problem = _try_model_endpoint(principal, is_saved)
        progress = load_onboarding_progress(principal.organization_id)
    return render_screen(
        request,
        "first_run.html",
        title=_("First steps"),
        setup=progress,
        step=step,
        onward=progress.find_step_after(step.slug) if step else None,
        form=form,
        test_result=test_result,
        problem=problem,
        **_build_step_context(request, principal, step),
    )


def _perform_action(request: HttpRequest, principal: Principal) -> HttpResponseBase | None:
    """Perform an action on the checklist; None if a form was posted."""
    action, step = request.POST.get("do"), request.POST.get("step", "")
    if action == "skip":
        set_step_skipped(principal, step)
        return HttpResponseRedirect(build_onboarding_url())
    if action == "unskip":
        set_step_skipped(principal, step, is_skipped=False)
        return HttpResponseRedirect(build_onboarding_url(step))
    if action in ("close", "open"):
        set_onboarding_closed(principal, is_closed=action == "close")
        return HttpResponseRedirect(
            reverse("admin:index") if action == "close" else build_onboarding_url()
        )
    return None


def _select_step(request: HttpRequest, progress: OnboardingProgress) -> OnboardingStep | None:
    requested_slug = request.POST.get("step") or request.GET.get("step", "")
    if requested_slug and requested_slug not in SLUGS:
        raise NotFound(format_message("Unknown step {slug!r}.", slug=requested_slug), field="step")
    return next((step for step in progress.steps if step.slug == requested_slug), progress.next)


def _build_form(
    request: HttpRequest, principal: Principal, step: OnboardingStep | None
) -> OnboardingAgentForm | OnboardingModelEndpointForm | None:
    posted = request.POST if request.method == "POST" else None
    if step is None or not principal.may(Action.MANAGE_AGENTS):
        return None
    if step.slug == "model":
        if posted and posted.get("do") == "offline":
            return OnboardingModelEndpointForm(principal, OFFLINE_ENDPOINT)
        return OnboardingModelEndpointForm(principal, posted)
    if step.slug == "agent":
        pool = Server.objects.in_scope(principal.organization_id).filter(enabled=True)
        name = "" if step.done else _t("Assistant")
        return OnboardingAgentForm(
            principal, posted, initial={"name": name, "servers": pool[:MAX_SERVERS]}
        )
    return None


def _save_form(
    principal: Principal, form: OnboardingAgentForm | OnboardingModelEndpointForm | None
) -> Agent | ModelEndpoint | None:
    """Save the posted form; None if nothing was posted or the form has errors."""
    if form is None or not form.is_bound or not form.is_valid():
        return None
    try:
        return form.save(principal)
    except Problem as problem:
        add_problem_to_form(form, problem)
    return None


def _try_model_endpoint(
    principal: Principal, endpoint: ModelEndpoint
) -> tuple[EndpointTestResult | None, Problem | None]:
    """Test the model; return its result or the problem."""
    try:
        return try_endpoint(principal, endpoint), None
    except Problem as problem:
        return None, problem


def _build_step_context(
    request: HttpRequest, principal: Principal, step: OnboardingStep | None
) -> dict[str, Any]:
    """Return the context of a step in addition to its form."""
    organization_id = principal.organization_id
    if step is None:
        return {}
    if step.slug == "connect":
        servers = Server.objects.in_scope(organization_id).order_by("-created_at")[:MAX_SERVERS]
        return {
            "servers": servers,
            "starters": preset_gallery.list_starter_cards(principal, ONBOARDING_DESTINATION),
            "connecting": request.GET.get("connect", ""),
        }
    if step.slug == "approve":
        return {"reviews": _list_pending_definitions(principal)}
    if step.slug == "model":
        return {"endpoints": ModelEndpoint.objects.for_organization(organization_id)[:MAX_SERVERS]}
    if step.slug == "ask":
        agents = Agent.objects.visible_to(principal).filter(enabled=True)
        return {"agent": agents.order_by("-created_at").first()}
    return {}


def _list_pending_definitions(
    principal: Principal,
) -> list[tuple[Server, list[DefinitionRow], int]]:
    """Return pending definitions by server, and how many can be approved together.

    At most `MAX_DEFINITIONS`; the rest is on the servers' pages.
    """
    rows = Definition.objects.for_organization(principal.organization_id).awaiting_review()
    rows = rows.select_related("server__preset").order_by("server__name", "server_id", "name")
    rows_by_server: dict[Server, list[DefinitionRow]] = {}
    for row in rows[:MAX_DEFINITIONS]:
        rows_by_server.setdefault(row.server, []).append(
            build_definition_row(row, load_label_context(row.server))
        )
    return [
        (
            server,
            definition_rows,
            sum(not definition_row.is_flagged for definition_row in definition_rows),
        )
        for server, definition_rows in rows_by_server.items()
    ]


def _redirect_after_creation(request: HttpRequest, agent: Agent) -> HttpResponseBase:
    messages.success(request, _t("%(agent)s was created. Send it a message.") % {"agent": agent})
    return HttpResponseRedirect(build_onboarding_url("ask"))


def _build_add_view(add_view: Callable[..., HttpResponseBase]) -> View:
    def add_server(request: HttpRequest, **url_arguments: Any) -> HttpResponseBase:
        return add_view(
            request, resolve_principal(request), ONBOARDING_DESTINATION, *url_arguments.values()
        )

    return add_server


def build_url_patterns(wrap: Callable[[View], View]) -> list[URLPattern]:
    """Return the URL patterns of onboarding."""
    add_server_patterns = [
        path(f"first-run/{view_name}/", wrap(_build_add_view(add)), name=f"first_run_{view_name}")
        for view_name, add in ADD_SERVER_VIEWS.items()
    ]
    preset_view = wrap(_build_add_view(preset_gallery.add_by_preset))
    return [
        path("first-run/", wrap(show_onboarding), name="first_run"),
        path("first-run/added/", wrap(_build_add_view(show_added_servers)), name="first_run_added"),
        path("first-run/preset/<str:slug>/", preset_view, name="first_run_preset"),
        *add_server_patterns,
    ]
