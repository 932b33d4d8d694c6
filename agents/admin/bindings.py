"""An agent's servers: how they are, how much of each it gets, what it called there (A13)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.pasting import paste
from agents.bindings import bind, bound_server, switch_binding, unbind
from agents.choices import gets
from agents.governance.offerings import Offer
from agents.governance.snapshots import Tool, snapshots
from agents.metrics import Use, use_by_server
from agents.models import Agent, Binding
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, fragment, onward
from mcp_servers.admin.adding import Destination, add_by_form, choose_preset, fill_preset
from mcp_servers.admin.apis import add_api
from mcp_servers.admin.declaring import add_declared
from mcp_servers.models import Server

# How far back the usage is counted.
USE_OF = timedelta(days=30)
# Of more tools than this, only those of the server that is opened are shown.
TOOLS_SHOWN = 200


@dataclass(frozen=True)
class Bound:
    """One server as the agent has it."""

    binding: Binding
    tools: list[Tool]
    offers: list[Offer]
    use: Use
    listed: bool

    @property
    def server(self) -> Server:
        """Return the server."""
        found: Server = self.binding.server
        return found

    @property
    def effective(self) -> int:
        """Return how many of its tools the agent may call now."""
        return sum(tool.decision.allowed for tool in self.tools)

    @property
    def usable(self) -> int:
        """Return how many of its resources and prompts the agent may use now."""
        return sum(offer.decision.allowed for offer in self.offers)

    @property
    def chosen(self) -> frozenset[str]:
        """Return the own names of the tools that the binding lets through."""
        lists = self.binding.allowed_tools, self.binding.denied_tools
        names = [tool.facts.own_name for tool in self.tools]
        return frozenset(name for name in names if gets(name, *lists))


@AgentAdmin.add_page("servers", _("Servers"), order=30)
def servers(visit: Visit) -> HttpResponseBase:
    """Show the agent's servers."""
    agent: Agent = visit.object
    bindings = list(agent.bindings.select_related("server").order_by("server__name"))
    tools = _tools_by_server(agent)
    offers = _offers_by_server(agent)
    use = use_by_server(agent, USE_OF)
    few = sum(map(len, tools.values())) <= TOOLS_SHOWN
    unfolded = visit.request.GET.get("open", "")
    return visit.show(
        "agents/servers.html",
        agent=agent,
        bound=[
            Bound(
                one,
                tools.get(one.server_id, []),
                offers.get(one.server_id, []),
                use.get(one.server_id, Use()),
                listed=few or str(one.server_id) == unfolded,
            )
            for one in bindings
        ],
        running=agent.sessions.unfinished().count(),
        unfolded=unfolded,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


@AgentAdmin.add_page("server_states")
def server_states(visit: Visit) -> HttpResponseBase:
    """Return how the agent's servers are now, as pieces of the page."""
    agent: Agent = visit.object
    return fragment(
        visit.request,
        "agents/server_states.html",
        bindings=agent.bindings.select_related("server"),
        running=agent.sessions.unfinished().count(),
    )


def _tools_by_server(agent: Agent) -> dict[UUID, list[Tool]]:
    found: dict[UUID, list[Tool]] = {}
    for _name, tool in sorted(snapshots().current("agent", agent.pk).tools.items()):
        if tool.facts.server_id is not None and tool.facts.state != "gone":
            found.setdefault(tool.facts.server_id, []).append(tool)
    return found


def _offers_by_server(agent: Agent) -> dict[UUID, list[Offer]]:
    found: dict[UUID, list[Offer]] = {}
    kinds = ("resource", "resource_template", "prompt")
    for offer in snapshots().current("agent", agent.pk).offers_of(*kinds):
        if offer.facts.state != "gone":
            found.setdefault(offer.facts.server_id, []).append(offer)
    return found


@AgentAdmin.add_deed("unbind", needs=Action.MANAGE_AGENTS)
def unbind_server(visit: Visit) -> HttpResponseBase:
    """Take a server from the agent."""
    server = bound_server(visit.object, visit.request.POST.get("server", ""))
    unbind(visit.principal, visit.object, server)
    text = _t("%(agent)s no longer has %(server)s.")
    messages.success(visit.request, text % {"agent": visit.object, "server": server.name})
    return onward(visit, "servers")


@AgentAdmin.add_deed("switch_server", needs=Action.MANAGE_AGENTS)
def switch_server(visit: Visit) -> HttpResponseBase:
    """Connect or disconnect a server for this agent alone; it holds on the very next call."""
    server = bound_server(visit.object, visit.request.POST.get("server", ""))
    enabled = visit.request.POST.get("enabled") == "1"
    switch_binding(visit.principal, visit.object, server, enabled=enabled)
    on = _t("%(server)s is connected to %(agent)s, from the next call on.")
    off = _t("%(server)s is disconnected from %(agent)s, from the next call on.")
    values = {"agent": visit.object, "server": server.name}
    messages.success(visit.request, (on if enabled else off) % values)
    return onward(visit, "servers")


# -- A server of its own: the same ways to add, with the agent as their destination ----------------


def destination(agent: Agent) -> Destination:
    """Return where a server goes that belongs to this agent alone."""

    def url(way: str, *args: Any) -> str:
        return reverse(f"admin:agents_agent_{way}", args=[agent.pk, *args])

    def after(server: Server) -> str:
        page = reverse("admin:mcp_servers_server_change", args=[server.pk])
        return f"{page}?connect=1" if server.enabled else page

    def then(principal: Principal, server: Server) -> None:
        bind(principal, agent, server)

    return Destination(
        title=_t("A server for %(agent)s alone") % {"agent": agent},
        needs=Action.MANAGE_SERVERS,
        url=url,
        after=after,
        scope_id=agent.pk,
        then=then,
    )


def _find(request: HttpRequest, object_id: UUID) -> tuple[Principal, Destination]:
    principal = principal_of(request)
    agent = Agent.objects.visible_to(principal).get_or_404(principal.organization_id, pk=object_id)
    return principal, destination(agent)


def form_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add a private server by form."""
    return add_by_form(request, *_find(request, object_id))


def presets_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Choose a preset for a private server."""
    return choose_preset(request, *_find(request, object_id))


def preset_view(request: HttpRequest, object_id: UUID, slug: str) -> HttpResponseBase:
    """Fill a preset for a private server."""
    return fill_preset(request, *_find(request, object_id), slug)


def paste_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Paste JSON for private servers."""
    return paste(request, *_find(request, object_id))


def openapi_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add a REST API as a private server."""
    return add_api(request, *_find(request, object_id))


def operations_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add an API by an operation that is declared by hand, as a private server."""
    return add_declared(request, *_find(request, object_id))


AgentAdmin.routes += (
    ("servers/add/", form_view, "form"),
    ("servers/presets/", presets_view, "presets"),
    ("servers/presets/<slug:slug>/", preset_view, "preset"),
    ("servers/paste/", paste_view, "paste"),
    ("servers/openapi/", openapi_view, "openapi"),
    ("servers/operations/", operations_view, "operations"),
)
