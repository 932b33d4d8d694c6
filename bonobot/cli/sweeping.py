"""Discover several servers at once, with a display of how far it is; one that hangs delays none."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bonobot.cli.group import Cli
from bonobot.ledger.actors import Actor
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers.discovery import Discovered, discover
from mcp_servers.models import Server

AT_ONCE = 8


@dataclass(frozen=True)
class Outcome:
    """What came of discovering one server."""

    found: Discovered | None
    problem: Problem | None
    waiting: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as programs read it."""
        if self.found is None:
            return {"status": "error"} | (self.problem.as_dict() if self.problem else {})
        return {
            "status": "connected",
            "tools": len(self.found.tools),
            "waiting": self.waiting,
            "refused": self.found.refused,
            "latency_ms": self.found.latency_ms,
        }

    def told(self) -> str:
        """Return it as people read it."""
        if self.found is None:
            problem = self.problem
            return f"{problem.code}: {problem} {problem.remedy}".strip() if problem else ""
        waiting = f", {self.waiting} definitions wait" if self.waiting else ""
        return f"{len(self.found.tools)} tools in {self.found.latency_ms} ms{waiting}"


def sweep(cli: Cli, servers: Sequence[Server]) -> dict[str, Outcome]:
    """Discover the servers, `AT_ONCE` at a time; return what came of each, by name."""
    names = {server.pk: server.name for server in servers}
    if not names:
        return {}
    with cli.progress("Asking the servers", len(names)) as done:
        found = runtime().call(_sweep, list(names), actor=cli.principal.actor, done=done)
    return {names[pk]: outcome for pk, outcome in found.items()}


async def _sweep(
    ids: Sequence[UUID], *, actor: Actor, done: Callable[[], object]
) -> dict[UUID, Outcome]:
    room = asyncio.Semaphore(AT_ONCE)
    outcomes: dict[UUID, Outcome] = {}

    async def one(server_id: UUID) -> None:
        async with room:
            try:
                found = await discover(server_id, actor=actor)
                outcomes[server_id] = Outcome(found, None, found.waiting)
            except Problem as problem:
                outcomes[server_id] = Outcome(None, problem)
            done()

    async with asyncio.TaskGroup() as group:
        for server_id in ids:
            group.create_task(one(server_id))
    return {server_id: outcomes[server_id] for server_id in ids}
