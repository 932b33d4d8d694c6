"""Discover several servers concurrently, and print review results."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bonobot.core.cli.command_group import CommandContext
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.counts import format_count
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.types import Actor
from mcp_servers.definition_reviews import DefinitionReviewResult
from mcp_servers.discovery import DiscoveryResult, run_discovery
from mcp_servers.models import Server

MAX_CONCURRENT_DISCOVERIES = 8


@dataclass(frozen=True)
class DiscoveryOutcome:
    """The discovery result of one server, or the problem."""

    result: DiscoveryResult | None
    problem: Problem | None
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
        """Return a one-line summary."""
        if self.result is None:
            problem = self.problem
            return f"{problem.code}: {problem} {problem.remedy}".strip() if problem else ""
        tools = format_count(len(self.result.tools), "tool")
        review = f", {format_count(self.waiting, 'definition')} to review" if self.waiting else ""
        return f"{tools} in {self.result.latency_ms} ms{review}"


def discover_servers(cli: CommandContext, servers: Sequence[Server]) -> dict[str, DiscoveryOutcome]:
    """Discover the servers, `MAX_CONCURRENT_DISCOVERIES` at a time; return outcomes by name."""
    names = {server.pk: server.name for server in servers}
    if not names:
        return {}
    with cli.show_progress("Discovering servers", len(names)) as advance:
        outcomes = get_runtime().call(
            _discover_all, list(names), actor=cli.principal.actor, done=advance
        )
    return {names[pk]: outcome for pk, outcome in outcomes.items()}


async def _discover_all(
    ids: Sequence[UUID], *, actor: Actor, done: Callable[[], object]
) -> dict[UUID, DiscoveryOutcome]:
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_DISCOVERIES)
    outcomes: dict[UUID, DiscoveryOutcome] = {}

    async def discover_one(server_id: UUID) -> None:
        async with semaphore:
            try:
                result = await run_discovery(server_id, actor=actor)
                outcomes[server_id] = DiscoveryOutcome(result, None, result.waiting)
            except Problem as problem:
                outcomes[server_id] = DiscoveryOutcome(None, problem)
            done()

    async with asyncio.TaskGroup() as group:
        for server_id in ids:
            group.create_task(discover_one(server_id))
    return {server_id: outcomes[server_id] for server_id in ids}


def show_review_result(cli: CommandContext, server: Server, result: DefinitionReviewResult) -> None:
    """Print the result of an approval and the findings that were left out."""
    skipped_text = f", {len(result.skipped)} skipped" if result.skipped or not result.held else ""
    cli.print_message(f"{len(result.approved)} approved{skipped_text}")
    if result.held:
        show_review_findings(cli, server)


def show_review_findings(cli: CommandContext, server: Server) -> None:
    """Print the findings of pending definitions: rule, location, suspicious text."""
    for row in server.definitions.awaiting_review().exclude(findings=[]):
        name = row.name or "instructions"
        cli.print_message(
            f"! {make_visible(name, 120)} needs review: it may contain instructions to a model."
        )
        for finding in row.findings[:5]:
            cli.print_message(f"    {finding['rule']} at {finding['path']}: »{finding['excerpt']}«")
        cli.print_message(
            f"  To approve it after a review: bonobot mcp approve {server.slug} {name!r}"
        )
