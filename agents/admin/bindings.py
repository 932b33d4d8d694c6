"""An agent's servers: how they are, how much of each it gets, what it called there (A13)."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import Avg, Count, Max, Q
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.bindings import bind, bound_server, unbind
from agents.governance.snapshots import Tool, snapshots
from agents.models import Agent, Binding
from bonobot.ledger.models import AuditRow
from bonobot.lib.problems import Invalid
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, onward
from mcp_servers.admin.adding import Destination, add_by_form, choose_preset, fill_preset
from mcp_servers.admin.pasting import paste
from mcp_servers.models import Server

# How far back the usage is counted.
USE_OF = timedelta(days=30)


@dataclass(frozen=True)
class Bound:
    """One server as the agent has it."""

    binding: Binding
    tools: list[Tool]
    use: Mapping[str, Any]

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
    def chosen(self) -> frozenset[str]:
        """Return the own names of the tools that the binding lets through."""
        globs, denied = self.binding.allowed_tools, self.binding.denied_tools
        names = [tool.facts.own_name for tool in self.tools]
        return frozenset(
            name
            for name in names
            if (not globs or any(fnmatchcase(name, glob) for glob in globs))
            and not any(fnmatchcase(name, glob) for glob in denied)
        )


@AgentAdmin.add_page("servers", _("Servers"), order=30)
def servers(visit: Visit) -> HttpResponseBase:
    """Show the agent's servers."""
    agent: Agent = visit.object
    bindings = list(agent.bindings.select_related("server").order_by("server__name"))
    tools = _tools_by_server(agent)
    use = _use_by_server(agent)
    mine = {binding.server_id for binding in bindings}
    pool = Server.objects.for_organization(agent.organization_id).pool().exclude(pk__in=mine)
    return visit.show(
        "agents/servers.html",
        agent=agent,
        bound=[
            Bound(one, tools.get(one.server_id, []), use.get(one.server_id, {})) for one in bindings
        ],
        pool=pool.only("pk", "name", "description"),
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


def _tools_by_server(agent: Agent) -> dict[UUID, list[Tool]]:
    found: dict[UUID, list[Tool]] = {}
    for _name, tool in sorted(snapshots().current("agent", agent.pk).tools.items()):
        if tool.facts.server_id is not None and tool.facts.state != "gone":
            found.setdefault(tool.facts.server_id, []).append(tool)
    return found


def _use_by_server(agent: Agent) -> dict[UUID, dict[str, Any]]:
    rows = AuditRow.objects.filter(
        organization_id=agent.organization_id,
        agent_id=agent.pk,
        server_id__isnull=False,
        opened_at__gte=timezone.now() - USE_OF,
    )
    counted = rows.values("server_id").annotate(
        calls=Count("pk"),
        errors=Count("pk", filter=Q(outcome__in=("error", "unknown"))),
        refused=Count("pk", filter=Q(outcome="refused")),
        latency=Avg("duration_ms"),
        last=Max("opened_at"),
    )
    found: list[Any] = list(counted.order_by())
    return {row["server_id"]: row for row in found}


@AgentAdmin.add_deed("bind", needs=Action.MANAGE_AGENTS)
def bind_pool_server(visit: Visit) -> HttpResponseBase:
    """Give the agent a server of the pool."""
    server = _pool_server(visit.object, visit.request.POST.get("server", ""))
    bind(visit.principal, visit.object, server)
    text = _t("%(agent)s has %(server)s now. Its tool policy decides which tools it may call.")
    messages.success(visit.request, text % {"agent": visit.object, "server": server})
    return onward(visit, "servers")


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
    """Switch a server on or off for this agent alone."""
    binding = _binding(visit)
    bind(
        visit.principal,
        visit.object,
        binding.server,
        enabled=visit.request.POST.get("enabled") == "1",
        allowed_tools=binding.allowed_tools,
        denied_tools=binding.denied_tools,
    )
    return onward(visit, "servers")


@AgentAdmin.add_deed("choose_tools", needs=Action.MANAGE_AGENTS)
def choose_tools(visit: Visit) -> HttpResponseBase:
    """Say how much of a server the agent gets: all it offers, or the ticked tools."""
    binding, posted = _binding(visit), visit.request.POST
    chosen = posted.getlist("tool") if posted.get("how") == "chosen" else []
    if posted.get("how") == "chosen" and not chosen:
        raise Invalid(
            "No tool is ticked.",
            code="nothing_chosen",
            field="tool",
            remedy="Tick at least one tool, or take the server from the agent.",
        )
    bind(
        visit.principal,
        visit.object,
        binding.server,
        enabled=binding.enabled,
        allowed_tools=[_literal(name) for name in chosen],
    )
    text = _t("%(agent)s gets %(n)d tools of %(server)s.")
    everything = _t("%(agent)s gets all that %(server)s offers.")
    values = {"agent": visit.object, "server": binding.server, "n": len(chosen)}
    messages.success(visit.request, (text if chosen else everything) % values)
    return onward(visit, "servers")


def _binding(visit: Visit) -> Binding:
    server = bound_server(visit.object, visit.request.POST.get("server", ""))
    found: Binding = visit.object.bindings.select_related("server").get(server=server)
    return found


def _pool_server(agent: Agent, server_id: str) -> Server:
    pool = Server.objects.for_organization(agent.organization_id).pool()
    found: Server = pool.get_or_404(agent.organization_id, pk=server_id)
    return found


def _literal(name: str) -> str:
    """Return a glob that means exactly this name."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


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


AgentAdmin.routes += (
    ("servers/add/", form_view, "form"),
    ("servers/presets/", presets_view, "presets"),
    ("servers/presets/<slug:slug>/", preset_view, "preset"),
    ("servers/paste/", paste_view, "paste"),
)
