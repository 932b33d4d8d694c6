"""OpenTelemetry of requests to servers; used only while it is on."""

from contextlib import AbstractContextManager
from urllib.parse import urlsplit

from bonobot.core.telemetry.mcp_operations import McpOperation, observe_operation
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.protocol_versions import MODERN_VERSION

DEFAULT_PORTS = {"http": 80, "https": 443}


def observe_upstream_request(
    endpoint: ServerEndpoint, method: str
) -> AbstractContextManager[McpOperation | None]:
    """Return the span and the measurement of one request to a server."""
    attributes: dict[str, object] = {
        "mcp.protocol.version": MODERN_VERSION if endpoint.era == "modern" else "",
        "network.transport": "pipe",
    }
    if endpoint.transport != "stdio":
        address = urlsplit(endpoint.url)
        attributes |= {
            "network.transport": "tcp",
            "network.protocol.name": "http",
            "server.address": address.hostname,
            "server.port": address.port or DEFAULT_PORTS.get(address.scheme),
        }
    span_attributes = {"bonobot__server__name": endpoint.name}
    return observe_operation("client", method, attributes, span_attributes=span_attributes)
