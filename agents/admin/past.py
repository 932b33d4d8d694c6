"""An agent's sessions, as a tab."""

from django.core.paginator import Paginator
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.models import Agent, Session
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit

SHOWN_AT_ONCE = 30
GRANTS_SHOWN = 50


@AgentAdmin.add_page("sessions", _("Sessions"), order=50, needs=(Action.RUN_AGENTS, Action.VIEW))
def sessions(visit: Visit) -> HttpResponseBase:
    """Show the agent's sessions, the latest first, and what was allowed in them."""
    agent: Agent = visit.object
    mine = Session.objects.visible_to(visit.principal).filter(agent=agent).order_by("-created_at")
    page = Paginator(mine, SHOWN_AT_ONCE).get_page(visit.request.GET.get("page"))
    grants = agent.grants.filter(session__in=mine).select_related("session")[:GRANTS_SHOWN]
    return visit.show("agents/sessions.html", agent=agent, paged=page, grants=grants)
