"""The commands `flow-labels` and `clear-flow-labels` of agents and tokens."""

import argparse

from agents.cli.agent_list import get_agent
from agents.flow_labels.services import (
    clear_agent_labels,
    clear_token_labels,
    list_agent_labels,
    list_token_labels,
)
from bonobot.accounts.models import Token
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb


def _show_agent_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    _show_labels(cli, agent.slug, list_agent_labels(agent))


def _clear_agent_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    clear_agent_labels(cli.principal, agent)
    _show_labels(cli, agent.slug, list_agent_labels(agent))


def _show_token_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    token = _get_token(cli, options.key)
    _show_labels(cli, token.name, list_token_labels(token))


def _clear_token_labels(cli: CommandContext, options: argparse.Namespace) -> None:
    token = _get_token(cli, options.key)
    clear_token_labels(cli.principal, token)
    _show_labels(cli, token.name, list_token_labels(token))


def _get_token(cli: CommandContext, key: str) -> Token:
    token: Token = Token.objects.get_or_404(cli.principal.organization_id, key=key)
    return token


def _show_labels(cli: CommandContext, name: str, labels: tuple[str, ...]) -> None:
    label_names = [str(label) for label in labels]
    cli.emit({"name": name, "flow_labels": label_names})
    cli.print_message(
        f"Flow labels of {name} from calls without a session: {', '.join(label_names) or 'none'}."
    )


_SLUG_ARGUMENT = (Argument("SLUG", "Slug of the agent"),)


_KEY_ARGUMENT = (Argument("KEY", "Public key of the token, as shown by `tokens list`"),)


HELD_HELP = "Show the flow labels of {} from calls without a session"
CLEAR_HELP = "Clear the flow labels of {} from calls without a session. Recorded in the audit log."
OF_AGENTS = (
    CommandVerb(
        "flow-labels",
        HELD_HELP.format("an agent"),
        _show_agent_labels,
        arguments=_SLUG_ARGUMENT,
        examples=("agents flow-labels demo",),
    ),
    CommandVerb(
        *(
            "clear-flow-labels",
            CLEAR_HELP.format("an agent and its tokens"),
            _clear_agent_labels,
            _SLUG_ARGUMENT,
        ),
        ("agents clear-flow-labels demo",),
    ),
)
OF_TOKENS = (
    CommandVerb(
        "flow-labels",
        HELD_HELP.format("a token"),
        _show_token_labels,
        arguments=_KEY_ARGUMENT,
        examples=("tokens flow-labels 1a2b3c4d5e6f",),
    ),
    CommandVerb(
        *(
            "clear-flow-labels",
            CLEAR_HELP.format("a token"),
            _clear_token_labels,
            _KEY_ARGUMENT,
        ),
        ("tokens clear-flow-labels 1a2b3c4d5e6f",),
    ),
)
