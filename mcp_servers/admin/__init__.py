"""The admin of servers: importing registers models, pages and deeds."""

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
