"""The admin of servers: importing registers models, pages and deeds."""

from mcp_servers.admin import (
    configuring,
    credentials,
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
    "credentials",
    "definitions",
    "history",
    "launchers",
    "operations",
    "overview",
    "presets",
    "servers",
    "signing_in",
]
