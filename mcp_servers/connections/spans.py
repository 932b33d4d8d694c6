"""Spans: what is traced of the requests to servers; never arguments or results."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from bonobot.lib import tracing
from mcp_servers.connections.endpoint import Endpoint


def upstream_span(
    endpoint: Endpoint, method: str, params: Mapping[str, Any]
) -> AbstractContextManager[object]:
    """Return the span of one request to a server."""
    if not tracing.is_on():
        return tracing.NOTHING
    name = params.get("name")
    return tracing.span(
        f"{method} {name}" if name else method,
        kind="client",
        mcp__method__name=method,
        gen_ai__tool__name=str(name or "") if method == "tools/call" else "",
        bonobot__server__name=endpoint.name,
        network__transport="pipe" if endpoint.transport == "stdio" else "tcp",
    )
