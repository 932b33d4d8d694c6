"""Attached servers of an agent: list, attach, and choose tools, resources and prompts.

Resources and prompts are selected one by one, all at once, or by patterns over URIs, templates and
names. None is selected by default.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.db.models import Count, Q
from django.http import HttpRequest, QueryDict
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import AgentAdmin
from agents.admin.server_imports import import_servers
from agents.agent_metrics import ServerUsage, load_usage_by_server
from agents.calls.snapshots import SnapshotDefinition, SnapshotTool, get_snapshot_cache
from agents.models import Agent, Binding
from agents.policies.rules import EVERYTHING, build_globs, choose, escape_glob, is_name_allowed
from agents.services import bind, bound_server, set_attachment_enabled, unbind
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page, render_fragment
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from mcp_servers.admin.add_servers import ServerDestination, add_by_form, choose_preset, fill_preset
from mcp_servers.admin.openapi import add_api, add_declared
from mcp_servers.admin.servers import discover_servers
from mcp_servers.models import Check, Definition, Server


@dataclass(frozen=True)
class DefinitionSection:
    """A kind of definitions: its title, and the list of `AgentServer` that selects from it."""

    slug: str
    title: Any
    help: Any
    column: str
    kinds: tuple[str, ...]


SORTS = (
    DefinitionSection(
        "resource",
        _("Resources"),
        _(
            "URIs or patterns such as docs://*, one on each line. A pattern over URIs lets the "
            "variables of a template span several path segments there."
        ),
        "allowed_resources",
        (Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE),
    ),
    DefinitionSection(
        "prompt",
        _("Prompts"),
        _("Names or patterns such as review_*, one on each line."),
        "allowed_prompts",
        (Definition.Kind.PROMPT,),
    ),
)
KINDS = tuple(kind for sort in SORTS for kind in sort.kinds)


@dataclass(frozen=True)
class DefinitionSelection:
    """The definitions of one section of a server, and the patterns that select some."""

    sort: DefinitionSection
    rows: Sequence[Definition]
    patterns: Sequence[str]

    @property
    def everything(self) -> bool:
        """Return whether everything is selected, including future definitions."""
        return EVERYTHING in self.patterns

    @property
    def names(self) -> frozenset[str]:
        """Return the names that are selected one by one."""
        given = frozenset(self.patterns)
        return frozenset(
            row.name for row in self.rows if row.name in given or escape_glob(row.name) in given
        )

    @property
    def further(self) -> str:
        """Return the patterns that aren't a single name, one per line."""
        single = {escape_glob(name) for name in self.names} | self.names | {EVERYTHING}
        return "\n".join(one for one in self.patterns if one not in single)


def build_selections(
    rows: Iterable[Definition], binding: Binding | None, posted: QueryDict | None, key: str
) -> list[DefinitionSelection]:
    """Return the selections of a server, from the form with this key or as stored."""
    found = list(rows)
    return [
        DefinitionSelection(
            sort,
            [row for row in found if row.kind in sort.kinds],
            _parse_patterns(sort, posted, key)
            if has_selections(posted, key)
            else _get_stored_patterns(sort, binding),
        )
        for sort in SORTS
    ]


def has_selections(posted: QueryDict | None, key: str) -> bool:
    """Return whether a form has selections of resources and prompts."""
    return posted is not None and f"ticks-{key}" in posted


def build_allow_lists(found: Iterable[DefinitionSelection]) -> Mapping[str, list[str]]:
    """Return the allow lists of an attached server."""
    return {one.sort.column: list(dict.fromkeys(one.patterns)) for one in found}


def _parse_patterns(sort: DefinitionSection, posted: QueryDict | None, key: str) -> list[str]:
    if posted is None:
        return []
    lines = posted.get(f"{sort.slug}-more-{key}", "").splitlines()
    further = [line.strip() for line in lines if line.strip()]
    if f"{sort.slug}-all-{key}" in posted:
        return [EVERYTHING, *further]
    return [*(escape_glob(name) for name in posted.getlist(f"{sort.slug}-{key}")), *further]


def _get_stored_patterns(sort: DefinitionSection, binding: Binding | None) -> list[str]:
    return list(getattr(binding, sort.column)) if binding else []


SERVERS_SHOWN = 50  # per page; find others by search


@dataclass(frozen=True)
class ToolSection:
    """A kind of tools: its title, and the list of `AgentServer` that selects from it.

    `slug` names the form fields (`tool-<server>`), `column` the list.
    """

    slug: str
    title: Any
    nothing: Any
    column: str
    kinds: tuple[str, ...]


PARTS = (
    ToolSection(
        "tool", _("Tools"), _("It offers no tools."), "allowed_tools", (Definition.Kind.TOOL,)
    ),
)


@dataclass(frozen=True)
class ToolSelection:
    """The definitions of one kind of a server, and the selected names."""

    part: ToolSection
    rows: list[Definition]
    ticked: frozenset[str]

    @property
    def count(self) -> int:
        """Return how many definitions are selected."""
        return sum(row.name in self.ticked for row in self.rows)


@dataclass
class ServerSelection:
    """A server with what the agent gets of it, as stored or as posted."""

    server: Server
    binding: Binding | None
    rows: list[Definition] = field(default_factory=list)
    posted: QueryDict | None = None
    problem: Problem | None = None

    @property
    def how(self) -> str:
        """Return `all`, `chosen`, or "" if nothing was selected yet."""
        if self.posted is not None:
            return str(self.posted.get(f"how-{self.server.pk}", ""))
        if self.binding is None:
            return ""
        narrowed = any(getattr(self.binding, part.column) for part in PARTS)
        return "chosen" if narrowed else "all"

    @property
    def denied(self) -> list[str]:
        """Return the globs of denied tools."""
        if self.posted is not None:
            text = self.posted.get(f"denied-{self.server.pk}", "")
            return [line.strip() for line in str(text).splitlines() if line.strip()]
        return list(self.binding.denied_tools) if self.binding else []

    @property
    def denied_lines(self) -> str:
        """Return the denied globs, one per line."""
        return "\n".join(self.denied)

    @property
    def parts(self) -> list[ToolSelection]:
        """Return the selected tools by section."""
        return [self._offered(part) for part in PARTS]

    @property
    def ticks(self) -> list[DefinitionSelection]:
        """Return the selected resources and prompts by section."""
        return build_selections(self.rows, self.binding, self.posted, str(self.server.pk))

    @property
    def offers_more(self) -> bool:
        """Return whether the server has resources or prompts."""
        return any(one.rows for one in self.ticks)

    @property
    def asked(self) -> bool:
        """Return whether the server was discovered."""
        return self.server.discovered_at is not None or bool(self.rows)

    @property
    def to_ask(self) -> bool:
        """Return whether the server must be discovered before anything can be selected."""
        return not self.asked and self.server.enabled and self.posted is None

    def save(self, visit: ObjectRequest) -> int | None:
        """Save the posted form; return the number of definitions, or None for all."""
        lists = {offered.part.column: self._chosen(offered) for offered in self.parts}
        if has_selections(self.posted, str(self.server.pk)):
            lists |= build_allow_lists(self.ticks)
        bind(
            visit.principal,
            visit.object,
            self.server,
            enabled=self.binding.enabled if self.binding else True,
            denied_tools=self.denied,
            **lists,
        )
        if self.how == "all":
            return None
        return sum(offered.count for offered in self.parts) + self._also()

    def _also(self) -> int:
        """Return how many resources, prompts and patterns are selected."""
        return sum(len(one.patterns) for one in self.ticks)

    def _offered(self, part: ToolSection) -> ToolSelection:
        rows = [row for row in self.rows if row.kind in part.kinds]
        if self.posted is not None:
            chosen = frozenset(self.posted.getlist(f"{part.slug}-{self.server.pk}"))
        else:
            kept = getattr(self.binding, part.column) if self.binding else []
            chosen = frozenset(row.name for row in rows if kept and is_name_allowed(row.name, kept))
        return ToolSelection(part, rows, chosen)

    def _chosen(self, offered: ToolSelection) -> list[str]:
        """Return the globs; raises `InvalidInput` (`nothing_chosen`, `unknown_tool`)."""
        field_name = f"{offered.part.slug}-{self.server.pk}"
        if self.how == "all" or (self._also() and not offered.rows):
            return choose([EVERYTHING], (), field=field_name)
        names = {row.name for row in offered.rows}
        kept = getattr(self.binding, offered.part.column) if self.binding else []
        globs = build_globs(offered.ticked, names, kept)
        return choose(globs, names, field=field_name)


@AgentAdmin.add_page("pick", needs=Action.MANAGE_AGENTS)
def pick(visit: ObjectRequest) -> HttpResponseBase:
    """Choose servers, then what the agent gets of each, then attach them."""
    if visit.request.method == "POST":
        return _attach_servers(visit)
    asked = visit.request.GET.getlist("server")
    return _show(visit, _load_selections(visit, asked)) if asked else _choose_servers(visit)


@AgentAdmin.add_deed("ask_server", needs=Action.MANAGE_AGENTS)
def ask_server(visit: ObjectRequest) -> HttpResponseBase:
    """Discover a server and return its panel of the page."""
    [one] = _load_selections(visit, [visit.request.GET.get("server", "")])
    [answer] = discover_servers(
        [one.server], actor=visit.principal.actor, kind=Check.Kind.DISCOVERY
    )
    [one] = _load_selections(visit, [str(one.server.pk)])
    one.problem = answer.problem
    return render_fragment(
        visit.request, "agents/pick_server.html", agent=visit.object, one=one, told=True
    )


def _choose_servers(visit: ObjectRequest) -> HttpResponseBase:
    agent: Agent = visit.object
    pool = Server.objects.for_organization(agent.organization_id).pool()
    rows = pool.exclude(pk__in=agent.bindings.values("server"))
    sought = visit.request.GET.get("q", "").strip()
    for word in sought.split()[:8]:
        rows = rows.filter(Q(name__icontains=word) | Q(description__icontains=word))
    found = list(rows.order_by("name")[: SERVERS_SHOWN + 1])
    return replace(visit, page="servers").show(
        "agents/pick.html",
        agent=agent,
        servers=_with_counts(found[:SERVERS_SHOWN]),
        more=len(found) > SERVERS_SHOWN,
        q=sought,
        any_in_pool=pool.exists(),
    )


def _with_counts(servers: list[Server]) -> list[Server]:
    """Set the number of tools and of approved tools on each server (one query)."""
    tools = Definition.objects.tools().filter(server__in=servers).order_by()
    usable = tools.callable().values("pk")
    counted = tools.values("server").annotate(
        tool_total=Count("pk", filter=Q(present=True)),
        usable_total=Count("pk", filter=Q(pk__in=usable)),
    )
    counts = {row["server"]: row for row in counted}
    for server in servers:
        row = counts.get(server.pk)
        server.tool_total = row["tool_total"] if row else 0  # type: ignore[attr-defined]
        server.usable_total = row["usable_total"] if row else 0  # type: ignore[attr-defined]
    return servers


def _show(visit: ObjectRequest, picked: list[ServerSelection]) -> HttpResponseBase:
    return replace(visit, page="servers").show(
        "agents/pick_tools.html", agent=visit.object, picked=picked
    )


def _attach_servers(visit: ObjectRequest) -> HttpResponseBase:
    posted: QueryDict = visit.request.POST
    picked = _load_selections(visit, posted.getlist("server"), posted)
    counts: dict[str, int | None] = {}
    try:
        with transaction.atomic():
            for one in picked:
                counts[one.server.name] = _save_selection(visit, one)
    except Problem:
        return _show(visit, picked)
    for name, count in counts.items():
        text = _t("%(agent)s gets %(n)d capabilities of %(server)s.")
        everything = _t("%(agent)s gets all that %(server)s offers, also later.")
        values = {"agent": visit.object, "server": name, "n": count}
        messages.success(visit.request, (everything if count is None else text) % values)
    return redirect_to_page(visit, "servers")


def _save_selection(visit: ObjectRequest, one: ServerSelection) -> int | None:
    """Save one selection; a problem is stored on it and raised again."""
    try:
        return one.save(visit)
    except Problem as problem:
        one.problem = problem
        raise


def _load_selections(
    visit: ObjectRequest, ids: Iterable[str], posted: QueryDict | None = None
) -> list[ServerSelection]:
    """Return the selections of these servers; raises `NotFound` for unavailable ones."""
    agent: Agent = visit.object
    mine = Q(scope_id=agent.organization_id) | Q(scope_id=agent.pk)
    wanted = list(dict.fromkeys(ids))
    try:
        keys = [UUID(one) for one in wanted]
    except ValueError:
        raise _build_not_found(wanted) from None
    servers = Server.objects.for_organization(agent.organization_id).filter(mine, pk__in=keys)
    if not wanted or len(found := list(servers)) != len(wanted):
        raise _build_not_found(wanted)
    bindings = {row.server_id: row for row in agent.bindings.filter(server__in=found)}
    kinds = [*(kind for part in PARTS for kind in part.kinds), *KINDS]
    offered = Definition.objects.filter(server__in=found, kind__in=kinds, present=True)
    rows: dict[UUID, list[Definition]] = {}
    for row in offered.order_by("name"):
        rows.setdefault(row.server_id, []).append(row)
    return [
        ServerSelection(server, bindings.get(server.pk), rows.get(server.pk, []), posted)
        for server in found
    ]


def _build_not_found(wanted: list[str]) -> NotFound:
    shown = ", ".join(repr(one[:40]) for one in wanted) or "none"
    return NotFound(
        format_message("There is no such server here: {shown}.", shown=shown),
        field="server",
        remedy="Choose servers of the organization's pool.",
    )


# The period of the usage numbers.
USE_OF = timedelta(days=30)
# With more tools than this, only those of the opened server are shown.
TOOLS_SHOWN = 200


@dataclass(frozen=True)
class AgentServerRow:
    """An attached server with its tools, other definitions and usage."""

    binding: Binding
    tools: list[SnapshotTool]
    offers: list[SnapshotDefinition]
    use: ServerUsage
    listed: bool

    @property
    def server(self) -> Server:
        """Return the server."""
        found: Server = self.binding.server
        return found

    @property
    def effective(self) -> int:
        """Return how many of its tools are allowed."""
        return sum(tool.decision.allowed for tool in self.tools)

    @property
    def usable(self) -> int:
        """Return how many of its resources and prompts are allowed."""
        return sum(offer.decision.allowed for offer in self.offers)

    @property
    def chosen(self) -> frozenset[str]:
        """Return the server's own names of the tools that the attachment allows."""
        lists = self.binding.allowed_tools, self.binding.denied_tools
        names = [tool.facts.own_name for tool in self.tools]
        return frozenset(name for name in names if is_name_allowed(name, *lists))


@AgentAdmin.add_page("servers", _("Servers"), order=30)
def show_servers(visit: ObjectRequest) -> HttpResponseBase:
    """Show the agent's servers."""
    agent: Agent = visit.object
    bindings = list(agent.bindings.select_related("server").order_by("server__name"))
    tools = _group_tools(agent)
    offers = _group_resources_and_prompts(agent)
    use = load_usage_by_server(agent, USE_OF)
    few = sum(map(len, tools.values())) <= TOOLS_SHOWN
    unfolded = visit.request.GET.get("open", "")
    return visit.show(
        "agents/servers.html",
        agent=agent,
        bound=[
            AgentServerRow(
                one,
                tools.get(one.server_id, []),
                offers.get(one.server_id, []),
                use.get(one.server_id, ServerUsage()),
                listed=few or str(one.server_id) == unfolded,
            )
            for one in bindings
        ],
        running=agent.sessions.unfinished().count(),
        unfolded=unfolded,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
    )


@AgentAdmin.add_page("server_states")
def show_server_states(visit: ObjectRequest) -> HttpResponseBase:
    """Return the current states of the agent's servers as a fragment."""
    agent: Agent = visit.object
    return render_fragment(
        visit.request,
        "agents/server_states.html",
        bindings=agent.bindings.select_related("server"),
        running=agent.sessions.unfinished().count(),
    )


def _group_tools(agent: Agent) -> dict[UUID, list[SnapshotTool]]:
    found: dict[UUID, list[SnapshotTool]] = {}
    for _name, tool in sorted(get_snapshot_cache().current("agent", agent.pk).tools.items()):
        if tool.facts.server_id is not None and tool.facts.state != "gone":
            found.setdefault(tool.facts.server_id, []).append(tool)
    return found


def _group_resources_and_prompts(agent: Agent) -> dict[UUID, list[SnapshotDefinition]]:
    found: dict[UUID, list[SnapshotDefinition]] = {}
    kinds = ("resource", "resource_template", "prompt")
    for offer in get_snapshot_cache().current("agent", agent.pk).offers_of(*kinds):
        if offer.facts.state != "gone":
            found.setdefault(offer.facts.server_id, []).append(offer)
    return found


@AgentAdmin.add_deed("unbind", needs=Action.MANAGE_AGENTS)
def unbind_server(visit: ObjectRequest) -> HttpResponseBase:
    """Detach a server from the agent."""
    server = bound_server(visit.object, visit.request.POST.get("server", ""))
    unbind(visit.principal, visit.object, server)
    text = _t("%(agent)s no longer has %(server)s.")
    messages.success(visit.request, text % {"agent": visit.object, "server": server.name})
    return redirect_to_page(visit, "servers")


@AgentAdmin.add_deed("switch_server", needs=Action.MANAGE_AGENTS)
def set_agent_server_enabled(visit: ObjectRequest) -> HttpResponseBase:
    """Enable or disable a server for this agent only; effective on the next call."""
    server = bound_server(visit.object, visit.request.POST.get("server", ""))
    enabled = visit.request.POST.get("enabled") == "1"
    set_attachment_enabled(visit.principal, visit.object, server, enabled=enabled)
    on = _t("%(server)s is connected to %(agent)s, from the next call on.")
    off = _t("%(server)s is disconnected from %(agent)s, from the next call on.")
    values = {"agent": visit.object, "server": server.name}
    messages.success(visit.request, (on if enabled else off) % values)
    return redirect_to_page(visit, "servers")


# -- Private servers: the same pages to add them, with the agent as the destination ----------------


def build_destination(agent: Agent) -> ServerDestination:
    """Return the destination of servers that are private to this agent."""

    def url(way: str, *args: Any) -> str:
        return reverse(f"admin:agents_agent_{way}", args=[agent.pk, *args])

    def after(server: Server) -> str:
        page = reverse("admin:mcp_servers_server_change", args=[server.pk])
        return f"{page}?connect=1" if server.enabled else page

    def then(principal: Principal, server: Server) -> None:
        bind(principal, agent, server)

    return ServerDestination(
        title=_t("A server for %(agent)s alone") % {"agent": agent},
        needs=Action.MANAGE_SERVERS,
        url=url,
        after=after,
        scope_id=agent.pk,
        then=then,
    )


def _find(request: HttpRequest, object_id: UUID) -> tuple[Principal, ServerDestination]:
    principal = resolve_principal(request)
    agent = Agent.objects.visible_to(principal).get_or_404(principal.organization_id, pk=object_id)
    return principal, build_destination(agent)


def form_view(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add a private server by form."""
    return add_by_form(request, *_find(request, object_id))


def choose_agent_preset(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Choose a preset for a private server."""
    return choose_preset(request, *_find(request, object_id))


def fill_agent_preset(request: HttpRequest, object_id: UUID, slug: str) -> HttpResponseBase:
    """Fill a preset for a private server."""
    return fill_preset(request, *_find(request, object_id), slug)


def import_agent_servers(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Paste JSON for private servers."""
    return import_servers(request, *_find(request, object_id))


def add_agent_api(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add a REST API as a private server."""
    return add_api(request, *_find(request, object_id))


def add_agent_operations(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add an API by manually declared operations, as a private server."""
    return add_declared(request, *_find(request, object_id))


AgentAdmin.routes += (
    ("servers/add/", form_view, "form"),
    ("servers/presets/", choose_agent_preset, "presets"),
    ("servers/presets/<slug:slug>/", fill_agent_preset, "preset"),
    ("servers/paste/", import_agent_servers, "paste"),
    ("servers/openapi/", add_agent_api, "openapi"),
    ("servers/operations/", add_agent_operations, "operations"),
)
