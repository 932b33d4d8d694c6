"""`bonobot agents may-ask`: which agents an agent may ask."""

import argparse

from agents.callees import callees_of, set_callees
from bonobot.cli.agents import find
from bonobot.cli.group import Cli, Verb


def _may_ask(cli: Cli, options: argparse.Namespace) -> None:
    agent = find(cli, options.slug)
    if options.others or options.none:
        set_callees(cli.principal, agent, () if options.none else options.others)
    found = callees_of(agent)
    cli.emit({"agent": agent.slug, "may_ask": found})
    cli.say(f"{agent.slug} may ask: {', '.join(found) or 'nobody'}")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    parser.add_argument("others", metavar="OTHER", nargs="*", help="slugs of all that it may ask")
    parser.add_argument("--none", action="store_true", help="let it ask nobody")


VERBS = (
    Verb(
        "may-ask",
        "Show or say which agents an agent may ask.",
        _may_ask,
        _arguments,
        ("agents may-ask demo", "agents may-ask demo researcher writer"),
    ),
)
