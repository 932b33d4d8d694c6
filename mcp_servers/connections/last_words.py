"""Last words: what the children of a server wrote to stderr, for people who look at it."""

from uuid import UUID

from mcp_servers.connections.pool import existing


def last_words(server_id: UUID) -> str:
    """Return the last 64 KiB of this process's latest child, masked; "" without one.

    Any thread may ask; nothing is connected for it.
    """
    tails = (connections.stderr_tail(server_id) for connections in existing())
    return next(filter(None, tails), "")
