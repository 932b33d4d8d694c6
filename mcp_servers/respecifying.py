"""A stored server as somebody would write it again: what isn't said stays as it is."""

from typing import Any

from mcp_servers.configuration import ServerSpec, shown_endpoint
from mcp_servers.models import Server


def respecified(old: Server, **said: Any) -> ServerSpec:
    """Return the specification of a stored server with some members said anew; secrets stay."""
    kept = {
        "name": old.name,
        "transport_type": old.transport_type,
        "endpoint_config": shown_endpoint(old),
        "enabled": old.enabled,
        "description": old.description,
        "approval": old.approval,
        "allow_private": old.allow_private,
    }
    return ServerSpec(**{**kept, **said})
