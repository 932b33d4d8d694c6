"""Import and export servers in the configuration formats of MCP clients.

Parsing uses neither the database nor the network.
"""

from mcp_servers.import_export.entries import ImportEntry
from mcp_servers.import_export.fill_placeholders import ImportParameter
from mcp_servers.import_export.parse_servers import is_registry_text, parse_import

__all__ = ["ImportEntry", "ImportParameter", "is_registry_text", "parse_import"]
