"""The screens of the first run: one page, a step at a time, and its own ways to add a server."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, reverse
from django.utils.functional import lazy
from django.utils.http import urlencode
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.pasting import paste
from agents.models import Agent, ModelEndpoint
from agents.trying import Trial, try_endpoint
from bonobot.first_run import SLUGS, Begun, Step, begun, close, skip
from bonobot.first_run_forms import AgentForm, ModelForm
from bonobot.lib.problems import NotFound, Problem
from bonobot.lib.sayings import say
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens.answers import View, refuse, screen
from mcp_servers.admin import adding, apis, declaring
from mcp_servers.admin.definitions import Shown, shown
from mcp_servers.admin.pool import POOL
from mcp_servers.labelled import origin_of
from mcp_servers.models import Definition, Server

SERVERS_SHOWN = 10
DEFINITIONS_SHOWN = 50
OFFLINE = {"name": "Offline", "kind": "offline", "model": "offline"}
WAYS: dict[str, Callable[..., HttpResponseBase]] = {
    "presets": adding.choose_preset,
    "paste": paste,
    "openapi": apis.add_api,
    "operations": declaring.add_declared,
    "form": adding.add_by_form,
}


def _url(way: str, *args: Any) -> str:
    return reverse(f"admin:first_run_{way}", args=args)


def address(step: str = "", **query: Any) -> str:
    """Return the address of the first run, at one of its steps."""
    asked = {**({"step": step} if step else {}), **query}
    return f"{reverse('admin:first_run')}{f'?{urlencode(asked)}' if asked else ''}"


HERE = replace(
    POOL,
    title=_("Connect your first server"),
    url=_url,
    after=lambda server: address("connect", connect=server.pk),
    onward=lazy(address, str)("approve"),
)


def first_run(request: HttpRequest) -> HttpResponseBase:
    """Show the checklist with the step that is next, or do what was asked of it."""
    principal = principal_of(request)
    principal.require(Action.MANAGE_SERVERS)
    if request.method == "POST" and (answer := _do(request, principal)):
        return answer
    found = begun(principal.organization_id)
    step = _chosen(request, found)
    form = _form(request, principal, step)
    saved = _saved(principal, form)
    if isinstance(saved, Agent):
        return _made(request, saved)
    trial = problem = None
    if saved is not None:
        trial, problem = _tried(principal, saved)
        found = begun(principal.organization_id)
    return screen(
        request,
        "first_run.html",
        title=_("First steps"),
        begun=found,
        step=step,
        onward=found.after(step.slug) if step else None,
        form=form,
        trial=trial,
        problem=problem,
        ways=[(way, _url(way)) for way in WAYS],
        **_shown(request, principal, step),
    )


def _do(request: HttpRequest, principal: Principal) -> HttpResponseBase | None:
    """Do what changes the checklist alone; None where a form was sent."""
    said, step = request.POST.get("do"), request.POST.get("step", "")
    if said == "skip":
        skip(principal, step)
        return HttpResponseRedirect(address())
    if said == "take_up":
        skip(principal, step, skipped=False)
        return HttpResponseRedirect(address(step))
    if said in ("close", "open"):
        close(principal, closed=said == "close")
        return HttpResponseRedirect(reverse("admin:index") if said == "close" else address())
    return None


def _chosen(request: HttpRequest, found: Begun) -> Step | None:
    wanted = request.POST.get("step") or request.GET.get("step", "")
    if wanted and wanted not in SLUGS:
        raise NotFound(say("There is no step {wanted!r}.", wanted=wanted), field="step")
    return next((step for step in found.steps if step.slug == wanted), found.next)


def _form(
    request: HttpRequest, principal: Principal, step: Step | None
) -> AgentForm | ModelForm | None:
    posted = request.POST if request.method == "POST" else None
    if step is None or not principal.may(Action.MANAGE_AGENTS):
        return None
    if step.slug == "model":
        if posted and posted.get("do") == "offline":
            return ModelForm(principal, OFFLINE)
        return ModelForm(principal, posted)
    if step.slug == "agent":
        pool = Server.objects.in_scope(principal.organization_id).filter(enabled=True)
        return AgentForm(principal, posted, initial={"servers": pool[:SERVERS_SHOWN]})
    return None


def _saved(
    principal: Principal, form: AgentForm | ModelForm | None
) -> Agent | ModelEndpoint | None:
    """Save what was sent; None where nothing was, or the form says what is wrong with it."""
    if form is None or not form.is_bound or not form.is_valid():
        return None
    try:
        return form.save(principal)
    except Problem as problem:
        refuse(form, problem)
    return None


def _tried(principal: Principal, endpoint: ModelEndpoint) -> tuple[Trial | None, Problem | None]:
    """Ask the model; return its answer, or why there is none and what to do about it."""
    try:
        return try_endpoint(principal, endpoint), None
    except Problem as problem:
        return None, problem


def _shown(request: HttpRequest, principal: Principal, step: Step | None) -> dict[str, Any]:
    """Return what a step shows beside its form."""
    here = principal.organization_id
    if step is None:
        return {}
    if step.slug == "connect":
        servers = Server.objects.in_scope(here).order_by("-created_at")[:SERVERS_SHOWN]
        return {"servers": servers, "connecting": request.GET.get("connect", "")}
    if step.slug == "approve":
        return {"waiting": _waiting(principal)}
    if step.slug == "model":
        return {"endpoints": ModelEndpoint.objects.for_organization(here)[:SERVERS_SHOWN]}
    if step.slug == "ask":
        mine = Agent.objects.visible_to(principal).filter(enabled=True)
        return {"agent": mine.order_by("-created_at").first()}
    return {}


def _waiting(principal: Principal) -> list[tuple[Server, list[Shown], int]]:
    """Return what waits for approval, by server, and how much of it is approved together.

    Some of it: the rest is on the servers' pages.
    """
    rows = Definition.objects.for_organization(principal.organization_id).waiting()
    rows = rows.select_related("server__preset").order_by("server__name", "server_id", "name")
    found: dict[Server, list[Shown]] = {}
    for row in rows[:DEFINITIONS_SHOWN]:
        found.setdefault(row.server, []).append(shown(row, origin_of(row.server)))
    return [(server, items, sum(not one.held for one in items)) for server, items in found.items()]


def _made(request: HttpRequest, agent: Agent) -> HttpResponseBase:
    messages.success(request, _t("%(agent)s was made. Ask it something.") % {"agent": agent})
    return HttpResponseRedirect(address("ask"))


def _way(add: Callable[..., HttpResponseBase]) -> View:
    def view(request: HttpRequest, **named: Any) -> HttpResponseBase:
        return add(request, principal_of(request), HERE, *named.values())

    return view


def addresses(wrap: Callable[[View], View]) -> list[URLPattern]:
    """Return the addresses of the first run below the admin's."""
    found = [
        path(f"first-run/{way}/", wrap(_way(add)), name=f"first_run_{way}")
        for way, add in WAYS.items()
    ]
    filling = wrap(_way(adding.fill_preset))
    return [
        path("first-run/", wrap(first_run), name="first_run"),
        path("first-run/preset/<str:slug>/", filling, name="first_run_preset"),
        *found,
    ]
