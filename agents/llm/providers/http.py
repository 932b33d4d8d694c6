"""The HTTP client of every provider: it connects only where egress lets it."""

import httpx2

from agents.llm.endpoints import Endpoint
from bonobot.lib.egress import guarded_client

MAX_ANSWER = 16 * 1024 * 1024  # bytes; a streamed token costs some 250 on the wire
CONNECT_S = 30.0
# Requests to a model under way at once: each waits for seconds, and its session with it.
MAX_CONNECTIONS = 500


def client_for(endpoint: Endpoint) -> httpx2.AsyncClient:
    """Return a guarded client for an endpoint."""
    return guarded_client(
        allow_private=endpoint.allow_private,
        read_s=endpoint.timeout_s,
        max_body=MAX_ANSWER,
        max_connections=MAX_CONNECTIONS,
    )


def timeout_of(endpoint: Endpoint) -> httpx2.Timeout:
    """Return how long the parts of a request may take."""
    return httpx2.Timeout(endpoint.timeout_s, connect=min(CONNECT_S, endpoint.timeout_s))
