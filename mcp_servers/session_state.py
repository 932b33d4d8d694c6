"""Whether a server keeps state of its clients' sessions: its setting, or else its package."""

from mcp_servers.models import Server

# Packages that keep, for example, a browser or a train of thought for each client.
STATEFUL_PACKAGES = (
    *("@playwright/mcp", "chrome-devtools-mcp", "server-puppeteer", "browser-use"),
    *("server-sequential-thinking", "desktop-commander"),
)


def keeps_session_state(server: Server) -> bool:
    """Tell whether the clients of a server's process must not share it."""
    if server.session_state != Server.SessionState.AUTO:
        return bool(server.session_state == Server.SessionState.KEPT)
    words = (server.endpoint_config.get("command", ""), *server.endpoint_config.get("args", ()))
    return any(package in str(word) for word in words for package in STATEFUL_PACKAGES)
