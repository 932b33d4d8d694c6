"""`agents set`: the bounds of an agent, and how many tools its model is shown at once."""

import argparse

from agents.models import Agent
from agents.registration import AgentSpec, alter_agent
from bonobot.cli.group import Cli, Verb
from bonobot.lib.problems import Invalid
from bonobot.portability.documents import AGENT_LIMITS

_HELP = {
    "max_turns": "model turns per message",
    "max_calls": "calls per message",
    "max_run_s": "seconds of running per message",
    "calls_per_minute": "calls a minute, of all its sessions together",
    "tool_search_above": "with more tools of servers than this its model searches; 0: never",
}


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG")
    for name in AGENT_LIMITS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, type=int, metavar="N", help=_HELP[name])


def _set(cli: Cli, options: argparse.Namespace) -> None:
    agent = Agent.objects.named(cli.principal, options.slug)
    said = {name: getattr(options, name) for name in AGENT_LIMITS}
    said = {name: value for name, value in said.items() if value is not None}
    for name, value in said.items():
        if value < 0:
            raise Invalid(
                f"{value} is no number of {_HELP[name]}.",
                field=f"--{name.replace('_', '-')}",
                remedy="Give a whole number that is not below zero.",
            )
    if said:
        agent = alter_agent(cli.principal, agent, AgentSpec(name=agent.name, **said))
    now = {name: getattr(agent, name) for name in AGENT_LIMITS}
    cli.emit({"slug": agent.slug, **now})
    cli.say(", ".join(f"{name}: {value}" for name, value in now.items()))


SET = Verb(
    "set",
    "Show or change an agent's bounds, and how many tools its model is shown at once.",
    _set,
    _arguments,
    (
        "agents set helper",
        "agents set helper --tool-search-above 20",
        "agents set helper --max-turns 80",
    ),
)
