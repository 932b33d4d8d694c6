"""The admin of servers; importing it registers models, pages and actions."""

from mcp_servers.admin import definitions, health, launchers, presets, server_details, servers

__all__ = [
    "definitions",
    "health",
    "launchers",
    "presets",
    "server_details",
    "servers",
    "store_labels",
]
