"""First-run pages and forms."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django import forms
from django.db import transaction
from django.db.models import Q
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.functional import lazy
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import offer_servers
from agents.admin.audit_entries import describe_entries
from agents.admin.server_imports import import_servers
from agents.agent_tools.services import save_settings
from agents.agent_tools.settings import Setting, ToolKey
from agents.first_run import (
    SLUGS,
    FirstRunProgress,
    FirstRunStep,
    build_example_message,
    load_first_run_progress,
    set_first_run_closed,
    set_step_skipped,
)
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.model_endpoints.try_endpoint import EndpointTestResult, try_endpoint
from agents.models import Agent, ModelEndpoint, Session, Step
from agents.services import AgentSpec, attach_server, create_agent
from agents.sessions.events import RESTING_STATUSES
from agents.sessions.services import start_session
from bonobot.accounts.admin_base.responses import (
    FRAGMENT_HEADER,
    View,
    add_problem_to_form,
    render_fragment,
    render_screen,
)
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.admin.theme import Checkbox, SecretInput, Select, Textarea, TextInput
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.text.uuids import parse_uuid
from bonobot.ledger.audit.prune_chain import find_chain_start
from bonobot.ledger.models import AuditRow
from mcp_servers.admin import add_servers, declared_operations, openapi, preset_gallery
from mcp_servers.admin.add_by_url import add_by_url
from mcp_servers.admin.review_new_servers import build_added_url, show_added_servers
from mcp_servers.admin.servers import POOL_DESTINATION
from mcp_servers.models import Definition, Server

INSTRUCTIONS = _("Use your tools. State clearly what you did and what didn't work.")
MAX_SERVERS = 10
LIVE_TOPICS = ("audit", "sessions")
OFFLINE = "offline"
READ_RESULT = ToolKey("builtin", None, "read_result")  # reads the rest of long results
OFFLINE_ENDPOINT = ModelEndpointSpec(
    name="Offline", kind=ModelEndpoint.Kind.OFFLINE, model="offline"
)
ADD_SERVER_VIEWS: dict[str, Callable[..., HttpResponseBase]] = {
    "presets": preset_gallery.choose_preset,
    "url": add_by_url,
    "paste": import_servers,
    "openapi": openapi.add_api,
    "operations": declared_operations.add_declared_api,
    "form": add_servers.add_by_form,
}


class FirstModelEndpointForm(forms.Form):
    """A model endpoint with its most common fields."""

    prefix = "model"
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


class FirstCallForm(forms.Form):
    """An agent with its model and servers, and its first message."""

    name = forms.CharField(
        label=_("Agent"), max_length=255, initial=_("Assistant"), widget=TextInput
    )
    model = forms.ChoiceField(label=_("Model"), widget=Select)
    servers = forms.ModelMultipleChoiceField(
        label=_("Servers"),
        queryset=Server.objects.none(),
        required=False,
        widget=forms.CheckboxSelectMultiple(attrs={"class": "bb-tick"}),
    )
    text = forms.CharField(
        label=_("Message"),
        max_length=100_000,
        widget=Textarea(attrs={"rows": 2, "data-send": True}),
    )

    def __init__(self, principal: Principal, *args: Any, **kwargs: Any) -> None:
        """Offer the organization's models, the offline model, and its servers."""
        super().__init__(*args, **kwargs)
        organization_id = principal.organization_id
        endpoints = ModelEndpoint.objects.for_organization(organization_id)
        models: list[tuple[str, Any]] = [
            (str(endpoint.pk), endpoint.name) for endpoint in endpoints.order_by("-created_at")
        ]
        if not endpoints.filter(kind=ModelEndpoint.Kind.OFFLINE).exists():
            models.append((OFFLINE, _("Offline model (no key needed)")))
        self.fields["model"].choices = models  # type: ignore[attr-defined]
        servers: Any = self.fields["servers"]
        self.left_out = offer_servers(servers, principal)
        is_usable = Q(status=Server.Status.CONNECTED, callable_total__gt=0)
        usable = servers.queryset.filter(is_usable)
        servers.initial = list(usable.values_list("pk", flat=True)[:MAX_SERVERS])
        self.unusable_servers: list[Server] = []
        if not self.is_bound:  # one that was chosen may have failed in the meantime
            self.unusable_servers = list(servers.queryset.exclude(is_usable)[:MAX_SERVERS])
            servers.queryset = usable

    def save(self, principal: Principal) -> Session:
        """Create the agent with its servers and start a session, in one transaction."""
        values = self.cleaned_data
        with transaction.atomic():
            agent = create_agent(
                principal,
                AgentSpec(
                    name=values["name"],
                    instructions=str(INSTRUCTIONS),
                    model_endpoint=self._get_endpoint(principal),
                ),
            )
            for server in values["servers"]:
                attach_server(principal, agent, server)
            # The servers' own settings, so that the switches of the agent's tools change them.
            defaults = {server.pk: Setting.ALLOW for server in values["servers"]}
            save_settings(principal, agent, {READ_RESULT: Setting.ALLOW}, defaults)
            return start_session(principal, agent, values["text"])

    def _get_endpoint(self, principal: Principal) -> ModelEndpoint:
        """Return the chosen endpoint; create the offline one if it was chosen."""
        if self.cleaned_data["model"] == OFFLINE:
            endpoint: ModelEndpoint = save_endpoint(principal, OFFLINE_ENDPOINT)
            return endpoint
        endpoints = ModelEndpoint.objects.for_organization(principal.organization_id)
        return endpoints.get(pk=self.cleaned_data["model"])


def _build_action_url(view_name: str, *args: Any) -> str:
    return reverse(f"admin:first_run_{view_name}", args=args)


def build_first_run_url(step: str = "") -> str:
    """Return the URL of the first run, at an optional step."""
    query = f"?{urlencode({'step': step})}" if step else ""
    return f"{reverse('admin:first_run')}{query}"


def _build_review_url(*servers: Server) -> str:
    return build_added_url(FIRST_RUN_DESTINATION, servers)


FIRST_RUN_DESTINATION = replace(
    POOL_DESTINATION,
    title=_("Add a server"),
    url=_build_action_url,
    build_next_url=_build_review_url,
    onward=lazy(build_first_run_url, str)(),
)


def show_first_run(request: HttpRequest) -> HttpResponseBase:
    """Show the steps with the current one open, or perform the posted action."""
    principal = resolve_principal(request)
    principal.require(Action.MANAGE_SERVERS)
    if request.method == "POST" and (response := _perform_action(request, principal)):
        return response
    progress = load_first_run_progress(principal.organization_id)
    step = _select_step(request, progress)
    step_context = _build_step_context(principal, step)
    session_context = _build_session_context(request, principal)
    context: dict[str, Any] = {
        "setup": progress,
        "step": step,
        "organization": Organization.objects.get(pk=principal.organization_id),
        "results": _load_results(principal, progress, session_context.get("session")),
        **step_context,
        **session_context,
    }
    if step is not None and step.slug == "ask" and principal.may(Action.MANAGE_AGENTS):
        forms_or_response = _handle_call_step(request, principal, step_context["agent"])
        if not isinstance(forms_or_response, dict):
            return forms_or_response
        context |= forms_or_response
    if FRAGMENT_HEADER in request.headers:
        return render_fragment(request, "first_run/page.html", **context)
    return render_screen(request, "first_run.html", title=_("First steps"), **context)


def _perform_action(request: HttpRequest, principal: Principal) -> HttpResponseBase | None:
    """Perform an action on the checklist; None if a form was posted."""
    action, step = request.POST.get("do"), request.POST.get("step", "")
    if action == "skip":
        set_step_skipped(principal, step)
        return HttpResponseRedirect(build_first_run_url())
    if action == "unskip":
        set_step_skipped(principal, step, is_skipped=False)
        return HttpResponseRedirect(build_first_run_url(step))
    if action in ("close", "open"):
        set_first_run_closed(principal, is_closed=action == "close")
        return HttpResponseRedirect(
            reverse("admin:index") if action == "close" else build_first_run_url()
        )
    return None


def _select_step(request: HttpRequest, progress: FirstRunProgress) -> FirstRunStep | None:
    requested_slug = request.POST.get("step") or request.GET.get("step", "")
    if requested_slug and requested_slug not in SLUGS:
        raise NotFound(format_message("Unknown step {slug!r}.", slug=requested_slug), field="step")
    return next((step for step in progress.steps if step.slug == requested_slug), progress.next)


def _handle_call_step(
    request: HttpRequest, principal: Principal, agent: Agent | None
) -> dict[str, Any] | HttpResponseBase:
    """Return the forms of the last step; save and test a model, or start the session (POST)."""
    posted = request.POST if request.method == "POST" else None
    if posted is not None and "agent" in posted:
        agents = Agent.objects.visible_to(principal)
        receiver = agents.get_or_404(principal.organization_id, pk=posted["agent"])
        return _follow_session(start_session(principal, receiver, posted.get("text", "")))
    is_model = posted is not None and posted.get("do") == "model"
    model_form = FirstModelEndpointForm(principal, posted if is_model else None)
    test_result = problem = None
    if is_model and (endpoint := _save_form(principal, model_form)) is not None:
        test_result, problem = _try_model_endpoint(principal, endpoint)
    form = FirstCallForm(principal, None if is_model else posted)
    server_ids = (
        agent.agent_servers.filter(enabled=True).values_list("server", flat=True)
        if agent
        else form.fields["servers"].initial
    )
    form.initial["text"] = build_example_message(principal.organization_id, server_ids)
    if (session := _save_form(principal, form)) is not None:
        return _follow_session(session)
    return {
        "form": form,
        "model_form": model_form,
        "test_result": test_result,
        "problem": problem,
    }


def _follow_session(session: Session) -> HttpResponseBase:
    """Return to the steps, where the call of the session is shown when it is made."""
    return HttpResponseRedirect(f"{build_first_run_url()}?session={session.pk}")


def _build_session_context(request: HttpRequest, principal: Principal) -> dict[str, Any]:
    """Return the session that was started on this page, and whether it made its call."""
    pk = parse_uuid(request.GET.get("session", ""))
    sessions = Session.objects.visible_to(principal).select_related("agent")
    session = sessions.filter(pk=pk).first() if pk else None
    if session is None:
        return {}
    is_running = session.status not in RESTING_STATUSES
    calls = AuditRow.objects.for_organization(principal.organization_id)
    has_call = calls.filter(session_id=session.pk, tool_name__gt="").exists()
    state = "running" if is_running else "called" if has_call else "no_call"
    return {"session": session, "session_state": state, "live_topics": LIVE_TOPICS}


def _save_form(principal: Principal, form: FirstCallForm | FirstModelEndpointForm) -> Any:
    """Save the posted form; None if nothing was posted or the form has errors."""
    if not form.is_bound or not form.is_valid():
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


def _build_step_context(principal: Principal, step: FirstRunStep | None) -> dict[str, Any]:
    """Return the context of the open step in addition to its forms."""
    if step is not None and step.slug == "connect":
        servers = Server.objects.in_scope(principal.organization_id).order_by("-created_at")
        return {
            "servers": servers[:MAX_SERVERS],
            "server_count": servers.count(),
            "review_url": _build_review_url(*servers[:MAX_SERVERS]),
            "ways": FIRST_RUN_DESTINATION.build_tabs(),
            "starters": preset_gallery.list_starter_cards(principal, FIRST_RUN_DESTINATION),
        }
    if step is not None and step.slug == "ask":
        agents = Agent.objects.visible_to(principal).filter(enabled=True)
        return {"agent": agents.order_by("-created_at").first()}
    return {}


def _load_results(
    principal: Principal, progress: FirstRunProgress, followed_session: Session | None
) -> dict[str, Any]:
    """Return what the completed steps resulted in, for their lines, and the call to show.

    It is the first that succeeded; none if entries were pruned, because it can be one of them.
    Until a call succeeds, it is the latest one.
    """
    organization_id = principal.organization_id
    done = {step.slug for step in progress.steps if step.done}
    results: dict[str, Any] = {}
    if "account" in done:
        members = Membership.objects.filter(organization=organization_id).select_related("user")
        results["member"] = members.order_by("created_at").first()
    if "connect" in done:
        approved = Definition.objects.for_organization(organization_id).exclude(pinned_digest="")
        server = Server.objects.filter(pk__in=approved.values("server")).order_by("created_at")
        results["server"] = server.first()
        results["tool_count"] = approved.tools().filter(server=results["server"]).count()
    calls = AuditRow.objects.for_organization(organization_id).filter(tool_name__gt="")
    if "ask" in done:
        succeeded = calls.filter(outcome=AuditRow.Outcome.OK).order_by("opened_at")
        row = None if find_chain_start(organization_id)[0] else succeeded.first()
    else:
        if followed_session is not None:
            calls = calls.filter(session_id=followed_session.pk)
        row = calls.order_by("opened_at").last()
    return results | _load_call_result(principal, row) if row else results


def _load_call_result(principal: Principal, row: AuditRow) -> dict[str, Any]:
    """Return a call; if the principal may see its session, with its text and the first message."""
    [call] = describe_entries(principal.organization_id, [row])
    sessions = Session.objects.visible_to(principal).select_related("agent")
    session = sessions.filter(pk=row.session_id).first() if row.session_id else None
    if session is None:
        return {"call": call}
    return {
        "call": call,
        "call_step": session.steps.filter(call_id=row.pk).first(),
        "session": session,
        "message": session.steps.filter(kind=Step.Kind.MESSAGE).first(),
    }


def _build_add_view(add_view: Callable[..., HttpResponseBase]) -> View:
    def add_server(request: HttpRequest, **url_arguments: Any) -> HttpResponseBase:
        return add_view(
            request, resolve_principal(request), FIRST_RUN_DESTINATION, *url_arguments.values()
        )

    return add_server


def build_url_patterns(wrap: Callable[[View], View]) -> list[URLPattern]:
    """Return the URL patterns of the first run."""
    add_server_patterns = [
        path(f"first-run/{view_name}/", wrap(_build_add_view(add)), name=f"first_run_{view_name}")
        for view_name, add in ADD_SERVER_VIEWS.items()
    ]
    preset_view = wrap(_build_add_view(preset_gallery.add_by_preset))
    return [
        path("first-run/", wrap(show_first_run), name="first_run"),
        path("first-run/added/", wrap(_build_add_view(show_added_servers)), name="first_run_added"),
        path("first-run/preset/<str:slug>/", preset_view, name="first_run_preset"),
        *add_server_patterns,
    ]
