"""Scanning: what strangers' text hides. Lexical findings rank and refuse; they are no boundary."""

from mcp_servers.scanning.characters import Hidden, hidden
from mcp_servers.scanning.definitions import scan
from mcp_servers.scanning.findings import Finding
from mcp_servers.scanning.injected import injections
from mcp_servers.scanning.results import Cleaned, Inspected, clean_result, inspect_result

__all__ = [
    "Cleaned",
    "Finding",
    "Hidden",
    "Inspected",
    "clean_result",
    "hidden",
    "injections",
    "inspect_result",
    "scan",
]
