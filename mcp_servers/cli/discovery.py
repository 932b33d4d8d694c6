"""Discover several servers concurrently, and print review results."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bonobot.core.cli.command_group import CommandContext
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.types import Actor
from mcp_servers.definition_reviews import DefinitionReviewResult
from mcp_servers.discovery import DiscoveryResult, discover
from mcp_servers.models import Server

AT_ONCE = 8


@dataclass(frozen=True)
class DiscoveryOutcome:
    """The discovery result of one server, or the problem."""

    found: DiscoveryResult | None
    problem: Problem | None
    waiting: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation."""
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
        """Return a one-line summary."""
        if self.found is None:
            problem = self.problem
            return f"{problem.code}: {problem} {problem.remedy}".strip() if problem else ""
        waiting = f", {self.waiting} definitions wait" if self.waiting else ""
        return f"{len(self.found.tools)} tools in {self.found.latency_ms} ms{waiting}"


def discover_servers(cli: CommandContext, servers: Sequence[Server]) -> dict[str, DiscoveryOutcome]:
    """Discover the servers, `MAX_CONCURRENT_DISCOVERIES` at a time; return outcomes by name."""
    names = {server.pk: server.name for server in servers}
    if not names:
        return {}
    with cli.progress("Asking the servers", len(names)) as done:
        found = get_runtime().call(_discover_all, list(names), actor=cli.principal.actor, done=done)
    return {names[pk]: outcome for pk, outcome in found.items()}


async def _discover_all(
    ids: Sequence[UUID], *, actor: Actor, done: Callable[[], object]
) -> dict[UUID, DiscoveryOutcome]:
    room = asyncio.Semaphore(AT_ONCE)
    outcomes: dict[UUID, DiscoveryOutcome] = {}

    async def one(server_id: UUID) -> None:
        async with room:
            try:
                found = await discover(server_id, actor=actor)
                outcomes[server_id] = DiscoveryOutcome(found, None, found.waiting)
            except Problem as problem:
                outcomes[server_id] = DiscoveryOutcome(None, problem)
            done()

    async with asyncio.TaskGroup() as group:
        for server_id in ids:
            group.create_task(one(server_id))
    return {server_id: outcomes[server_id] for server_id in ids}


def show_review_result(cli: CommandContext, server: Server, done: DefinitionReviewResult) -> None:
    """Print the result of an approval and the findings that were left out."""
    skipped = f", {len(done.skipped)} skipped" if done.skipped or not done.held else ""
    cli.say(f"{len(done.approved)} approved{skipped}")
    if done.held:
        show_review_findings(cli, server)


def show_review_findings(cli: CommandContext, server: Server) -> None:
    """Print the findings of pending definitions: rule, location, suspicious text."""
    for row in server.definitions.waiting().exclude(findings=[]):
        named = row.name or "instructions"
        cli.say(f"! {make_visible(named, 120)} is held: its text reads like orders to a model.")
        for one in row.findings[:5]:
            cli.say(f"    {one['rule']} at {one['path']}: »{one['excerpt']}«")
        cli.say(f"  Read it, then approve it by name: bonobot mcp approve {server.slug} {named!r}")
