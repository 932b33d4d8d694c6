"""The tools tab of an agent: its servers, its tools, their settings, and explained decisions."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.db.models import BooleanField, ExpressionWrapper, Q
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.admin.attach_servers import (
    add_tool_counts,
    list_disabled_servers,
    list_unattached_servers,
)
from agents.admin.policies import add_policy_saved_message, search_tools
from agents.agent_tools.restore_policy import save_tools
from agents.agent_tools.services import list_settable_tools
from agents.agent_tools.settings import (
    MatrixChanges,
    Setting,
    ToolKey,
    apply_changes,
    find_inherited_rule,
    find_inherited_setting,
    find_overriding_rule,
    find_server_setting,
    find_stricter_rule,
    get_tool_key,
    list_changes,
    read_server_default,
    read_tool_setting,
)
from agents.call_activity import load_calls_by_server
from agents.calls.explain import build_missing_tool_error, explain_call
from agents.calls.parse_arguments import parse_arguments
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.models import Agent, AgentServer
from agents.policies.decisions import EffectivePolicy, PolicyDecision, decide_tool_call
from agents.policies.rules import Policy
from agents.services import (
    attach_server,
    detach_server,
    get_attached_server,
    set_attachment_enabled,
)
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page, render_fragment
from bonobot.accounts.admin_base.responses import add_deletion_message
from bonobot.accounts.roles import Action
from bonobot.core.db.object_version import VersionConflict
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound, Problem
from mcp_servers.flow_labels.label_icons import (
    ALL_MARKS,
    COLUMNS,
    LabelMark,
    list_label_marks,
)
from mcp_servers.flow_labels.label_reasons import LabelReason
from mcp_servers.models import Server

# Why a decision isn't the one of the setting, by code.
CAUSES: Mapping[str, Any] = {
    "kill_switch_enabled": _("Kill switch"),
    "agent_disabled": _("Agent disabled"),
    "server_disabled": _("Server disabled"),
    "not_attached": _("Disabled for this agent"),
    "not_approved": _("Not reviewed"),
    "definition_changed": _("Change not reviewed"),
    "definition_rejected": _("Rejected"),
    "tool_disabled": _("Disabled on the server"),
    "denied_by_organization": _("Organization policy"),
}
REVIEW_CODES = frozenset({"not_approved", "definition_changed"})
# With more tools, only those of the opened server are shown.
MAX_ROWS = 400
MAX_ATTACHABLE = 50
USAGE_PERIOD = timedelta(days=30)
POSITIONS = (
    (Setting.DENY, _("Deny"), "trust"),
    (Setting.ASK, _("Ask"), "warn"),
    (Setting.ALLOW, _("Allow"), "good"),
)
STATES = (
    ("allow", _("Allow"), "good"),
    ("ask", _("Ask"), "warn"),
    ("deny", _("Deny"), "trust"),
)
STAGE_TITLES: Mapping[str, Any] = {
    "resolve": _("Name"),
    "arguments": _("Arguments"),
    "switches": _("Kill switches"),
    "server": _("Server"),
    "attachment": _("Attachment"),
    "definition": _("Definition"),
    "attachment_lists": _("Selected tools"),
    "organization_rules": _("Organization policy"),
    "policy": _("Agent policy"),
    "approval": _("Approval"),
    "flow": _("Flow labels"),
    "rate": _("Rate limit"),
    "budgets": _("Budgets"),
}


@dataclass(frozen=True)
class DecisionCell:
    """The effective decision about a tool: `state` is allow, ask or deny.

    `cause` names what overrides the setting; `needs_review` if its definition must be reviewed;
    `is_unselected` if it isn't one of the server's tools that were selected for the agent.
    """

    name: str
    state: str
    cause: Any = ""
    by_mode: bool = False
    pattern: str = ""
    reason: str = ""
    needs_review: bool = False
    server_id: UUID | None = None
    own_name: str = ""
    conditional: bool = False
    is_unselected: bool = False


@dataclass(frozen=True)
class Override:
    """A rule that is stricter than a setting, which therefore has no effect."""

    effect: str
    pattern: str
    of_organization: bool


@dataclass(frozen=True)
class InheritedSource:
    """Where an inherited value comes from: a `rule`, the server's `default`, or the `mode`.

    `text` is the pattern of the rule, or the mode.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class MatrixRow:
    """A tool with its setting: `stored` as saved, `setting` with the unsaved change."""

    tool: SnapshotTool
    setting: Setting
    stored: Setting
    inherited: Setting
    source: InheritedSource
    cell: DecisionCell
    override: Override | None = None

    @property
    def field(self) -> str:
        return f"tool-{self.tool.name}"

    @property
    def marks(self) -> tuple[LabelMark, ...]:
        tool = self.tool
        source = LabelReason.PERSON if tool.has_set_labels else LabelReason.DEFAULT
        sources = dict.fromkeys(tool.labels, source)
        if tool.builtin:
            sources = dict.fromkeys(COLUMNS, LabelReason.BUILTIN)
        return list_label_marks(tool.labels, tool.declaration, sources)

    @property
    def label_keys(self) -> str:
        return " ".join(mark.key for mark in self.marks if mark.present)


@dataclass(frozen=True)
class MatrixGroup:
    """The tools of a server, or the built-in ones (without a server).

    `cells` are the decisions about all tools, `rows` those that are shown. `overridden` is the
    number of tools for which a rule of the organization is stricter than the server's default.
    """

    server_id: UUID | None
    setting: Setting
    stored: Setting
    inherited: Setting
    cells: tuple[DecisionCell, ...]
    rows: tuple[MatrixRow, ...]
    source: InheritedSource
    overridden: int = 0

    @property
    def field(self) -> str:
        """The name of the form field of its default."""
        return f"default-{self.server_id}"

    @property
    def key(self) -> str:
        """What identifies the group on the page."""
        return str(self.server_id or "builtin")

    @property
    def counts(self) -> dict[str, int]:
        return count_states(self.cells)


def count_states(cells: Iterable[DecisionCell]) -> dict[str, int]:
    counts = dict.fromkeys(("allow", "ask", "deny"), 0)
    for cell in cells:
        counts[cell.state] += 1
    return counts


def list_sorted_tools(snapshot: CallSnapshot) -> list[SnapshotTool]:
    """Return the tools of an agent by the names of their servers; built-in ones last."""
    return sorted(list_settable_tools(snapshot), key=_get_sort_key)


def build_groups(
    snapshot: CallSnapshot, changes: MatrixChanges, shown_tools: Sequence[SnapshotTool]
) -> tuple[MatrixGroup, ...]:
    """Return the groups with the decisions after unsaved changes; only `shown_tools` get rows."""
    stored = snapshot.effective_policy
    after = apply_changes(stored, changes) if changes else stored
    shown_names = {tool.name for tool in shown_tools}
    groups = {
        server_id: _build_group(server_id, tuple(tools), stored, after, shown_names)
        for server_id, tools in groupby(
            list_sorted_tools(snapshot), key=lambda tool: tool.facts.server_id
        )
    }
    for server_id in sorted(snapshot.servers.keys() - groups.keys(), key=str):
        groups[server_id] = _build_group(server_id, (), stored, after, shown_names)
    return tuple(groups.values())


def _build_group(
    server_id: UUID | None,
    tools: Sequence[SnapshotTool],
    stored: EffectivePolicy,
    after: EffectivePolicy,
    shown_names: set[str],
) -> MatrixGroup:
    cells = {
        tool.name: _build_cell(
            tool, after, tool.decision if after is stored else decide_tool_call(tool.facts, after)
        )
        for tool in tools
    }
    rows = (
        _build_row(tool, stored, after, cells[tool.name])
        for tool in tools
        if tool.name in shown_names
    )
    setting, stored_setting = (
        read_server_default(server_id, state.policy) if server_id else Setting.INHERIT
        for state in (after, stored)
    )
    return MatrixGroup(
        server_id,
        setting=setting,
        stored=stored_setting,
        inherited=find_server_setting(after.policy),
        cells=tuple(cells.values()),
        rows=tuple(rows),
        source=InheritedSource("mode", after.policy.mode),
        overridden=_count_overridden(tools, after, setting or find_server_setting(after.policy)),
    )


def _count_overridden(
    tools: Sequence[SnapshotTool], after: EffectivePolicy, default: Setting
) -> int:
    """Return for how many tools the organization is stricter than the default they inherit."""
    organization = replace(after, policy=Policy(after.policy.mode))
    return sum(
        find_stricter_rule(tool.facts, organization, default) is not None
        for tool in tools
        if organization.organization.rules
    )


def _find_override(tool: SnapshotTool, after: EffectivePolicy, setting: Setting) -> Override | None:
    rule = find_stricter_rule(tool.facts, after, setting)
    if rule is None:
        return None
    return Override(rule.effect, rule.pattern, of_organization=rule in after.organization.rules)


def _find_source(key: ToolKey, after: EffectivePolicy) -> InheritedSource:
    rule = find_inherited_rule(key, after.policy)
    if rule is None:
        return InheritedSource("mode", after.policy.mode)
    return InheritedSource("default" if rule.is_default else "rule", rule.pattern)


def _build_row(
    tool: SnapshotTool, stored: EffectivePolicy, after: EffectivePolicy, cell: DecisionCell
) -> MatrixRow:
    key = get_tool_key(tool.facts)
    setting, inherited = read_tool_setting(key, after), find_inherited_setting(key, after.policy)
    return MatrixRow(
        tool,
        setting=setting,
        stored=read_tool_setting(key, stored),
        inherited=inherited,
        source=_find_source(key, after),
        cell=cell,
        override=_find_override(tool, after, setting or inherited),
    )


def _build_cell(
    tool: SnapshotTool, after: EffectivePolicy, decision: PolicyDecision
) -> DecisionCell:
    key = get_tool_key(tool.facts)
    cause, pattern = _find_cause(key, decision, after)
    return DecisionCell(
        name=tool.name,
        state=decision.verdict,
        cause=cause,
        by_mode=decision.code == "denied_by_policy" and after.policy.mode == "none",
        pattern=pattern,
        reason=decision.reason,
        needs_review=decision.code in REVIEW_CODES,
        server_id=key.server_id,
        own_name=key.own_name,
        conditional=bool(tool.conditional),
        is_unselected=decision.code == "denied_by_attachment",
    )


def _find_cause(key: ToolKey, decision: PolicyDecision, after: EffectivePolicy) -> tuple[Any, str]:
    """Return what overrides the setting, as words or as a pattern."""
    if decision.rule.startswith("organization:"):
        return CAUSES.get(decision.code, CAUSES["denied_by_organization"]), ""
    if decision.code in CAUSES:
        return CAUSES[decision.code], ""
    if decision.code == "denied_by_policy" and after.policy.mode == "none":
        return _("Policy mode: none"), ""
    rule = find_overriding_rule(key, after.policy, decision.verdict)
    return "", rule.pattern if rule and decision.verdict != "allow" else ""


def _get_sort_key(tool: SnapshotTool) -> tuple[bool, str, str, str]:
    facts = tool.facts
    return facts.source == "builtin", facts.server_name.casefold(), str(facts.server_id), tool.name


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
def show_agent_tools(visit: ObjectRequest) -> HttpResponseBase:
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
    conflict = getattr(visit.request, "form_conflict", None)
    if conflict is not None:
        conflict.is_shown = True  # in the bar at the bottom
    tools = list_sorted_tools(snapshot)
    search_text = query.get("q", "").strip()
    found_tools = search_tools(tools, search_text)
    is_complete = len(found_tools) <= MAX_ROWS
    shown_tools = found_tools if is_complete else _list_opened_tools(tools, query.get("open", ""))
    groups = build_groups(snapshot, changes, shown_tools)
    return visit.render_tab(
        "agent_tools/page.html",
        agent=agent,
        generation=snapshot.generation,
        groups=_add_attached_servers(agent, snapshot, groups, opened=query.get("open", "")),
        counts=_list_counts(groups),
        has_unselected=any(cell.is_unselected for group in groups for cell in group.cells),
        total=len(tools),
        has_servers=bool(snapshot.servers),
        disabled_tool_count=sum(not tool.facts.granted for tool in snapshot.tools.values()),
        match_count=len(found_tools),
        q=search_text,
        is_complete=is_complete and not search_text,
        positions=POSITIONS,
        legend=ALL_MARKS,
        attachable=_list_attachable_servers(agent),
        disabled=list_disabled_servers(agent),
        running=agent.sessions.unfinished().count(),
        conflict=conflict,
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
    shown_tools = [tool for tool in list_sorted_tools(snapshot) if f"tool-{tool.name}" in posted]
    return render_fragment(
        visit.request,
        "agent_tools/preview.html",
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
    servers = list(list_unattached_servers(agent).filter(pk__in=_parse_ids(ids)))
    if len(servers) != len(ids):
        raise NotFound(
            "A selected server doesn't exist or is attached already.",
            field="server",
            remedy="Reload the page, and select again.",
        )
    with transaction.atomic():
        for server in servers:
            attach_server(visit.principal, agent, server)
    for server in servers:
        text = _t("%(server)s was attached to %(agent)s.")
        messages.success(visit.request, text % {"server": server.name, "agent": agent})
    return redirect_to_page(visit, "servers", f"?open={servers[0].pk}")


@AgentAdmin.add_page("server_states")
def show_server_states(visit: ObjectRequest) -> HttpResponseBase:
    agent: Agent = visit.object
    return render_fragment(
        visit.request,
        "agent_tools/server_states.html",
        agent_servers=agent.agent_servers.select_related("server"),
        running=agent.sessions.unfinished().count(),
    )


def build_attachment_path(attached_server_id: str) -> str:
    """Return the path of the page that shows an attached server: its agent's *Tools* tab."""
    attached = AgentServer.objects.get(pk=attached_server_id)
    path = reverse("admin:agents_agent_servers", args=[attached.agent_id])
    return f"{path}?open={attached.server_id}"


@AgentAdmin.add_object_action("detach_server", required_actions=Action.MANAGE_AGENTS)
def detach_agent_server(visit: ObjectRequest) -> HttpResponseBase:
    server = get_attached_server(visit.object, visit.request.POST.get("server", ""))
    deletion = detach_server(visit.principal, visit.object, server)
    text = _t("%(server)s was detached from %(agent)s.")
    values = {"agent": visit.object, "server": server.name}
    add_deletion_message(visit.request, text % values, deletion)
    return redirect_to_page(visit, "servers")


@AgentAdmin.add_object_action("toggle_server", required_actions=Action.MANAGE_AGENTS)
def set_agent_server_enabled(visit: ObjectRequest) -> HttpResponseBase:
    """Enable or disable a server for this agent only; effective on the next call."""
    server = get_attached_server(visit.object, visit.request.POST.get("server", ""))
    enabled = visit.request.POST.get("enabled") == "1"
    set_attachment_enabled(visit.principal, visit.object, server, enabled=enabled)
    enabled_text = _t("%(server)s is enabled for %(agent)s, starting with the next call.")
    disabled_text = _t("%(server)s is disabled for %(agent)s, starting with the next call.")
    values = {"agent": visit.object, "server": server.name}
    messages.success(visit.request, (enabled_text if enabled else disabled_text) % values)
    return redirect_to_page(visit, "servers")


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
            remedy=format_message("Use one of: {values}.", values="deny, ask, allow"),
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


def _list_attachable_servers(agent: Agent) -> list[Server]:
    """Return servers of the pool with their number of tools as `tool_total` (two queries).

    Those without known definitions are last.
    """
    is_unknown = ExpressionWrapper(Q(discovered_at=None), output_field=BooleanField())
    servers = list_unattached_servers(agent).enabled().alias(is_unknown=is_unknown)
    servers = servers.order_by("is_unknown", "name")
    return add_tool_counts(list(servers[:MAX_ATTACHABLE]))


@AgentAdmin.add_page("explain", required_actions=READERS, parent_tab="servers")
def show_explanation(visit: ObjectRequest) -> HttpResponseBase:
    """Explain what would be decided about a call; nothing is called."""
    agent: Agent = visit.object
    query = visit.request.GET
    name, arguments_text = query.get("tool", ""), query.get("arguments", "").strip()
    if not name:
        return redirect_to_page(visit, "servers")  # where each decision links here
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    tool = snapshot.find_tool(name)
    if tool is None:
        raise build_missing_tool_error(visit.principal, snapshot, name)
    problem: Problem | None = None
    arguments = None
    try:
        arguments = parse_arguments(arguments_text) if arguments_text else None
    except Problem as exc:
        problem = exc
    explanation = explain_call(visit.principal, snapshot, tool, arguments)
    for stage in explanation["stages"]:
        stage["title"] = STAGE_TITLES[stage["stage"]]
    return visit.render_tab(
        "agents/decision_explanation.html",
        agent=agent,
        tool=tool,
        explanation=explanation,
        arguments_text=arguments_text,
        schema=json.dumps(tool.input_schema, indent=2, ensure_ascii=False),
        problem=problem,
        status=problem.status if problem else 200,
    )
