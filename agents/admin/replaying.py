"""What if: a changed policy tried on past calls, run in the shadow, enforced (FEATURES X7)."""

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
from agents.admin.ruling import MODES
from agents.drafts import discard_draft, draft_of, enforce_draft, set_draft
from agents.models import Agent
from agents.replay import DAYS, replay, shadowed
from agents.tool_policies import EFFECTS, Entry, Owner, PolicyText, RuleText, policy_text
from bonobot.lib.canonical import canonical
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.sayings import say
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward, screen

SHADOW_ROWS = 5_000  # of the summary that each visit shows
SHADOW_S = 3.0
WHEN = " when "
ENFORCED = _("The draft is the policy now, from the next call on.")
DISCARDED = _("The draft is gone; the policy stays as it is.")
OWN_DEEDS: dict[str | None, tuple[Callable[[Principal, Owner], object], Any]] = {
    "enforce": (enforce_draft, ENFORCED),
    "discard": (discard_draft, DISCARDED),
}


@AgentAdmin.add_page("what_if", _("What if"), order=41, needs=Action.VIEW_AUDIT)
def what_if(visit: Visit) -> HttpResponseBase:
    """Show the draft and what it would have decided; try another one, or let it run."""
    agent: Agent = visit.object
    shown = _tried(visit.request, visit.principal, agent)
    if shown is None:
        return onward(visit, "what_if")
    return visit.show(
        "agents/what_if.html",
        agent=agent,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        enforce_url=visit.url("enforce_draft"),
        discard_url=visit.url("discard_draft"),
        **shown,
    )


def own_what_if(request: HttpRequest) -> HttpResponseBase:
    """The same for the organization's policy; its draft is enforced and discarded here, too."""
    principal = principal_of(request)
    principal.require(Action.VIEW_AUDIT)
    own = Organization.objects.get(pk=principal.organization_id)
    here = reverse("admin:organization_what_if")
    done = request.GET.get("do") if request.method == "POST" else None
    if done in OWN_DEEDS:
        deed, said = OWN_DEEDS[done]
        deed(principal, own)
        messages.success(request, said)
        return HttpResponseRedirect(here)
    shown = _tried(request, principal, own)
    if shown is None:
        return HttpResponseRedirect(here)
    return screen(
        request,
        "organization_what_if.html",
        title=_("What if the organization ruled otherwise?"),
        may_manage=principal.may(Action.MANAGE_ORGANIZATION),
        enforce_url=f"{here}?do=enforce",
        discard_url=f"{here}?do=discard",
        **shown,
    )


def _tried(request: HttpRequest, principal: Principal, owner: Owner) -> dict[str, Any] | None:
    """Return what the page shows; None where a draft was just written."""
    draft = draft_of(owner)
    text = draft.text if draft else policy_text(owner)
    mode, tried, problem = text.mode, None, None
    posted = request.POST if request.method == "POST" else None
    if posted is not None:
        mode = posted.get("mode", "")
        try:
            wanted = policy_in(posted)
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
        "words": policy_words(text, posted),
        "modes": MODES,
        "days": DAYS,
        "tried": tried,
        "shadow": shadowed(principal, owner, most_rows=SHADOW_ROWS, most_s=SHADOW_S),
        "problem": problem,
        "status": problem.status if problem else 200,
    }


@AgentAdmin.add_deed("enforce_draft", needs=Action.MANAGE_AGENTS)
def enforce(visit: Visit) -> HttpResponseBase:
    """Make the draft the policy."""
    enforce_draft(visit.principal, visit.object)
    messages.success(visit.request, ENFORCED)
    return onward(visit, "what_if")


@AgentAdmin.add_deed("discard_draft", needs=Action.MANAGE_AGENTS)
def discard(visit: Visit) -> HttpResponseBase:
    """Drop the draft."""
    discard_draft(visit.principal, visit.object)
    messages.success(visit.request, DISCARDED)
    return onward(visit, "what_if")


def policy_in(posted: Mapping[str, Any]) -> PolicyText:
    """Return the policy that a form says, an entry on each line; raises `Invalid`."""
    entries = {effect: _entries(effect, posted.get(effect, "")) for effect in EFFECTS}
    return PolicyText(posted.get("mode", ""), **entries)


def policy_words(text: PolicyText, posted: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the fields of such a form: as they were sent, else what a policy says."""
    shown = ("allow", "ask", "deny")
    if posted is not None:
        return [(effect, posted.get(effect, "")) for effect in shown]
    return [(effect, _lines(text.entries(effect))) for effect in shown]


def _lines(entries: tuple[Entry, ...]) -> str:
    return "\n".join(
        one if isinstance(one, str) else f"{one.tool}{WHEN}{canonical(one.when)}" for one in entries
    )


def _entries(effect: str, text: str) -> tuple[Entry, ...]:
    """Return the entries of a field, one on each line; raises `Invalid` naming the line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tuple(_entry(effect, number, line) for number, line in enumerate(lines))


def _entry(effect: str, number: int, line: str) -> Entry:
    tool, when, condition = line.partition(WHEN)
    if not when:
        return line
    try:
        schema = json.loads(condition)
    except ValueError:
        schema = None
    if not isinstance(schema, dict):
        raise Invalid(
            say("The condition of `{tool}` is no JSON object.", tool=tool),
            code="unusable_condition",
            field=f"{effect}[{number}].when",
            remedy='Write it like: mcp_bank_transfer when {"required": ["amount"]}.',
        )
    return RuleText(tool.strip(), schema)
