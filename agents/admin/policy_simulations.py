"""Policy simulations: simulate a policy, run a draft in shadow mode, enforce it."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.policies import MODES
from agents.models import Agent
from agents.policies.services import EFFECTS, Entry, Owner, PolicySpec, RuleSpec, load_policy_spec
from agents.policies.shadow_mode import delete_draft, enforce_draft, find_draft, set_draft
from agents.policies.simulations import DEFAULT_DAYS, simulate_policy, simulate_shadow_policy
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.canonical_json import to_canonical_json

MAX_SHADOW_ROWS = 5_000  # limits of the summary on the page
MAX_SHADOW_S = 3.0
CONDITION_SEPARATOR = " when "
ENFORCED_MESSAGE = _("The draft is now the policy, effective from the next call.")
DISCARDED_MESSAGE = _("The draft was deleted. The policy is unchanged.")
DRAFT_ACTIONS: dict[str | None, tuple[Callable[[Principal, Owner], object], Any]] = {
    "enforce": (enforce_draft, ENFORCED_MESSAGE),
    "discard": (delete_draft, DISCARDED_MESSAGE),
}


@AgentAdmin.add_page("simulate", _("Simulate"), order=41, needs=Action.VIEW_AUDIT)
def show_simulation(visit: ObjectRequest) -> HttpResponseBase:
    """Show the draft with its shadow results; simulate another policy, or save it as the draft."""
    agent: Agent = visit.object
    context = _process_form(visit.request, visit.principal, agent)
    if context is None:
        return redirect_to_page(visit, "simulate")
    return visit.render_tab(
        "agents/policy_simulation.html",
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
    if action_name in DRAFT_ACTIONS:
        perform_action, message = DRAFT_ACTIONS[action_name]
        perform_action(principal, organization)
        messages.success(request, message)
        return HttpResponseRedirect(page_url)
    context = _process_form(request, principal, organization)
    if context is None:
        return HttpResponseRedirect(page_url)
    return render_screen(
        request,
        "organization_policy_simulation.html",
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
    draft = find_draft(owner)
    policy = draft.spec if draft else load_policy_spec(owner)
    mode, simulation, problem = policy.mode, None, None
    posted = request.POST if request.method == "POST" else None
    if posted is not None:
        mode = posted.get("mode", "")
        try:
            posted_policy = parse_policy(posted)
            if posted.get("do") == "shadow":
                set_draft(principal, owner, posted_policy)
                message = _t(
                    "The draft runs in shadow mode: its decisions are recorded with each call "
                    "but not enforced."
                )
                messages.success(request, message)
                return None
            simulation = simulate_policy(principal, owner, posted_policy)
        except Problem as exc:
            problem = exc
    return {
        "draft": draft,
        "mode": mode,
        "words": list_policy_fields(policy, posted),
        "modes": MODES,
        "days": DEFAULT_DAYS,
        "tried": simulation,
        "shadow": simulate_shadow_policy(
            principal, owner, max_rows=MAX_SHADOW_ROWS, max_seconds=MAX_SHADOW_S
        ),
        "problem": problem,
        "status": problem.status if problem else 200,
    }


@AgentAdmin.add_object_action("enforce_draft", needs=Action.MANAGE_AGENTS)
def handle_enforce_draft(visit: ObjectRequest) -> HttpResponseBase:
    enforce_draft(visit.principal, visit.object)
    messages.success(visit.request, ENFORCED_MESSAGE)
    return redirect_to_page(visit, "simulate")


@AgentAdmin.add_object_action("discard_draft", needs=Action.MANAGE_AGENTS)
def handle_discard_draft(visit: ObjectRequest) -> HttpResponseBase:
    delete_draft(visit.principal, visit.object)
    messages.success(visit.request, DISCARDED_MESSAGE)
    return redirect_to_page(visit, "simulate")


def parse_policy(posted: Mapping[str, Any]) -> PolicySpec:
    """Return the policy of a form with one entry per line; raises `InvalidInput`."""
    entries = {effect: _parse_entries(effect, posted.get(effect, "")) for effect in EFFECTS}
    return PolicySpec(posted.get("mode", ""), **entries)


def list_policy_fields(
    policy: PolicySpec, posted: Mapping[str, Any] | None
) -> list[tuple[str, str]]:
    effects = ("allow", "ask", "deny")
    if posted is not None:
        return [(effect, posted.get(effect, "")) for effect in effects]
    return [(effect, _format_entries(policy.get_entries(effect))) for effect in effects]


def _format_entries(entries: tuple[Entry, ...]) -> str:
    return "\n".join(
        entry
        if isinstance(entry, str)
        else f"{entry.tool}{CONDITION_SEPARATOR}{to_canonical_json(entry.when)}"
        for entry in entries
    )


def _parse_entries(effect: str, text: str) -> tuple[Entry, ...]:
    """Return the entries of a field, one per line; raises `InvalidInput` with the line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tuple(_parse_entry(effect, number, line) for number, line in enumerate(lines))


def _parse_entry(effect: str, number: int, line: str) -> Entry:
    tool, when, condition = line.partition(CONDITION_SEPARATOR)
    if not when:
        return line
    try:
        schema = json.loads(condition)
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise InvalidInput(
            format_message("The condition of `{tool}` isn't a JSON object.", tool=tool),
            code="unusable_condition",
            field=f"{effect}[{number}].when",
            remedy='Use the format: mcp_bank_transfer when {"required": ["amount"]}.',
        )
    return RuleSpec(tool.strip(), schema)
