"""The admin of servers: importing registers models, pages and deeds."""

from mcp_servers.admin import (
    configuring,
    credentials,
    data_labels,
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
    "data_labels",
    "definitions",
    "history",
    "launchers",
    "operations",
    "overview",
    "presets",
    "servers",
    "signing_in",
]
