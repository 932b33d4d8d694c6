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
    if _has_hint(declaration, "destructiveHint"):
        return ToolRisk.DESTRUCTIVE
    # A server's word that a tool only reads doesn't rule out an external effect: its arguments
    # can leave the organization, as in the query of a search.
    if FlowLabel.SENDS_OUT in labels:
        return ToolRisk.EXTERNAL
    return ToolRisk.READ_ONLY if is_declared_read_only(declaration) else ToolRisk.OTHER


def is_declared_read_only(declaration: Mapping[str, Any]) -> bool:
    """Return whether the server says that the tool only reads."""
    return _has_hint(declaration, "readOnlyHint")


def _has_hint(declaration: Mapping[str, Any], name: str) -> bool:
    annotations = declaration.get("annotations")
    return isinstance(annotations, Mapping) and annotations.get(name) is True
