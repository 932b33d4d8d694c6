"""Discover several servers concurrently, and print review results."""

from collections.abc import Sequence

from bonobot.core.cli.command_group import CommandContext
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers import discovery
from mcp_servers.definition_reviews import DefinitionReviewResult
from mcp_servers.discovery import DiscoveryAttempt
from mcp_servers.models import Server


def discover_with_progress(
    cli: CommandContext, servers: Sequence[Server]
) -> dict[str, DiscoveryAttempt]:
    """Discover the servers concurrently, with a progress bar; return the attempts by name."""
    if not servers:
        return {}
    with cli.show_progress("Discovering servers", len(servers)) as advance:
        attempts = discovery.discover_servers(
            servers, actor=cli.principal.actor, on_attempt=advance
        )
    return {attempt.server.name: attempt for attempt in attempts}


def show_review_result(cli: CommandContext, server: Server, result: DefinitionReviewResult) -> None:
    """Print the result of an approval and the findings that were left out."""
    skipped_text = (
        f", {len(result.skipped)} skipped" if result.skipped or not result.needs_review else ""
    )
    cli.print_message(f"{len(result.approved)} approved{skipped_text}")
    if result.needs_review:
        show_review_findings(cli, server)


def show_review_findings(cli: CommandContext, server: Server) -> None:
    """Print the findings of pending definitions: rule, location, suspicious text."""
    for row in server.definitions.awaiting_review().exclude(findings=[]):
        name = row.name or "instructions"
        cli.print_message(
            f"! {make_visible(name, 120)} needs review: it may contain instructions to a model."
        )
        for finding in row.findings[:5]:
            cli.print_message(f"    {finding['rule']} at {finding['path']}: “{finding['excerpt']}”")
        cli.print_message(
            f"  To approve it after a review: bonobot mcp approve {server.slug} {name!r}"
        )
