"""The risk of a tool, by which lists of tools are grouped."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from mcp_servers.flow_labels import FlowLabel


class ToolRisk(StrEnum):
    """The groups of tools, the riskiest first."""

    DESTRUCTIVE = "destructive"
    EXTERNAL = "external"
    OTHER = "other"
    READ_ONLY = "read_only"


def find_tool_risk(labels: Collection[str], declaration: Mapping[str, Any]) -> ToolRisk:
    """Return the risk of a tool; `declaration` is its server's, with annotations of any form."""
    annotations = declaration.get("annotations")
    hints = annotations if isinstance(annotations, Mapping) else {}
    if hints.get("destructiveHint") is True:
        return ToolRisk.DESTRUCTIVE
    if FlowLabel.SENDS_OUT in labels:
        return ToolRisk.EXTERNAL
    return ToolRisk.READ_ONLY if hints.get("readOnlyHint") is True else ToolRisk.OTHER
