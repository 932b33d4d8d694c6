"""Move servers in and out: read what other clients write, and show what would come of it.

Reading touches no row and no network. What becomes of the entries is decided where they are added.
"""

from mcp_servers.import_export.entries import ImportEntry, ImportParameter
from mcp_servers.import_export.parse_servers import parse

__all__ = ["ImportEntry", "ImportParameter", "parse"]
