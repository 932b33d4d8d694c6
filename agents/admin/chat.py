"""An agent's first page: talk to it."""

from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.conversation import latest
from agents.admin.readers import READERS
from agents.admin.sessions import uploaded
from agents.governance.lacking import lack_of
from agents.governance.snapshots import snapshots
from agents.models import Agent, Session
from agents.sessions import requests
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit

LISTED = 12


@AgentAdmin.add_page("change", _("Chat"), order=10, needs=READERS)
def chat(visit: Visit) -> HttpResponseBase:
    """Show the chosen session, or the field to begin one."""
    agent: Agent = visit.object
    mine = Session.objects.visible_to(visit.principal).filter(agent=agent)
    wanted = visit.request.GET.get("session")
    chosen = mine.get_or_404(agent.organization_id, pk=wanted) if wanted else None
    if chosen is not None:
        chosen.agent = agent
    return visit.show(
        "agents/chat.html",
        agent=agent,
        session=chosen,
        talk=latest(chosen, visit.principal) if chosen else None,
        recent=mine.order_by("-created_at")[:LISTED],
        may_run=requests.may_run(visit.principal, agent),
        lack=lack_of(snapshots().current("agent", agent.pk)),
    )


@AgentAdmin.add_deed("start", needs=Action.RUN_AGENTS)
def start(visit: Visit) -> HttpResponseBase:
    """Start a session with a first message."""
    text = visit.request.POST.get("text", "")
    files = uploaded(visit.request)
    session = requests.start(visit.principal, visit.object, text, attachments=files)
    return HttpResponseRedirect(f"{visit.url()}?session={session.pk}")
