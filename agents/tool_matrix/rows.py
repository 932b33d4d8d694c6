"""The rows of an agent's matrix: its tools grouped by server, with settings and decisions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.policies.decisions import EffectivePolicy, PolicyDecision, decide_tool_call
from agents.policies.rules import Policy
from agents.tool_matrix.settings import (
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
    read_server_default,
    read_tool_setting,
)
from mcp_servers.flow_labels.label_icons import LabelMark, list_label_marks

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
SETTING_CODES = frozenset({"denied_by_policy", "denied_by_attachment"})


@dataclass(frozen=True)
class DecisionCell:
    """The effective decision about a tool: `state` is allow, ask, off or deny.

    `cause` names what overrides the setting; `needs_review` if its definition must be reviewed.
    """

    name: str
    state: str
    cause: Any = ""
    pattern: str = ""
    reason: str = ""
    needs_review: bool = False
    server_id: UUID | None = None
    own_name: str = ""
    conditional: bool = False


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
        return list_label_marks(self.tool.labels, self.tool.declaration)

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
    counts = dict.fromkeys(("allow", "ask", "off", "deny"), 0)
    for cell in cells:
        counts[cell.state] += 1
    return counts


def list_matrix_tools(snapshot: CallSnapshot) -> list[SnapshotTool]:
    """Return the tools of an agent that still exist, by server; built-in ones last.

    Without those of disabled toolsets, whose settings would have no effect.
    """
    tools = (
        tool
        for tool in snapshot.tools.values()
        if tool.facts.state != "gone" and tool.facts.granted
    )
    return sorted(tools, key=_get_sort_key)


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
            list_matrix_tools(snapshot), key=lambda tool: tool.facts.server_id
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
    # Without a setting of its own, a denial by the policy is what the tool inherits.
    is_off = decision.code in SETTING_CODES and read_tool_setting(key, after) in (
        Setting.OFF,
        Setting.INHERIT,
    )
    cause, pattern = _find_cause(key, decision, after)
    return DecisionCell(
        name=tool.name,
        state="off" if is_off else decision.verdict,
        cause=cause,
        pattern=pattern,
        reason=decision.reason,
        needs_review=decision.code in REVIEW_CODES,
        server_id=key.server_id,
        own_name=key.own_name,
        conditional=bool(tool.conditional),
    )


def _find_cause(key: ToolKey, decision: PolicyDecision, after: EffectivePolicy) -> tuple[Any, str]:
    """Return what overrides the setting, as words or as a pattern."""
    if decision.rule.startswith("organization:"):
        return CAUSES.get(decision.code, CAUSES["denied_by_organization"]), ""
    if decision.code in CAUSES:
        return CAUSES[decision.code], ""
    if decision.code == "denied_by_policy" and after.policy.mode == "none":
        return _("Policy mode: none"), ""
    if decision.code == "denied_by_attachment":
        return _("Not selected"), ""
    rule = find_overriding_rule(key, after.policy, decision.verdict)
    return "", rule.pattern if rule and decision.verdict != "allow" else ""


def _get_sort_key(tool: SnapshotTool) -> tuple[bool, str, str, str]:
    facts = tool.facts
    return facts.source == "builtin", facts.server_name.casefold(), str(facts.server_id), tool.name
