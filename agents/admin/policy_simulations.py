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
from agents.policies.simulations import DAYS, replay, simulate_shadow_policy
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.canonical_json import to_canonical_json

SHADOW_ROWS = 5_000  # limits of the summary on the page
SHADOW_S = 3.0
WHEN = " when "
ENFORCED = _("The draft is the policy now, from the next call on.")
DISCARDED = _("The draft is gone; the policy stays as it is.")
OWN_DEEDS: dict[str | None, tuple[Callable[[Principal, Owner], object], Any]] = {
    "enforce": (enforce_draft, ENFORCED),
    "discard": (delete_draft, DISCARDED),
}


@AgentAdmin.add_page("what_if", _("What if"), order=41, needs=Action.VIEW_AUDIT)
def show_simulation(visit: ObjectRequest) -> HttpResponseBase:
    """Show the draft with its shadow results; simulate another policy, or save it as the draft."""
    agent: Agent = visit.object
    shown = _process_form(visit.request, visit.principal, agent)
    if shown is None:
        return redirect_to_page(visit, "what_if")
    return visit.show(
        "agents/what_if.html",
        agent=agent,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        enforce_url=visit.url("enforce_draft"),
        discard_url=visit.url("discard_draft"),
        **shown,
    )


def show_organization_simulation(request: HttpRequest) -> HttpResponseBase:
    """Like `show_simulation` for the organization; also enforces and discards its draft."""
    principal = resolve_principal(request)
    principal.require(Action.VIEW_AUDIT)
    own = Organization.objects.get(pk=principal.organization_id)
    here = reverse("admin:organization_what_if")
    done = request.GET.get("do") if request.method == "POST" else None
    if done in OWN_DEEDS:
        deed, said = OWN_DEEDS[done]
        deed(principal, own)
        messages.success(request, said)
        return HttpResponseRedirect(here)
    shown = _process_form(request, principal, own)
    if shown is None:
        return HttpResponseRedirect(here)
    return render_screen(
        request,
        "organization_what_if.html",
        title=_("What if the organization ruled otherwise?"),
        may_manage=principal.may(Action.MANAGE_ORGANIZATION),
        enforce_url=f"{here}?do=enforce",
        discard_url=f"{here}?do=discard",
        **shown,
    )


def _process_form(
    request: HttpRequest, principal: Principal, owner: Owner
) -> dict[str, Any] | None:
    """Return the context of the page; None if a draft was saved."""
    draft = find_draft(owner)
    text = draft.text if draft else load_policy_spec(owner)
    mode, tried, problem = text.mode, None, None
    posted = request.POST if request.method == "POST" else None
    if posted is not None:
        mode = posted.get("mode", "")
        try:
            wanted = parse_policy(posted)
            if posted.get("do") == "shadow":
                set_draft(principal, owner, wanted)
                text_said = _t("It runs in the shadow: recorded with each call, deciding nothing.")
                messages.success(request, text_said)
                return None
            tried = replay(principal, owner, wanted)
        except Problem as found:
            problem = found
    return {
        "draft": draft,
        "mode": mode,
        "words": list_policy_fields(text, posted),
        "modes": MODES,
        "days": DAYS,
        "tried": tried,
        "shadow": simulate_shadow_policy(principal, owner, most_rows=SHADOW_ROWS, most_s=SHADOW_S),
        "problem": problem,
        "status": problem.status if problem else 200,
    }


@AgentAdmin.add_deed("enforce_draft", needs=Action.MANAGE_AGENTS)
def enforce(visit: ObjectRequest) -> HttpResponseBase:
    """Make the draft the policy."""
    enforce_draft(visit.principal, visit.object)
    messages.success(visit.request, ENFORCED)
    return redirect_to_page(visit, "what_if")


@AgentAdmin.add_deed("discard_draft", needs=Action.MANAGE_AGENTS)
def delete_agent_draft(visit: ObjectRequest) -> HttpResponseBase:
    """Delete the draft."""
    delete_draft(visit.principal, visit.object)
    messages.success(visit.request, DISCARDED)
    return redirect_to_page(visit, "what_if")


def parse_policy(posted: Mapping[str, Any]) -> PolicySpec:
    """Return the policy of a form with one entry per line; raises `InvalidInput`."""
    entries = {effect: _parse_entries(effect, posted.get(effect, "")) for effect in EFFECTS}
    return PolicySpec(posted.get("mode", ""), **entries)


def list_policy_fields(text: PolicySpec, posted: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the fields of the form, as posted or from the policy."""
    shown = ("allow", "ask", "deny")
    if posted is not None:
        return [(effect, posted.get(effect, "")) for effect in shown]
    return [(effect, _format_entries(text.entries(effect))) for effect in shown]


def _format_entries(entries: tuple[Entry, ...]) -> str:
    return "\n".join(
        one if isinstance(one, str) else f"{one.tool}{WHEN}{to_canonical_json(one.when)}"
        for one in entries
    )


def _parse_entries(effect: str, text: str) -> tuple[Entry, ...]:
    """Return the entries of a field, one per line; raises `InvalidInput` with the line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tuple(_parse_entry(effect, number, line) for number, line in enumerate(lines))


def _parse_entry(effect: str, number: int, line: str) -> Entry:
    tool, when, condition = line.partition(WHEN)
    if not when:
        return line
    try:
        schema = json.loads(condition)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise InvalidInput(
            format_message("The condition of `{tool}` is no JSON object.", tool=tool),
            code="unusable_condition",
            field=f"{effect}[{number}].when",
            remedy='Write it like: mcp_bank_transfer when {"required": ["amount"]}.',
        )
    return RuleSpec(tool.strip(), schema)
