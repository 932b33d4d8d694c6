"""The admin of servers; importing it registers models, pages and actions."""

from mcp_servers.admin import (
    data_labels,
    definitions,
    health,
    launchers,
    presets,
    server_details,
    servers,
)

__all__ = [
    "data_labels",
    "definitions",
    "health",
    "launchers",
    "presets",
    "server_details",
    "servers",
]
