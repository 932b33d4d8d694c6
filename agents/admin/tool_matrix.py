"""The matrix of an agent's tools: servers, tools and settings on one screen."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agent_servers import add_tool_counts
from agents.admin.agents import AgentAdmin
from agents.admin.policies import add_policy_saved_message, search_tools
from agents.call_activity import load_calls_by_server
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.models import Agent, AgentServer
from agents.policies.decisions import PolicyDecision
from agents.services import attach_server
from agents.tool_matrix.restore_policy import save_tools
from agents.tool_matrix.rows import (
    MatrixGroup,
    build_groups,
    count_states,
    list_matrix_tools,
)
from agents.tool_matrix.settings import MatrixChanges, Setting, ToolKey, get_tool_key, list_changes
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page, render_fragment
from bonobot.accounts.roles import Action
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound, Problem
from mcp_servers.flow_labels.label_icons import ALL_MARKS
from mcp_servers.models import Server

# With more tools, only those of the opened server are shown.
MAX_ROWS = 400
MAX_ATTACHABLE = 50
USAGE_PERIOD = timedelta(days=30)
POSITIONS = (
    (Setting.OFF, _("Off"), "plain"),
    (Setting.ASK, _("Ask"), "warn"),
    (Setting.ALLOW, _("Allow"), "good"),
)
STATES = (
    ("allow", _("Allow"), "good"),
    ("ask", _("Ask"), "warn"),
    ("off", _("Off"), "plain"),
    ("deny", _("Deny"), "trust"),
)


@dataclass(frozen=True)
class ServerGroup:
    """A group of the matrix with its attached server, if it has one, and the calls to it.

    `other_decisions` are the decisions about its resources, templates and prompts.
    """

    matrix: MatrixGroup
    attached: AgentServer | None
    calls: int
    other_decisions: Sequence[PolicyDecision]
    opened: bool

    @property
    def available(self) -> int:
        """Return how many of its resources and prompts can be used."""
        return sum(decision.allowed for decision in self.other_decisions)


@AgentAdmin.add_page("servers", _("Tools"), order=30)
def show_tool_matrix(visit: ObjectRequest) -> HttpResponseBase:
    """Show the tools of the agent with their settings, or save the settings."""
    agent: Agent = visit.object
    problem: Problem | None = None
    changes = MatrixChanges()
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    if visit.request.method == "POST":
        try:
            tools, defaults = _parse_settings(snapshot, visit.request.POST)
            changes = list_changes(snapshot.effective_policy, tools, defaults)
            signed = save_tools(visit.principal, agent, tools, defaults)
        except VersionConflict as exc:
            problem = exc
            snapshot = get_snapshot_cache().load_current("agent", agent.pk)
        except Problem as exc:
            problem = exc
        else:
            add_policy_saved_message(visit.request, agent, signed)
            query = visit.request.GET.urlencode()
            return redirect_to_page(visit, "servers", f"?{query}" if query else "")
    return _render_matrix(visit, snapshot, changes, problem)


def _render_matrix(
    visit: ObjectRequest, snapshot: CallSnapshot, changes: MatrixChanges, problem: Problem | None
) -> HttpResponseBase:
    agent: Agent = visit.object
    query = visit.request.GET
    tools = list_matrix_tools(snapshot)
    search_text = query.get("q", "").strip()
    found_tools = search_tools(tools, search_text)
    is_complete = len(found_tools) <= MAX_ROWS
    shown_tools = found_tools if is_complete else _list_opened_tools(tools, query.get("open", ""))
    groups = build_groups(snapshot, changes, shown_tools)
    return visit.render_tab(
        "agents/tool_matrix.html",
        agent=agent,
        groups=_add_attached_servers(agent, snapshot, groups, opened=query.get("open", "")),
        counts=_list_counts(groups),
        total=len(tools),
        has_servers=bool(snapshot.servers),
        disabled=sum(not tool.facts.granted for tool in snapshot.tools.values()),
        match_count=len(found_tools),
        q=search_text,
        is_complete=is_complete and not search_text,
        positions=POSITIONS,
        legend=ALL_MARKS,
        attachable=_list_attachable_servers(agent),
        running=agent.sessions.unfinished().count(),
        conflict=getattr(visit.request, "form_conflict", None),
        problem=None if isinstance(problem, VersionConflict) else problem,
        unsaved=bool(changes) or problem is not None,
        may_manage=visit.principal.may(Action.MANAGE_AGENTS),
        status=problem.status if problem else 200,
    )


@AgentAdmin.add_object_action("tools_preview", required_actions=Action.MANAGE_AGENTS)
def show_matrix_preview(visit: ObjectRequest) -> HttpResponseBase:
    """Return the decisions after the unsaved changes."""
    snapshot = get_snapshot_cache().load_current("agent", visit.object.pk)
    tools, defaults = _parse_settings(snapshot, visit.request.POST)
    changes = list_changes(snapshot.effective_policy, tools, defaults)
    posted = visit.request.POST
    shown_tools = [tool for tool in list_matrix_tools(snapshot) if f"tool-{tool.name}" in posted]
    return render_fragment(
        visit.request,
        "agents/tool_matrix_preview.html",
        agent=visit.object,
        groups=build_groups(snapshot, changes, shown_tools),
    )


@AgentAdmin.add_object_action("attach_selected", required_actions=Action.MANAGE_AGENTS)
def attach_selected_servers(visit: ObjectRequest) -> HttpResponseBase:
    """Attach servers with all their tools; what may be called is set in the matrix."""
    agent: Agent = visit.object
    ids = list(dict.fromkeys(visit.request.POST.getlist("server")))
    if not ids:
        raise InvalidInput("Nothing is selected.", field="server", remedy="Select a server.")
    servers = list(_filter_attachable(agent).filter(pk__in=_parse_ids(ids)))
    if len(servers) != len(ids):
        raise NotFound(
            "A selected server doesn't exist, or it is attached already.",
            field="server",
            remedy="Reload the page, and select again.",
        )
    for server in servers:
        attach_server(visit.principal, agent, server)
        text = _t("%(server)s was attached to %(agent)s.")
        messages.success(visit.request, text % {"server": server.name, "agent": agent})
    return redirect_to_page(visit, "servers", f"?open={servers[0].pk}")


def _parse_ids(ids: Iterable[str]) -> list[UUID]:
    try:
        return [UUID(text) for text in ids]
    except ValueError:
        raise InvalidInput("This isn't a server ID.", field="server") from None


def _parse_settings(
    snapshot: CallSnapshot, posted: Mapping[str, Any]
) -> tuple[dict[ToolKey, Setting], dict[UUID, Setting]]:
    """Return the posted settings of tools and servers; raises `InvalidInput`."""
    tools = {
        get_tool_key(tool.facts): _parse_setting(posted, f"tool-{tool.name}")
        for tool in snapshot.tools.values()
        if f"tool-{tool.name}" in posted
    }
    defaults = {
        server_id: _parse_setting(posted, f"default-{server_id}")
        for server_id in snapshot.servers
        if f"default-{server_id}" in posted
    }
    return tools, defaults


def _parse_setting(posted: Mapping[str, Any], field: str) -> Setting:
    try:
        return Setting(posted[field])
    except ValueError:
        raise InvalidInput(
            format_message("The setting {value!r} doesn't exist.", value=posted[field][:40]),
            field=field,
            remedy=format_message("Use one of: {values}.", values="off, ask, allow"),
        ) from None


def _list_opened_tools(tools: Sequence[SnapshotTool], opened_key: str) -> list[SnapshotTool]:
    opened = [tool for tool in tools if str(tool.facts.server_id or "builtin") == opened_key]
    return opened[:MAX_ROWS]


def _add_attached_servers(
    agent: Agent, snapshot: CallSnapshot, groups: Iterable[MatrixGroup], *, opened: str
) -> list[ServerGroup]:
    """Return the groups with their servers and calls (a fixed number of queries)."""
    attached_servers: dict[UUID | None, AgentServer] = {
        row.server_id: row for row in agent.agent_servers.select_related("server__preset")
    }
    calls_by_server = load_calls_by_server(agent, USAGE_PERIOD)
    other_decisions: dict[UUID | None, list[PolicyDecision]] = {}
    for definition in snapshot.list_definitions("resource", "resource_template", "skill", "prompt"):
        if definition.facts.state != "gone":
            other_decisions.setdefault(definition.facts.server_id, []).append(definition.decision)
    return [
        ServerGroup(
            group,
            attached_servers.get(group.server_id),
            calls_by_server.get(group.server_id, 0),
            other_decisions.get(group.server_id, ()),
            opened=bool(group.rows) or group.key == opened,
        )
        for group in groups
    ]


def _list_counts(groups: Iterable[MatrixGroup]) -> list[tuple[str, Any, int]]:
    """Return the decisions with their titles and the number of tools."""
    counts = count_states(cell for group in groups for cell in group.cells)
    return [(state, title, counts[state]) for state, title, _tone in STATES]


def _filter_attachable(agent: Agent) -> QuerySet[Server]:
    pool = Server.objects.for_organization(agent.organization_id).in_organization_pool()
    servers: QuerySet[Server] = pool.exclude(pk__in=agent.agent_servers.values("server"))
    return servers


def _list_attachable_servers(agent: Agent) -> list[Server]:
    """Return servers of the pool with their number of tools as `tool_total` (two queries)."""
    return add_tool_counts(list(_filter_attachable(agent).order_by("name")[:MAX_ATTACHABLE]))
