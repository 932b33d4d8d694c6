"""`bonobot mcp serve`: Bonobot as an MCP server over standard input and output."""

import argparse
import os

from bonobot.cli.group import Cli, Verb
from bonobot.lib.problems import Invalid
from bonobot.lib.runtime import runtime

TOKEN = "BONOBOT_TOKEN"  # noqa: S105 - the variable's name


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stdio", action="store_true", help="over standard input and output")
    parser.add_argument(
        "--check", action="store_true", help="say what a client would find there, and end"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--agent", metavar="SLUG", help="this agent's tools, resources and prompts")
    place.add_argument("--server", metavar="SLUG", help="one server under its own names")


def _serve(cli: Cli, options: argparse.Namespace) -> None:
    if not options.stdio and not options.check:
        raise Invalid(
            "Over HTTP the web process serves MCP, at /mcp.",
            field="--stdio",
            remedy="Add --stdio, or start Bonobot: `bonobot up`.",
        )
    token = os.environ.get(TOKEN, "")
    if not token:
        raise Invalid(
            f"The variable `{TOKEN}` is not set.",
            field=TOKEN,
            remedy="Put a token into it: `bonobot tokens create NAME --role ROLE`.",
        )
    # The SDK's server takes a second to load, which no other verb has to wait for.
    from bonobot.gateway import stdio
    from bonobot.gateway.places import Address

    address = Address("organization")
    if options.agent:
        address = Address("agent", options.agent)
    elif options.server:
        address = Address("server", options.server)
    if options.check:
        found = runtime().call(stdio.look, token, address)
        cli.emit(found)
        cli.say(", ".join(f"{count} {what}" for what, count in found.items()))
        return
    runtime().call(stdio.serve, token, address)


VERBS = (
    Verb(
        "serve",
        "Serve MCP to one client over standard input and output.",
        _serve,
        _arguments,
        (
            "mcp serve --stdio --agent helper      # BONOBOT_TOKEN=bnb_… in the environment",
            "mcp serve --stdio --server github",
            "mcp serve --check --agent helper",
        ),
    ),
)
