"""Discovery of several servers at the same time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.counts import format_count
from bonobot.ledger.types import Actor
from mcp_servers.discovery import DiscoveryResult, run_discovery
from mcp_servers.models import HealthCheck, Server

MAX_CONCURRENT_DISCOVERIES = 16


@dataclass(frozen=True)
class DiscoveryAttempt:
    """The discovery result of one server, or the problem.

    `waiting` is the number of definitions that are pending review.
    """

    server: Server
    result: DiscoveryResult | None = None
    problem: Problem | None = None
    waiting: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation."""
        if self.result is None:
            return {"status": "error"} | (self.problem.as_dict() if self.problem else {})
        return {
            "status": "connected",
            "tools": len(self.result.tools),
            "waiting": self.waiting,
            "refused": self.result.refused,
            "latency_ms": self.result.latency_ms,
        }

    def format_summary(self) -> str:
        if self.result is None:
            problem = self.problem
            return f"{problem.code}: {problem} {problem.remedy}".strip() if problem else ""
        tools = format_count(len(self.result.tools), "tool")
        review = f", {format_count(self.waiting, 'definition')} to review" if self.waiting else ""
        return f"{tools} in {self.result.latency_ms} ms{review}"


def discover_servers(
    servers: Sequence[Server],
    *,
    actor: Actor,
    kind: str = HealthCheck.Kind.DISCOVERY,
    on_attempt: Callable[[], object] = lambda: None,
) -> list[DiscoveryAttempt]:
    """Discover each server; a failure is recorded on that server only.

    `on_attempt` is called after each attempt.
    """
    if not servers:
        return []
    return get_runtime().call(_discover_all, servers, actor, kind, on_attempt)


async def _discover_all(
    servers: Sequence[Server], actor: Actor, kind: str, on_attempt: Callable[[], object]
) -> list[DiscoveryAttempt]:
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_DISCOVERIES)

    async def discover_one(server: Server) -> DiscoveryAttempt:
        async with semaphore:
            try:
                result = await run_discovery(server.pk, actor=actor, kind=kind)
                return DiscoveryAttempt(server, result=result, waiting=result.waiting)
            except Problem as problem:
                return DiscoveryAttempt(server, problem=problem)
            finally:
                on_attempt()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(discover_one(server)) for server in servers]
    return [task.result() for task in tasks]
