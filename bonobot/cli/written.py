"""What `bonobot skills`, `workflows` and triggers declare alike: names, owners, switches."""

import argparse


def declare_name(parser: argparse.ArgumentParser) -> None:
    """Declare which one is meant."""
    parser.add_argument("name", metavar="NAME")


def declare_given(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare which agents have it; read by `given_to`."""
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--agent", action="append", metavar="SLUG", help=what)
    given.add_argument("--no-agents", action="store_true", help="take it from all agents")


def given_to(options: argparse.Namespace) -> list[str] | tuple[()] | None:
    """Return the agents that are to have it; None where that stays as it is."""
    agents: list[str] | None = options.agent
    return () if options.no_agents else agents


def declare_switch(parser: argparse.ArgumentParser) -> None:
    """Declare whether it is switched on; without a word that stays as it is."""
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument("--on", dest="enabled", action="store_true", default=None)
    switch.add_argument("--off", dest="enabled", action="store_false")
