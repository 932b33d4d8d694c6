"""The admin of servers: importing registers models, pages and deeds."""

from mcp_servers.admin import (
    configuring,
    definitions,
    history,
    launchers,
    operations,
    overview,
    presets,
    servers,
    signing_in,
)

__all__ = [
    "configuring",
    "definitions",
    "history",
    "launchers",
    "operations",
    "overview",
    "presets",
    "servers",
    "signing_in",
]
