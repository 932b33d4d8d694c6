"""An agent's metrics: calls, errors, durations and spend over a time, each leading to its rows."""

from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.metrics import WINDOWS, metrics
from agents.models import Agent
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit

TITLES = {
    "24h": _("24 hours"),
    "7d": _("7 days"),
    "30d": _("30 days"),
    "90d": _("90 days"),
}


@AgentAdmin.add_page("metrics", _("Metrics"), order=52)
def show_metrics(visit: Visit) -> HttpResponseBase:
    """Show what the agent did in the last day, week, month or quarter."""
    agent: Agent = visit.object
    wanted = visit.request.GET.get("last", "")
    window = next((one for one in WINDOWS if one.slug == wanted), WINDOWS[0])
    found = metrics(agent, window)
    audit = ""
    if visit.principal.may(Action.VIEW_AUDIT):
        query = {
            "agent_id": str(agent.pk),
            "opened_at_from_0": f"{found.since:%Y-%m-%d}",
            "opened_at_from_1": f"{found.since:%H:%M}",
        }
        audit = f"{reverse('admin:ledger_auditrow_changelist')}?{urlencode(query)}"
    return visit.show(
        "agents/metrics.html",
        agent=agent,
        found=found,
        total=found.total,
        audit=audit,
        windows=[(one.slug, TITLES[one.slug], one == window) for one in WINDOWS],
    )
