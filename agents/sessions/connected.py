"""Servers that came or went while a session runs (FEATURES D3, D9). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from agents.governance.snapshots import Snapshot
from bonobot.lib.untrusted import visible

CONNECTED, DISCONNECTED = "server_connected", "server_disconnected"
# Each server's id with its name, as a step keeps them.
Servers = Mapping[str, str]


@dataclass(frozen=True)
class Turnover:
    """One server that came or went since the last turn."""

    code: str
    server_id: UUID
    text: str

    def as_payload(self) -> dict[str, str]:
        """Return the notice that people see."""
        return {"code": self.code, "text": self.text}


def connected(snapshot: Snapshot) -> dict[str, str]:
    """Return the servers that the agent has, switched on for it and at all."""
    return {
        str(server.id): visible(server.name, 120)
        for server in snapshot.servers.values()
        if server.enabled and (scope := snapshot.ruling.scopes.get(server.id)) and scope.enabled
    }


def turnover(before: Servers | None, now: Servers) -> list[Turnover]:
    """Return what came and what went, in a line each; nothing before the first turn."""
    if before is None:
        return []
    went = [
        Turnover(
            DISCONNECTED, UUID(key), f"The server {name} was disconnected: its tools are gone."
        )
        for key, name in sorted(before.items(), key=lambda item: item[1])
        if key not in now
    ]
    came = [
        Turnover(CONNECTED, UUID(key), f"The server {name} was connected: its tools are new.")
        for key, name in sorted(now.items(), key=lambda item: item[1])
        if key not in before
    ]
    return [*went, *came]
