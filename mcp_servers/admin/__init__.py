"""The admin of servers; importing it registers models, pages and actions."""

from mcp_servers.admin import (  # noqa: F401 - importing registers
    add_by_url,
    definitions,
    health,
    launchers,
    presets,
    server_configuration,
    server_credentials,
    server_details,
    servers,
    store_labels,
)
