"""The risk of a tool, by which lists of tools are grouped."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any

from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.suggested_labels import deletes_by_name

RISK_HINTS = ("readOnlyHint", "destructiveHint")


class ToolRisk(StrEnum):
    """The groups of tools, the riskiest first."""

    DESTRUCTIVE = "destructive"
    EXTERNAL = "external"
    OTHER = "other"
    READ_ONLY = "read_only"


def find_tool_risk(labels: Collection[str], declaration: Mapping[str, Any]) -> ToolRisk:
    """Return the risk of a tool; `declaration` is its server's, with annotations of any form."""
    if is_destructive(declaration):
        return ToolRisk.DESTRUCTIVE
    # A server's word that a tool only reads doesn't rule out an external effect: its arguments
    # can leave the organization, as in the query of a search.
    if FlowLabel.SENDS_OUT in labels:
        return ToolRisk.EXTERNAL
    return ToolRisk.READ_ONLY if is_declared_read_only(declaration) else ToolRisk.OTHER


def is_destructive(declaration: Mapping[str, Any]) -> bool:
    """Return whether the server says that the tool is destructive, or else its name does.

    Without annotations, MCP takes every tool that writes for destructive, which says nothing.
    """
    hints = _get_hints(declaration)
    if hints.get("readOnlyHint") is True or isinstance(hints.get("destructiveHint"), bool):
        return hints.get("destructiveHint") is True
    return deletes_by_name(str(declaration.get("name") or ""))


def is_declared_read_only(declaration: Mapping[str, Any]) -> bool:
    """Return whether the server says that the tool only reads."""
    return _get_hints(declaration).get("readOnlyHint") is True


def list_declared_hints(declaration: Mapping[str, Any]) -> list[str]:
    """Return the annotations about risk that a tool's server set, of any form."""
    hints = _get_hints(declaration)
    return [name for name in RISK_HINTS if hints.get(name) is True]


def _get_hints(declaration: Mapping[str, Any]) -> Mapping[str, Any]:
    annotations = declaration.get("annotations")
    return annotations if isinstance(annotations, Mapping) else {}
