"""Sessions of the handshake era that wait for the next holder of the same owner.

A session is used by one holder at a time. When the holder releases it, it is kept for a while, and
another holder of the same owner takes it instead of performing a handshake. The key of an upstream
contains the server and the credentials, and an owner is one agent with one principal, so that a
session is never passed on to anyone else.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from mcp_servers.client.streamable_http import HttpSession

UpstreamKey = tuple[UUID, str]  # server and fingerprint


@dataclass(frozen=True)
class IdleSession:
    """A session that no holder uses since `since`; `holder` used it last."""

    upstream_key: UpstreamKey
    owner: str
    holder: str
    session: "HttpSession"
    since: float


class IdleSessions:
    """The idle sessions of a pool, at most `limit`, the oldest first."""

    def __init__(self, limit: int) -> None:
        """`limit` 0 keeps none."""
        self._limit = limit
        self._entries: list[IdleSession] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: IdleSession) -> list[IdleSession]:
        """Keep a session; return those that exceed the limit and must be ended."""
        self._entries.append(entry)
        excess = len(self._entries) - self._limit
        if excess <= 0:
            return []
        evicted, self._entries = self._entries[:excess], self._entries[excess:]
        return evicted

    def take(self, upstream_key: UpstreamKey, owner: str, holder: str) -> IdleSession | None:
        """Remove and return a session of the owner: the holder's own one, else the latest."""
        matching = [
            entry
            for entry in self._entries
            if (entry.upstream_key, entry.owner) == (upstream_key, owner)
        ]
        if not matching:
            return None
        own = [entry for entry in matching if entry.holder == holder]
        entry = (own or matching)[-1]
        self._entries.remove(entry)
        return entry

    def remove(self, is_removed: Callable[[IdleSession], bool]) -> list[IdleSession]:
        """Remove and return the sessions for which `is_removed` is true."""
        removed = [entry for entry in self._entries if is_removed(entry)]
        self._entries = [entry for entry in self._entries if entry not in removed]
        return removed
