"""Subscriptions to resources on the connections that a holder's calls use."""

from mcp_servers.client.change_notifications import SUBSCRIBE
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.pool import HeldConnection, get_connection_pool

__all__ = ["HeldConnection", "find_connection", "subscribe_to_resource"]

SUBSCRIBE_TIMEOUT_S = 10.0


def find_connection(endpoint: ServerEndpoint, holder: str) -> HeldConnection | None:
    """Return the holder's open connection to a server of the handshake era or a child."""
    return get_connection_pool().find_connection(endpoint, holder)


async def subscribe_to_resource(
    endpoint: ServerEndpoint, holder: str, uri: str
) -> HeldConnection | None:
    """Subscribe the holder's connection to a resource, and return it; raises `UpstreamError`."""
    await get_connection_pool().send_request(
        endpoint, SUBSCRIBE, {"uri": uri}, holder=holder, timeout_s=SUBSCRIBE_TIMEOUT_S
    )
    return find_connection(endpoint, holder)
