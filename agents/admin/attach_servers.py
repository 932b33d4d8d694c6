"""Attach servers to an agent: choose servers, and their tools, resources and prompts.

Resources and prompts are selected one by one, all at once, or by patterns over URIs, templates and
names. None is selected by default.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from agents.models import Agent, AgentServer
from agents.policies.rules import (
    EVERYTHING,
    build_globs,
    clean_patterns,
    escape_glob,
    is_name_allowed,
)
from agents.services import attach_server, require_attachable
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page, render_fragment
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.localization import format_number
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from mcp_servers.admin.add_by_url import add_by_url
from mcp_servers.admin.add_servers import ServerDestination, add_by_form
from mcp_servers.admin.declared_operations import add_declared_api
from mcp_servers.admin.openapi import add_api
from mcp_servers.admin.preset_gallery import add_by_preset, choose_preset
from mcp_servers.admin.review_new_servers import show_added_servers
from mcp_servers.discovery import discover_servers
from mcp_servers.models import Definition, HealthCheck, Server
from mcp_servers.models.servers import ServerQuerySet

SERVERS_SHOWN = 50  # per page; find others by search
MAX_DISABLED_SHOWN = 20


@dataclass(frozen=True)
class DefinitionSection:
    """Kinds of definitions with one title, and the list of `AgentServer` that selects from them.

    `slug` names the form fields (`tool-<server>`), `column` the list.
    """

    slug: str
    title: Any
    column: str
    kinds: tuple[str, ...]
    help: Any = ""


TOOL_SECTION = DefinitionSection(
    "tool", title=_("Tools"), column="allowed_tools", kinds=(Definition.Kind.TOOL,)
)
DEFINITION_SECTIONS = (
    DefinitionSection(
        "resource",
        title=_("Resources"),
        help=_(
            "URIs or patterns such as docs://*, one per line. In a URI pattern, the "
            "variables of a template can span several path segments."
        ),
        column="allowed_resources",
        kinds=(Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE, Definition.Kind.SKILL),
    ),
    DefinitionSection(
        "prompt",
        title=_("Prompts"),
        help=_("Names or patterns such as review_*, one per line."),
        column="allowed_prompts",
        kinds=(Definition.Kind.PROMPT,),
    ),
)
ALL_KINDS = [kind for section in (TOOL_SECTION, *DEFINITION_SECTIONS) for kind in section.kinds]


@dataclass(frozen=True)
class DefinitionSelection:
    """The definitions of one section of a server, and the patterns that select some."""

    section: DefinitionSection
    rows: Sequence[Definition]
    patterns: Sequence[str]

    @property
    def selects_all(self) -> bool:
        """Return whether all definitions are selected, including future ones."""
        return EVERYTHING in self.patterns

    @property
    def selected_names(self) -> frozenset[str]:
        pattern_set = frozenset(self.patterns)
        return frozenset(
            row.name
            for row in self.rows
            if row.name in pattern_set or escape_glob(row.name) in pattern_set
        )

    @property
    def other_patterns(self) -> str:
        """Return the patterns that aren't the name of one definition, one per line."""
        names = self.selected_names
        single_names = {escape_glob(name) for name in names} | names | {EVERYTHING}
        return "\n".join(pattern for pattern in self.patterns if pattern not in single_names)


def build_selections(
    rows: Iterable[Definition],
    attached_server: AgentServer | None,
    posted: QueryDict | None,
    key: str,
) -> list[DefinitionSelection]:
    definitions = list(rows)
    return [
        DefinitionSelection(
            section,
            [row for row in definitions if row.kind in section.kinds],
            _parse_patterns(section, posted, key)
            if has_selections(posted, key)
            else _get_stored_patterns(section, attached_server),
        )
        for section in DEFINITION_SECTIONS
    ]


def has_selections(posted: QueryDict | None, key: str) -> bool:
    """Return whether a form has selections of resources and prompts."""
    return posted is not None and f"selection-{key}" in posted


def build_allow_lists(selections: Iterable[DefinitionSelection]) -> Mapping[str, list[str]]:
    return {
        selection.section.column: list(dict.fromkeys(selection.patterns))
        for selection in selections
    }


def _parse_patterns(section: DefinitionSection, posted: QueryDict | None, key: str) -> list[str]:
    if posted is None:
        return []
    lines = posted.get(f"{section.slug}-more-{key}", "").splitlines()
    patterns = [line.strip() for line in lines if line.strip()]
    if f"{section.slug}-all-{key}" in posted:
        return [EVERYTHING, *patterns]
    return [*(escape_glob(name) for name in posted.getlist(f"{section.slug}-{key}")), *patterns]


def _get_stored_patterns(
    section: DefinitionSection, attached_server: AgentServer | None
) -> list[str]:
    return list(getattr(attached_server, section.column)) if attached_server else []


@dataclass(frozen=True)
class ToolSelection:
    """The tools of a server, and the selected names."""

    rows: list[Definition]
    selected_names: frozenset[str]

    @property
    def count(self) -> int:
        """Return how many definitions are selected."""
        return sum(row.name in self.selected_names for row in self.rows)


@dataclass
class ServerSelection:
    """A server with what the agent gets of it, as stored or as posted."""

    server: Server
    agent_server: AgentServer | None
    rows: list[Definition] = field(default_factory=list)
    posted: QueryDict | None = None
    problem: Problem | None = None

    @property
    def mode(self) -> str:
        """Return `all`, `selected`, or "" if nothing was selected yet."""
        if self.posted is not None:
            return str(self.posted.get(f"mode-{self.server.pk}", ""))
        if self.agent_server is None:
            return ""
        return "selected" if self.agent_server.allowed_tools else "all"

    @property
    def denied(self) -> list[str]:
        """Return the globs of denied tools."""
        if self.posted is not None:
            text = self.posted.get(f"denied-{self.server.pk}", "")
            return [line.strip() for line in str(text).splitlines() if line.strip()]
        return list(self.agent_server.denied_tools) if self.agent_server else []

    @property
    def denied_lines(self) -> str:
        """Return the denied globs, one per line."""
        return "\n".join(self.denied)

    @property
    def tool_selection(self) -> ToolSelection:
        """Return the selected tools."""
        rows = [row for row in self.rows if row.kind in TOOL_SECTION.kinds]
        if self.posted is not None:
            return ToolSelection(rows, frozenset(self.posted.getlist(f"tool-{self.server.pk}")))
        globs = self._get_stored_tool_globs()
        names = (row.name for row in rows if globs and is_name_allowed(row.name, globs))
        return ToolSelection(rows, frozenset(names))

    @property
    def definition_selections(self) -> list[DefinitionSelection]:
        """Return the selected resources and prompts by section."""
        return build_selections(self.rows, self.agent_server, self.posted, str(self.server.pk))

    @property
    def has_other_definitions(self) -> bool:
        """Return whether the server has resources or prompts."""
        return any(selection.rows for selection in self.definition_selections)

    @property
    def is_discovered(self) -> bool:
        return self.server.discovered_at is not None or bool(self.rows)

    @property
    def needs_discovery(self) -> bool:
        """Return whether the server must be discovered before anything can be selected."""
        return not self.is_discovered and self.server.enabled and self.posted is None

    def save(self, visit: ObjectRequest) -> int | None:
        """Save the posted form; return the number of definitions, or None for all."""
        lists: dict[str, Any] = {TOOL_SECTION.column: self._build_tool_globs()}
        if has_selections(self.posted, str(self.server.pk)):
            lists |= build_allow_lists(self.definition_selections)
        attach_server(
            visit.principal,
            visit.object,
            self.server,
            enabled=self.agent_server.enabled if self.agent_server else True,
            denied_tools=self.denied,
            **lists,
        )
        if self.mode == "all":
            return None
        return self.tool_selection.count + self._count_other_definitions()

    def _count_other_definitions(self) -> int:
        """Return how many resources, prompts and patterns are selected."""
        return sum(len(selection.patterns) for selection in self.definition_selections)

    def _get_stored_tool_globs(self) -> list[str]:
        return self.agent_server.allowed_tools if self.agent_server else []

    def _build_tool_globs(self) -> list[str]:
        """Return the globs; raises `InvalidInput` (`nothing_selected`, `unknown_tool`)."""
        field_name = f"tool-{self.server.pk}"
        selection = self.tool_selection
        if self.mode == "all" or (self._count_other_definitions() and not selection.rows):
            return clean_patterns([EVERYTHING], (), field=field_name)
        names = {row.name for row in selection.rows}
        globs = build_globs(selection.selected_names, names, self._get_stored_tool_globs())
        return clean_patterns(globs, names, field=field_name)


@AgentAdmin.add_page("attach_servers", required_actions=Action.MANAGE_AGENTS)
def show_server_picker(visit: ObjectRequest) -> HttpResponseBase:
    """Choose servers, then what the agent gets of each, then attach them."""
    if visit.request.method == "POST":
        return _attach_servers(visit)
    server_ids = visit.request.GET.getlist("server")
    return (
        _render_tool_picker(visit, _load_selections(visit, server_ids))
        if server_ids
        else _render_server_picker(visit)
    )


@AgentAdmin.add_object_action("test_server", required_actions=Action.MANAGE_AGENTS)
def discover_picked_server(visit: ObjectRequest) -> HttpResponseBase:
    [selection] = _load_selections(visit, [visit.request.GET.get("server", "")])
    [discovery] = discover_servers(
        [selection.server], actor=visit.principal.actor, kind=HealthCheck.Kind.DISCOVERY
    )
    [selection] = _load_selections(visit, [str(selection.server.pk)])
    selection.problem = discovery.problem
    return render_fragment(
        visit.request, "attach_servers/server.html", agent=visit.object, selection=selection
    )


def _render_server_picker(visit: ObjectRequest) -> HttpResponseBase:
    agent: Agent = visit.object
    pool = Server.objects.for_organization(agent.organization_id).in_organization_pool()
    rows = list_unattached_servers(agent).enabled()
    query = visit.request.GET.get("q", "").strip()
    for word in query.split()[:8]:
        rows = rows.filter(Q(name__icontains=word) | Q(description__icontains=word))
    page_rows = list(rows.order_by("name")[: SERVERS_SHOWN + 1])
    return replace(visit, page="servers").render_tab(
        "attach_servers/choose_servers.html",
        agent=agent,
        servers=add_tool_counts(page_rows[:SERVERS_SHOWN]),
        more=len(page_rows) > SERVERS_SHOWN,
        q=query,
        disabled=list_disabled_servers(agent),
        any_in_pool=pool.exists(),
    )


def list_unattached_servers(agent: Agent) -> ServerQuerySet:
    """Return the servers of the pool that the agent doesn't have."""
    pool = Server.objects.for_organization(agent.organization_id).in_organization_pool()
    servers: ServerQuerySet = pool.exclude(pk__in=agent.agent_servers.values("server"))
    return servers


def list_disabled_servers(agent: Agent) -> list[Server]:
    """Return the servers that must be enabled before they can be attached (one query)."""
    disabled = list_unattached_servers(agent).filter(enabled=False)
    return list(disabled.order_by("name")[:MAX_DISABLED_SHOWN])


def add_tool_counts(servers: list[Server]) -> list[Server]:
    """Set the number of tools and of approved tools on each server (one query)."""
    tools = Definition.objects.tools().filter(server__in=servers).order_by()
    callable_tools = tools.callable().values("pk")
    count_rows = tools.values("server").annotate(
        tool_total=Count("pk", filter=Q(present=True)),
        usable_total=Count("pk", filter=Q(pk__in=callable_tools)),
    )
    counts = {row["server"]: row for row in count_rows}
    for server in servers:
        row = counts.get(server.pk)
        server.tool_total = row["tool_total"] if row else 0  # type: ignore[attr-defined]
        server.usable_total = row["usable_total"] if row else 0  # type: ignore[attr-defined]
    return servers


def _render_tool_picker(
    visit: ObjectRequest, selections: list[ServerSelection]
) -> HttpResponseBase:
    return replace(visit, page="servers").render_tab(
        "attach_servers/choose_tools.html", agent=visit.object, selections=selections
    )


def _attach_servers(visit: ObjectRequest) -> HttpResponseBase:
    posted: QueryDict = visit.request.POST
    selections = _load_selections(visit, posted.getlist("server"), posted)
    counts: dict[str, int | None] = {}
    try:
        with transaction.atomic():
            for selection in selections:
                counts[selection.server.name] = _save_selection(visit, selection)
    except Problem:
        return _render_tool_picker(visit, selections)
    for name, count in counts.items():
        text = _t("%(server)s was attached to %(agent)s with %(n)s definitions.")
        all_text = _t("%(server)s was attached to %(agent)s with all current and future tools.")
        values = {"agent": visit.object, "server": name, "n": format_number(count or 0)}
        messages.success(visit.request, (all_text if count is None else text) % values)
    return redirect_to_page(visit, "servers")


def _save_selection(visit: ObjectRequest, selection: ServerSelection) -> int | None:
    """Save one selection; a problem is stored on it and raised again."""
    try:
        return selection.save(visit)
    except Problem as problem:
        selection.problem = problem
        raise


def _load_selections(
    visit: ObjectRequest, ids: Iterable[str], posted: QueryDict | None = None
) -> list[ServerSelection]:
    """Return the selections of these servers.

    Raises `NotFound` for unavailable ones, `Conflict` for disabled ones that aren't attached.
    """
    agent: Agent = visit.object
    is_attached = Q(pk__in=agent.agent_servers.values("server"))
    is_available = Q(scope_id=agent.organization_id) | Q(scope_id=agent.pk)
    unique_ids = list(dict.fromkeys(ids))
    try:
        server_ids = [UUID(text) for text in unique_ids]
    except ValueError:
        raise _build_not_found(unique_ids) from None
    servers = Server.objects.for_organization(agent.organization_id).filter(
        is_available | is_attached, pk__in=server_ids
    )
    if not unique_ids or len(found_servers := list(servers)) != len(unique_ids):
        raise _build_not_found(unique_ids)
    attached_by_server = {
        row.server_id: row for row in agent.agent_servers.filter(server__in=found_servers)
    }
    for server in found_servers:
        if server.pk not in attached_by_server:
            require_attachable(server)
    definitions = Definition.objects.filter(
        server__in=found_servers, kind__in=ALL_KINDS, present=True
    )
    rows: dict[UUID, list[Definition]] = {}
    for row in definitions.order_by("name"):
        rows.setdefault(row.server_id, []).append(row)
    return [
        ServerSelection(server, attached_by_server.get(server.pk), rows.get(server.pk, []), posted)
        for server in found_servers
    ]


def _build_not_found(ids: list[str]) -> NotFound:
    listed_ids = ", ".join(repr(server_id[:40]) for server_id in ids) or "none"
    return NotFound(
        format_message("The server {shown} doesn't exist.", shown=listed_ids),
        field="server",
        remedy="Choose shared servers of the organization.",
    )


# -- Private servers: the same pages to add them, with the agent as the destination ----------------


def build_destination(agent: Agent) -> ServerDestination:
    def build_url(view_name: str, *args: Any) -> str:
        return reverse(f"admin:agents_agent_{view_name}", args=[agent.pk, *args])

    def build_next_url(server: Server) -> str:
        address = reverse("admin:mcp_servers_server_change", args=[server.pk])
        return f"{address}?connect=1" if server.enabled else address

    def attach_to_agent(principal: Principal, server: Server) -> None:
        attach_server(principal, agent, server)

    return ServerDestination(
        title=_t("Add a private server to %(agent)s") % {"agent": agent},
        required_action=Action.MANAGE_SERVERS,
        url=build_url,
        build_next_url=build_next_url,
        scope_id=agent.pk,
        on_created=attach_to_agent,
    )


def _get_destination(request: HttpRequest, object_id: UUID) -> tuple[Principal, ServerDestination]:
    principal = resolve_principal(request)
    agent = Agent.objects.visible_to(principal).get_or_404(principal.organization_id, pk=object_id)
    return principal, build_destination(agent)


def add_agent_server(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add a private server by form."""
    return add_by_form(request, *_get_destination(request, object_id))


def choose_agent_preset(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    return choose_preset(request, *_get_destination(request, object_id))


def fill_agent_preset(request: HttpRequest, object_id: UUID, slug: str) -> HttpResponseBase:
    return add_by_preset(request, *_get_destination(request, object_id), slug)


def import_agent_servers(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Paste JSON for private servers."""
    return import_servers(request, *_get_destination(request, object_id))


def show_added_agent_servers(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Connect and review private servers that were added."""
    return show_added_servers(request, *_get_destination(request, object_id))


def add_agent_api(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add a REST API as a private server."""
    return add_api(request, *_get_destination(request, object_id))


def add_agent_url(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add a private server by its URL."""
    return add_by_url(request, *_get_destination(request, object_id))


def add_agent_operations(request: HttpRequest, object_id: UUID) -> HttpResponseBase:
    """Add an API by manually declared operations, as a private server."""
    return add_declared_api(request, *_get_destination(request, object_id))


AgentAdmin.routes += (
    ("servers/add/", add_agent_server, "form"),
    ("servers/presets/", choose_agent_preset, "presets"),
    ("servers/presets/<slug:slug>/", fill_agent_preset, "preset"),
    ("servers/url/", add_agent_url, "url"),
    ("servers/paste/", import_agent_servers, "paste"),
    ("servers/added/", show_added_agent_servers, "added"),
    ("servers/openapi/", add_agent_api, "openapi"),
    ("servers/operations/", add_agent_operations, "operations"),
)
