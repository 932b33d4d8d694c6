"""Client configuration snippets on the pages of agents, servers and tokens.

Importing this module registers the pages.
"""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.gateway.client_config_snippets import (
    ROOT_PATH,
    SnippetTarget,
    build_agent_path,
    build_server_path,
    build_snippets,
    build_target,
)
from agents.models import Agent
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.models import Token
from bonobot.accounts.roles import Action
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Server


@AgentAdmin.add_page(
    "clients", _("Connect"), order=80, required_actions=(Action.VIEW, Action.RUN_AGENTS)
)
def show_agent_snippets(visit: ObjectRequest) -> HttpResponseBase:
    """Show client configurations for the agent's tools."""
    agent: Agent = visit.object
    target = _build_target_without_token(build_agent_path(agent.slug))
    return visit.render_tab("agents/mcp_clients.html", agent=agent, panel=_build_panel(target))


@ServerAdmin.add_page("clients", _("Clients"), order=80)
def show_server_snippets(visit: ObjectRequest) -> HttpResponseBase:
    """Show client configurations for the server; none for a private one."""
    server: Server = visit.object
    target = _build_target_without_token(build_server_path(server.slug))
    panel = None if server.private_to_agent else _build_panel(target)
    return visit.render_tab("servers/mcp_clients.html", server=server, panel=panel)


def build_token_snippets(token: Token, text: str) -> dict[str, Any]:
    """Return snippets with a new token, for its agent's address if it has exactly one agent."""
    path = ROOT_PATH
    if len(token.agent_ids) == 1:
        agent = Agent.objects.filter(pk=UUID(token.agent_ids[0])).only("slug").first()
        path = build_agent_path(agent.slug) if agent else ROOT_PATH
    return _build_panel(build_target(settings.BONOBOT_URL, path, text))


def _build_panel(target: SnippetTarget) -> dict[str, Any]:
    return {"url": target.url, "snippets": build_snippets(target), "signs_in": target.uses_oauth}


def _build_target_without_token(path: str) -> SnippetTarget:
    return build_target(settings.BONOBOT_URL, path, uses_oauth=settings.BONOBOT_OAUTH)
