"""Scan untrusted text for hidden characters and instructions; a filter, not a boundary."""

from mcp_servers.scanning.definitions import ScanFinding, scan_definition
from mcp_servers.scanning.hidden_text import HiddenRun, find_hidden_runs
from mcp_servers.scanning.prompt_injection import find_injections
from mcp_servers.scanning.tool_results import (
    CleanedText,
    InspectedText,
    clean_result,
    inspect_result,
)

__all__ = [
    "CleanedText",
    "HiddenRun",
    "InspectedText",
    "ScanFinding",
    "clean_result",
    "find_hidden_runs",
    "find_injections",
    "inspect_result",
    "scan_definition",
]
