"""Approvals on the command line: what they did, and what a person has to read first."""

from bonobot.cli.group import Cli
from bonobot.lib.untrusted import visible
from mcp_servers.approval import Approval
from mcp_servers.models import Server


def tell_approval(cli: Cli, server: Server, done: Approval) -> None:
    """Say what an approval did and, with the findings, what it left to be read."""
    skipped = f", {len(done.skipped)} skipped" if done.skipped or not done.held else ""
    cli.say(f"{len(done.approved)} approved{skipped}")
    if done.held:
        tell_held(cli, server)


def tell_held(cli: Cli, server: Server) -> None:
    """Show the findings of what waits: rule, place, the suspicious text between marks."""
    for row in server.definitions.waiting().exclude(findings=[]):
        named = row.name or "instructions"
        cli.say(f"! {visible(named, 120)} is held: its text reads like orders to a model.")
        for one in row.findings[:5]:
            cli.say(f"    {one['rule']} at {one['path']}: »{one['excerpt']}«")
        cli.say(f"  Read it, then approve it by name: bonobot mcp approve {server.slug} {named!r}")
