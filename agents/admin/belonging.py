"""What agents add to the pages of rooms below: who has a server, which agent a token is for."""

from typing import Any

from agents.models import Agent, Binding
from bonobot.tenancy.admin.invitations import InvitationAdmin
from bonobot.tenancy.admin.issuers import IssuerAdmin
from bonobot.tenancy.admin.tokens import TokenAdmin
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.screens import Visit
from mcp_servers.admin.overview import PANELS

SHOWN = 20


def agents_with(visit: Visit) -> tuple[str, dict[str, Any]]:
    """Return the panel of the agents that have a server."""
    bindings = Binding.objects.filter(server=visit.object).select_related("agent")
    return "admin/agents/having.html", {"bindings": bindings.order_by("agent__name")[:SHOWN]}


def agents_of(principal: Principal) -> list[tuple[str, str]]:
    """Return the organization's agents, for tokens, issuers and invitations that name some."""
    rows = Agent.objects.for_organization(principal.organization_id).order_by("name")
    return [(str(pk), name) for pk, name in rows.values_list("pk", "name")]


PANELS.append(agents_with)
TokenAdmin.agents_of = staticmethod(agents_of)
InvitationAdmin.agents_of = staticmethod(agents_of)
IssuerAdmin.agents_of = staticmethod(agents_of)
