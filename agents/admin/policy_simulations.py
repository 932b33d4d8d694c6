"""Policy simulations: simulate a policy, run a draft in shadow mode, enforce it."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.policies import (
    EVERYTHING,
    FORM_CHOICES,
    build_form_data,
    build_section_context,
    parse_form_data,
    parse_posted_policy,
)
from agents.admin.policy_editor import build_policy_editor, load_scope
from agents.models import Agent
from agents.policies.services import Owner, PolicySpec, is_current_policy, load_policy_spec
from agents.policies.shadow_mode import delete_draft, enforce_draft, find_draft, set_draft
from agents.policies.simulations import simulate_policy, simulate_shadow_policy
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page, render_screen
from bonobot.accounts.admin_base.list_versions import describe_list_changes, read_list_version
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem

MAX_SHADOW_ROWS = 5_000  # limits of the summary on the page
MAX_SHADOW_S = 3.0
ENFORCED_MESSAGE = _("The draft is now the policy, effective from the next call.")
DISCARDED_MESSAGE = _("The draft was deleted. The policy is unchanged.")
DRAFT_ACTIONS: dict[str | None, tuple[Callable[[Principal, Owner], object], Any]] = {
    "enforce": (enforce_draft, ENFORCED_MESSAGE),
    "discard": (delete_draft, DISCARDED_MESSAGE),
}


@AgentAdmin.add_page("simulate", _("Simulate"), order=41, required_actions=Action.VIEW_AUDIT)
def show_simulation(visit: ObjectRequest) -> HttpResponseBase:
    """Show the draft with its shadow results; simulate another policy, or save it as the draft."""
    agent: Agent = visit.object
    context = _process_form(visit.request, visit.principal, agent)
    if context is None:
        return redirect_to_page(visit, "simulate")
    return visit.render_tab(
        "policy_simulations/agent_policy.html",
        agent=agent,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        enforce_url=visit.url("enforce_draft"),
        discard_url=visit.url("discard_draft"),
        **context,
    )


def show_organization_simulation(request: HttpRequest) -> HttpResponseBase:
    """Like `show_simulation` for the organization; also enforces and discards its draft."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW_AUDIT)
    organization = Organization.objects.get(pk=principal.organization_id)
    page_url = reverse("admin:organization_simulate")
    action_name = request.GET.get("do") if request.method == "POST" else None
    read_list_version(request)
    if action_name in DRAFT_ACTIONS:
        if text := describe_list_changes(request, {str(organization.pk): organization.name}):
            messages.error(request, text)
            return HttpResponseRedirect(page_url)
        perform_action, message = DRAFT_ACTIONS[action_name]
        perform_action(principal, organization)
        messages.success(request, message)
        return HttpResponseRedirect(page_url)
    context = _process_form(request, principal, organization)
    if context is None:
        return HttpResponseRedirect(page_url)
    return render_screen(
        request,
        "policy_simulations/organization_policy.html",
        title=_("Simulate organization policy"),
        may_manage=principal.may(Action.MANAGE_ORGANIZATION),
        enforce_url=f"{page_url}?do=enforce",
        discard_url=f"{page_url}?do=discard",
        **context,
    )


def _process_form(
    request: HttpRequest, principal: Principal, owner: Owner
) -> dict[str, Any] | None:
    """Return the context of the page; None if a draft was saved."""
    draft, stored_policy = find_draft(owner), load_policy_spec(owner)
    policy = draft.spec if draft else stored_policy
    form_data, simulation, problem = build_form_data(policy, (), ()), None, None
    if request.method == "POST":
        form_data = parse_form_data(request.POST, (), ())
        try:
            policy = parse_posted_policy(request.POST, (), PolicySpec(policy.mode))
            if request.POST.get("do") == "shadow":
                _require_changes(owner, policy)
                set_draft(principal, owner, policy)
                message = _t(
                    "The draft runs in shadow mode: its decisions are recorded with each call "
                    "but not enforced."
                )
                messages.success(request, message)
                return None
            simulation = simulate_policy(principal, owner, policy)
        except Problem as exc:
            problem = exc
    return {
        **_build_policy_context(owner, stored_policy, policy),
        "shadow_draft": draft,
        "draft": form_data,
        "is_simulation": True,
        "may_try": True,
        "simulation": simulation,
        "shadow_simulation": simulate_shadow_policy(
            principal, owner, max_rows=MAX_SHADOW_ROWS, max_seconds=MAX_SHADOW_S
        ),
        "problem": problem,
        "status": problem.status if problem else 200,
    }


def _build_policy_context(owner: Owner, stored: PolicySpec, draft: PolicySpec) -> dict[str, Any]:
    if isinstance(owner, Organization):
        return build_section_context(owner, EVERYTHING, stored, draft)
    return {**FORM_CHOICES, "editor": build_policy_editor(load_scope(owner), stored, draft)}


def _require_changes(owner: Owner, policy: PolicySpec) -> None:
    if is_current_policy(owner, policy):
        raise InvalidInput(
            format_message("This is the current policy, so shadow mode has nothing to compare."),
            remedy=format_message("Change the mode or a rule first."),
        )


@AgentAdmin.add_object_action("enforce_draft", required_actions=Action.MANAGE_AGENTS)
def handle_enforce_draft(visit: ObjectRequest) -> HttpResponseBase:
    enforce_draft(visit.principal, visit.object)
    messages.success(visit.request, ENFORCED_MESSAGE)
    return redirect_to_page(visit, "simulate")


@AgentAdmin.add_object_action("discard_draft", required_actions=Action.MANAGE_AGENTS)
def handle_discard_draft(visit: ObjectRequest) -> HttpResponseBase:
    delete_draft(visit.principal, visit.object)
    messages.success(visit.request, DISCARDED_MESSAGE)
    return redirect_to_page(visit, "simulate")
