"""Definitions grouped by risk, the riskiest first, as lists and confirmations show them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext_lazy as _

from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import get_effective_labels
from mcp_servers.flow_labels.suggested_labels import LabelContext
from mcp_servers.flow_labels.tool_risk import (
    ToolRisk,
    find_tool_risk,
    is_declared_read_only,
)
from mcp_servers.models import Definition

# Risk, icon, tone and title of the groups of tools.
RISK_GROUPS = (
    (ToolRisk.DESTRUCTIVE, "delete", "bad", _("Destructive")),
    (ToolRisk.EXTERNAL, "north_east", "warn", _("External effect")),
    (ToolRisk.OTHER, "edit", "plain", _("Other")),
    (ToolRisk.READ_ONLY, "visibility", "good", _("Read-only")),
)
OTHER_GROUP = "definitions"
OTHER_HEADING = (OTHER_GROUP, "description", "plain", _("Resources and prompts"))


@dataclass(frozen=True)
class RiskGroup:
    """The names of the definitions with one risk.

    `external_names` are the destructive ones that have an external effect, too; `read_only_names`
    those with an external effect whose server says that they are read-only.
    """

    key: str
    icon: str
    tone: str
    title: Any
    names: list[str] = field(default_factory=list)
    external_names: list[str] = field(default_factory=list)
    read_only_names: list[str] = field(default_factory=list)

    @property
    def other_names(self) -> list[str]:
        """Return the names that aren't in `read_only_names`."""
        return [name for name in self.names if name not in self.read_only_names]


def find_risk_group(row: Definition, label_context: LabelContext) -> str:
    """Return the risk of a tool; other definitions have a group of their own."""
    if row.kind != Definition.Kind.TOOL:
        return OTHER_GROUP
    return find_tool_risk(get_effective_labels(row, label_context), row.payload)


def group_by_risk(rows: Iterable[Definition], label_context: LabelContext) -> list[RiskGroup]:
    """Return the groups that occur, with the names in the order of the rows."""
    headings: tuple[tuple[str, str, str, Any], ...] = (*RISK_GROUPS, OTHER_HEADING)
    groups = {key: RiskGroup(key, icon, tone, title) for key, icon, tone, title in headings}
    for row in rows:
        group, name = groups[find_risk_group(row, label_context)], make_visible(str(row), 120)
        group.names.append(name)
        labels = get_effective_labels(row, label_context)
        if group.key == ToolRisk.DESTRUCTIVE and FlowLabel.SENDS_OUT in labels:
            group.external_names.append(name)
        if group.key == ToolRisk.EXTERNAL and is_declared_read_only(row.payload):
            group.read_only_names.append(name)
    return [group for group in groups.values() if group.names]
