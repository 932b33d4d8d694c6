"""The command `mcp serve`."""

import argparse
import os

from bonobot.core.cli.command_group import Alternatives, Argument, CommandContext, CommandVerb
from bonobot.core.problems import InvalidInput
from bonobot.core.runtime import get_runtime

BEARER_VARIABLE = "BONOBOT_TOKEN"


_SERVE_ARGUMENTS = (
    Argument("--stdio", "Use standard input and output"),
    Argument("--check", "Print what a client would find, then exit"),
    Alternatives(
        Argument("--agent SLUG", "Serve the tools, resources, and prompts of this agent"),
        Argument("--server SLUG", "Serve one server with its original names"),
    ),
)


def _serve(cli: CommandContext, options: argparse.Namespace) -> None:
    if not options.stdio and not options.check:
        raise InvalidInput(
            "No transport was specified. Over HTTP, the web process serves MCP at /mcp.",
            field="--stdio",
            remedy="Add --stdio, or start the web process: bonobot up",
        )
    token = os.environ.get(BEARER_VARIABLE, "")
    if not token:
        raise InvalidInput(
            f"The environment variable `{BEARER_VARIABLE}` isn't set.",
            field=BEARER_VARIABLE,
            remedy="Set it to a token. Create one: bonobot tokens create NAME --role ROLE",
        )
    # Imported late: the SDK's server takes a second to load.
    from agents.gateway import transports
    from agents.gateway.routes import GatewayAddress

    address = GatewayAddress("organization")
    if options.agent:
        address = GatewayAddress("agent", options.agent)
    elif options.server:
        address = GatewayAddress("server", options.server)
    if options.check:
        counts = get_runtime().call(transports.count_declarations, token, address)
        cli.emit(counts)
        cli.print_message(", ".join(f"{count} {kind}" for kind, count in counts.items()))
        return
    get_runtime().call(transports.serve_stdio, token, address)


VERBS = (
    CommandVerb(
        "serve",
        "Serve MCP to one client over standard input and output",
        _serve,
        arguments=_SERVE_ARGUMENTS,
        examples=(
            "mcp serve --stdio --agent helper      # BONOBOT_TOKEN=bnb_… in the environment",
            "mcp serve --stdio --server github",
            "mcp serve --check --agent helper",
        ),
    ),
)
