"""What the gateway adds to pages of the admin: how programs reach an agent, a server, with a token.

Importing it registers the tabs and what a new token's page shows.
"""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.models import Agent
from bonobot.gateway.snippets import ROOT, Target, agent_path, server_path, snippets, target
from bonobot.tenancy.admin.tokens import TokenAdmin
from bonobot.tenancy.models import Token
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Server


@AgentAdmin.add_page("programs", _("Programs"), order=80, needs=(Action.VIEW, Action.RUN_AGENTS))
def programs(visit: Visit) -> HttpResponseBase:
    """Show what programs are told to reach the agent's tools."""
    agent: Agent = visit.object
    about = _without_token(agent_path(agent.slug))
    return visit.show("agents/programs.html", agent=agent, panel=_panel(about))


@ServerAdmin.add_page("programs", _("Programs"), order=80)
def programs_of_server(visit: Visit) -> HttpResponseBase:
    """Show what programs are told to reach the server; a private one has its agent's address."""
    server: Server = visit.object
    about = _without_token(server_path(server.slug))
    panel = None if server.private_to_agent else _panel(about)
    return visit.show("servers/programs.html", server=server, panel=panel)


def programs_of_token(token: Token, text: str) -> dict[str, Any]:
    """Return what programs are told with a new token in it: at its agent, where it has just one."""
    path = ROOT
    if len(token.agent_ids) == 1:
        agent = Agent.objects.filter(pk=UUID(token.agent_ids[0])).only("slug").first()
        path = agent_path(agent.slug) if agent else ROOT
    return _panel(target(settings.BONOBOT_URL, path, text))


def _panel(about: Target) -> dict[str, Any]:
    return {"url": about.url, "snippets": snippets(about), "signs_in": about.signs_in}


def _without_token(path: str) -> Target:
    return target(settings.BONOBOT_URL, path, signs_in=settings.BONOBOT_OAUTH)


TokenAdmin.programs_of = staticmethod(programs_of_token)
